"""What ArviZ offers, called on fits by four methods: it must run, and say what is true."""

import arviz_plots
import arviz_stats
import matplotlib as mpl
import numpy as np
import numpyro
import numpyro.distributions as dist
import pytest
from criticism.conftest import METHODS, fitted

import langevin as lv

mpl.use("Agg")
pytestmark = [
    pytest.mark.filterwarnings("ignore:.*shape parameter of Pareto:UserWarning"),
    # ArviZ, of pandas.
    pytest.mark.filterwarnings("ignore:The inplace keyword"),
]

PLOTS = [
    "plot_ppc_dist",
    "plot_ppc_pit",
    "plot_ppc_tstat",
    "plot_ppc_interval",
    "plot_loo_pit",
    "plot_prior_posterior",
    "plot_psense_dist",
    "plot_psense_quantities",
]


def counts_and_labels(n, b):
    """For pictures of counts, and of reliability."""
    rate = numpyro.sample("rate", dist.LogNormal(0.5, 0.5))
    logit = numpyro.sample("logit", dist.Normal(0.0, 1.0))
    with numpyro.plate("rows", n.shape[0]):
        numpyro.sample("n", dist.Poisson(rate), obs=n)
        numpyro.sample("b", dist.Bernoulli(logits=logit), obs=b)


@pytest.fixture(autouse=True)
def _closed():
    yield
    from matplotlib import pyplot

    pyplot.close("all")


@pytest.mark.parametrize("plot", PLOTS)
def test_pictures(fit, plot):
    drawn = getattr(arviz_plots, plot)(fit.data_tree, backend="matplotlib")
    axes = mpl.pyplot.gcf().axes
    assert drawn is not None
    assert sum(len(one.lines) + len(one.collections) + len(one.patches) for one in axes) > 0


@pytest.mark.parametrize("name", METHODS)
def test_pictures_of_counts_and_labels(name):
    generator = np.random.default_rng(0)
    data = {"n": generator.poisson(2.0, 40), "b": generator.integers(0, 2, 40)}
    method, more = METHODS[name]
    # To find the step would take the most time.
    method = lv.SGHMC(step_size=0.01, friction=20.0) if name == "sghmc" else method
    tree = fitted(method, counts_and_labels, data, num_draws=100, **more).data_tree
    assert arviz_plots.plot_ppc_rootogram(tree, var_names="n", backend="matplotlib") is not None
    assert arviz_plots.plot_ppc_pava(tree, var_names="b", backend="matplotlib") is not None


def test_loo_and_compare(fit, fits):
    found = arviz_stats.loo(fit.data_tree, pointwise=True)
    # The posterior of all four is the same, to their own errors; there are three parameters.
    assert found.elpd == pytest.approx(fits["nuts"].loo().elpd, abs=0.5)
    assert 1.5 < found.p < 4
    table = arviz_stats.compare({"one": fit.data_tree, "nuts": fits["nuts"].data_tree})
    assert abs(table["elpd_diff"]).max() < 0.5


def test_the_sample_of_arviz(fits):
    fit = fits["sghmc"]
    theirs = arviz_stats.loo_subsample(fit.data_tree, observations=30, var_name="y", seed=0)
    assert theirs.elpd == pytest.approx(fit.loo().elpd, abs=3 * theirs.subsampling_se)


def test_places_among_predictions_are_uniform(fit):
    places = arviz_stats.loo_pit(fit.data_tree)["y"].values
    assert places.shape == (60,)
    assert abs(places.mean() - 0.5) < 4 / np.sqrt(12 * 60)


def test_a_prior_that_fights_the_data_is_seen():
    def stubborn(y):
        mu = numpyro.sample("mu", dist.Normal(0.0, 0.2))
        numpyro.sample("scale", dist.HalfNormal(1.0))
        with numpyro.plate("rows", y.shape[0]):
            numpyro.sample("y", dist.Normal(mu, 1.0), obs=y)

    fit = fitted("nuts", stubborn, {"y": np.random.default_rng(0).normal(2.0, 1.0, 30)}, num_draws=500)
    table = arviz_stats.psense_summary(fit.data_tree, var_names=["mu"])
    assert "conflict" in table.loc["mu", "diagnosis"]


def test_a_fit_can_still_be_asked_for_all_it_has(fit):
    tree = fit.data_tree
    assert {"posterior", "sample_stats", "log_likelihood", "prior"} <= set(tree.children)
    assert tree is fit.data_tree
    assert "log_likelihood" not in fit.tree
    assert "..." in repr(lv.Fit(fit.tree, fit.target).data_tree["posterior_predictive"])
