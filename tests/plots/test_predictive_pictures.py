"""Bands and reliability are what `predict` says."""

import numpy as np
import numpyro
import numpyro.distributions as dist
import pytest
import xarray as xr
from plots.conftest import quietly

import langevin as lv
from langevin.diagnostics import weighted
from langevin.plots.bands import MOST_ROWS
from langevin.plots.reliability import binned

BAND_ORDER = (("q5", "q95"), ("q25", "q75"))


def edges_of(collection, x):
    """The lower and the upper edge of a filled band, at these places."""
    vertices = collection.get_paths()[0].vertices
    at = [vertices[np.isclose(vertices[:, 0], place)][:, 1] for place in x]
    return np.array([y.min() for y in at]), np.array([y.max() for y in at])


def test_bands_are_the_quantiles_of_new_rows(nuts):
    x = np.linspace(-3, 4, 25)
    axes = nuts.plot_bands("x", {"x": x}, num_draws=800).axes[0]
    wanted = nuts.predict({"x": x}, quantiles=(0.05, 0.25, 0.75, 0.95), num_draws=800)
    for collection, names in zip(axes.collections, BAND_ORDER, strict=True):
        for edge, name in zip(edges_of(collection, x), names, strict=True):
            # The quantiles of 800 draws, interpolated between draws in two ways.
            np.testing.assert_allclose(edge, wanted[name], atol=0.15 * float(wanted["sd"].mean()))
    np.testing.assert_allclose(axes.get_lines()[0].get_ydata(), wanted["mean"], rtol=1e-5)
    assert axes.get_xlabel() == "x"
    assert axes.get_ylabel() == "y"


def test_the_bands_hold_what_they_should():
    """Of a model with known noise: 90 % and 50 % of 4,000 observations, to four of their standard errors."""
    generator = np.random.default_rng(0)
    x = np.repeat(np.linspace(-1, 1, 20), 100)
    data = {"x": x, "y": 3 * x + generator.normal(size=2000)}

    def model(x, y=None):
        b = numpyro.sample("b", dist.Normal(0, 10))
        with numpyro.plate("rows", len(x)):
            numpyro.sample("y", dist.Normal(b * x, 1.0), obs=y)

    axes = quietly(model, data, num_draws=250).plot_bands("x").axes[0]
    places = np.unique(x)
    for collection, probability in zip(axes.collections, (0.9, 0.5), strict=False):
        low, high = (np.interp(x, places, edge) for edge in edges_of(collection, places))
        held = np.mean((low < data["y"]) & (data["y"] < high))
        assert abs(held - probability) < 4 * np.sqrt(probability * (1 - probability) / 2000)


def test_the_observed_points_are_there(nuts):
    axes = nuts.plot_bands("x").axes[0]
    points = axes.collections[2].get_offsets()
    columns = nuts.source.table.columns
    np.testing.assert_allclose(points, np.stack([columns["x"], columns["y"]], axis=1), rtol=1e-6)


def test_bands_honour_the_weights(uneven_line):
    fit, x = uneven_line
    axes = fit.plot_bands("x", {"x": x}, num_draws=fit.weights.size).axes[0]
    weights, slope = fit.weights.values, fit.posterior["b"].values
    mean = float(weighted.mean(slope, weights))
    assert abs(mean - slope.mean()) > 0.1
    np.testing.assert_allclose(axes.get_lines()[0].get_ydata(), mean * x, rtol=1e-3)
    low, high = edges_of(axes.collections[0], x)
    ends = [weighted.quantile(slope, weights, p) for p in (0.05, 0.95)]
    # The noise is a hundredth of the spread of the slope.
    np.testing.assert_allclose(low, ends[0] * x, atol=0.05)
    np.testing.assert_allclose(high, ends[1] * x, atol=0.05)


@pytest.fixture(scope="module")
def uneven_line():
    """The draws of a fit with weights of another kind put over them."""

    def model(x, y=None):
        b = numpyro.sample("b", dist.Normal(0, 1))
        with numpyro.plate("rows", len(x)):
            numpyro.sample("y", dist.Normal(b * x, 0.01 if y is None else 1.0), obs=y)

    fit = quietly(model, {"x": np.ones(1), "y": np.ones(1)}, num_draws=400)
    weights = np.exp(fit.posterior["b"].values)
    stats = fit.stats.assign(weight=(("chain", "draw"), weights / weights.mean()))
    tree = xr.DataTree.from_dict({"posterior": fit.posterior, "sample_stats": stats})
    tree.attrs.update(fit.tree.attrs)
    return lv.Fit(tree, fit.target, source=fit.source), np.linspace(1, 2, 5)


