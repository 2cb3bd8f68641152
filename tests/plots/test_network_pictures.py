"""Bands over a range, boundaries and other rows, by what `predict` says; and networks in all of them."""

import equinox as eqx
import jax
import numpy as np
import numpyro
import numpyro.distributions as dist
import pytest
from plots.conftest import quietly
from plots.test_predictive_pictures import edges_of

import langevin as lv
from langevin.plots.boundary import PLACES, surface_of
from langevin.plots.grids import rows_at
from langevin.plots.novelty import auroc, entropy, measured


@pytest.fixture(scope="module")
def curve():
    """A network on a curve, with two draws of a posterior that is not known well."""
    x = np.linspace(0, 1, 30)
    data = {"x": x, "y": np.sin(3 * x) + np.random.default_rng(0).normal(0, 0.1, 30)}
    network = lv.Network(lambda key: eqx.nn.MLP(1, 1, 5, 1, activation=jax.numpy.tanh, key=key), standardise=data)
    return quietly(network, data, num_draws=50, num_warmup=100, num_chains=2)


@pytest.fixture(scope="module")
def moons():
    """A network with two outputs and classes, called with one matrix."""
    generator = np.random.default_rng(1)
    x = generator.normal(size=(60, 2)).astype(np.float32)
    data = {"x": x, "y": (x[:, 0] * x[:, 1] > 0).astype(int)}
    network = lv.Network(lambda key: eqx.nn.MLP(2, 2, 6, 1, key=key), "categorical")
    return quietly(network, data, num_draws=40, num_warmup=100, num_chains=2)


@pytest.fixture(scope="module")
def three():
    """Three classes, two columns and a group."""
    generator = np.random.default_rng(2)
    a, b = generator.normal(size=(2, 200))
    group = generator.integers(0, 3, 200)
    group[:120] = 2
    y = np.stack([a, b, -a - b], axis=1).argmax(axis=1)

    def model(a, b, group, y=None):
        w = numpyro.sample("w", dist.Normal(0, 2).expand([2, 3]).to_event(2))
        shift = numpyro.sample("shift", dist.Normal(0, 1).expand([3, 3]).to_event(2))
        logits = a[:, None] * w[0] + b[:, None] * w[1] + shift[group]
        with numpyro.plate("rows", len(a)):
            numpyro.sample("y", dist.Categorical(logits=logits), obs=y)

    return quietly(model, {"a": a, "b": b, "group": group, "y": y}, num_draws=60, num_warmup=200)


def test_bands_over_a_range_are_of_new_places(curve):
    axes = curve.plot_bands("x", over=(-2, 3), num_draws=100).axes[0]
    at, mean = axes.get_lines()[0].get_data()
    assert (at[0], at[-1]) == (-2, 3)
    assert axes.get_xlim() == (-2, 3)
    wanted = curve.predict({"x": at}, quantiles=(0.05, 0.95), num_draws=100)
    np.testing.assert_allclose(mean, wanted["mean"], rtol=1e-5, atol=1e-6)
    low, high = edges_of(axes.collections[0], at)
    # The quantiles of 100 draws, interpolated between draws in two ways.
    np.testing.assert_allclose(high - low, wanted["q95"] - wanted["q5"], rtol=0.25)
    assert len(axes.collections[2].get_offsets()) == 30


def test_the_parts_are_those_of_predict(curve):
    axes = curve.plot_bands("x", over=(-1, 2), parts=True).axes[0]
    at, mean = axes.get_lines()[0].get_data()
    wanted = curve.predict({"x": at}, quantiles=())
    for collection, name in zip(axes.collections, ("sd", "sd_epistemic"), strict=False):
        low, high = edges_of(collection, at)
        np.testing.assert_allclose(high - mean, 2 * wanted[name], rtol=1e-4, atol=1e-6)
        np.testing.assert_allclose(mean - low, 2 * wanted[name], rtol=1e-4, atol=1e-6)
    labels = [text.get_text() for text in axes.get_legend().get_texts()]
    assert labels == ["2 sd, with noise", "2 sd, of the mean", "mean", "observed"]


