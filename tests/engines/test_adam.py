"""Adam's step against Optax's, and by hand."""

import jax
import jax.numpy as jnp
import numpy as np
import optax

from langevin.engines import adam


def test_steps_are_those_of_optax():
    generator = np.random.default_rng(0)
    with jax.enable_x64(True):
        x = {"a": jnp.array(generator.normal(size=(3, 2))), "b": jnp.array(1.0)}
        other, optimizer = x, optax.adam(0.03)
        state, moments = optimizer.init(x), adam.begin(x)
        # In two parts, as a run in chunks has it.
        parts = [adam.rates(np.full(4, 0.03), 0), adam.rates(np.full(5, 0.03), 4)]
        rates, eps = (np.concatenate([getattr(part, name) for part in parts]) for name in ("rate", "eps"))
        for number in range(9):
            gradient = jax.tree.map(lambda leaf: jnp.array(generator.normal(size=leaf.shape)), x)
            updates, state = optimizer.update(gradient, state)
            other = optax.apply_updates(other, updates)
            towards, moments = adam.direction(gradient, moments, eps[number])
            x = jax.tree.map(lambda leaf, t, n=number: leaf - rates[n] * t, x, towards)
        jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-9), x, other)


def test_the_first_step_is_as_long_as_the_rate():
    """m = (1 - b1) g and v = (1 - b2) g^2, which the corrections turn into g / |g|."""
    pace = adam.rates(np.array([0.1]), 0)
    towards, _ = adam.direction(jnp.array([2.0, -5.0]), adam.begin(jnp.zeros(2)), pace.eps[0])
    np.testing.assert_allclose(pace.rate[0] * towards, [0.1, -0.1], rtol=1e-5)
