"""The bound and its gradients, against formulas: pathwise, sticking the landing, score function."""

import jax
import jax.numpy as jnp
import numpy as np
import numpyro
import numpyro.distributions as dist
import pytest

import langevin as lv
from langevin.run.seeds import Seed
from langevin.variational.elbo import Sampled, Wiring, begin_baselines, surrogate

GENERATOR = np.random.default_rng(0)
X = GENERATOR.normal(size=(20, 2)) + np.array([1.0, 0.0])
DATA = {"x": X, "y": X @ [1.0, -0.5] + GENERATOR.normal(size=20)}
PRIOR = 2.0
POINT = {"mean": np.array([0.3, 0.1], np.float32), "log_scale": np.array([-0.5, 0.2], np.float32)}
FULL = POINT | {"below": np.array([[0.0, 0.0], [0.7, 0.0]], np.float32)}


def model(x, y):
    w = numpyro.sample("w", dist.Normal(0, PRIOR).expand([2]).to_event(1))
    with numpyro.plate("rows", x.shape[0]):
        numpyro.sample("y", dist.Normal(x @ w, 1.0), obs=y)


def exact_bound(parameters):
    """The ELBO of a Gaussian q on a linear regression, in closed form."""
    scale = jnp.exp(parameters["log_scale"])
    factor = jnp.diag(scale) @ (jnp.eye(2) + jnp.tril(parameters.get("below", jnp.zeros((2, 2))), -1))
    mean, covariance = parameters["mean"], factor @ factor.T
    x, y = jnp.asarray(DATA["x"], jnp.float32), jnp.asarray(DATA["y"], jnp.float32)
    log_likelihood = -0.5 * jnp.sum((y - x @ mean) ** 2) - 0.5 * jnp.trace(x @ covariance @ x.T)
    log_prior = -0.5 * (mean @ mean + jnp.trace(covariance)) / PRIOR**2 - 2 * jnp.log(PRIOR)
    constant = -0.5 * (len(y) + 2) * jnp.log(2 * jnp.pi)
    return log_likelihood + log_prior + constant + jnp.sum(parameters["log_scale"]) + 1 + jnp.log(2 * jnp.pi)


CASES = [
    (family, gradient, batch_size)
    for family in ("meanfield", "fullrank", "lowrank")
    for gradient in ("pathwise", "stl", "score")
    for batch_size in (None, 5)
]


@pytest.mark.parametrize(("family", "gradient", "batch_size"), CASES)
def test_estimates_are_unbiased(family, gradient, batch_size):
    """Within Monte Carlo error, with all rows and with a quarter of them: a forgotten N/B would be 4 times off."""
    parameters = {"meanfield": POINT, "fullrank": FULL}.get(family)
    method = lv.VI(family, gradient=gradient, num_particles=4, rank=1)
    found = lv.elbo_gradients(
        model, DATA, method, parameters=parameters, num_samples=4000, batch_size=batch_size, seed=1
    )
    if family == "lowrank":
        # No closed form is written down here: the pathwise estimate on all rows, checked above, is the reference.
        other = lv.elbo_gradients(
            model, DATA, lv.VI(family, num_particles=64, rank=1), parameters=found.parameters, num_samples=1000
        )
        bound, slope = other.elbo.mean(), other.mean
        slack = jax.tree.map(lambda v: 4 * np.sqrt(v / 1000), other.variance)
    else:
        bound, slope = jax.value_and_grad(exact_bound)(parameters)
        slack = jax.tree.map(lambda leaf: np.full(leaf.shape, 1e-3), slope)
    error = found.elbo.std() / np.sqrt(4000)
    assert abs(found.elbo.mean() - bound) < 4.5 * error + 0.05
    for name in slope:
        mask = np.tril(np.ones((2, 2)), -1) if name == "below" else np.ones(np.shape(slope[name]))
        errors = np.sqrt(found.variance[name] / 4000)
        assert np.all(np.abs(found.mean[name] - slope[name]) * mask < 4.5 * errors + slack[name] + 1e-3), name


