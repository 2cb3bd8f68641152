"""A posterior given by plain functions."""

from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import langevin as lv

X = np.array([0.5, -1.0, 2.0, 3.0], np.float32)


def square(position):
    return -0.5 * sum(jnp.sum(leaf**2) for leaf in jax.tree.leaves(position))


class Line(NamedTuple):
    slope: jax.Array
    level: jax.Array


def test_target_is_prior_plus_scaled_rows():
    density = lv.Density(lambda m: -(m**2) / 2, lambda m, rows: -((rows["x"] - m) ** 2) / 2, init=0.0)
    posterior = density.posterior({"x": X})
    m = 0.7
    prior, rows = -(m**2) / 2, -((X - m) ** 2) / 2
    np.testing.assert_allclose(posterior.log_density(m), prior + rows.sum(), rtol=1e-6)
    np.testing.assert_allclose(posterior.log_density(m, {"x": X[1:3]}), prior + 2 * rows[1:3].sum(), rtol=1e-6)
    np.testing.assert_allclose(posterior.log_prior(m), prior, rtol=1e-6)
    np.testing.assert_allclose(posterior.log_likelihood(m), rows, rtol=1e-6)


@pytest.mark.parametrize(
    ("init", "names"),
    [
        (0.0, {"position": ()}),
        (np.zeros((2, 3)), {"position": (2, 3)}),
        ({"a": 0.0, "layer": {"weight": np.zeros((2, 2)), "bias": [1.0, 2.0]}}, None),
        (Line(jnp.zeros(2), jnp.zeros(())), {"slope": (2,), "level": ()}),
        ((jnp.zeros(2), {"b": jnp.zeros(3)}), {"0": (2,), "1.b": (3,)}),
    ],
    ids=["scalar", "array", "nested dict", "named tuple", "tuple"],
)
def test_positions_are_any_pytree(init, names):
    posterior = lv.Density(square, init=init).posterior()
    position = posterior.init(jax.random.key(0))
    assert jax.tree.structure(position) == jax.tree.structure(init)
    assert all(leaf.dtype == jnp.float32 for leaf in jax.tree.leaves(position))
    names = names or {"a": (), "layer.weight": (2, 2), "layer.bias.0": (), "layer.bias.1": ()}
    assert {name: value.shape for name, value in posterior.constrain(position).items()} == names
    expected = -0.5 * sum(np.sum(np.square(leaf)) for leaf in jax.tree.leaves(init))
    np.testing.assert_allclose(posterior.log_density(position), expected)


def test_init_as_a_function_of_a_key():
    posterior = lv.Density(square, init=lambda key: {"a": jax.random.normal(key, (3,))}).posterior()
    first, second = (posterior.init(jax.random.key(seed))["a"] for seed in (0, 1))
    again = posterior.init(jax.random.key(0))["a"]
    np.testing.assert_array_equal(first, again)
    assert not np.array_equal(first, second)


def test_integers_become_floats():
    position = lv.Density(square, init={"a": 1, "b": np.array([1, 2])}).posterior().init(jax.random.key(0))
    assert {leaf.dtype for leaf in jax.tree.leaves(position)} == {jnp.dtype(jnp.float32)}


def test_constrain_is_what_is_reported():
    posterior = lv.Density(square, init=0.0, constrain=lambda m: {"scale": jnp.exp(m), "double": 2 * m}).posterior()
    reported = posterior.constrain(jnp.array(1.0))
    np.testing.assert_allclose([reported["scale"], reported["double"]], [np.e, 2.0], rtol=1e-6)


def test_density_does_not_follow_the_callers_array():
    x = np.zeros(4096, np.float32)
    posterior = lv.Density(square, lambda m, rows: rows["x"] * m, init=1.0).posterior({"x": x})
    x[:] = 100.0
    assert float(posterior.log_density(1.0)) == -0.5


