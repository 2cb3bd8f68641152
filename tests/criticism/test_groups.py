"""The groups that ArviZ reads, against numbers computed by hand."""

import jax
import numpy as np
import numpyro
import numpyro.distributions as dist
import pytest
import xarray as xr
from criticism.conftest import NUM_ROWS, fitted, regression, rows
from numpyro.infer import Predictive
from scipy import stats

import langevin as lv
from langevin.criticism import lazy
from langevin.criticism.likelihood import Likelihood


def by_hand(fit):
    """The log-likelihood of every draw and row."""
    data, draws = rows(), fit.data_tree["posterior"]
    mean = draws["w"].values.astype(float) @ data["x"].T
    return stats.norm.logpdf(data["y"], mean, draws["sigma"].values.astype(float)[..., None])


def test_the_log_likelihood_of_every_draw(fit):
    group = fit.data_tree["log_likelihood"]
    assert group["y"].dims == ("chain", "draw", "rows")
    np.testing.assert_allclose(group["y"].values, by_hand(fit), rtol=1e-4, atol=1e-4)


def test_weighted_draws_are_resampled_before_anything_is_computed(fits):
    fit = fits["weighted sgld"]
    assert np.ptp(fit.weights.values) > 0.1
    tree = fit.data_tree
    assert not np.array_equal(tree["posterior"]["sigma"], fit.posterior["sigma"])
    stored = fit.with_groups("log_likelihood")
    # Computed for the draws as they are, and then taken as often as their weights ask.
    xr.testing.assert_allclose(stored.data_tree["log_likelihood"]["y"], tree["log_likelihood"]["y"])
    assert "weighted_log_likelihood" in stored.data_tree.children


def test_the_log_prior_has_no_jacobian(fit):
    draws, group = fit.data_tree["posterior"], fit.data_tree["log_prior"]
    of_w = stats.norm.logpdf(draws["w"].values.astype(float)).sum(-1)
    np.testing.assert_allclose(group["w"], of_w, rtol=1e-4)
    np.testing.assert_allclose(group["sigma"], stats.halfnorm.logpdf(draws["sigma"].values, scale=2.0), rtol=1e-3)


def test_data_is_in_the_order_of_the_user(fit):
    tree, data = fit.data_tree, rows()
    np.testing.assert_allclose(tree["observed_data"]["y"], data["y"], rtol=1e-6)
    np.testing.assert_allclose(tree["constant_data"]["x"], data["x"], rtol=1e-6)
    assert list(tree["observed_data"].data_vars) == ["y"]
    assert list(tree["constant_data"].data_vars) == ["x"]
    assert tree["constant_data"]["x"].dims == ("rows", "x_dim_1")


def test_predictive_draws_belong_to_the_draws(fit):
    """Standardised by the mean and sd of its draw, each is a standard normal number, and all are independent."""
    tree, data = fit.data_tree, rows()
    drawn = tree["posterior_predictive"]["y"].values
    mean = tree["posterior"]["w"].values @ data["x"].T
    noise = ((drawn - mean) / tree["posterior"]["sigma"].values[..., None]).ravel()
    count = len(noise)
    assert abs(noise.mean()) < 4 / np.sqrt(count)
    assert abs(noise.var() - 1) < 4 * np.sqrt(2 / count)
    assert len(np.unique(noise)) > 0.99 * count


def test_the_prior_and_its_predictions_belong_together(fits):
    tree, data = fits["nuts"].data_tree, rows()
    prior, drawn = tree["prior"], tree["prior_predictive"]["y"].values
    assert set(prior.data_vars) == {"w", "sigma"}
    noise = (drawn - prior["w"].values @ data["x"].T) / prior["sigma"].values[..., None]
    assert abs(noise.var() - 1) < 4 * np.sqrt(2 / noise.size)
    count = prior["sigma"].size
    assert stats.kstest(prior["sigma"].values.ravel(), stats.halfnorm(scale=2.0).cdf).pvalue > 1e-3
    assert abs(prior["w"].values.var() - 1) < 4 * np.sqrt(2 / (2 * count))