def test_pathwise_has_the_smaller_variance():
    path, score = (
        lv.elbo_gradients(model, DATA, lv.VI(gradient=g, baseline=None), parameters=POINT)
        for g in ("pathwise", "score")
    )
    assert np.all(path.variance["mean"] * 5 < score.variance["mean"])


def test_sticking_the_landing_has_no_variance_at_the_optimum():
    precision = X.T @ X + np.eye(2) / PRIOR**2
    covariance = np.linalg.inv(precision)
    factor = np.linalg.cholesky(covariance)
    scale = np.diag(factor)
    parameters = {
        "mean": (covariance @ X.T @ DATA["y"]).astype(np.float32),
        "log_scale": np.log(scale).astype(np.float32),
        "below": np.tril(factor / scale[:, None], -1).astype(np.float32),
    }
    stl, path = (
        lv.elbo_gradients(model, DATA, lv.VI("fullrank", gradient=g), parameters=parameters)
        for g in ("stl", "pathwise")
    )
    assert stl.variance["mean"].max() < 1e-6
    assert path.variance["mean"].min() > 0.1


def noise_of_seed_7(num_samples, num_particles):
    return Seed.of(7).child("noise").generator().standard_normal((num_samples, num_particles, 2), np.float32)


def test_one_draw_by_hand():
    """The pathwise and the score-function gradient of a standard normal target, from formulas in NumPy."""
    density = lv.Density(lambda x: -jnp.sum(x**2) / 2, init=np.zeros(2, np.float32))
    for gradient in ("pathwise", "stl", "score"):
        method = lv.VI(gradient=gradient, baseline=None, rao_blackwell=False)
        found = lv.elbo_gradients(density, method=method, parameters=POINT, num_samples=3, seed=7)
        noise = noise_of_seed_7(3, 1)[:, 0]
        scale = np.exp(POINT["log_scale"])
        x = POINT["mean"] + scale * noise
        if gradient == "pathwise":
            by_mean, by_log_scale = -x, -x * scale * noise + 1
        elif gradient == "stl":
            slope = -x + noise / scale
            by_mean, by_log_scale = slope, slope * scale * noise
        else:
            log_q = (-(noise**2) / 2 - np.log(2 * np.pi) / 2 - POINT["log_scale"]).sum(axis=1)
            cost = (-(x**2).sum(axis=1) / 2 - log_q)[:, None]
            by_mean, by_log_scale = cost * noise / scale, cost * (noise**2 - 1)
        np.testing.assert_allclose(found.samples["mean"], by_mean, rtol=1e-4, atol=1e-5)
        np.testing.assert_allclose(found.samples["log_scale"], by_log_scale, rtol=1e-4, atol=1e-5)


def test_score_function_needs_no_gradient_of_the_model():
    """A log-density of steps: its derivative is zero almost everywhere."""
    density = lv.Density(lambda x: -jnp.floor(jnp.abs(x)) / 2, init=np.float32(0.0))
    point = {"mean": np.array([1.0], np.float32), "log_scale": np.array([0.0], np.float32)}
    found = lv.elbo_gradients(density, method=lv.VI(gradient="score"), parameters=point, num_samples=50_000)
    grid = np.linspace(-8, 10, 20_001)
    q = np.exp(-((grid - 1) ** 2) / 2) / np.sqrt(2 * np.pi)
    cost = -np.floor(np.abs(grid)) / 2
    exact = np.trapezoid(cost * (grid - 1) * q, grid)
    assert abs(found.mean["mean"][0] - exact) < 4 * np.sqrt(found.variance["mean"][0] / 50_000)
    pathwise = lv.elbo_gradients(density, method=lv.VI(), parameters=point, num_samples=100)
    assert pathwise.mean["mean"][0] == 0