def test_the_parts_of_groups_add_up(three):
    """Rows of one place that differ in their means widen the outer band only."""

    def model(x, y=None):
        b = numpyro.sample("b", dist.Normal(0, 10))
        with numpyro.plate("rows", len(x)):
            numpyro.sample("y", dist.Normal(b * x[:, 1], 0.5), obs=y)

    x = np.stack([np.repeat([0.0, 1.0], 20), np.tile([-3.0, 3.0], 20)], axis=1)
    fit = quietly(model, {"x": x, "y": x[:, 1]}, num_draws=200, num_warmup=200)
    axes = fit.plot_bands("x[0]", parts=True).axes[0]
    slope = float(fit.posterior["b"].std(ddof=1))
    inner, outer = (edges_of(axes.collections[number], [0.0, 1.0])[1] for number in (1, 0))
    np.testing.assert_allclose(inner, 2 * 3 * slope, rtol=0.02, atol=0.02)
    np.testing.assert_allclose(outer, 2 * np.sqrt(9 * slope**2 + 0.25 + 9), rtol=0.02)


def test_other_columns_are_at_typical_values():
    inputs = {"x": np.array([[1.0, 5.0], [2.0, 6.0], [9.0, 7.0]]), "k": np.array([4, 0, 4]), "z": np.array([1.0, 2, 9])}
    table = rows_at(inputs, {"x[1]": np.array([-1.0, 1.0])})
    np.testing.assert_array_equal(table.columns["x"], [[2, -1], [2, 1]])
    np.testing.assert_array_equal(table.columns["k"], [4, 4])
    np.testing.assert_array_equal(table.columns["z"], [2, 2])
    assert table.columns["k"].dtype == inputs["k"].dtype


def test_the_boundary_is_where_predict_has_it(moons):
    figure = moons.plot_boundary(over=((-2, 2), (-3, 3)), epistemic=True)
    axes, beside = figure.axes[0], figure.axes[1]
    surface = surface_of(moons, over=((-2, 2), (-3, 3)))
    grid = np.stack([part.ravel() for part in np.meshgrid(surface.x, surface.y)], axis=1).astype(np.float32)
    draws = moons.predict({"x": grid}, quantiles=())
    np.testing.assert_allclose(surface.probabilities[..., 1].ravel(), draws["probability_1"], rtol=1e-4, atol=1e-6)
    shown = axes.collections[0].get_array()
    np.testing.assert_allclose(np.ravel(shown), draws["probability_1"], rtol=1e-4, atol=1e-6)
    np.testing.assert_allclose(np.ravel(beside.collections[0].get_array()), surface.epistemic.ravel())
    assert axes.get_xlim() == (-2, 2)
    assert axes.get_ylabel() == "x[1]"
    points = [collection for collection in axes.collections if len(collection.get_offsets()) > 1]
    assert sum(len(collection.get_offsets()) for collection in points) == 60


def test_the_epistemic_part_is_the_sd_over_draws(moons):
    """By hand: the network at each draw, in NumPy."""
    surface = surface_of(moons, over=((-2, 2), (-3, 3)))
    sites = {name: value.values.reshape(-1, *value.shape[2:]) for name, value in moons.posterior.items()}
    grid = np.stack([part.ravel() for part in np.meshgrid(surface.x, surface.y)], axis=1)
    hidden = np.maximum(np.einsum("soi,ri->sro", sites["layers.0.weight"], grid) + sites["layers.0.bias"][:, None], 0.0)
    logits = np.einsum("soi,sri->sro", sites["layers.1.weight"], hidden) + sites["layers.1.bias"][:, None]
    probability = 1 / (1 + np.exp(logits[..., 0] - logits[..., 1]))
    np.testing.assert_allclose(surface.probabilities[..., 1].ravel(), probability.mean(axis=0), atol=1e-4)
    np.testing.assert_allclose(surface.epistemic.ravel(), probability.std(axis=0, ddof=1), atol=1e-3)


def test_two_classes_by_either_distribution_have_probabilities(moons):
    """A categorical site with two classes is scored like a Bernoulli one."""
    scores = moons.evaluate()
    predicted = moons.predict()
    np.testing.assert_allclose(predicted["probability_0"] + predicted["probability_1"], 1.0, rtol=1e-5)
    assert scores["accuracy"] > 0.8


