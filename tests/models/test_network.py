"""`lv.Network` as a density: likelihoods and temperatures, each by hand in NumPy."""

import jax.numpy as jnp
import numpy as np
import pytest
from network_cases import (
    CLASSES,
    NUMBERS,
    PAIRS,
    X,
    categorical,
    drawn,
    forward,
    gaussian,
    gaussian_fixed,
    half_normal,
    log_density,
    mlp,
    target,
    weight_prior,
)
from numpyro import distributions as dist
from scipy import stats

import langevin as lv


def gaussian_by_row(output, y, position):
    return stats.norm.logpdf(y, output[:, 0], np.log1p(np.exp(output[:, 1])) + 1e-3).sum()


def gaussian_two(output, y, position):
    noise = np.exp(position["noise"])
    return half_normal(noise) + position["noise"] + stats.norm.logpdf(y, output, noise).sum()


def gaussian_two_noises(output, y, position):
    noise = np.exp(position["noise"])
    return (half_normal(noise) + position["noise"]).sum() + stats.norm.logpdf(y, output, noise).sum()


def student(output, y, position):
    noise, more = np.exp(position["noise"]), np.exp(position["df"])
    prior = half_normal(noise) + position["noise"] + stats.gamma.logpdf(more, 2, scale=10) + position["df"]
    return prior + stats.t.logpdf(y, 1 + more, output[:, 0], noise).sum()


def bernoulli(output, y, position):
    return stats.bernoulli.logpmf(y.astype(int), 1 / (1 + np.exp(-output[:, 0]))).sum()


def poisson(output, y, position):
    return stats.poisson.logpmf(y, np.exp(output[:, 0])).sum()


def gamma(output, y, position):
    return stats.gamma.logpdf(y, 2.0, scale=np.exp(-output[:, 0])).sum()


LIKELIHOODS = {
    "gaussian": ("gaussian", 1, NUMBERS, gaussian),
    "gaussian of a column": ("gaussian", 1, NUMBERS[:, None], lambda o, y, p: gaussian(o, y[:, 0], p)),
    "fixed noise": (lv.likelihoods.Gaussian(0.3), 1, NUMBERS, gaussian_fixed),
    "noise by row": (lv.likelihoods.Gaussian("output"), 2, NUMBERS, gaussian_by_row),
    "two numbers": ("gaussian", 2, PAIRS, gaussian_two),
    "two noises": (
        lv.likelihoods.Gaussian(dist.HalfNormal(jnp.ones(2)).to_event(1)),
        2,
        PAIRS,
        gaussian_two_noises,
    ),
    "student_t": ("student_t", 1, NUMBERS, student),
    "categorical": ("categorical", 3, CLASSES, categorical),
    "categorical of floats": ("categorical", 3, CLASSES.astype(np.float32), categorical),
    "bernoulli": ("bernoulli", 1, CLASSES > 1, bernoulli),
    "poisson": ("poisson", 1, CLASSES, poisson),
    "a function": (lambda output: dist.Gamma(2.0, jnp.exp(output[:, 0])), 1, np.exp(NUMBERS), gamma),
}


@pytest.mark.parametrize("name", LIKELIHOODS)
@pytest.mark.parametrize("minibatch", [False, True])
def test_log_density_by_hand(name, minibatch):
    likelihood, out_size, y, by_hand = LIKELIHOODS[name]
    network = lv.Network(mlp(out_size), likelihood)
    posterior = target(network, {"x": X, "y": y}, minibatch)
    position = drawn(posterior)
    prior, observed = weight_prior(network, position), by_hand(forward(position), y, position)
    assert log_density(posterior, position) == pytest.approx(prior + observed, rel=1e-4)
    if minibatch:
        rows = {"x": X[:4], "y": posterior.data["y"][:4]}
        by_row = np.asarray(posterior.log_likelihood(position, rows))
        assert by_row.shape == (4,)
        np.testing.assert_allclose(by_row, np.asarray(posterior.log_likelihood(position))[:4], rtol=1e-4, atol=1e-4)


def test_a_tempered_density_is_the_density_to_a_power():
    data = {"x": X, "y": NUMBERS}
    plain, cold = (target(lv.Network(mlp(), temperature=t), data) for t in (1.0, 0.25))
    position = drawn(plain)
    # The Jacobian of the noise is of the space, and has no temperature.
    jacobian = position["noise"]
    assert log_density(cold, position) == pytest.approx(
        4 * (log_density(plain, position) - jacobian) + jacobian, rel=1e-5
    )