@pytest.mark.parametrize("baseline", ["leave_one_out", None])
@pytest.mark.parametrize("rao_blackwell", [True, False])
def test_variance_reduction_does_not_bias(baseline, rao_blackwell):
    method = lv.VI(gradient="score", num_particles=8, baseline=baseline, rao_blackwell=rao_blackwell)
    found = lv.elbo_gradients(model, DATA, method, parameters=POINT, num_samples=4000)
    slope = jax.grad(exact_bound)(POINT)
    for name in POINT:
        assert np.all(np.abs(found.mean[name] - slope[name]) < 4.5 * np.sqrt(found.variance[name] / 4000) + 1e-3)


def test_importance_weighted_bound_is_tighter():
    """And with many particles it comes near the evidence, which is known."""
    covariance = X @ X.T * PRIOR**2 + np.eye(20)
    evidence = float(dist.MultivariateNormal(jnp.zeros(20), jnp.asarray(covariance)).log_prob(DATA["y"]))
    bounds = [
        lv.elbo_gradients(
            model, DATA, lv.VI(bound=bound, num_particles=count), parameters=POINT, num_samples=2000
        ).elbo.mean()
        for bound, count in (("elbo", 8), ("importance", 8), ("importance", 64))
    ]
    assert bounds[0] < bounds[1] < bounds[2] < evidence + 0.1
    assert evidence - bounds[2] < 0.4 * (evidence - bounds[0])


def test_importance_weighted_bound_by_hand():
    """The logarithm of the mean ratio, from the same noise in NumPy: no entropy stands in for log q."""
    density = lv.Density(lambda x: -jnp.sum((x - 1) ** 2) / 2, init=np.zeros(2, np.float32))
    method = lv.VI(bound="importance", num_particles=5)
    found = lv.elbo_gradients(density, method=method, parameters=POINT, num_samples=4, seed=7)
    noise = noise_of_seed_7(4, 5)
    x = POINT["mean"] + np.exp(POINT["log_scale"]) * noise
    log_q = (-(noise**2) / 2 - np.log(2 * np.pi) / 2 - POINT["log_scale"]).sum(axis=-1)
    log_ratios = -((x - 1) ** 2).sum(axis=-1) / 2 - log_q
    np.testing.assert_allclose(found.elbo, np.log(np.exp(log_ratios).mean(axis=-1)), rtol=1e-4, atol=1e-4)


def test_learned_baseline_follows_the_cost():
    """Each element's own where there are elements, else one for all; the first step has none."""
    costs = jnp.array([5.0, 1.0, 3.0])

    def sample(noise):
        return Sampled({"p": costs + 0 * noise}, {"z": 0 * noise}, jnp.zeros(()), {"z": noise})

    plates = {"p.p": {"rows": -1}, "q.z": {"rows": -1}}
    noises = jnp.arange(1.0, 7.0).reshape(2, 3)
    for elements, mean in (({"z": (3,)}, costs), ({"z": (1,)}, jnp.array([3.0])), ({}, jnp.array(3.0))):
        wiring = Wiring(("z",), {"z": (("p",), ("z",))}, plates, elements=elements)
        baselines = begin_baselines(wiring, jnp.float32)
        for taken_off in (0.0, mean):
            total, estimate = surrogate(sample, wiring, noises, 2, baselines, baseline="learned")
            # The bound is the sum of the costs; then comes (cost - baseline) * score, averaged over the particles.
            expected = 9.0 + jnp.mean(jnp.sum((costs - taken_off) * noises, axis=1))
            np.testing.assert_allclose(total, expected, rtol=1e-6)
            baselines = estimate.baselines
            np.testing.assert_allclose(baselines["z"].mean, mean, rtol=1e-6)


def test_divergence_in_closed_form_is_used():
    """With a prior alone, the gradient is exact: nothing is left to sample."""

    def only_prior():
        scale = 3.0
        numpyro.sample("w", dist.Normal(1.0, scale).expand([2]).to_event(1))

    found = lv.elbo_gradients(only_prior, None, lv.VI(), parameters=POINT, num_samples=50)
    assert found.variance["mean"].max() < 1e-10
    np.testing.assert_allclose(found.mean["mean"], (1.0 - POINT["mean"]) / 9, rtol=1e-4)