def test_three_classes_are_colours(three):
    with pytest.raises(lv.SettingError, match="shows two columns, and the model is called with 3: a, b, group"):
        three.plot_boundary()
    figure = three.plot_boundary(("a", "b"), epistemic=True)
    surface = surface_of(three, ("a", "b"))
    assert surface.probabilities.shape == (PLACES, PLACES, 3)
    np.testing.assert_allclose(surface.probabilities.sum(axis=-1), 1.0, rtol=1e-5)
    # The most frequent group is the one that is shown.
    place = {"a": surface.x[[10]], "b": surface.y[[70]], "group": np.array([2])}
    wanted = [float(three.predict(place)[f"probability_{k}"][0]) for k in range(3)]
    np.testing.assert_allclose(surface.probabilities[70, 10], wanted, rtol=1e-4)
    assert [text.get_text() for text in figure.axes[0].get_legend().get_texts()] == ["0", "1", "2"]
    assert "other columns at their median" in " ".join(text.get_text() for text in figure.texts)
    assert 0 < surface.epistemic.max() < 0.5


def test_other_rows_are_told_apart(moons, curve):
    near, far = {"x": np.zeros((50, 2), np.float32) + 1}, {"x": np.full((40, 2), 30.0, np.float32)}
    axes = moons.plot_out_of_distribution(far, near, bins=10).axes[0]
    own = measured(moons, near)
    wanted = moons.predict(near, quantiles=())
    p = np.stack([wanted["probability_0"], wanted["probability_1"]], axis=1)
    np.testing.assert_allclose(own.values, -np.sum(p * np.log(p), axis=1), rtol=1e-4)
    for patch in axes.patches:
        assert patch.get_data()[0].sum() == pytest.approx(1)
    assert axes.get_xlabel() == "entropy of the prediction, nats"
    sure = measured(moons, near, "confidence")
    np.testing.assert_allclose(sure.values, p.max(axis=1), rtol=1e-5)
    # A number: how far the draws are apart, which grows away from the rows.
    figure = curve.plot_out_of_distribution({"x": np.linspace(3, 4, 20)})
    assert "AUROC 1.000" in " ".join(text.get_text() for text in figure.texts)


def test_the_area_is_the_probability_of_a_larger_one():
    generator = np.random.default_rng(3)
    own, others = generator.integers(0, 6, 50), generator.integers(2, 9, 70)
    pairs = np.sign(others[:, None] - own[None, :])
    assert auroc(own, others) == pytest.approx(float(np.mean((pairs + 1) / 2)))
    assert auroc(own, own) == pytest.approx(0.5)
    assert entropy(np.full((1, 10), 0.1))[0] == pytest.approx(np.log(10))


def test_a_network_has_the_other_pictures_too(moons, curve):
    above, _ = moons.plot_reliability().axes
    assert len(above.get_lines()[1].get_xdata()) >= 2
    assert curve.plot_bands("x").axes[0].get_ylabel() == "y"
    assert len(curve.plot_forest(["noise", "prediction[0]"]).axes) >= 1
    for fit in (moons, curve):
        assert fit.plot_trace(most=2).axes
        assert fit.plot_run().axes
        assert fit._repr_html_()


def test_what_cannot_be_shown_is_refused(moons, curve, three):
    for call, message in (
        (lambda: curve.plot_boundary(), "'y' is a number. See `plot_bands`"),
        (lambda: moons.plot_boundary(("x[0]", "x[0]")), "two different names"),
        (lambda: moons.plot_boundary(("x[0]", "x[5]")), r"no column 'x\[5\]'"),
        (lambda: moons.plot_boundary(over=(-1, 1)), "`over` must be two ranges"),
        (lambda: moons.plot_boundary(over=((1, -1), (0, 1))), "the lower one first"),
        (lambda: curve.plot_bands("x", over=(1, 1)), "the lower one first"),
        (lambda: moons.plot_bands("x[0]"), "See `plot_reliability` and `plot_boundary`"),
        (lambda: curve.plot_out_of_distribution({"x": [1.0]}, measure="entropy"), "for which `measure` is 'epistemic'"),
        (lambda: three.plot_out_of_distribution(None, measure="epistemic"), "'entropy' or 'confidence'"),
    ):
        with pytest.raises(lv.SettingError, match=message):
            call()
