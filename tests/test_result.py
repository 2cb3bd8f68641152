import json
import warnings

import jax.numpy as jnp
import numpy as np
import numpyro
import numpyro.distributions as dist
import pandas as pd
import pytest
import xarray as xr

import langevin as lv


def model(x, group, y=None):
    spread = numpyro.sample("spread", dist.HalfNormal(1.0))
    with numpyro.plate("groups", 3):
        level = numpyro.sample("level", dist.Normal(0, 2.0))
        numpyro.sample("slope", dist.Normal(0, 1).expand([2]).to_event(1))
    numpyro.deterministic("total", level.sum())
    with numpyro.plate("rows", x.shape[0]):
        numpyro.sample("y", dist.Normal(level[group], spread + 0.5), obs=y)


@pytest.fixture(scope="module")
def fit():
    generator = np.random.default_rng(0)
    group = np.arange(90) % 3
    data = {"x": np.zeros(90), "group": group, "y": generator.normal(size=90) + group}
    return lv.fit(model, data, "sghmc", batch_size=30, progress=False)


def test_draws_have_named_dimensions(fit):
    assert fit.posterior["level"].dims == ("chain", "draw", "groups")
    assert fit.posterior["slope"].dims == ("chain", "draw", "groups", "slope_dim_1")
    assert fit.posterior["spread"].dims == ("chain", "draw")
    assert fit.posterior.sizes["chain"] == 4
    np.testing.assert_allclose(fit.posterior["total"], fit.posterior["level"].sum("groups"), rtol=1e-4)
    assert float(fit.posterior["spread"].min()) > 0


def test_the_tree_is_an_arviz_citizen(fit):
    import arviz_stats

    table = arviz_stats.summary(fit.data_tree, var_names=["spread"], round_to="none")
    assert float(table.loc["spread", "mean"]) == pytest.approx(fit.summary()["mean"]["spread"], rel=1e-4)
    assert {"posterior", "sample_stats", "unconstrained_posterior"} <= set(fit.data_tree.children)
    assert {"lp", "step_size", "weight"} <= set(fit.stats)


def test_summary_has_a_row_a_coordinate(fit):
    table = fit.summary()
    assert list(table.index[:4]) == ["spread", "level[0]", "level[1]", "level[2]"]
    assert list(table.columns) == ["mean", "sd", "eti89_lb", "eti89_ub", "ess", "mcse", "r_hat"]
    assert (table["eti89_lb"] < table["mean"]).all()
    assert table.notna().all(axis=None)
    assert list(fit.summary(["spread"], probability=0.5).columns[2:4]) == ["eti50_lb", "eti50_ub"]


def test_settings_say_how_it_was_made(fit):
    assert fit.settings["method"]["name"] == "SGHMC"
    assert fit.settings["batches"]["size"] == 30
    assert fit.settings["step_size"] > 0
    assert "3 %" in fit.settings["approximation"]
    assert fit.verdict.word == "trustworthy"
    assert "Trustworthy: no fault found." in repr(fit)


def test_save_and_load(fit, tmp_path):
    path = tmp_path / "run.zarr"
    fit.save(path)
    again = lv.load(path)
    xr.testing.assert_identical(again.posterior, fit.posterior)
    xr.testing.assert_identical(again.stats, fit.stats)
    assert again.settings == fit.settings
    pd.testing.assert_frame_equal(again.summary(), fit.summary())
    assert again.verdict == fit.verdict
    with pytest.raises(lv.SettingError, match="exists already"):
        fit.save(path)
    with pytest.raises(lv.SettingError, match="loaded"):
        again.kernel_stein_discrepancy()


def test_loading_what_is_not_a_fit(tmp_path, fit):
    with pytest.raises(lv.DataError, match="nothing at"):
        lv.load(tmp_path / "missing.zarr")
    (tmp_path / "other").mkdir()
    with pytest.raises(lv.DataError, match="not a fit"):
        lv.load(tmp_path / "other")
    strange = fit.data_tree.copy()
    strange.attrs.update(format="langevin fit 99", settings=json.dumps({}))
    strange.to_zarr(tmp_path / "newer.zarr", zarr_format=2, consolidated=True)
    with pytest.raises(lv.DataError, match="99"):
        lv.load(tmp_path / "newer.zarr")


