"""A long series in pieces: an autoregression with noise, whose likelihood a Kalman filter has exactly."""

import jax
import jax.numpy as jnp
import numpy as np
import numpyro
import numpyro.distributions as dist
import pytest
from scipy.signal import lfilter

import langevin as lv
from langevin.contracts import Needs
from langevin.data.table import as_table
from langevin.engines import pieced
from langevin.models.build import target_of
from langevin.variational import marginal, nested, subsequences

pytestmark = pytest.mark.filterwarnings("ignore::langevin.LangevinWarning")

LENGTH, NOISE, PERSISTENCE, SIGMA = 1200, 0.5, 0.8, 0.6
GENERATOR = np.random.default_rng(0)
PUSHES = SIGMA * GENERATOR.standard_normal(LENGTH)
PUSHES[0] /= np.sqrt(1 - PERSISTENCE**2)
Y = lfilter([1.0], [1.0, -PERSISTENCE], PUSHES) + NOISE * GENERATOR.standard_normal(LENGTH)
PIECES = lv.Subsequences(length=60, buffer=20)


def noisy(y):
    persistence = numpyro.sample("persistence", dist.Beta(9.0, 1.0))
    sigma = numpyro.sample("sigma", dist.HalfNormal(1.0))
    s = numpyro.sample("s", lv.series.Autoregression(persistence, sigma, y.shape[0]))
    numpyro.sample("y", dist.Normal(s, NOISE), obs=y)


def exact(persistence, sigma):
    """The log posterior density, on arrays of both."""
    mean, variance = np.zeros_like(sigma), sigma**2 / (1 - persistence**2)
    log_p = 8 * np.log(persistence) - sigma**2 / 2
    for y in Y:
        total = variance + NOISE**2
        log_p = log_p - (np.log(total) + (y - mean) ** 2 / total) / 2
        gain = variance / total
        mean, variance = persistence * (mean + gain * (y - mean)), persistence**2 * variance * (1 - gain) + sigma**2
    return log_p


POINTS = np.array([[0.8, 0.6], [0.75, 0.7], [0.85, 0.5], [0.7, 0.6]]).T


def of_pieces(how):
    """The posterior over the sites beside the path, as the engine makes it."""
    table = as_table({"y": Y})
    target = target_of(noisy, table, constants={}, rows=None, noncentred=False, needs=Needs("local"), minibatch=False)
    nest = marginal.Nest(("s",), nested.Path(), in_pieces=True)
    return subsequences.of_pieces(target, nest, marginal.cold(2, 1, np.float32), how)


def differences(target, alone=False):
    """Of the log density from the first point: on all pieces; and by how much the mean of each alone is off."""
    unconstrained = jnp.stack([jnp.log(POINTS[0] / (1 - POINTS[0])), jnp.log(POINTS[1])], axis=1)
    singles = jax.tree.map(lambda column: column[:, None], target.data)

    def one(at):
        at = {"persistence": at[0], "sigma": at[1]}
        each = jax.lax.map(lambda piece: target.log_density(at, piece), singles) if alone else jnp.zeros(1)
        return target.log_density(at), jnp.mean(each)

    whole, mean = np.asarray(jax.jit(lambda points: jax.lax.map(one, points))(unconstrained), np.float64)
    # The log-determinants of both maps.
    jacobian = np.log(POINTS[0] * (1 - POINTS[0])) + np.log(POINTS[1])
    return whole - jacobian - (whole - jacobian)[0], mean - whole


EXACT = exact(*POINTS) - exact(*POINTS)[0]


def test_pieces_have_the_likelihood_of_the_whole_series():
    whole, alone = differences(of_pieces(PIECES), alone=True)
    np.testing.assert_allclose(whole, EXACT, atol=0.02)
    # A step that sees one piece has the mean of all, whichever it sees.
    np.testing.assert_allclose(alone, 0, atol=0.01)


def test_what_a_short_buffer_forgets_is_seen():
    whole, _ = differences(of_pieces(lv.Subsequences(length=10, buffer=2)))
    assert np.abs(whole - EXACT).max() > 0.1


def count_the_buffer_twice(patch):
    patch.setattr(
        subsequences,
        "_piece",
        lambda whole, nest, buffer, others, start, rows, centring: subsequences.bound_of(
            whole, nest, start, others, {"y": rows["y"]}, centring
        ),
    )


def forget_the_other_pieces(patch):
    real = subsequences._piece
    patch.setattr(subsequences, "_piece", lambda *arguments: real(*arguments) / 2)


@pytest.mark.parametrize("bug", [count_the_buffer_twice, forget_the_other_pieces])
def test_the_check_fails_with_the_bug_in(bug, monkeypatch):
    bug(monkeypatch)
    whole, _ = differences(of_pieces(PIECES))
    assert np.abs(whole - EXACT).max() > 5


def test_the_fit_of_a_series_of_more_pieces_than_the_climb_reads(monkeypatch):
    """Few draws, and steps whose bias is a few per cent of an sd; what they target is tested above."""
    monkeypatch.setattr(pieced, "MOST_CLIMBED_ON", 5 * PIECES.width)
    persistence, sigma = np.meshgrid(np.linspace(0.65, 0.92, 61), np.linspace(0.4, 0.85, 61), indexing="ij")
    log_p = exact(persistence, sigma)
    weights = np.exp(log_p - log_p.max())
    weights /= weights.sum()
    method = lv.Hybrid({"s": lv.VI("markov"), ...: lv.SGLD()}, subsequences=PIECES)
    settings = {"num_chains": 2, "num_warmup": 20, "num_draws": 50, "seed": 1, "progress": False}
    found = lv.fit(noisy, {"y": Y}, method, **settings)
    assert found.settings["pieces"] == (LENGTH - PIECES.buffer) // PIECES.length
    for name, values in (("persistence", persistence), ("sigma", sigma)):
        mean = np.sum(weights * values)
        sd = np.sqrt(np.sum(weights * (values - mean) ** 2))
        draws = found.posterior[name].values
        assert abs(draws.mean() - mean) < 0.8 * sd
        assert 0.5 < draws.std() / sd < 1.6
