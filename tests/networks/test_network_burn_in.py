"""Burn-ins of networks whose step is too long: chains that fall far below the end of their training are lost."""

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import numpyro.distributions as dist
import pytest

import langevin as lv
from langevin.contracts import Needs, Plan
from langevin.data.table import as_table
from langevin.engines import network
from langevin.engines.network import NetworkEngine
from langevin.geometry import fisher
from langevin.models.build import target_of
from langevin.run.compilation import Programs
from langevin.run.keep import Keep
from langevin.run.seeds import Seed

NUM_ROWS = 40


def curve(num_rows=NUM_ROWS):
    generator = np.random.default_rng(1)
    x = np.sort(generator.uniform(-2, 2, num_rows)).astype(np.float32)
    return {"x": x, "y": (np.sin(2 * x) + 0.2 * generator.normal(size=num_rows)).astype(np.float32)}


def mlp(temperature=1.0):
    make = lambda key: eqx.nn.MLP(1, 1, 16, 1, activation=jnp.tanh, key=key)  # noqa: E731
    return lv.Network(make, lv.likelihoods.Gaussian(0.2), dist.Normal(0, 1), temperature=temperature)


def target_on(model, rows):
    return target_of(model, as_table(rows), constants={}, rows=None, noncentred="auto", needs=Needs(), minibatch=True)


def chains_of(target, count=3):
    starts = [target.start(np.random.default_rng(seed)) for seed in range(count)]
    return jax.tree.map(lambda *leaves: np.stack([np.asarray(leaf, np.float32) for leaf in leaves]), *starts)


def test_heights_are_log_densities():
    target = target_on(mlp(), curve())
    positions = chains_of(target)
    seen = fisher.heights(Programs(lambda: None), target, positions)
    exact = [float(target.log_density(jax.tree.map(lambda leaf: leaf[i], positions))) for i in range(3)]  # noqa: B023
    np.testing.assert_allclose(seen, exact, rtol=1e-5)


def test_heights_of_many_rows_are_estimates_from_few(monkeypatch):
    target = target_on(mlp(), curve(5000))
    positions = chains_of(target)
    estimate = fisher.heights(Programs(lambda: None), target, positions)
    monkeypatch.setattr(fisher, "ROWS_OF_HEIGHT", 5000)
    exact = fisher.heights(Programs(lambda: None), target, positions)
    assert (estimate != exact).all()
    # The rows are in order, and evenly spread ones are the better for it.
    np.testing.assert_allclose(estimate, exact, rtol=0.1)


@pytest.mark.parametrize("temperature", [1.0, 0.1])
def test_how_far_is_too_far(temperature):
    """A nat a row of the likelihood as it is, and five a weight of the density that is sampled."""
    target = target_on(mlp(temperature), curve())
    plan = Plan(3, 100, 30, None, lv.Batches(10).resolved(NUM_ROWS, True), Seed.of(0), Keep())
    engine = lv.SGHMC().engine(target, plan)
    positions = chains_of(target)
    here = fisher.heights(engine._programs, target, positions)
    most = NUM_ROWS / temperature + 5 * (16 + 16 + 16 + 1)
    assert engine._fallen({"height": here.max() + 0.99 * most}, positions)[here.argmax()] == np.False_
    assert engine._fallen({"height": here.min() + 1.01 * most}, positions)[here.argmin()] == np.True_
    nowhere = jax.tree.map(lambda leaf: np.full_like(leaf, np.nan), positions)
    assert engine._fallen({"height": here.min()}, nowhere).all()


@pytest.mark.filterwarnings("ignore::langevin.LangevinWarning")
def test_a_chain_that_falls_starts_again_with_half_the_step(monkeypatch):
    """With a step that is too long, which leaves the numbers finite: a tanh that is thrown far out is flat."""
    paces, burn_in, turns = NetworkEngine._paces, NetworkEngine._burn_in, []

    def watched(self, state, limit):
        after, chunk = burn_in(self, state, limit)
        turns.append((state, after))
        return after, chunk

    monkeypatch.setattr(NetworkEngine, "_paces", lambda *args: tuple(16 * step for step in paces(*args)))
    settings = {"num_chains": 2, "num_warmup": 1000, "num_draws": 10, "thin": 5, "batch_size": 10, "progress": False}
    with monkeypatch.context() as patch:
        patch.setattr(network, "MOST_FALL_A_WEIGHT", np.inf)
        left = lv.fit(mlp(), curve(), "sgld", **settings)
    assert left.settings["num_halvings"] == 0
    assert (left.stats["stopped"] < 0).all()
    monkeypatch.setattr(NetworkEngine, "_burn_in", watched)
    found = lv.fit(mlp(), curve(), "sgld", **settings)
    again = [(before, after) for before, after in turns if after["halvings"] > before["halvings"]]
    assert len(again) == found.settings["num_halvings"] > 0
    for before, after in again:
        assert after["steps"] == tuple(step / 2 for step in before["steps"])
        assert after["chains"] is None
        np.testing.assert_array_equal(after["positions"][0], before["positions"][0])
    assert float(found.stats["lp"].mean()) > float(left.stats["lp"].mean())