def test_same_seed_same_bits():
    density = lv.Density(lambda m: -0.5 * m**2, lambda m, rows: -0.5 * (rows["x"] - m) ** 2, init=0.0)
    data = {"x": np.linspace(-1, 1, 30)}
    settings = {"batch_size": 10, "num_draws": 50, "num_warmup": 100, "progress": False}
    with pytest.warns(lv.LangevinWarning):
        a, b, c = (lv.fit(density, data, lv.SGLD(step_size=0.01), seed=seed, **settings) for seed in (3, 3, 4))
    np.testing.assert_array_equal(a.posterior["position"], b.posterior["position"])
    assert (a.posterior["position"].values != c.posterior["position"].values).any()


@pytest.mark.parametrize("method", [lv.SGLD(step_size=0.004), lv.SGHMC(step_size=0.02, gradient_noise=0.0)])
def test_a_given_step_that_is_too_long_is_found_out(method):
    density = lv.Density(lambda m: -0.5 * m**2, lambda m, rows: -0.5 * (rows["x"] - m) ** 2, init=0.0)
    data = {"x": np.random.default_rng(0).normal(size=200)}
    with pytest.warns(lv.LangevinWarning, match="times as wide"):
        fit = lv.fit(density, data, method, batch_size=lv.Batches(2, order="rows"), thin=20, progress=False)
    assert fit.summary()["sd"].item() > 2 * 201**-0.5
    assert "too wide" in [finding.code for finding in fit.verdict]


def test_a_given_step_of_sghmc_takes_off_the_noise_it_measured():
    density = lv.Density(lambda m: -0.5 * m**2, lambda m, rows: -0.5 * (rows["x"] - m) ** 2, init=0.0)
    data = {"x": np.random.default_rng(0).normal(size=200)}
    method = lv.SGHMC(step_size=0.01, friction=20.0)
    fit = lv.fit(density, data, method, batch_size=lv.Batches(50, order="rows"), thin=20, progress=False)
    assert fit.summary()["sd"].item() == pytest.approx(201**-0.5, rel=0.08)


@pytest.mark.parametrize("keywords", [{"probability": 89}, {"names": ["nope"]}])
def test_summary_refuses_nonsense(fit, keywords):
    with pytest.raises(lv.SettingError, match="probability|nope"):
        fit.summary(**keywords)


@pytest.fixture(scope="module")
def with_weights():
    density = lv.Density(
        lambda p: -0.5 * (p["m"] ** 2).sum(), lambda p, rows: -0.5 * (rows["x"] - p["m"][0]) ** 2, {"m": jnp.zeros(2)}
    )
    method = lv.SGLD(step_size=lv.Polynomial(1e-2, 1, 0.55))
    data = {"x": np.random.default_rng(0).normal(1.0, size=50)}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", lv.LangevinWarning)
        return lv.fit(density, data, method, batch_size=10, num_draws=2000, thin=20, progress=False)


def test_arviz_sees_draws_of_equal_weight(with_weights):
    """Their means are the weighted ones, up to the error of taking each draw a whole number of times."""
    import arviz_stats

    fit = with_weights
    assert np.ptp(fit.weights.values) > 1
    table, ours = arviz_stats.summary(fit.data_tree, round_to="none"), fit.summary()
    unweighted = fit.posterior["m"].mean(["chain", "draw"]).values
    mean = table["mean"].astype(float).to_numpy()
    np.testing.assert_allclose(mean, ours["mean"], atol=0.01 * ours["sd"].max())
    assert np.abs(unweighted - ours["mean"]).max() > 5 * np.abs(mean - ours["mean"]).max()
    np.testing.assert_allclose(table["sd"].astype(float), ours["sd"], rtol=0.01)


def test_the_weighted_draws_are_beside_them(with_weights, tmp_path):
    fit = with_weights
    tree = fit.data_tree
    xr.testing.assert_identical(tree["weighted_posterior"].to_dataset(), fit.posterior)
    xr.testing.assert_identical(tree["weighted_sample_stats"].to_dataset(), fit.stats)
    assert (tree["sample_stats"]["weight"] == 1).all()
    # The groups still belong together, draw by draw.
    np.testing.assert_array_equal(tree["posterior"]["m"], tree["unconstrained_posterior"]["m"])
    assert (np.diff(tree["sample_stats"]["step_size"], axis=1) <= 0).all()
    fit.save(tmp_path / "fit.zarr")
    again = lv.load(tmp_path / "fit.zarr")
    xr.testing.assert_identical(again.posterior, fit.posterior)
    xr.testing.assert_identical(again.data_tree["posterior"].to_dataset(), tree["posterior"].to_dataset())
    pd.testing.assert_frame_equal(again.summary(), fit.summary())


def test_the_draws_are_as_they_are_where_weights_are_equal(fit):
    for name in fit.tree.children:
        assert fit.data_tree[name].identical(fit.tree[name])
