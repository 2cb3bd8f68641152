"""Which coordinates a picture shows, and how they are called."""

import numpy as np
import pytest
from plots.conftest import fit_of

import langevin as lv
from langevin.diagnostics import weighted
from langevin.plots.choosing import choose, draws_of, equal_weights


def labels(chosen):
    return [coordinate.label for coordinate in chosen.coordinates]


def test_the_worst_mixed_come_first(many):
    chosen = choose(many, "plot", None, 6)
    assert labels(chosen)[:2] == ["theta[<7>]", "theta[<31>]"]
    assert chosen.total == 62
    assert chosen.note == "6 of 62 coordinates: those with the smallest effective sizes"
    draws, weights = draws_of(many, chosen.coordinates), many.weights.values
    sizes = weighted.sizes(draws, weights)
    assert (np.diff(np.fmin(sizes.bulk, sizes.tail)) >= 0).all()


def test_where_all_fit_they_keep_their_order(many):
    chosen = choose(many, "plot", ["tau", "mu"], 6)
    assert labels(chosen) == ["tau", "mu"]
    assert chosen.note == ""
    assert labels(choose(many, "plot", None, 100, worst_first=False))[:2] == ["mu", "theta[<0>]"]


def test_of_too_many_that_are_named_the_worst_are_shown(many):
    assert labels(choose(many, "plot", "theta", 2)) == ["theta[<7>]", "theta[<31>]"]
    assert labels(choose(many, "plot", ["theta[<3>]", "mu"], 2)) == ["theta[<3>]", "mu"]


def test_an_unknown_name_is_refused(many):
    with pytest.raises(lv.SettingError, match=r"no 'nonsense'; there are mu, theta, tau, .* such as 'theta\[<59>\]'"):
        choose(many, "plot", "nonsense", 6)
    with pytest.raises(lv.SettingError, match=r"no 'theta\[99\]'"):
        choose(many, "plot", ["theta[99]"], 6)
    with pytest.raises(lv.SettingError, match="`most` must be a whole number"):
        many.plot_forest(most=0)


def test_what_never_moves_comes_last_and_what_is_not_finite_first():
    generator = np.random.default_rng(0)
    values = generator.normal(size=(2, 100, 4))
    values[:, :, 1] = 3.0
    values[0, 5, 3] = np.nan
    fit = fit_of({"a": (("k",), values), "flag": ((), generator.random((2, 100)) < 0.5)})
    found = labels(choose(fit, "plot", None, 10))
    assert found[0] == "a[3]"
    assert found[-1] == "a[1]"
    assert "flag" in found


def test_draws_of_equal_weight_have_the_weighted_mean(uneven):
    draws = draws_of(uneven, choose(uneven, "plot", None, 3, worst_first=False).coordinates)
    equal = equal_weights(draws, uneven.weights.values)
    wanted = uneven.summary()["mean"].to_numpy()
    np.testing.assert_allclose(equal.mean(axis=(0, 1)), wanted, atol=0.02)
    assert np.abs(draws.mean(axis=(0, 1)) - wanted).min() > 0.5
    np.testing.assert_array_equal(equal, uneven.data_tree["posterior"]["w"].values)
