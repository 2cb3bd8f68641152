"""Leave-one-out cross-validation, against ArviZ's on all rows, and against a posterior in closed form."""

import arviz_stats
import numpy as np
import numpyro
import numpyro.distributions as dist
import pytest
import xarray as xr
from criticism.conftest import fitted
from scipy import stats

import langevin as lv
from langevin.criticism.likelihood import Likelihood

pytestmark = [
    pytest.mark.filterwarnings("ignore:.*shape parameter of Pareto:UserWarning"),
    # ArviZ, of pandas.
    pytest.mark.filterwarnings("ignore:The inplace keyword"),
]


def mean_of(y):
    mu = numpyro.sample("mu", dist.Normal(0.0, 10.0))
    with numpyro.plate("rows", y.shape[0]):
        numpyro.sample("y", dist.Normal(mu, 1.0), obs=y)


def in_closed_form(y):
    """The log predictive density of each row where it is left out, in `mean_of`."""
    precision = 0.01 + len(y) - 1
    centre = (y.sum() - y) / precision
    return stats.norm.logpdf(y, centre, np.sqrt(1 + 1 / precision))


@pytest.mark.filterwarnings("ignore::langevin.LangevinWarning")
@pytest.mark.parametrize("name", ["nuts", "sghmc", "weighted sgld"])
def test_all_rows_are_as_arviz_has_them(fits, name):
    ours, theirs = fits[name].loo(), arviz_stats.loo(fits[name].data_tree, pointwise=True)
    # The relative efficiency of the draws, which sets the length of the tail, is estimated in another way.
    assert ours.elpd == pytest.approx(theirs.elpd, abs=0.02)
    assert ours.se == pytest.approx(theirs.se, rel=0.01)
    assert ours.p == pytest.approx(theirs.p, abs=0.02)
    np.testing.assert_allclose(ours.elpd_i, theirs.elpd_i, atol=0.01)
    assert ours.n_data_points == 60


def test_an_approximation_is_corrected_by_its_ratios(fits):
    """Draws that are too far apart make a row matter too much, until they are weighted."""
    y = np.random.default_rng(0).normal(size=30)
    fit = fitted("vi", mean_of, {"y": y}, num_draws=2000)
    precision = 0.01 + len(y)
    noise = np.random.default_rng(1).normal(size=(2, 2000))
    mu = y.sum() / precision + 1.5 * noise / np.sqrt(precision)
    tree = fit.tree.copy()
    tree["posterior"] = xr.DataTree(fit.posterior.assign(mu=(("chain", "draw"), mu)))
    ratios = {"lp": -0.5 * (1.5 * noise) ** 2, "log_q": -0.5 * noise**2}
    wide = lv.Fit(xr.DataTree.from_dict({"posterior": tree["posterior"].ds, "sample_stats": fit.stats}), fit.target)
    wide.tree.attrs = tree.attrs
    stats_of = fit.stats.assign({name: (("chain", "draw"), values) for name, values in ratios.items()})
    wide.tree["sample_stats"] = xr.DataTree(stats_of)
    found, exact = wide.loo(), in_closed_form(y)
    seen = stats.norm.logpdf(y, y.sum() / precision, np.sqrt(1 + 1 / precision))
    assert found.approx_posterior
    assert found.elpd == pytest.approx(exact.sum(), abs=0.1)
    assert found.p == pytest.approx(seen.sum() - exact.sum(), abs=0.15)
    assert wide.loo(20).elpd == pytest.approx(exact.sum(), abs=0.3)
    plain = arviz_stats.loo(wide.data_tree)
    assert plain.p > 1.5 * found.p


def test_comparing_models(fits):
    def without(x, y):
        sigma = numpyro.sample("sigma", dist.HalfNormal(2.0))
        with numpyro.plate("rows", x.shape[0]):
            numpyro.sample("y", dist.Normal(0.0, sigma), obs=y)

    worse = fitted("nuts", without)
    table = arviz_stats.compare({"with": fits["nuts"].loo(), "without": worse.loo()})
    assert list(table.index) == ["with", "without"]
    expected = fits["nuts"].loo().elpd - worse.loo().elpd
    assert table.loc["without", "elpd_diff"] == pytest.approx(expected)
    sampled = arviz_stats.compare({"with": fits["nuts"].loo(40), "without": worse.loo(40)})
    error = sampled.loc["without", "subsampling_dse"]
    assert abs(sampled.loc["without", "elpd_diff"] - expected) < 3 * error + 0.1


@pytest.fixture(scope="module")
def many():
    """200,000 rows with tails that the model does not expect, and their exact cross-validation."""
    y = np.random.default_rng(2).standard_t(5, size=200_000)
    return fitted("nuts", mean_of, {"y": y}, num_draws=300), in_closed_form(y.astype(np.float32).astype(float))


