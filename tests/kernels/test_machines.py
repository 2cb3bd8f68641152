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