def test_what_is_simulated_is_a_function_of_the_seed(fits):
    fit = fits["nuts"]
    one, same, other = (fit.with_groups("posterior_predictive", seed=seed) for seed in (3, 3, 4))
    group = "posterior_predictive"
    np.testing.assert_array_equal(one.tree[group]["y"], same.tree[group]["y"])
    assert not np.array_equal(one.tree[group]["y"], other.tree[group]["y"])


def test_reading_some_rows_computes_no_others(fits, monkeypatch):
    fit = fitted("nuts")
    asked = []
    real = Likelihood._piece
    monkeypatch.setattr(Likelihood, "_piece", lambda self, *args: asked.append(args[2]) or real(self, *args))
    lazily = fit.data_tree["log_likelihood"]["y"]
    assert not asked
    some = lazily.isel(rows=[7, 3], draw=slice(10, 20))
    assert not asked
    np.testing.assert_allclose(some.values, by_hand(fit)[:, 10:20, [7, 3]], rtol=1e-4)
    assert min(len(batch["y"]) for batch in asked) == 2
    np.testing.assert_allclose(lazily.isel(chain=1, draw=5, rows=-1).values, by_hand(fit)[1, 5, -1], rtol=1e-4)


def test_what_was_read_is_kept(monkeypatch):
    """ArviZ reads it several times."""
    import arviz_stats

    fit, reads = fitted("nuts"), []
    real = Likelihood.read
    monkeypatch.setattr(Likelihood, "read", lambda self, *args: reads.append(args) or real(self, *args))
    first = arviz_stats.loo(fit.data_tree).elpd
    assert arviz_stats.loo(fit.data_tree).elpd == first
    assert len(reads) == 1


def test_too_many_numbers_are_refused_with_a_sentence(fits, monkeypatch):
    monkeypatch.setattr(lazy, "MOST_VALUES", 100)
    monkeypatch.setattr("langevin.criticism.groups.MOST_VALUES", 100)
    fit = lv.Fit(fits["nuts"].tree, fits["nuts"].target)
    limit = lazy.Limit("`log_likelihood`", "Take fewer.", 100)
    with pytest.raises(lv.SettingError, match=r"`log_likelihood` would be 101 numbers .* at most 100 .* Take fewer"):
        limit.check(101)
    with pytest.raises(lv.SettingError, match=r"would be 24,000 numbers.*at most 1,000 .*fit\.loo\(num_rows=1000\)"):
        fit.with_groups("log_likelihood", most_values=1000)


def test_groups_are_stored_with_a_fit(fits, tmp_path):
    fit = fits["nuts"].with_groups()
    assert set(fit.tree.children) >= {"log_likelihood", "log_prior", "prior"}
    fit.save(tmp_path / "fit.zarr")
    loaded = lv.load(tmp_path / "fit.zarr")
    for name in ("observed_data", "log_likelihood", "posterior_predictive", "prior_predictive"):
        xr.testing.assert_identical(loaded.data_tree[name].to_dataset(), fit.data_tree[name].to_dataset())


def test_a_loaded_fit_needs_its_model_and_rows(fits, tmp_path):
    fits["nuts"].save(tmp_path / "fit.zarr")
    alone = lv.load(tmp_path / "fit.zarr")
    assert "log_likelihood" not in alone.data_tree
    with pytest.raises(lv.SettingError, match=r"needs the model.*lv\.load\(path, model\)"):
        alone.with_groups("log_likelihood")
    loaded = lv.load(tmp_path / "fit.zarr", regression)
    with pytest.raises(lv.SettingError, match="needs the rows"):
        loaded.loo()
    with pytest.raises(lv.SettingError, match="has 5 rows, and the fit is of 60"):
        loaded.loo(data={name: column[:5] for name, column in rows().items()})
    np.testing.assert_allclose(loaded.loo(data=rows()).elpd, fits["nuts"].loo().elpd, rtol=1e-5)
    again = loaded.with_groups("log_likelihood", data=rows())
    xr.testing.assert_allclose(again.tree["log_likelihood"].ds, fits["nuts"].data_tree["log_likelihood"].ds)


