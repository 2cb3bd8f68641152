import jax
import jax.numpy as jnp
import numpy as np
import pytest

import langevin as lv
from langevin.kernels.base import standard_normal
from langevin.kernels.preconditioners import RMSpropState


@pytest.fixture(scope="module")
def posterior():
    """A Gaussian mean with a skewed prior, so that gradients change along the way."""
    density = lv.Density(
        lambda m: jnp.sum(2.0 * m - jnp.exp(m)), lambda m, rows: -0.5 * (rows["x"] - m[0]) ** 2, init=jnp.zeros(2)
    )
    return density.posterior({"x": np.linspace(-1, 2, 12)})


@pytest.mark.parametrize("accept", ["full", "minibatch"])
@pytest.mark.parametrize("seed", [1, 2, 3, 4])
def test_the_acceptance_probability_by_hand(posterior, accept, seed):
    size, key = 0.2, jax.random.key(seed)
    kernel = lv.kernels.sgld(posterior, size, accept=accept)
    start = np.array([0.6, 0.9])
    batch = {"x": posterior.data["x"][:3]}
    _, info = kernel.step(key, kernel.init(key, jnp.asarray(start), batch), batch)

    noise = np.asarray(standard_normal(jax.random.split(key, 3)[0], jnp.zeros(2)), np.float64)
    rows, few = np.asarray(posterior.data["x"], np.float64), np.asarray(batch["x"], np.float64)

    def log_density(m, x):
        return np.sum(2 * m - np.exp(m)) - 0.5 * len(rows) / len(x) * np.sum((x - m[0]) ** 2)

    def drift(m):
        return size / 2 * (2 - np.exp(m) + np.array([4 * np.sum(few - m[0]), 0.0]))

    def log_proposal(b, a):
        return -np.sum((b - a - drift(a)) ** 2) / (2 * size)

    end = start + drift(start) + np.sqrt(size) * noise
    on = rows if accept == "full" else few
    ratio = log_density(end, on) - log_density(start, on) + log_proposal(start, end) - log_proposal(end, start)
    assert float(info.acceptance_rate) == pytest.approx(min(1.0, np.exp(ratio)), rel=1e-3, abs=1e-6)


def test_rejected_proposals_stay(posterior):
    kernel = lv.kernels.sgld(posterior, 50.0, accept="full")
    state = kernel.init(jax.random.key(0), jnp.zeros(2), None)
    moved, info = kernel.step(jax.random.key(1), state, None)
    assert float(info.acceptance_rate) < 1e-6
    np.testing.assert_array_equal(moved.position, state.position)
    assert int(moved.step) == 1


def test_gamma_is_the_derivative_of_the_metric(posterior):
    """gamma_i = dG_ii / dx_i by finite differences; this Hessian is diagonal, so that one random probe is exact."""
    decay, damping, position = 0.9, 1e-3, np.array([0.4, -0.6])
    memory = RMSpropState(jnp.array([0.04, 0.02]))
    preconditioner = lv.kernels.rmsprop(posterior, decay, damping)
    gradient = jax.grad(posterior.log_density)

    def metric(x):
        g = np.asarray(gradient(jnp.asarray(x)), np.float64) / posterior.num_data
        return 1 / (damping + np.sqrt(decay * np.asarray(memory.mean_square) + (1 - decay) * g**2))

    _, found, gamma = preconditioner.update(
        jax.random.key(0), jnp.asarray(position), gradient(jnp.asarray(position)), None, memory
    )
    np.testing.assert_allclose(found.variance, metric(position), rtol=1e-4)
    for i in range(2):
        step = np.zeros(2)
        step[i] = 1e-2
        slope = (metric(position + step) - metric(position - step))[i] / 2e-2
        assert float(gamma[i]) == pytest.approx(slope, rel=0.03)


def test_noise_free_steps_are_gradient_steps(posterior):
    kernel = lv.kernels.sgld(posterior, 0.1, noise_free_steps=lambda step: step < 1)
    state = kernel.init(jax.random.key(0), jnp.zeros(2), None)
    expected = 0.05 * np.asarray(jax.grad(posterior.log_density)(jnp.zeros(2)))
    moved, _ = kernel.step(jax.random.key(1), state, None)
    np.testing.assert_allclose(moved.position, expected, rtol=1e-5)
    again, _ = kernel.step(jax.random.key(1), moved, None)
    quiet = np.asarray(moved.position) + 0.05 * np.asarray(jax.grad(posterior.log_density)(moved.position))
    assert np.abs(np.asarray(again.position) - quiet).max() > 1e-3
