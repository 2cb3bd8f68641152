import jax
import jax.numpy as jnp
import numpy as np
import pytest

import langevin as lv


@pytest.fixture(scope="module")
def gaussian():
    return lv.Density(lambda x: -0.5 * jnp.sum(x**2), init=jnp.zeros(1)).posterior()


def chain_variance(kernel, position, num_steps=40_000, num_chains=64):
    """The variance of the positions of many chains, after a burn-in."""

    def one(key):
        state = kernel.init(key, position, None)

        def body(state, step):
            state, _ = kernel.step(jax.random.fold_in(key, step), state, None)
            return state, state.position[0]

        return jax.lax.scan(body, state, jnp.arange(num_steps // 10))[1]

    draws = jax.jit(jax.vmap(one))(jax.random.split(jax.random.key(0), num_chains))
    return float(jnp.var(draws[:, 500:]))


def noisy(posterior, variance):
    """The exact gradient with noise of a known variance, from the position's own bits as a cheap source."""
    plain = lv.kernels.minibatch(posterior)

    def estimate(position, state, batch):
        value, gradient = plain.estimate(position, state, batch)
        bits = jax.lax.bitcast_convert_type(position[0], jnp.uint32)
        noise = jax.random.normal(jax.random.fold_in(jax.random.key(7), bits), position.shape)
        return value, gradient + jnp.sqrt(variance) * noise

    return plain._replace(estimate=estimate)


def test_positions_are_exact_for_a_gaussian_at_a_long_step(gaussian):
    """h = 1 is half of what is stable: an Euler scheme would be far off."""
    kernel = lv.kernels.sghmc(gaussian, 1.0, friction=1.0)
    assert chain_variance(kernel, jnp.zeros(1)) == pytest.approx(1.0, abs=0.02)


def test_known_gradient_noise_is_taken_off(gaussian):
    settings = {"friction": 2.0, "estimator": noisy(gaussian, 8.0)}
    plain = lv.kernels.sghmc(gaussian, 0.2, **settings)
    corrected = lv.kernels.sghmc(gaussian, 0.2, gradient_noise=8.0, **settings)
    # Without the correction the variance is 1 + h^2 V (1 + c) / (4 (1 - c)), up to order h^2.
    keep = np.exp(-0.4)
    expected = 1 + 0.04 * 8 * (1 + keep) / (4 * (1 - keep))
    assert chain_variance(plain, jnp.zeros(1)) == pytest.approx(expected, abs=0.04)
    assert chain_variance(corrected, jnp.zeros(1)) == pytest.approx(1.0, abs=0.03)


def test_thermostat_absorbs_unknown_gradient_noise():
    gaussian = lv.Density(lambda x: -0.5 * jnp.sum(x**2), init=jnp.zeros(20)).posterior()
    h, variance = 0.1, 10.0
    kernel = lv.kernels.sgnht(gaussian, h, friction=1.0, estimator=noisy(gaussian, variance))
    assert chain_variance(kernel, jnp.zeros(20)) == pytest.approx(1.0, abs=0.04)
    state = kernel.init(jax.random.key(0), jnp.zeros(20), None)

    def body(state, key):
        state, info = kernel.step(key, state, None)
        return state, info.thermostat

    thermostats = jax.lax.scan(body, state, jax.random.split(jax.random.key(1), 4000))[1]
    assert float(jnp.mean(thermostats[1000:])) == pytest.approx(1.0 + h * variance / 2, abs=0.1)
