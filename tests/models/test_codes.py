"""Plates of a wrong size, and codes that are no index of one."""

import jax
import jax.numpy as jnp
import numpy as np
import numpyro
import numpyro.distributions as dist
import pytest
from erring import NUM_ROWS, G, X, Y, accepted, every_method, fit, grouped

import langevin as lv


@every_method
def test_a_plate_of_another_size_than_the_data(method):
    def model(x, y):
        w = numpyro.sample("w", dist.Normal(0.0, 1.0))
        with numpyro.plate("rows", 10):
            numpyro.sample("y", dist.Normal(w * x, 1.0), obs=y)

    with pytest.raises(lv.ModelError, match=r"Site 'y' cannot be made, at .*test_codes.*\(10,\), \(12,\).*x\.shape"):
        fit(model, {"x": X, "y": Y}, method)


@every_method
@pytest.mark.parametrize("lookup", [lambda a, g: a[g], jnp.take], ids=["index", "take"])
def test_codes_beyond_the_plate(method, lookup):
    with pytest.raises(
        lv.DataError, match=r"`data\['g'\]` gives the index 3 at row 3, in site 'a'.*from 0 to 2.*plate"
    ):
        fit(grouped(lookup), {"g": G, "y": Y}, method)


@pytest.mark.parametrize(
    ("lookup", "codes", "index"),
    [
        (lambda a, g: a[g - 1], G, "-1 at row 0"),
        (lambda a, g: a[g.astype(int)], G.astype(np.float32), "3 at row 3"),
        (lambda a, g: jnp.exp(a)[g], G, "3 at row 3"),
        (lambda a, g: a[g[:, 0]], G[:, None], "3 at row 3"),
        (lambda a, g: jnp.outer(a, a)[g, g - 1], G, "3 at row 3"),
        (lambda a, g: jax.jit(lambda: a[g])(), G, "3 at row 3"),
        (lambda a, g: jnp.take_along_axis(a[None] * jnp.ones((NUM_ROWS, 1)), g[:, None], 1)[:, 0], G, "3 at row 3"),
    ],
    ids=["shifted", "floats", "transformed", "column", "matrix", "jit", "along an axis"],
)
def test_codes_are_followed_through_the_program(lookup, codes, index):
    with pytest.raises(lv.DataError, match=rf"`data\['g'\]` gives the index {index}, in site 'a'"):
        fit(grouped(lookup), {"g": codes, "y": Y})


def test_negative_codes_are_not_counted_from_the_end():
    codes = G.copy()
    codes[5] = -1
    with pytest.raises(
        lv.DataError, match=r"index -1 at row 5, in site 'a'.*from the end; pandas writes -1 for a miss"
    ):
        fit(grouped(lambda a, g: a[g], 4), {"g": codes, "y": Y})


MISSING = np.where(G == 3, -1, G)


@pytest.mark.parametrize(
    ("lookup", "codes"),
    [
        (lambda a, g: a[g], G % 3),
        (lambda a, g: a[g - 7], G % 3 + 7),
        (lambda a, g: jnp.where(g >= 0, a[g], 0.0), MISSING),
        (lambda a, g: jnp.where(g > 0, a[g], 0.0), MISSING),
        (lambda a, g: a[jnp.where(g < 0, 0, g)], MISSING),
        (lambda a, g: a[jnp.clip(g, 0, 2)], G),
        (lambda a, g: jnp.take(a, g, mode="clip"), G),
        (lambda a, g: a[g % 3], G),
    ],
    ids=["right", "shifted", "left out", "more left out", "replaced", "clipped", "nearest", "wrapped"],
)
def test_codes_that_are_meant_so_pass(lookup, codes):
    assert accepted(grouped(lookup), {"g": codes, "y": Y}).num_data == NUM_ROWS


def test_a_choice_by_something_else_is_no_excuse():
    def model(g, x, y):
        a = numpyro.sample("a", dist.Normal(0.0, 1.0).expand([3]).to_event(1))
        with numpyro.plate("rows", y.shape[0]):
            numpyro.sample("y", dist.Normal(jnp.where(x > 0, a[g], 0.0), 1.0), obs=y)

    codes = G % 3
    codes[7] = 3
    with pytest.raises(lv.DataError, match="index 3 at row 7, in site 'a'"):
        fit(model, {"g": codes, "x": X, "y": Y})
    # A column that says which codes there are is one.
    accepted(model, {"g": codes, "x": np.where(np.arange(NUM_ROWS) == 7, -1.0, 1.0), "y": Y})


def test_codes_of_masked_rows_pass():
    def model(g, y):
        a = numpyro.sample("a", dist.Normal(0.0, 1.0).expand([3]).to_event(1))
        with numpyro.plate("rows", y.shape[0]), numpyro.handlers.mask(mask=g < 3):
            numpyro.sample("y", dist.Normal(a[g], 1.0), obs=y)

    assert accepted(model, {"g": G, "y": Y}).num_data == NUM_ROWS
