"""Compiled programs: what is kept, and that options of the compiler change nothing but time."""

import itertools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from compilation import compilations

from langevin import programs


def network_step(_, weights, x):
    """Steps of gradient descent on a network, in a loop: weights are read in the pass back and then overwritten."""

    def loss(weights):
        h = jax.nn.relu(x @ weights[0])
        return jnp.mean((jax.nn.relu(h @ weights[1]) @ weights[2] - x) ** 2)

    def one(_, weights):
        return jax.tree.map(lambda w, g: w - 0.1 * g, weights, jax.grad(loss)(weights))

    return jax.lax.fori_loop(0, 20, one, weights)


@pytest.mark.parametrize("largest", [0, 10**6])
def test_options_change_nothing_but_time(largest):
    generator = np.random.default_rng(0)
    sizes = (300, 64, 128, 300)
    weights = [generator.normal(size=(a, b), scale=a**-0.5).astype("f") for a, b in itertools.pairwise(sizes)]
    x = generator.normal(size=(100, 300)).astype("f")
    found = programs.compiled(network_step, None, weights, x, largest=largest)(weights, x)
    plain = jax.jit(network_step)(None, weights, x)
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-3, atol=1e-5), found, plain)


def test_unknown_options_do_no_harm(monkeypatch):
    monkeypatch.setattr(programs, "LARGE", {"xla_of_tomorrow": True})
    triple = programs.compiled(lambda _, x: 3.25 * x, None, np.ones(2), largest=10**6)
    np.testing.assert_allclose(triple(np.ones(2)), 3.25)


def test_what_runs_once_is_kept_by_its_text():
    """Another function that says the same is not compiled again; one with another constant is."""
    made = [programs.run(lambda x, c=c: c * jnp.sin(x), np.float32(1.5)) for c in (2.0, 2.0, 3.0)]
    np.testing.assert_allclose(made, np.array([2.0, 2.0, 3.0]) * np.sin(1.5), rtol=1e-6)
    with compilations() as seen:
        programs.run(lambda x: 2.0 * jnp.sin(x), np.float32(0.5))
        assert seen == []
        programs.run(lambda x: 4.0 * jnp.sin(x), np.float32(0.5))
        assert seen
