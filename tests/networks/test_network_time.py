"""Runs of networks whose time is over before their first draw: the points where the chains are, said to be that."""

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest

import langevin as lv
from langevin.engines.network import NetworkEngine
from langevin.run import drive

RNG = np.random.default_rng(0)
X = np.linspace(-1, 1, 40, dtype=np.float32)
DATA = {"x": X, "y": (X**2 + 0.1 * RNG.normal(size=40)).astype(np.float32)}
NETWORK = lv.Network(eqx.nn.MLP(1, 1, 4, 1, activation=jnp.tanh, key=jax.random.key(0)))
SETTINGS = {"num_chains": 3, "num_warmup": 200, "num_draws": 20, "batch_size": 20, "progress": False}


def over_in(patch, phase):
    """Lets the time be over at the second chunk of a phase, each of 5 steps."""
    decide = drive._Clock.decide
    seen = []

    def decided(self, now):
        seen.append(now)
        decide(self, now)
        return 5, False

    patch.setattr(drive._Clock, "decide", decided)
    patch.setattr(drive._Clock, "is_over", lambda self, most: most is not None and seen[-2:] == [phase] * 2)


@pytest.mark.parametrize("phase", ["training", "burn-in"])
@pytest.mark.parametrize("method", [lv.SGHMC(), lv.SGLD()], ids=["sghmc", "sgld"])
def test_points_on_the_way_are_there_and_said_to_be_no_draws(method, phase, monkeypatch):
    over_in(monkeypatch, phase)
    with pytest.warns(lv.LangevinWarning) as seen:
        fit = lv.fit(NETWORK, DATA, method, max_seconds=50, **SETTINGS)
    assert any("no draws from the posterior" in str(one.message) for one in seen)
    assert dict(fit.posterior[["noise"]].sizes) == {"chain": 3, "draw": 1}
    assert fit.verdict.word == "wrong"
    assert [finding.code for finding in fit.verdict] == ["out of time", "not mixed"]
    assert phase in fit.verdict[1].finding
    assert np.isfinite(fit.stats["lp"]).all()
    # Every chain has its own initialisation, and was moved from it.
    assert len(np.unique(fit.posterior["noise"])) == 3
    assert np.isfinite(fit.predict({"x": X})["mean"]).all()
    assert fit.settings["num_draws"] == 1


def test_what_has_not_moved_is_nothing(monkeypatch):
    monkeypatch.setattr(drive._Clock, "is_over", lambda self, most: most is not None)
    with pytest.raises(lv.SamplingError, match="before the first draw"):
        lv.fit(NETWORK, DATA, lv.SGHMC(), max_seconds=50, **SETTINGS)


def test_on_disk_it_goes_on(tmp_path, monkeypatch):
    with monkeypatch.context() as patch, pytest.raises(lv.SamplingError, match=r"lv\.resume"):
        over_in(patch, "burn-in")
        lv.fit(NETWORK, DATA, lv.SGLD(), max_seconds=50, store=tmp_path / "run", **SETTINGS)
    with pytest.warns(lv.LangevinWarning):
        fit = lv.resume(tmp_path / "run", NETWORK, DATA, progress=False)
    with pytest.warns(lv.LangevinWarning):
        whole = lv.fit(NETWORK, DATA, lv.SGLD(), **SETTINGS)
    np.testing.assert_array_equal(fit.posterior["noise"], whole.posterior["noise"])


@pytest.mark.filterwarnings("ignore::langevin.LangevinWarning")
def test_a_chain_that_stops_leaves_the_others_their_evidence(monkeypatch):
    # As if the first of the chains had blown up.
    real, running = NetworkEngine._scrutiny, np.array([False, True, True])
    monkeypatch.setattr(NetworkEngine, "_scrutiny", lambda self, state, _: real(self, state, running))
    fit = lv.fit(NETWORK, DATA, "sghmc", **SETTINGS, thin=2)
    assert fit.posterior.sizes["draw"] == SETTINGS["num_draws"]
