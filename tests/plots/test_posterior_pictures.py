"""What is drawn of a posterior is what its numbers say."""

import sys

import numpy as np
import pytest
from matplotlib.colors import to_rgba
from matplotlib.figure import Figure
from plots.conftest import fit_of
from scipy.stats import rankdata

import langevin as lv
from langevin.plots.canvas import RED


def segments(axes, number):
    """The ends of horizontal lines, (rows, 2), and their heights."""
    lines = np.stack(axes.collections[number].get_segments())
    return lines[:, :, 0], lines[:, 0, 1]


def names_of(axes):
    return [text.get_text() for text in axes.get_yticklabels()]


def texts(figure):
    return " ".join(text.get_text() for text in figure.findobj(lambda artist: hasattr(artist, "get_text")))


@pytest.mark.parametrize("fit", ["many", "uneven"])
def test_the_forest_shows_the_summary(fit, request):
    fit = request.getfixturevalue(fit)
    figure = fit.plot_forest(probability=0.8, most=100)
    outer, inner = fit.summary(probability=0.8), fit.summary(probability=0.5)
    row = 0
    for axes in figure.axes:
        count = len(names_of(axes))
        rows = slice(row, row + count)
        ends, heights = segments(axes, 0)
        np.testing.assert_allclose(ends, outer.iloc[rows, 2:4])
        np.testing.assert_allclose(segments(axes, 1)[0], inner.iloc[rows, 2:4])
        np.testing.assert_allclose(axes.collections[2].get_offsets()[:, 0], outer["mean"].iloc[rows])
        # The first is on top.
        assert (np.diff(heights) == -1).all()
        assert [label.split("[")[0] for label in names_of(axes)] == [i.split("[")[0] for i in outer.index[rows]]
        row += count
    assert row == len(outer)


def test_the_forest_of_many_has_few_rows_and_says_which(many):
    figure = many.plot_forest()
    shown = [name for axes in figure.axes for name in names_of(axes)]
    assert len(shown) == 40
    assert {"theta[<7>]", "theta[<31>]"} <= set(shown)
    assert "40 of 62 coordinates: those with the smallest effective sizes" in texts(figure)


def test_sites_of_other_scales_have_their_own_axis(many):
    panels = [names_of(axes) for axes in many.plot_forest(most=100).axes]
    assert [panel[-1] for panel in panels] == ["theta[<59>]", "tau"]
    assert panels[0][0] == "mu"


def test_what_has_not_mixed_is_red(many):
    axes = many.plot_forest(["theta[<7>]", "theta[<8>]"]).axes[0]
    red = [np.allclose(color, to_rgba(RED)) for color in axes.collections[0].get_colors()]
    assert red == [True, False]


def test_traces_are_the_draws_in_their_order(many):
    figure = many.plot_trace(["mu", "theta[<7>]"])
    assert len(figure.axes) == 4
    for axes, draws in zip(figure.axes[::2], (many.posterior["mu"], many.posterior["theta"][:, :, 7]), strict=True):
        for chain, line in enumerate(axes.get_lines()):
            np.testing.assert_array_equal(line.get_ydata(), draws.values[chain])
            np.testing.assert_array_equal(line.get_xdata(), np.arange(250))
    assert [axes.get_title(loc="left") for axes in figure.axes[::2]] == ["mu", "theta[<7>]"]


def test_ranks_are_shares_of_draws_of_equal_weight(uneven):
    right = uneven.plot_trace("w[1]").axes[1]
    ranks = rankdata(uneven.data_tree["posterior"]["w"].values[:, :, 1]).reshape(2, -1)
    for chain, patch in enumerate(right.patches[-2:]):
        values, edges, _ = patch.get_data()
        assert len(values) == 20
        np.testing.assert_allclose(values, np.histogram(ranks[chain], edges)[0] / 400 * 20)
    assert "ranks of draws resampled to equal weights" in texts(right.figure)


def test_ranks_of_chains_apart_leave_the_band_and_others_do_not(many):
    apart = np.random.default_rng(0).normal(size=(2, 400))
    apart[1] += 1.0
    for fit, name, leaves in ((fit_of({"x": ((), apart)}), "x", True), (many, "mu", False)):
        right = fit.plot_trace(name).axes[1]
        band = right.patches[0].get_extents().transformed(right.transData.inverted())
        shares = np.concatenate([patch.get_data()[0] for patch in right.patches[1:]])
        outside = np.mean((shares < band.y0) | (shares > band.y1))
        # Two standard errors leave out one in twenty.
        assert (outside > 0.3) if leaves else (outside < 0.15)


