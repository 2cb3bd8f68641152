"""Discrete sites that are drawn, in place of summed out."""

import os

import numpy as np
import numpyro
import numpyro.distributions as dist
import pytest
from targets import moments

import langevin as lv

pytestmark = [
    pytest.mark.filterwarnings("ignore::langevin.LangevinWarning"),
    pytest.mark.skipif("LANGEVIN_LONG" not in os.environ, reason="takes minutes; LANGEVIN_LONG=1 runs it"),
]
NAMES = ("w", "m", "s")


def mixture(x):
    w = numpyro.sample("w", dist.Beta(2.0, 2.0))
    m = numpyro.sample("m", dist.Normal(np.array([-1.5, 1.5]), 0.5).to_event(1))
    s = numpyro.sample("s", dist.HalfNormal(2.0))
    with numpyro.plate("rows", x.shape[0]):
        z = numpyro.sample("z", dist.Bernoulli(w))
        numpyro.sample("x", dist.Normal(m[z], s), obs=x)


def make_rows(count, seed=0):
    generator = np.random.default_rng(seed)
    z = generator.random(count) < 0.3
    return {"x": np.where(z, 1.5, -1.0) + generator.normal(0, 0.8, count)}


ROWS = make_rows(200)
SETTINGS = {"num_chains": 4, "num_warmup": 300, "num_draws": 1500, "progress": False}


@pytest.fixture(scope="module")
def summed_out():
    return lv.fit(mixture, ROWS, "nuts", **SETTINGS)


def distance(one, other):
    """By how many of their errors the means and sds of two fits differ, at most."""
    worst = 0.0
    for name in NAMES:
        a, b = moments(one.posterior[name].values), moments(other.posterior[name].values)
        for kind in ("mean", "sd"):
            gap = np.abs(a[kind][0] - b[kind][0]) / np.hypot(a[kind][1], b[kind][1])
            worst = max(worst, float(np.max(gap)))
    return worst


def test_drawn_labels_agree_with_summed_out_ones(summed_out):
    drawn = lv.fit(mixture, ROWS, lv.Hybrid({"z": lv.Enumerate(), ...: lv.NUTS()}), seed=1, **SETTINGS)
    assert distance(drawn, summed_out) < 4.5
    exact = summed_out.infer_discrete(ROWS, kind="probabilities")["z"].values[:, 1]
    np.testing.assert_allclose(drawn.posterior["z"].values.mean((0, 1)), exact, atol=0.05)
    assert drawn.settings["approximation"] == ""


def test_fresh_labels_in_minibatches(summed_out):
    """Gradients given labels have the mean of those with the labels summed out."""
    method = lv.Hybrid({"z": lv.Enumerate(), ...: lv.SGLD()})
    drawn = lv.fit(mixture, ROWS, method, batch_size=50, num_chains=8, num_draws=500, progress=False)
    for name in NAMES:
        a, b = drawn.posterior[name].values, summed_out.posterior[name].values
        assert (np.abs(a.mean((0, 1)) - b.mean((0, 1))) < 0.25 * b.std((0, 1))).all(), name
        assert np.all(np.abs(a.std((0, 1)) / b.std((0, 1)) - 1) < 0.2), name
    assert "z" not in drawn.posterior