@pytest.fixture(scope="module")
def two_columns():
    generator = np.random.default_rng(4)
    x = generator.normal(size=(5000, 2))

    def model(x, z=None):
        w = numpyro.sample("w", dist.Normal(0, 1).expand([2]).to_event(1))
        with numpyro.plate("rows", len(x)):
            numpyro.sample("y", dist.Normal(x @ w, 1.0), obs=None if z is None else z / 10)

    return quietly(model, {"x": x, "z": 10 * (x @ [1.0, 0.5] + generator.normal(size=5000))}, num_draws=250)


def test_many_rows_with_other_columns_are_taken_in_groups(two_columns):
    figure = two_columns.plot_bands("x[0]")
    axes = figure.axes[0]
    at, mean = axes.get_lines()[0].get_data()
    assert len(at) == 30
    # The slope of the column by itself, since the columns are independent.
    np.testing.assert_allclose(np.polyfit(at, mean, 1)[0], 1.0, atol=0.1)
    text = " ".join(text.get_text() for text in figure.texts)
    assert f"{MOST_ROWS:,} of 5,000 rows" in text
    assert "in 30 groups of rows by x[0]" in text
    # What the program observes is a tenth of the column.
    assert np.std(axes.collections[2].get_offsets()[:, 1]) < 2


def test_bands_refuse_what_they_cannot_show(nuts, decreasing, two_columns):
    for column, message in (
        ("x", "has 2 columns; say which, as 'x"),
        ("x[7]", r"no column 'x\[7\]'"),
        ("q", "'q'; the"),
    ):
        with pytest.raises(lv.SettingError, match=message):
            two_columns.plot_bands(column)
    with pytest.raises(lv.SettingError, match="one of 2 classes. See `plot_reliability`"):
        decreasing.plot_bands("x[0]")
    with pytest.raises(lv.SettingError, match="'y' is a number. See `plot_bands`"):
        nuts.plot_reliability()
    with pytest.raises(lv.SettingError, match="the rows must have what was observed of 'y'"):
        decreasing.plot_reliability({"x": np.zeros((3, 2))})


def test_reliability_is_counted_in_bins(decreasing, coins):
    """Also of a fit whose draws have weights."""
    assert np.ptp(decreasing.weights.values) > 0.1
    figure = decreasing.plot_reliability(bins=5)
    above, below = figure.axes
    probability = decreasing.predict(coins, quantiles=())["probability_1"].values
    bins = [(probability >= i / 5) & (probability < (i + 1) / 5) for i in range(5)]
    shown = above.get_lines()[1]
    np.testing.assert_allclose(shown.get_xdata(), [probability[b].mean() for b in bins], rtol=1e-5)
    np.testing.assert_allclose(shown.get_ydata(), [coins["y"][b].mean() for b in bins], rtol=1e-5)
    shares = below.patches[0].get_data()[0]
    np.testing.assert_allclose(shares, [b.mean() for b in bins])
    assert shares.sum() == pytest.approx(1)
    assert below.get_xlabel() == "predicted probability that y = 1"


def test_the_bars_are_binomial_intervals():
    """Of many data sets with a known rate, about 90 % of the intervals hold it."""
    generator = np.random.default_rng(0)
    holds = []
    for _ in range(400):
        p = generator.uniform(0, 1, 300)
        found = binned(p, generator.random(300) < p, 10)
        holds.append((found.low <= found.predicted) & (found.predicted <= found.high))
    assert np.mean(np.concatenate(holds)) == pytest.approx(0.9, abs=0.02)
    alone = binned(np.full(20, 0.3), np.zeros(20, bool), 10)
    assert (alone.low[0], alone.observed[0]) == (0, 0)
    assert 0.05 < alone.high[0] < 0.15


def test_each_class_is_shown_against_the_others():
    generator = np.random.default_rng(5)
    x = generator.normal(size=(500, 2))
    y = (x @ generator.normal(size=(2, 3)) + generator.gumbel(size=(500, 3))).argmax(axis=1)

    def model(x, y=None):
        w = numpyro.sample("w", dist.Normal(0, 1).expand([2, 3]).to_event(2))
        with numpyro.plate("rows", len(x)):
            numpyro.sample("y", dist.Categorical(logits=x @ w), obs=y)

    fit = quietly(model, {"x": x, "y": y}, num_draws=200)
    above, below = fit.plot_reliability().axes
    predicted = fit.predict(quantiles=())
    for k in range(3):
        probability = predicted[f"probability_{k}"].values
        wanted = binned(probability, y == k, 10)
        np.testing.assert_allclose(above.containers[k].lines[0].get_ydata(), wanted.observed)
        np.testing.assert_allclose(below.patches[k].get_data()[0], wanted.share)
    assert [text.get_text() for text in above.get_legend().get_texts()] == ["0", "1", "2"]