def test_a_run_on_disk(fits, tmp_path):
    fit = fitted("nuts", store=tmp_path / "run")
    xr.testing.assert_allclose(fit.data_tree["log_likelihood"].ds, fits["nuts"].data_tree["log_likelihood"].ds)


def two_sites(x, y, n):
    """Of every row a number and counts of two kinds; and one number for all."""
    w = numpyro.sample("w", dist.Normal(0.0, 1.0))
    numpyro.sample("total", dist.Normal(w, 1.0), obs=0.3)
    with numpyro.plate("rows", x.shape[0]):
        numpyro.sample("y", dist.Normal(w * x, 1.0), obs=y)
        numpyro.factor("bonus", -0.5 * w * x**2)
        with numpyro.plate("kinds", 2):
            numpyro.sample("n", dist.Poisson(jax.numpy.exp(w)), obs=n.T)


@pytest.fixture(scope="module")
def several():
    generator = np.random.default_rng(0)
    data = {"x": generator.normal(size=8), "y": generator.normal(size=8), "n": generator.poisson(1.0, (8, 2))}
    return data, fitted("nuts", two_sites, data, num_draws=50)


def test_one_variable_a_site(several):
    data, fit = several
    tree = fit.data_tree
    w = tree["posterior"]["w"].values.astype(float)[..., None]
    found = tree["log_likelihood"]
    assert set(found.data_vars) == {"total", "y", "bonus", "n"}
    np.testing.assert_allclose(found["y"], stats.norm.logpdf(data["y"], w * data["x"]), rtol=1e-4)
    np.testing.assert_allclose(found["bonus"], -0.5 * w * data["x"] ** 2, rtol=1e-4, atol=1e-6)
    np.testing.assert_allclose(found["total"], stats.norm.logpdf(0.3, w[..., 0]), rtol=1e-4)
    assert found["n"].dims == ("chain", "draw", "kinds", "rows")
    expected = stats.poisson.logpmf(data["n"].T, np.exp(w)[..., None])
    np.testing.assert_allclose(found["n"], expected, rtol=1e-4)
    assert found["n"].isel(rows=[6, 2], kinds=1).values == pytest.approx(expected[:, :, 1][:, :, [6, 2]], rel=1e-4)
    assert set(tree["observed_data"].data_vars) == {"total", "y", "n"}
    np.testing.assert_array_equal(tree["observed_data"]["n"], data["n"].T)
    # A row counts with all that was observed in it.
    by_row = found["y"].values + found["bonus"].values + found["n"].sum("kinds").values
    likelihood = Likelihood(fit.target, fit.tree)
    np.testing.assert_allclose(likelihood.by_unit(np.arange(50)), by_row, rtol=1e-6)
    rows_of_target = jax.vmap(fit.target.log_likelihood)({"w": fit.tree["unconstrained_posterior"]["w"].values[0]})
    np.testing.assert_allclose(by_row[0], rows_of_target, rtol=1e-4)


def test_predictions_agree_with_numpyro(several):
    data, fit = several
    ours = fit.data_tree["posterior_predictive"]
    assert ours["n"].dims == ("chain", "draw", "kinds", "rows")
    draws = {"w": np.repeat(fit.posterior["w"].values.ravel(), 20)}
    theirs = Predictive(two_sites_open, draws)(jax.random.key(0), data["x"])
    for name in ("y", "n"):
        mean = ours[name].mean(("chain", "draw")).values
        error = ours[name].std(("chain", "draw")).values / np.sqrt(50)
        assert np.abs(mean - theirs[name].mean(0)).max() < 5 * error.max(), name


def two_sites_open(x):
    """The same without what is observed."""
    w = numpyro.sample("w", dist.Normal(0.0, 1.0))
    with numpyro.plate("rows", x.shape[0]):
        numpyro.sample("y", dist.Normal(w * x, 1.0))
        with numpyro.plate("kinds", 2):
            numpyro.sample("n", dist.Poisson(jax.numpy.exp(w)))


def smoothed(y):
    """Rows that depend on one another, and a value of its own for each."""
    scale = numpyro.sample("scale", dist.HalfNormal(1.0))
    with numpyro.plate("rows", y.shape[0]):
        local = numpyro.sample("local", dist.Normal(0.0, scale))
        numpyro.sample("y", dist.Normal(local + y.mean(), 1.0), obs=y)


