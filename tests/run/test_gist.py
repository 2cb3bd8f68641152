"""The gist of a trace: the same for the same computation, another for any other, None for what is not understood."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import langevin as lv
from langevin.run.gist import gist

X = np.arange(3.0, dtype=np.float32)


def scaled(by):
    """A constant inside a nested compiled function does not show in the text of the trace."""
    inner = jax.jit(lambda x: x * by)
    return lambda x: jax.lax.fori_loop(0, 3, lambda _, x: inner(jnp.tanh(x)), x)


def test_is_the_same_for_the_same():
    assert gist(scaled(X + 1), X) == gist(scaled(X + 1), X) is not None
    assert gist(scaled(X + 1), X) == gist(scaled(X + 1), jax.ShapeDtypeStruct((3,), np.float32))


@pytest.mark.parametrize(
    "other",
    [
        (scaled(X + 2), X),
        (scaled(2.0), X),
        (lambda x: jax.lax.fori_loop(0, 3, lambda _, x: jnp.tanh(x) * (X + 1), x), X),
        (scaled(X + 1), np.ones((2, 3), np.float32)),
    ],
)
def test_is_another_for_another(other):
    assert gist(*other) not in (None, gist(scaled(X + 1), X))


def test_operands_have_their_places():
    assert gist(lambda x, y: x - y, X, X) != gist(lambda x, y: y - x, X, X)
    assert gist(lambda x, y: x - y, X, X) != gist(lambda x, y: x - x, X, X)
    assert gist(lambda x: (x, x + 1), X) != gist(lambda x: (x + 1, x), X)


def test_rules_of_differentiation_show_in_a_gradient():
    def with_slope(slope):
        function = jax.custom_jvp(lambda x: x)
        function.defjvp(lambda primals, tangents: (primals[0], slope * tangents[0]))
        return jax.grad(lambda x: jnp.sum(function(x)))

    assert gist(with_slope(2.0), X) == gist(with_slope(2.0), X) is not None
    assert gist(with_slope(2.0), X) != gist(with_slope(3.0), X)


def test_what_is_not_understood_has_none():
    def called_back(x):
        return jax.pure_callback(np.sin, jax.ShapeDtypeStruct(x.shape, x.dtype), x)

    assert gist(called_back, X) is None


def test_a_model_that_changes_is_compiled_anew():
    """The same function object, of which a global has changed."""
    box = {"mean": 0.0}
    density = lv.Density(lambda x: -((x - box["mean"]) ** 2) / 2, init=0.0)
    means = []
    for mean in (0.0, 0.0, 50.0, 0.0):
        box["mean"] = mean
        fit = lv.fit(density, num_warmup=200, num_draws=200, num_chains=2, progress=False)
        means.append(float(fit.posterior["position"].mean()))
    np.testing.assert_allclose(means, [0, 0, 50, 0], atol=0.6)


def test_names_count():
    """A trace has none, but a result has those of its sites."""
    first, second = (gist(lambda x, name=name: {name: 2 * x}, np.float32(1)) for name in ("a", "b"))
    assert first != second
    first, second = (gist(lambda x, name=name: 2 * x[name], {name: np.float32(1)}) for name in ("a", "b"))
    assert first != second