def test_a_stopped_chain_is_shown_up_to_there():
    weights = np.ones((2, 100))
    weights[1, 40:] = 0
    left = fit_of({"x": ((), np.random.default_rng(0).normal(size=(2, 100)))}, weights).plot_trace().axes[0]
    shown = left.get_lines()[1].get_ydata()
    assert np.isfinite(shown[:40]).all()
    assert np.isnan(shown[40:]).all()


def test_very_many_draws_are_thinned_and_that_is_said():
    fit = fit_of({"x": ((), np.random.default_rng(0).normal(size=(1, 9000)))})
    figure = fit.plot_trace()
    line = figure.axes[0].get_lines()[0]
    np.testing.assert_array_equal(line.get_ydata(), fit.posterior["x"].values[0, ::5])
    assert "every 5th draw" in texts(figure)


def test_of_many_coordinates_six_rows_are_shown(many):
    figure = many.plot_trace()
    assert len(figure.axes) == 12
    assert "6 of 62 coordinates" in texts(figure)


def test_pairs_are_draws_of_equal_weight(uneven):
    figure = uneven.plot_pairs(["w[0]", "w[2]"])
    below = figure.axes[2]
    equal = uneven.data_tree["posterior"]["w"].values.reshape(-1, 3)
    np.testing.assert_array_equal(np.stack(below.get_lines()[0].get_data(), axis=1), equal[:, [0, 2]])
    assert (below.get_xlabel(), below.get_ylabel()) == ("w[0]", "w[2]")
    heights = [patch.get_height() for patch in figure.axes[0].patches]
    edges = [patch.get_x() for patch in figure.axes[0].patches]
    wanted, places = np.histogram(equal[:, 0], bins=40, density=True)
    np.testing.assert_allclose(heights, wanted)
    np.testing.assert_allclose(edges, places[:-1])


def test_divergences_are_marked_where_they_were():
    generator = np.random.default_rng(0)
    draws, diverging = generator.normal(size=(2, 300, 2)), generator.random((2, 300)) < 0.02
    fit = fit_of({"x": (("k",), draws)}, stats={"diverging": diverging})
    figure = fit.plot_pairs(["x[0]", "x[1]"])
    marked = figure.axes[2].get_lines()[1]
    np.testing.assert_array_equal(np.stack(marked.get_data(), axis=1), draws[diverging])
    assert f"in red: {diverging.sum()} divergences" in texts(figure)
    rug = fit.plot_trace("x[0]").axes[0].get_lines()[2]
    np.testing.assert_array_equal(rug.get_xdata(), np.flatnonzero(diverging.any(axis=0)))


def test_pairs_need_two(many):
    with pytest.raises(lv.SettingError, match="needs two coordinates; got 'mu' alone"):
        many.plot_pairs("mu")
    assert len([axes for axes in many.plot_pairs().axes if axes.axison]) == 10


def test_the_bound_over_the_steps(engines):
    fit = engines["steps"]
    whole, last = fit.plot_run().axes
    elbo = fit.elbo.values
    np.testing.assert_array_equal(whole.get_lines()[-2].get_ydata(), elbo)
    np.testing.assert_array_equal(last.get_lines()[0].get_xdata(), np.arange(200, 400))
    np.testing.assert_array_equal(last.get_lines()[0].get_ydata(), elbo[200:])
    medians = [np.median(part) for part in np.array_split(elbo, 50)]
    np.testing.assert_allclose(whole.get_lines()[-1].get_ydata(), medians)
    few = engines["vi"].plot_run().axes
    np.testing.assert_array_equal(few[0].get_lines()[0].get_ydata(), engines["vi"].elbo.values)


def test_the_step_size_over_the_draws(engines):
    fit = engines["decreasing"]
    density, step = fit.plot_run().axes
    np.testing.assert_array_equal(step.get_lines()[0].get_ydata(), fit.stats["step_size"].values[0])
    np.testing.assert_array_equal(density.get_lines()[3].get_ydata(), fit.stats["lp"].values[3])
    assert step.get_ylim()[0] == 0