def test_a_sample_of_many_rows(many, monkeypatch):
    fit, exact = many
    monkeypatch.setattr("langevin.criticism.loo.MOST_EVALUATED", 10_000_000)
    found = fit.loo(1000)
    # With S draws the variance of mu, which is in `p`, is known to sqrt(2 / S).
    size = float(fit.summary()["ess"].iloc[0])
    monte_carlo = found.p * np.sqrt(2 / size)
    assert abs(found.elpd - exact.sum()) < 2 * np.hypot(found.subsampling_se, monte_carlo)
    assert found.subsampling_se < 1.0
    assert found.se == pytest.approx(np.sqrt(len(exact) * exact.var()), rel=0.01)
    assert (found.n_data_points, found.subsample_size) == (200_000, 1000)
    # The variance of the score over that of the model: 5 / 3 for this t distribution.
    assert found.p == pytest.approx(5 / 3, abs=0.5)


def test_a_sample_computes_few_of_the_rows(many, monkeypatch):
    fit, _ = many
    evaluated = []
    real = Likelihood._piece

    def counted(self, names, draws, batch):
        evaluated.append(len(draws["mu"]) * len(batch["y"]))
        return real(self, names, draws, batch)

    monkeypatch.setattr(Likelihood, "_piece", counted)
    monkeypatch.setattr("langevin.criticism.loo.MOST_EVALUATED", 0)
    found = fit.loo(1000)
    # 32 draws for the approximation and one for the mean, rounded up to whole pieces; all would be 120 million.
    assert sum(evaluated) < 40 * 2 * 2**17 + 2_000_000
    assert found.subsampling_se < 1.0


@pytest.fixture(scope="module")
def heavy():
    y = np.random.default_rng(3).standard_t(5, size=1500)
    fit = fitted("nuts", mean_of, {"y": y})
    return fit, fit.loo()


def test_samples_have_no_bias_and_their_errors_are_right(heavy):
    """Over many samples of the same fit: the truth is ArviZ's number for all rows."""
    fit, exact = heavy
    found = [fit.loo(200, seed=seed) for seed in range(12)]
    errors = np.array([one.elpd - exact.elpd for one in found])
    said = np.array([one.subsampling_se for one in found])
    assert abs(errors.mean()) < 4 * errors.std() / np.sqrt(12) + 1e-6
    assert 0.3 < errors.std() / np.sqrt(np.mean(said**2)) < 3.0
    # The rows that matter most are computed, and the rest are well approximated.
    assert np.sqrt(np.mean(said**2)) < 0.1
    assert np.mean([one.p for one in found]) == pytest.approx(exact.p, rel=0.3)
    assert fit.loo(200, seed=4).elpd == found[4].elpd


def test_where_the_mean_is_no_likely_point(monkeypatch):
    """Labels that switch: at the mean both components are the same, and draws tell more of a row."""

    def mixture(y):
        centre = numpyro.sample("centre", dist.Normal(0.0, 5.0))
        sign = numpyro.sample("sign", dist.Normal(0.0, 5.0))
        both = dist.Normal(centre + jnp.stack([sign, -sign]), 0.5)
        with numpyro.plate("rows", y.shape[0]):
            numpyro.sample("y", dist.MixtureSameFamily(dist.Categorical(probs=jnp.array([0.5, 0.5])), both), obs=y)

    import jax.numpy as jnp

    generator = np.random.default_rng(0)
    y = np.concatenate([generator.normal(-2, 0.5, 300), generator.normal(2, 0.5, 300)])
    fit = fitted("nuts", mixture, {"y": y}, num_chains=8)
    assert abs(float(fit.posterior["sign"].mean())) < 1.9
    monkeypatch.setattr("langevin.criticism.loo.MOST_EVALUATED", 0)
    found, exact = fit.loo(200), fit.loo()
    assert abs(found.elpd - exact.elpd) < 3 * found.subsampling_se + 0.05
    assert found.subsampling_se < 2.0


@pytest.mark.parametrize(("num_rows", "message"), [(61, "there are 60 rows"), (1, "num_rows"), (2.5, "num_rows")])
def test_nonsense(fits, num_rows, message):
    with pytest.raises(lv.SettingError, match=message):
        fits["nuts"].loo(num_rows)


def test_rows_that_cannot_be_told_are_counted():
    y = np.append(np.zeros(20), 25.0)
    fit = fitted("nuts", mean_of, {"y": y})
    with pytest.warns(lv.LangevinWarning, match=r"1 of 21 rows have k >"):
        found = fit.loo()
    assert found.warning
    assert int(np.argmax(found.pareto_k.values)) == 20
