"""Discrete sites that are drawn, in place of summed out."""

import dataclasses

import numpy as np
import numpyro
import numpyro.distributions as dist
import pytest
from compilation import forget
from targets import moments

import langevin as lv
from langevin.engines import sweeping

pytestmark = pytest.mark.filterwarnings("ignore::langevin.LangevinWarning")
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
SETTINGS = {"num_warmup": 300, "num_draws": 1500, "progress": False}


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


@pytest.mark.parametrize(
    "blocks",
    [{"z": lv.Enumerate(), ...: lv.NUTS()}, {("w", "m"): lv.Gibbs(), "z": lv.Enumerate(), "s": lv.HMC()}],
    ids=["nuts", "gibbs and hmc"],
)
def test_drawn_labels_agree_with_summed_out_ones(blocks, summed_out):
    drawn = lv.fit(mixture, ROWS, lv.Hybrid(blocks), seed=1, **SETTINGS)
    assert distance(drawn, summed_out) < 4.5
    exact = summed_out.infer_discrete(ROWS, kind="probabilities")["z"].values[:, 1]
    np.testing.assert_allclose(drawn.posterior["z"].values.mean((0, 1)), exact, atol=0.05)
    assert drawn.settings["approximation"] == ""


@pytest.mark.parametrize(
    "blocks",
    [{"z": lv.Enumerate(), ...: lv.SGLD()}, {"s": lv.HMC(), "z": lv.Enumerate(), ...: lv.SGLD()}],
    ids=["one block", "beside one on all rows"],
)
def test_fresh_labels_in_minibatches(blocks, summed_out):
    """Gradients given labels have the mean of those with the labels summed out."""
    settings = {"batch_size": 50, "num_chains": 8, "num_draws": 500, "progress": False}
    drawn = lv.fit(mixture, ROWS, lv.Hybrid(blocks), **settings)
    for name in NAMES:
        ours, theirs = moments(drawn.posterior[name].values), moments(summed_out.posterior[name].values)
        sd = theirs["sd"][0]
        for kind, bias in (("mean", 0.03), ("sd", 0.05)):
            # The step's own bias, and 4 Monte Carlo errors.
            allowed = bias * sd + 4 * np.hypot(ours[kind][1], theirs[kind][1])
            assert (np.abs(ours[kind][0] - theirs[kind][0]) < allowed).all(), (name, kind)
            assert (allowed < 0.35 * sd).all(), (name, kind)
    assert "z" not in drawn.posterior


def labels_of_before(patch):
    """The labels of a minibatch are drawn where the chain began."""
    real = sweeping.draw_labels
    patch.setattr(
        sweeping,
        "draw_labels",
        lambda target, key, position, batch: real(target, key, {n: 0 * x for n, x in position.items()}, batch),
    )


def forgotten_scale(patch):
    """The rows of a minibatch, with their labels, count for no more than themselves."""
    real = sweeping.labelled

    def labelled(target, batch):
        whole = real(target, batch)
        return dataclasses.replace(whole, num_data=50)

    patch.setattr(sweeping, "labelled", labelled)


@pytest.mark.parametrize("bug", [labels_of_before, forgotten_scale])
def test_the_check_fails_with_the_bug_in(bug, summed_out, monkeypatch):
    forget()
    bug(monkeypatch)
    with pytest.raises((AssertionError, lv.SamplingError)):
        test_fresh_labels_in_minibatches({"z": lv.Enumerate(), ...: lv.SGLD()}, summed_out)
    forget()
