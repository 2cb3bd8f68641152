"""Where coordinate ascent and Gibbs sampling begin: effects in thousands are not drawn to their mean."""

import numpy as np
import numpyro
import numpyro.distributions as dist
import pytest
from compilation import forget

import langevin as lv
from langevin.conjugacy import conditionals

NUM_GROUPS, NUM_ROWS = 20, 4000
GENERATOR = np.random.default_rng(0)
EFFECTS = GENERATOR.normal(60_000, 8_000, NUM_GROUPS)
GROUP = GENERATOR.integers(0, NUM_GROUPS, NUM_ROWS)
DOLLARS = {"y": EFFECTS[GROUP] + GENERATOR.normal(0, 15_000, NUM_ROWS), "group": GROUP}
MEANS = np.bincount(GROUP, DOLLARS["y"]) / np.bincount(GROUP)


def salaries(y, group):
    mean = numpyro.sample("mean", dist.Normal(0.0, 1e6))
    between, within = (numpyro.sample(name, dist.Gamma(0.01, 0.01)) for name in ("between", "within"))
    with numpyro.plate("groups", NUM_GROUPS):
        effect = numpyro.sample("effect", dist.Normal(mean, between**-0.5))
    with numpyro.plate("rows", len(y)):
        numpyro.sample("y", dist.Normal(effect[group], within**-0.5), obs=y)


def known_noise(y, group):
    mean = numpyro.sample("mean", dist.Normal(0.0, 1e6))
    between = numpyro.sample("between", dist.Gamma(0.01, 0.01))
    with numpyro.plate("groups", NUM_GROUPS):
        effect = numpyro.sample("effect", dist.Normal(mean, between**-0.5))
    with numpyro.plate("rows", len(y)):
        numpyro.sample("y", dist.Normal(effect[group], 15_000.0), obs=y)


def off(model, method, batch_size=None, seed=0):
    """How far the effects are from the means of their groups, in standard errors of these: the largest."""
    settings = {"num_draws": 200, "num_chains": 2, "batch_size": batch_size, "seed": seed, "progress": False}
    fit = lv.fit(model, DOLLARS, method, **settings)
    effects = fit.posterior["effect"].values.mean((0, 1))
    return np.abs((effects - MEANS) / (15_000 / np.sqrt(np.bincount(GROUP)))).max()


pytestmark = pytest.mark.filterwarnings("ignore::langevin.LangevinWarning")


@pytest.mark.parametrize("model", [salaries, known_noise])
@pytest.mark.parametrize("seed", [0, 1])
def test_coordinate_ascent_keeps_the_effects_apart(model, seed):
    # Shrinkage is 0.25 standard errors at most: 1 / (1 + 200 * 8**2 / 15**2) of two sds of the effects.
    assert off(model, "cavi", seed=seed) < 0.5


def test_minibatches_keep_the_effects_apart():
    # Steps on minibatches have noise of about a standard error.
    assert off(salaries, "cavi", batch_size=200) < 1.5


def test_gibbs_sampling_keeps_the_effects_apart():
    # 400 draws of a standard error each.
    assert off(salaries, "gibbs") < 0.6


def test_starts_of_another_size_are_seen(monkeypatch):
    """Precisions that begin near 1, whatever the rows are counted in."""
    forget()
    own = conditionals.Conditionals.check
    monkeypatch.setattr(conditionals.Conditionals, "check", lambda *arguments: own(*arguments) * 0 + 1.0)
    try:
        assert off(known_noise, "cavi") > 10
    finally:
        monkeypatch.undo()
        forget()