def test_explain():
    density = lv.Density(lambda m: jnp.log(m), lambda m, rows: jnp.log(rows["x"] + m), init=1.0)
    posterior = density.posterior({"x": X})
    assert posterior.explain(-1.0, posterior.rows) == "`log_prior` is nan there"
    assert posterior.explain(0.5, posterior.rows) == "`log_likelihood` is nan for row 1 (1 such rows)"
    assert "gradient" in posterior.explain(2.0, posterior.rows)


@pytest.mark.parametrize(
    ("arguments", "culprit"),
    [
        ({"log_prior": 3.0, "init": 0.0}, r"`log_prior` must be a function; got 3\.0"),
        ({"log_prior": None, "init": 0.0}, "`log_prior` must be a function; got None"),
        ({"log_prior": square, "log_likelihood": "x", "init": 0.0}, "`log_likelihood` must be a function; got 'x'"),
        ({"log_prior": square, "constrain": {}, "init": 0.0}, "`constrain` must be a function; got {}"),
        ({"log_prior": square}, "`init` is missing"),
    ],
)
def test_bad_arguments(arguments, culprit):
    with pytest.raises(lv.ModelError, match=culprit):
        lv.Density(**arguments)


OFFSETS = jnp.zeros(len(X))


@pytest.mark.parametrize(
    ("log_likelihood", "culprit"),
    [
        (lambda m, rows: jnp.sum(rows["x"] - m), r"`log_likelihood`.*shape \(4,\); it returned shape \(\).*Do not sum"),
        (lambda m, rows: rows["x"][:, None] - m, r"`log_likelihood`.*it returned shape \(4, 1\)"),
        (lambda m, rows: rows["x"][1:] - m, r"`log_likelihood`.*it returned shape \(3,\)"),
        (lambda m, rows: rows["x"] - m + OFFSETS, r"`log_likelihood` works on 4 rows but not on 5.*from `rows`"),
        (lambda m, rows: rows["x"].mean() - m + OFFSETS, r"`log_likelihood` returned shape \(4,\) for 5 rows"),
    ],
    ids=["scalar", "column", "short", "closure", "constant"],
)
def test_bad_likelihoods(log_likelihood, culprit):
    with pytest.raises(lv.ModelError, match=culprit):
        lv.Density(square, log_likelihood, init=0.0).posterior({"x": X})


def test_prior_must_be_a_scalar():
    with pytest.raises(lv.ModelError, match=r"`log_prior` must return a scalar; it returned shape \(2,\)"):
        lv.Density(lambda m: -(m**2), init=np.zeros(2)).posterior()


def test_data_and_likelihood_come_together():
    with pytest.raises(lv.ModelError, match="`log_likelihood`, which needs rows; got no `data`"):
        lv.Density(square, lambda m, rows: rows["x"] - m, init=0.0).posterior()
    with pytest.raises(lv.ModelError, match="no `log_likelihood`, so nothing would use `data`"):
        lv.Density(square, init=0.0).posterior({"x": X})


@pytest.mark.parametrize("init", ["abc", {"a": "b"}, lambda key: object()], ids=["text", "text in a dict", "object"])
def test_init_that_is_no_array(init):
    with pytest.raises(lv.ModelError, match="`init` must give arrays of numbers"):
        lv.Density(square, init=init).posterior()


def test_init_without_arrays():
    with pytest.raises(lv.ModelError, match="`init` holds no array"):
        lv.Density(lambda position: 0.0, init={}).posterior()


def test_constrain_must_return_a_dict():
    with pytest.raises(lv.ModelError, match="`constrain` must return a dict"):
        lv.Density(square, init=0.0, constrain=lambda m: m).posterior()


def test_names_that_clash():
    with pytest.raises(lv.ModelError, match=r"one name in \['a.b'\]"):
        lv.Density(square, init={"a": {"b": 0.0}, "a.b": 1.0}).posterior()
    with pytest.raises(lv.ModelError, match="'chain' is the name of a dimension"):
        lv.Density(square, init={"chain": 0.0}).posterior()
