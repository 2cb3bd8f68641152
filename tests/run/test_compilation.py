"""Compiled programs: what is kept, and that options of the compiler change nothing but time."""

import itertools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from compilation import compilations

from langevin.run import compilation
from langevin.run.compilation import Programs


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
    found = compilation.compiled(network_step, None, weights, x, largest=largest)(weights, x)
    plain = jax.jit(network_step)(None, weights, x)
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-3, atol=1e-5), found, plain)


def test_unknown_options_do_no_harm(monkeypatch):
    monkeypatch.setattr(compilation, "LARGE", {"xla_of_tomorrow": True})
    triple = compilation.compiled(lambda _, x: 3.25 * x, None, np.ones(2), largest=10**6)
    np.testing.assert_allclose(triple(np.ones(2)), 3.25)


def test_what_runs_once_is_kept_by_its_text():
    """Another function that says the same is not compiled again; one with another constant is."""
    made = [compilation.run(lambda x, c=c: c * jnp.sin(x), np.float32(1.5)) for c in (2.0, 2.0, 3.0)]
    np.testing.assert_allclose(made, np.array([2.0, 2.0, 3.0]) * np.sin(1.5), rtol=1e-6)
    with compilations() as seen:
        compilation.run(lambda x: 2.0 * jnp.sin(x), np.float32(0.5))
        assert seen == []
        compilation.run(lambda x: 4.0 * jnp.sin(x), np.float32(0.5))
        assert seen


def scaled(by, x):
    return {"scaled": by * x["a"]}


def test_programs_of_a_run_are_made_once_and_asked_for_their_model_once():
    asked = []
    programs = Programs(lambda: asked.append(1))
    for by, value in ((2.0, 1.0), (3.0, 1.0), (2.0, 5.0)):
        assert programs(scaled, by, {"a": np.float32(value)})["scaled"] == by * value
    assert len(programs._made) == 2
    assert len(asked) == 1
    with compilations() as seen:
        # Another run finds them by their text.
        Programs(lambda: None)(scaled, 2.0, {"a": np.float32(7.0)})
    assert seen == []


def test_the_names_of_arguments_tell_programs_apart():
    programs = Programs(lambda: None)

    def first(_, x):
        return jnp.subtract(*[x[name] for name in sorted(x, reverse=True)])

    assert programs(first, None, {"a": np.float32(1.0), "b": np.float32(3.0)}) == 2.0
    assert programs(first, None, {"b": np.float32(1.0), "c": np.float32(4.0)}) == 3.0


def test_a_digest_tells_what_a_program_computes():
    def digest(by, x):
        return Programs(lambda: None).digest(scaled, by, x)

    same = digest(2.0, {"a": np.float32(1.0)})
    assert same == digest(2.0, {"a": np.float32(9.0)})
    assert len({same, digest(3.0, {"a": np.float32(1.0)}), digest(2.0, {"a": np.ones(2, np.float32)})}) == 3


@pytest.mark.parametrize("double", [False, True])
def test_what_is_compiled_aside_is_the_same(double):
    """Also in double precision, which a context manager sets for one thread."""
    with jax.enable_x64(double):
        x = {"a": np.asarray(1.0 / 3.0, np.float64 if double else np.float32)}
        shapes = jax.tree.map(lambda leaf: jax.ShapeDtypeStruct(leaf.shape, leaf.dtype), x)
        program = Programs(lambda: None).aside(scaled, 1.1, shapes)
        found = program(x)["scaled"]
        assert found.dtype == x["a"].dtype
        np.testing.assert_array_equal(found, jax.jit(scaled, static_argnums=0)(1.1, x)["scaled"])


def test_an_error_aside_comes_when_it_is_asked_for():
    def broken(_, x):
        raise ValueError("the model is broken")

    program = Programs(lambda: None).aside(broken, None, np.ones(2))
    with pytest.raises(ValueError, match="the model is broken"):
        program(np.ones(2))
