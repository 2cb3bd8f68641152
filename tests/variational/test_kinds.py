"""Pathwise gradients of expectations, Proposition 1 of Blundell et al. (2015), for every distribution of the table.

    d/dp E_q[f(z)] = E_noise[f'(z) dz/dp]

against the derivative of the expectation, which is known or integrated.
"""

import jax
import jax.numpy as jnp
import numpy as np
import numpyro
import numpyro.distributions as dist
import pytest

import langevin as lv

COUNT = 40_000
# Kind, parameters, f, and the expectation of f as a function of the parameters.
CASES = {
    "exponential": (dist.Exponential, {"rate": 1.7}, lambda z: z**2, lambda rate: 2 / rate**2),
    "cauchy": (
        dist.Cauchy,
        {"loc": 0.4, "scale": 1.3},
        # f = cos: E cos(z) = exp(-scale) cos(loc).
        jnp.cos,
        lambda loc, scale: jnp.exp(-scale) * jnp.cos(loc),
    ),
    "laplace": (dist.Laplace, {"loc": 0.4, "scale": 1.3}, lambda z: z**2, lambda loc, scale: loc**2 + 2 * scale**2),
    "gaussian": (
        dist.Normal,
        {"loc": 0.4, "scale": 1.3},
        lambda z: z**3,
        lambda loc, scale: loc**3 + 3 * loc * scale**2,
    ),
    "lognormal": (
        dist.LogNormal,
        {"loc": 0.2, "scale": 0.5},
        lambda z: z,
        lambda loc, scale: jnp.exp(loc + scale**2 / 2),
    ),
    "inverse gamma": (
        dist.InverseGamma,
        {"concentration": 4.0, "rate": 2.0},
        jnp.log,
        lambda concentration, rate: jnp.log(rate) - jax.scipy.special.digamma(concentration),
    ),
    "gamma": (
        dist.Gamma,
        {"concentration": 2.5, "rate": 1.5},
        lambda z: z**2,
        lambda concentration, rate: concentration * (concentration + 1) / rate**2,
    ),
    "beta": (
        dist.Beta,
        {"concentration1": 2.0, "concentration0": 3.0},
        lambda z: z,
        lambda concentration1, concentration0: concentration1 / (concentration1 + concentration0),
    ),
    "student": (dist.StudentT, {"df": 6.0, "loc": 0.3, "scale": 1.2}, lambda z: z**2, None),
}


@pytest.mark.parametrize(("kind", "values", "f", "expectation"), CASES.values(), ids=CASES)
def test_gradient_passes_a_draw(kind, values, f, expectation):
    assert kind(**values).has_rsample

    def one(values, key):
        return f(kind(**values).sample(key))

    keys = jax.random.split(jax.random.key(0), COUNT)
    found = jax.jit(jax.vmap(jax.grad(one), in_axes=(None, 0)))(values, keys)
    if expectation is None:
        # E z^2 = loc^2 + scale^2 df / (df - 2).
        expectation = lambda df, loc, scale: loc**2 + scale**2 * df / (df - 2)  # noqa: E731
    exact = jax.grad(lambda values: expectation(**values))(values)
    for name, samples in found.items():
        error = float(jnp.std(samples)) / np.sqrt(COUNT)
        assert abs(float(jnp.mean(samples)) - float(exact[name])) < 4.5 * error + 1e-4, name


def test_full_covariance():
    """E z^T A z = trace(A L L^T) + m^T A m."""
    a = jnp.array([[1.0, 0.5], [0.5, 2.0]])

    def one(values, key):
        z = dist.MultivariateNormal(values["loc"], scale_tril=jnp.tril(values["factor"])).sample(key)
        return z @ a @ z

    values = {"loc": jnp.array([0.3, -0.2]), "factor": jnp.array([[1.0, 0.0], [0.4, 0.8]])}
    keys = jax.random.split(jax.random.key(0), COUNT)
    found = jax.jit(jax.vmap(jax.grad(one), in_axes=(None, 0)))(values, keys)
    exact = {"loc": 2 * a @ values["loc"], "factor": jnp.tril(2 * a @ values["factor"])}
    for name, samples in found.items():
        error = np.asarray(jnp.std(samples, axis=0)) / np.sqrt(COUNT)
        assert np.all(np.abs(samples.mean(axis=0) - exact[name]) < 4.5 * error + 1e-4)


CONJUGATE = {
    # A Poisson rate with a Gamma prior: the posterior is in the family.
    "gamma": (dist.Gamma, dist.Gamma(2.0, 1.0), dist.Gamma(2.0 + 27, 1.0 + 8)),
    # By another family, the mean must still come near.
    "lognormal": (dist.LogNormal, dist.Gamma(2.0, 1.0), dist.Gamma(2.0 + 27, 1.0 + 8)),
    "inverse gamma": (dist.InverseGamma, dist.Gamma(2.0, 1.0), dist.Gamma(2.0 + 27, 1.0 + 8)),
}


# An inverse gamma's tail is not that of a gamma.
@pytest.mark.filterwarnings("ignore:The approximation is far")
@pytest.mark.parametrize(("kind", "prior", "posterior"), CONJUGATE.values(), ids=CONJUGATE)
def test_distributions_by_site(kind, prior, posterior):
    y = np.array([3, 5, 2, 4, 1, 6, 2, 4])

    def model(y):
        rate = numpyro.sample("rate", prior)
        with numpyro.plate("rows", len(y)):
            numpyro.sample("y", dist.Poisson(rate), obs=y)

    fit = lv.fit(model, {"y": y}, lv.VI({"rate": kind}, num_particles=8), progress=False)
    draws = fit.posterior["rate"].values
    assert abs(draws.mean() / float(posterior.mean) - 1) < 0.02
    assert abs(draws.std() / float(posterior.variance) ** 0.5 - 1) < (0.05 if kind is dist.Gamma else 0.15)
    assert fit.verdict == () or kind is not dist.Gamma
    assert set(fit.guide.values) == {f"rate.{name}" for name in kind.arg_constraints}


def test_other_sites_are_mean_field():
    def model(y):
        m = numpyro.sample("m", dist.Normal(0, 10))
        s = numpyro.sample("s", dist.HalfNormal(5))
        with numpyro.plate("rows", len(y)):
            numpyro.sample("y", dist.Normal(m, s), obs=y)

    y = np.random.default_rng(0).normal(3, 2, 200)
    fit = lv.fit(model, {"y": y}, lv.VI({"s": dist.LogNormal}), batch_size=50, progress=False)
    assert abs(fit.posterior["m"].values.mean() - y.mean()) < 0.05
    assert abs(fit.posterior["m"].values.std() / (y.std() / 200**0.5) - 1) < 0.1
    assert abs(fit.posterior["s"].values.mean() - y.std()) < 0.06


def test_kinds_that_cannot_be_are_errors():
    def model(y):
        numpyro.sample("y", dist.Normal(numpyro.sample("m", dist.Normal(0, 1)), 1.0).expand(y.shape), obs=y)

    data = {"y": np.zeros(3)}
    for family, words in (
        ({"n": dist.Normal}, "no latent site 'n'; there are m"),
        ({"m": dist.LKJCholesky}, "arguments that are not parameters"),
        ({"m": dist.Normal(0, 1)}, "takes a kind of distribution"),
    ):
        with pytest.raises(lv.ModelError, match=words):
            lv.fit(model, data, lv.VI(family), progress=False)
