"""A long series in pieces: an autoregression with noise, whose likelihood a Kalman filter has exactly."""

import numpy as np
import numpyro
import numpyro.distributions as dist
import pytest
from compilation import forget
from scipy.signal import lfilter

import langevin as lv
from langevin.engines import pieced
from langevin.variational import subsequences

pytestmark = pytest.mark.filterwarnings("ignore::langevin.LangevinWarning")

LENGTH, NOISE, PERSISTENCE, SIGMA = 1500, 0.5, 0.8, 0.6
GENERATOR = np.random.default_rng(0)
PUSHES = SIGMA * GENERATOR.standard_normal(LENGTH)
PUSHES[0] /= np.sqrt(1 - PERSISTENCE**2)
ROWS = {"y": lfilter([1.0], [1.0, -PERSISTENCE], PUSHES) + NOISE * GENERATOR.standard_normal(LENGTH)}
PIECES = lv.Subsequences(length=60, buffer=20)


def noisy(y):
    persistence = numpyro.sample("persistence", dist.Beta(9.0, 1.0))
    sigma = numpyro.sample("sigma", dist.HalfNormal(1.0))
    s = numpyro.sample("s", lv.series.Autoregression(persistence, sigma, y.shape[0]))
    numpyro.sample("y", dist.Normal(s, NOISE), obs=y)


def exact():
    """The means and sds of both, on a grid."""
    persistence, sigma = np.meshgrid(np.linspace(0.65, 0.92, 61), np.linspace(0.4, 0.85, 61), indexing="ij")
    mean, variance = np.zeros_like(sigma), sigma**2 / (1 - persistence**2)
    log_p = 8 * np.log(persistence) - sigma**2 / 2
    for y in ROWS["y"]:
        total = variance + NOISE**2
        log_p -= (np.log(total) + (y - mean) ** 2 / total) / 2
        gain = variance / total
        mean, variance = persistence * (mean + gain * (y - mean)), persistence**2 * variance * (1 - gain) + sigma**2
    weights = np.exp(log_p - log_p.max())
    weights /= weights.sum()
    means = [np.sum(weights * values) for values in (persistence, sigma)]
    sds = [np.sqrt(np.sum(weights * (v - m) ** 2)) for v, m in zip((persistence, sigma), means, strict=True)]
    return np.array(means), np.array(sds)


MEANS, SDS = exact()


def fit(**more):
    method = lv.Hybrid({"s": lv.VI("markov"), ...: lv.SGLD()}, subsequences=PIECES)
    settings = {"num_chains": 2, "num_warmup": 50, "num_draws": 200, "seed": 1, "progress": False}
    return lv.fit(noisy, ROWS, method, **settings | more)


def check(found):
    draws = np.stack([found.posterior[name].values for name in ("persistence", "sigma")])
    # Some hundred effective draws, a buffer over which the state is forgotten, and a step whose sds are 3 % too wide.
    np.testing.assert_allclose(draws.mean((1, 2)), MEANS, atol=0.3 * SDS.min(), rtol=0)
    np.testing.assert_allclose(draws.std((1, 2)) / SDS, 1, atol=0.2)


def test_the_posterior_is_that_of_the_whole_series(monkeypatch):
    # The climb is on some of the pieces, as it is in a series of a million steps.
    monkeypatch.setattr(pieced, "MOST_CLIMBED_ON", 5 * PIECES.width)
    found = fit()
    check(found)
    assert found.settings["pieces"] == (LENGTH - PIECES.buffer) // PIECES.length
    assert "pieces" in found.settings["approximation"] or "piece" in found.settings["approximation"]


def forget_the_rest(patch):
    """A piece counts once, and not for all of them."""
    real = subsequences._piece
    patch.setattr(subsequences, "_piece", lambda *arguments: real(*arguments) / 4)


def forget_the_buffer(patch):
    """The bound of the buffer is not taken off: its steps count twice."""
    patch.setattr(
        subsequences,
        "_piece",
        lambda whole, nest, buffer, others, start, rows, centring: subsequences.bound_of(
            whole,
            nest,
            start._replace(mean=rows["_q"][:, 0], log_sd=rows["_q"][:, 1]),
            others,
            {name: column for name, column in rows.items() if name not in subsequences.KNOWN},
            centring,
        ),
    )


@pytest.mark.parametrize("bug", [forget_the_rest, forget_the_buffer])
def test_the_check_fails_with_the_bug_in(bug, monkeypatch):
    forget()
    bug(monkeypatch)
    with pytest.raises((AssertionError, lv.SamplingError)):
        check(fit())
    monkeypatch.undo()
    forget()
