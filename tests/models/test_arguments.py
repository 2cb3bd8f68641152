"""What the arguments of a program ask for: columns, numbers of levels, rows that lack a value."""

import functools

import numpy as np
import numpyro
import numpyro.distributions as dist
import pandas as pd
import pytest

import langevin as lv
from langevin.models.arguments import brought, brought_again, filled, wants_of
from langevin.models.program import Program

FRAME = pd.DataFrame(
    {
        "carrier": ["UA", "AA", "UA"],
        "group": [2, 0, 2],
        "flag": [True, True, False],
        "x": [0.5, np.nan, 1.0],
        "y": [1.0, 2.0, 3.0],
        "when": pd.date_range("2013", periods=3),
    }
)


def model(carrier, x, scale=1.0, y=None):
    """Asks for four things."""


@pytest.mark.parametrize(
    ("program", "columns"),
    [
        (model, {"carrier", "x", "scale", "y"}),
        (functools.partial(model, scale=2.0), {"carrier", "x", "scale", "y"}),
        (numpyro.handlers.seed(model, 0), {"carrier", "x", "scale", "y"}),
        (lambda **rows: None, None),
        (lambda x, *more: None, {"x"}),
        (lv.Density(lambda m: -(m**2), lambda m, rows: rows["y"] * m, init=0.0), None),
        (3, None),
    ],
    ids=["function", "partial", "handler", "keywords", "more", "density", "no program"],
)
def test_what_a_model_asks_for(program, columns):
    assert wants_of(program, {}).columns == (None if columns is None else frozenset(columns))


def test_constants_are_no_columns():
    assert wants_of(model, {"scale": 1.0}).columns == {"carrier", "x", "y"}


def test_numbers_of_levels():
    def program(carrier, group, flag, y, num_carrier, num_group, num_flag=None, num_y=None, num_other=3):
        """Asks for all of them, and for two that there are not."""

    table, constants = brought(program, FRAME, {})
    assert constants == {"num_carrier": 2, "num_group": 3, "num_flag": 2} == table.counts
    assert brought(program, FRAME, {"num_carrier": 16})[1]["num_carrier"] == 16
    with_column = FRAME.assign(num_carrier=[7.0, 8.0, 9.0])
    assert "num_carrier" not in brought(program, with_column, {})[1]
    # What an earlier fit saw counts, and not what is in new rows.
    again = filled(program, table, {}, {"num_group": 9, "num_carrier": 4})
    assert again == {"num_carrier": 4, "num_group": 9, "num_flag": 2}


def test_new_rows_of_an_earlier_fit():
    def program(carrier, group, num_carrier, num_group, y=None, scale=1.0):
        """Asks for names and for groups."""

    table, constants = brought(program, FRAME, {"scale": 2.0})
    new = {"carrier": ["UA", "UA"], "group": [1, 2], "y": [np.nan, 1.0], "other": [object(), 0]}
    again = functools.partial(brought_again, program, constants=constants, levels=table.levels, counts=table.counts)
    with pytest.raises(lv.DataError, match=r"'y' in 1 \(row 0\)"):
        again(new)
    found, whole = again(new, may_lack=frozenset("y"))
    assert whole == {"scale": 2.0, "num_carrier": 2, "num_group": 3}
    np.testing.assert_array_equal(found.columns["carrier"], [1, 1])
    with pytest.raises(lv.DataError, match=r"`data\['carrier'\]` has a level that the fit did not see: 'B6'"):
        again({"carrier": ["B6"], "group": [0]})
    found, whole = again({"carrier": ["B6", "AA"], "group": [0, 5]}, unseen="draw")
    assert whole == {"scale": 2.0, "num_carrier": 3, "num_group": 4} == {"scale": 2.0, **found.counts}
    np.testing.assert_array_equal(found.columns["carrier"], [2, 0])
    np.testing.assert_array_equal(found.columns["group"], [0, 3])


def test_integers_below_zero_are_no_codes():
    def program(group, num_group):
        """Asks for a number of levels."""

    table, constants = brought(program, {"group": [-1, 2]}, {})
    assert constants == {}
    with pytest.raises(lv.ModelError, match="missing a required argument: 'num_group'"):
        Program(program, constants).posterior(table)


def test_rows_that_lack_a_value():
    def program(x, y, x_missing):
        """Has a use for them."""

    table, constants = brought(program, FRAME, {})
    np.testing.assert_array_equal(constants["x_missing"], [1])
    assert np.isnan(table.columns["x"][1])
    assert table.counts == {}
    with pytest.raises(lv.SettingError, match="argument 'x_missing', numbers of rows, which minibatches do not have"):
        brought(program, FRAME, {}, minibatch=True)
    whole, constants = brought(program, FRAME.fillna(0.0), {})
    assert constants["x_missing"].shape == (0,)
    assert not np.isnan(whole.columns["x"]).any()


def location(x, y=None):
    m = numpyro.sample("m", dist.Normal(0.0, 1.0))
    with numpyro.plate("rows", x.shape[0]):
        numpyro.sample("y", dist.Normal(m * x, 1.0), obs=y)


SHORT = {"num_warmup": 20, "num_draws": 20, "progress": False}


def test_a_column_of_another_name():
    rows = {"x": [1.0, 2.0], "target": [1.0, 2.0]}
    with pytest.raises(lv.ModelError, match="observes nothing, and leaves 'target' of `data` alone"):
        lv.fit(location, rows, **SHORT)
    with pytest.raises(lv.ModelError, match="has the argument 'y', and `data` the column 'Y'. Give them one name"):
        lv.fit(location, {"x": [1.0, 2.0], "Y": [1.0, 2.0]}, **SHORT)
    with pytest.raises(lv.ModelError, match=r"missing a required argument: 'x'.*`data` has \['target', 'y'\]"):
        lv.fit(location, {"y": [1.0, 2.0], "target": [1.0, 2.0]}, **SHORT)


def test_a_density_gets_all_columns_that_can_be_numbers():
    frame = FRAME.assign(x=1.0)
    density = lv.Density(lambda m: -(m**2), lambda m, rows: rows["y"] * m + rows["carrier"], init=0.0)
    assert set(density.posterior(frame).data) == {"carrier", "group", "flag", "x", "y"}
    other = lv.Density(lambda m: -(m**2), lambda m, rows: rows["when"] * m, init=0.0)
    with pytest.raises(lv.ModelError, match="asks for the column 'when', which can be no numbers"):
        other.posterior(frame)