def test_rows_that_need_all_others():
    y = np.random.default_rng(0).normal(size=6)
    fit = fitted("nuts", smoothed, {"y": y}, num_draws=50)
    likelihood = Likelihood(fit.target, fit.tree)
    assert not likelihood.rows_apart
    found = fit.data_tree["log_likelihood"]["y"].isel(rows=[4, 1]).values
    local = fit.posterior["local"].values.astype(float)
    np.testing.assert_allclose(found, stats.norm.logpdf(y, local + y.mean())[:, :, [4, 1]], rtol=1e-4, atol=1e-5)


def test_rows_that_look_at_all_others():
    def centred(y):
        w = numpyro.sample("w", dist.Normal(0.0, 1.0))
        with numpyro.plate("rows", y.shape[0]):
            numpyro.sample("y", dist.Normal(w + y.mean(), 1.0), obs=y)

    y = np.random.default_rng(0).normal(size=6) + np.array([0.0, 5.0] * 3)
    fit = fitted("nuts", centred, {"y": y}, num_draws=50)
    assert not Likelihood(fit.target, fit.tree).rows_apart
    w = fit.posterior["w"].values.astype(float)[..., None]
    found = fit.data_tree["log_likelihood"]["y"].isel(rows=[1]).values
    np.testing.assert_allclose(found, stats.norm.logpdf(y, w + y.mean())[:, :, [1]], rtol=1e-4)


def test_a_series_without_rows():
    def series(y):
        level = numpyro.sample("level", dist.Normal(0.0, 1.0))
        numpyro.sample("y", dist.Normal(level, 1.0), obs=y)

    y = np.random.default_rng(0).normal(size=7)
    fit = fitted("nuts", series, {"y": y})
    found = fit.data_tree["log_likelihood"]["y"]
    level = fit.posterior["level"].values.astype(float)[..., None]
    np.testing.assert_allclose(found, stats.norm.logpdf(y, level), rtol=1e-4)
    assert fit.loo().n_data_points == 7


def test_a_density_has_a_likelihood_and_no_predictions():
    density = lv.Density(
        lambda m: -(m["a"] ** 2) / 2, lambda m, rows: -((rows["x"] - m["a"]) ** 2) / 2, init={"a": 0.0}
    )
    x = np.arange(4.0)
    fit = fitted("nuts", density, {"x": x}, num_draws=50)
    tree = fit.data_tree
    a = fit.posterior["a"].values.astype(float)[..., None]
    np.testing.assert_allclose(tree["log_likelihood"]["log_likelihood"], -((x - a) ** 2) / 2, atol=1e-5)
    np.testing.assert_allclose(tree["log_prior"]["log_prior"], -(a[..., 0] ** 2) / 2, atol=1e-5)
    np.testing.assert_allclose(tree["constant_data"]["x"], x)
    assert not {"observed_data", "posterior_predictive", "prior"} & set(tree.children)
    with pytest.raises(lv.SettingError, match=r"no 'posterior_predictive': it is an lv\.Density"):
        fit.with_groups("posterior_predictive")


def test_draws_that_were_not_kept():
    fit = fitted("nuts", keep="w", num_draws=50)
    assert "log_likelihood" not in fit.data_tree
    assert "observed_data" in fit.data_tree
    with pytest.raises(lv.SettingError, match=r"needs the latent site 'sigma', of which this fit kept no draws"):
        fit.with_groups("log_likelihood")


def test_a_guide_of_numpyro(fits):
    from numpyro.infer.autoguide import AutoNormal

    fit = fitted(lv.VI(AutoNormal(regression), num_steps=500))
    assert fit.target is None
    np.testing.assert_allclose(fit.data_tree["log_likelihood"]["y"].values, by_hand(fit), rtol=1e-4, atol=1e-4)
    assert fit.data_tree["posterior_predictive"]["y"].shape == (2, 200, NUM_ROWS)


def test_an_unknown_group():
    with pytest.raises(lv.SettingError, match="log_lik"):
        fitted("nuts", num_draws=20).with_groups("log_lik")