def test_the_energy_and_its_changes(engines):
    fit = engines["nuts"]
    axes = fit.plot_run().axes[2]
    energy = fit.stats["energy"].values
    fraction = (np.diff(energy, axis=1) ** 2).mean(axis=1) / energy.var(axis=1)
    assert f"smallest BFMI {fraction.min():.2f}" in axes.get_title(loc="left")
    bars = axes.patches[:50]
    centred = (energy - energy.mean(axis=1, keepdims=True)).ravel()
    edges = np.append([bar.get_x() for bar in bars], bars[-1].get_x() + bars[-1].get_width())
    np.testing.assert_allclose([bar.get_height() for bar in bars], np.histogram(centred, edges, density=True)[0], 1e-5)


@pytest.mark.parametrize("name", ["nuts", "decreasing", "sghmc", "vi", "steps"])
@pytest.mark.parametrize("picture", ["forest", "trace", "pairs", "run"])
def test_every_engine_has_every_picture(engines, name, picture, tmp_path):
    path = tmp_path / "picture.svg"
    figure = getattr(engines[name], f"plot_{picture}")(path=path)
    assert isinstance(figure, Figure)
    assert path.read_text().startswith("<?xml")
    assert all(axes.has_data() for axes in figure.axes if axes.axison)


def test_a_point_has_a_forest_and_no_trace(engines):
    fit = engines["map"]
    assert "a single point" in texts(fit.plot_forest())
    with pytest.raises(lv.SettingError, match="each chain of this fit has 1"):
        fit.plot_trace()
    with pytest.raises(lv.SettingError, match="keeps nothing of how it went"):
        fit.plot_run()


def test_no_global_state_is_touched(many):
    import matplotlib
    from matplotlib import _pylab_helpers

    before = dict(matplotlib.rcParams)
    many.plot_forest()
    many.plot_trace()
    assert dict(matplotlib.rcParams) == before
    # What pyplot would show, and keep alive.
    assert not _pylab_helpers.Gcf.get_all_fig_managers()


def test_a_notebook_shows_a_figure_without_pyplot(many):
    assert many.plot_forest("mu")._repr_png_().startswith(b"\x89PNG")


def test_without_matplotlib_there_is_a_sentence(many, monkeypatch):
    monkeypatch.setitem(sys.modules, "matplotlib.figure", None)
    with pytest.raises(lv.SettingError, match=r"Pictures need Matplotlib: pip install 'langevin\[plots\]'"):
        many.plot_forest()


def test_names_are_no_formulas_and_long_ones_are_shortened(tmp_path):
    generator = np.random.default_rng(0)
    levels = ["$5 to $10_", "from the first to the very last of the categories there are", "b", "c", "d"]
    fit = fit_of({"price": (("range",), generator.normal(size=(2, 100, 5)))}, coords={"range": levels})
    figure = fit.plot_forest(path=tmp_path / "forest.png")
    assert names_of(figure.axes[0])[0] == r"price[\$5 to \$10_]"
    pairs = fit.plot_pairs(["price[b]", f"price[{levels[1]}]"], path=tmp_path / "pairs.png")
    assert pairs.axes[2].get_ylabel() == "price[from t… there are]"
    assert fit.plot_trace(path=tmp_path / "trace.png").axes[0].get_title(loc="left").startswith("price[")
    assert "<img" in fit._repr_html_()


def test_draws_that_are_not_finite_and_chains_without_weight():
    generator = np.random.default_rng(0)
    draws = generator.normal(size=(2, 100, 4))
    draws[:, :, 0], draws[:, :, 1], draws[0, 3, 2] = np.nan, 2.0, np.inf
    fit = fit_of({"x": (("k",), draws)})
    assert "not finite" in texts(fit.plot_trace())
    for picture in (fit.plot_pairs(), fit.plot_forest()):
        assert picture._repr_png_()
    stopped = fit_of({"x": (("k",), draws)}, np.zeros((2, 100)))
    with pytest.raises(lv.SettingError, match="no draw of this fit has any weight"):
        stopped.plot_forest()
    assert "no draw of this fit has any weight" in stopped._repr_html_()
    with pytest.raises(lv.SettingError, match="no numbers to show"):
        fit_of({"x": (("k",), np.zeros((2, 100, 0)))}).plot_trace()
