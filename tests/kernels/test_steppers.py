"""Each exact kernel leaves its target as it is, also at steps so long that without a correction it would not."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from machinery import banana, check_stationary, gaussian, metric_and_root

import langevin as lv

# A target, a kind of metric, and a step at which a good part of the proposals is rejected.
CASES = {"banana": (banana(), "unit", 0.6), "gaussian": (gaussian(3), "dense", 0.6)}
KERNELS = {
    "nuts": lambda p, eps, metric=None: lv.kernels.nuts(p, eps, metric, max_depth=5),
    "hmc": lv.kernels.hmc,
    "mala": lv.kernels.mala,
    "rwm": lv.kernels.rwm,
}


@pytest.mark.parametrize("case", CASES)
@pytest.mark.parametrize("name", KERNELS)
def test_draws_stay_draws(name, case):
    target, kind, step_size = CASES[case]
    metric = jax.tree.map(jnp.float32, metric_and_root(kind, 2 if case == "banana" else 3)[0])
    check_stationary(lambda p: KERNELS[name](p, step_size, metric), target)


@pytest.mark.parametrize("name", KERNELS)
def test_a_place_without_density_is_never_reached(name):
    """A half-normal by its bare density: -inf on one side, where nothing leads back."""
    posterior = lv.Density(lambda x: jnp.where(x > 0, -0.5 * x**2, -jnp.inf), init=1.0).posterior()
    kernel = KERNELS[name](posterior, 1.0)

    def draws(key):
        state = kernel.init(key, jnp.float32(1.0), None)
        step = lambda state, key: (kernel.step(key, state, None)[0],) * 2  # noqa: E731
        return jax.lax.scan(step, state, jax.random.split(key, 200))[1].position

    found = np.asarray(jax.jit(jax.vmap(draws))(jax.random.split(jax.random.key(0), 200)))
    assert found.min() > 0
    # E|x| of a normal: an error of 0.6 over the root of some 10,000 independent draws.
    assert found[:, 20:].mean() == pytest.approx(np.sqrt(2 / np.pi), abs=0.02)


@pytest.mark.parametrize("name", KERNELS)
def test_statistics_of_a_draw_belong_to_it(name):
    posterior = lv.Density(lambda x: -0.5 * jnp.sum(x**2), init=jnp.ones(2)).posterior()
    kernel = KERNELS[name](posterior, 1.0)
    state = kernel.init(jax.random.key(0), jnp.ones(2), None)
    for seed in range(5):
        state, info = kernel.step(jax.random.key(seed), state, None)
        assert float(info.log_density) == pytest.approx(float(posterior.log_density(state.position)), rel=1e-5)
        assert float(info.energy) >= -float(info.log_density) - 1e-5
        assert 0 <= float(info.acceptance_rate) <= 1


def test_noise_is_not_shared_by_keys_that_follow_each_other():
    """The second step of a trajectory under key 0 must not have the numbers of the first one under key 1."""
    posterior = lv.Density(lambda x: -0.5 * jnp.sum(x**2), init=jnp.ones(2)).posterior()

    def next_velocity(num_steps, seed):
        kernel = lv.kernels.hmc(posterior, 0.1, num_steps=num_steps, jitter=0.0)
        state = kernel.init(jax.random.key(5), jnp.ones(2), None)
        return np.asarray(kernel.step(jax.random.key(seed), state, None)[0].stepper.velocity)

    assert not np.isclose(next_velocity(2, 0), next_velocity(1, 1)).any()


@pytest.mark.parametrize("name", KERNELS)
def test_a_start_without_density_is_told_and_not_waited_for(name):
    posterior = lv.Density(lambda x: jnp.where(x > 0, -0.5 * x**2, -jnp.inf), init=1.0).posterior()
    kernel = KERNELS[name](posterior, 1.0)
    state, info = kernel.step(jax.random.key(1), kernel.init(jax.random.key(0), jnp.float32(-1.0), None), None)
    assert float(info.log_density) == -np.inf
    assert float(state.position) == -1.0


RHO = 0.8
# The variance of SGLD's noise is its step, the sd of MALA's.
BLOCKS = {
    "mala": lambda target: lv.kernels.mala(target, 1.2),
    "sgld, accept on all rows": lambda target: lv.kernels.sgld(target, 1.44, accept="full"),
}


def covariance_after_gibbs(make, refreshes, count=20_000, num_sweeps=30):
    """Chains that start at draws of a correlated Gaussian, after sweeps over its two sites."""
    factor = np.linalg.cholesky([[1.0, RHO], [RHO, 1.0]])
    starts = (np.random.default_rng(2).normal(size=(count, 2)) @ factor.T).astype(np.float32)
    quadratic = lambda x: x["a"] ** 2 - 2 * RHO * x["a"] * x["b"] + x["b"] ** 2  # noqa: E731
    density = lv.Density(lambda x: -0.5 * quadratic(x) / (1 - RHO**2), init={"a": 0.0, "b": 0.0})
    posterior = density.posterior()

    def update(states, keys, name, other):
        kernel = make(posterior.given({other: states[other].position[other]}))
        state = kernel.refresh(keys[0], states[name], None) if refreshes else states[name]
        return states | {name: kernel.step(keys[1], state, None)[0]}

    def sweep(states, key):
        keys = jax.random.split(key, 4)
        return update(update(states, keys[:2], "a", "b"), keys[2:], "b", "a"), None

    def chain(key, start):
        keys = jax.random.split(key, num_sweeps + 2)
        values = {"a": start[0], "b": start[1]}
        states = {
            name: make(posterior.given({other: values[other]})).init(one, {name: values[name]}, None)
            for one, name, other in ((keys[0], "a", "b"), (keys[1], "b", "a"))
        }
        states, _ = jax.lax.scan(sweep, states, keys[2:])
        return jnp.stack([states[name].position[name] for name in "ab"])

    ends = np.asarray(jax.jit(jax.vmap(chain))(jax.random.split(jax.random.key(3), count), starts), np.float64)
    return np.cov(ends.T), count


@pytest.mark.parametrize("name", BLOCKS)
def test_gibbs_by_blocks_has_the_right_covariance_if_they_refresh(name):
    def errors_off(refreshes):
        found, count = covariance_after_gibbs(BLOCKS[name], refreshes)
        exact = np.array([[1.0, RHO], [RHO, 1.0]])
        # Of a Gaussian, var(x y) = var(x) var(y) + cov(x, y)^2.
        return np.abs(found - exact) / np.sqrt((1.0 + exact**2) / count)

    assert (errors_off(True) < 4.5).all()
    assert errors_off(False).max() > 20
