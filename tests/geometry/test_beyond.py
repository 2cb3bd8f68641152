"""Mass that q does not see, and draws that are not the posterior's."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import langevin as lv
from langevin.geometry import beyond, drifting
from langevin.run.compilation import Programs
from langevin.run.seeds import Seed
from langevin.tuning import Tuning

quiet = pytest.mark.filterwarnings("ignore::langevin.LangevinWarning")


def looked(log_density, size, seed=0):
    z = beyond.directions(np.random.default_rng(seed), size, 64)
    return beyond.missed(beyond.second_moments(z, log_density(z)))


@pytest.mark.parametrize("size", [1, 2, 5, 20])
@pytest.mark.parametrize("seed", range(5))
def test_a_right_q_misses_nothing(size, seed):
    assert looked(lambda z: -np.sum(z**2, axis=1) / 2, size, seed) < 1.1


@pytest.mark.parametrize("size", [1, 2, 5])
@pytest.mark.parametrize("seed", range(5))
def test_a_wide_bump_around_a_spike_is_seen(size, seed):
    """A tenth of the mass is 50 times as wide as q: the sd is sqrt(0.9 + 0.1 * 2500) = 15.8 times that of q."""

    def log_density(z):
        squares = np.sum(z**2, axis=1) / 2
        return np.logaddexp(np.log(0.9) - squares, np.log(0.1) - size * np.log(50) - squares / 2500)

    assert 9 < looked(log_density, size, seed) < 15.8


def test_a_density_that_is_nowhere_finite_misses_nothing():
    assert looked(lambda z: np.full(len(z), np.nan), 2) == 0.0


def drift_of(mean, sd, rows=0):
    """Of draws of a Gaussian in ten dimensions whose first coordinate has another mean and sd than the posterior's."""
    density = lv.Density(lambda x: -jnp.sum(x**2) / 2, init=jnp.zeros(10))
    draws = np.random.default_rng(0).normal(size=(4, 40, 10)).astype(np.float32)
    draws[:, :, 0] = mean + sd * draws[:, :, 0]
    return drifting.drift(Programs(lambda: None), density.posterior(), Tuning(), draws, Seed.of(rows))


def test_exact_draws_do_not_drift():
    for seed in range(20):
        found = drift_of(0.0, 1.0, seed)
        assert max(found["mean"], found["sd"]) < 0.05
        assert found["acceptance"] > 0.8


@pytest.mark.parametrize(("mean", "sd", "name"), [(0.8, 1.0, "mean"), (0.0, 2.0, "sd"), (0.0, 0.4, "sd")])
def test_draws_of_another_distribution_drift(mean, sd, name):
    for seed in range(5):
        assert drift_of(mean, sd, seed)[name] > 0.1


def test_few_draws_far_outside_are_seen():
    """Three of a thousand draws double the sd; that makes its own error large, but not that of the sd after."""
    density = lv.Density(lambda x: -jnp.sum(x**2) / 2, init=jnp.zeros(2))
    draws = np.random.default_rng(0).normal(size=(4, 250, 2)).astype(np.float32)
    draws[0, 10, 0], draws[1, 100, 0], draws[3, 200, 0] = 30.0, -40.0, 25.0
    assert drifting.drift(Programs(lambda: None), density.posterior(), Tuning(), draws, Seed.of(0))["sd"] > 0.3


def test_arms_that_the_draws_stop_short_of_are_seen():
    """Of a banana, draws of its middle: steps that fit there are rejected in the arms, so few steps do not show it."""
    density = lv.Density(lambda x: -(x[0] ** 2) / 2 - ((x[1] - x[0] ** 2) / 0.3) ** 2 / 2, init=jnp.zeros(2))
    rng = np.random.default_rng(0)
    x = rng.normal(size=20_000)
    every = np.stack([x, x**2 + 0.3 * rng.normal(size=len(x))], axis=-1).astype(np.float32)
    middle = every[np.abs(x) < 1.5]
    tuning = Tuning(metric=None, stiffest=12.0)
    for draws, least, most in ((every, 0.0, 0.06), (middle, 0.1, np.inf)):
        some = draws[: 4 * 250].reshape(4, 250, 2)
        found = drifting.drift(Programs(lambda: None), density.posterior(), tuning, some, Seed.of(0))
        assert least <= found["sd"] < most
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(drifting, "MOST_LATER_GRADIENTS", 0)
        assert drifting.drift(Programs(lambda: None), density.posterior(), tuning, some, Seed.of(0))["sd"] < 0.1


def test_few_draws_of_many_rows_are_looked_at_and_none_of_too_many():
    assert drifting.affordable(1000, 4, 40) == 40
    assert 10 <= drifting.affordable(100_000, 4, 40) < 40
    assert drifting.affordable(1_000_000, 4, 40) == 0


@quiet
@pytest.mark.parametrize("method", ["sgld", "sghmc", "vi"])
def test_a_spike_on_a_bump_is_found_by_every_engine(method):
    """Chains and q are in the spike, whose tenth part of wide mass makes ten times the sd."""

    def log_density(x):
        squares = jnp.sum(x**2) / 2
        return jnp.logaddexp(jnp.log(0.1) - squares, jnp.log(0.9) - 2 * jnp.log(0.01) - squares / 1e-4)

    density = lv.Density(log_density, init=lambda key: jax.random.normal(key, (2,)))
    fit = lv.fit(density, None, method, progress=False)
    assert "elsewhere" in [finding.code for finding in fit.verdict]


@quiet
@pytest.mark.parametrize("method", [lv.VI("meanfield"), lv.VI("fullrank")])
def test_an_approximation_of_one_of_two_modes_says_so(method):
    density = lv.Density(
        lambda x: jnp.logaddexp(jnp.log(0.7) - (x - 20) ** 2 / 2, jnp.log(0.3) - (x + 20) ** 2 / 2),
        init=lambda key: 3 * jax.random.normal(key),
    )
    fit = lv.fit(density, None, method, progress=False)
    assert [finding.code for finding in fit.verdict] == ["elsewhere"]
    assert fit.verdict.word == "wrong"


@pytest.mark.parametrize("method", ["sgld", "sghmc"])
def test_a_density_without_curvature_is_no_obstacle(method):
    """Independent Laplace distributions: the second derivative is zero but at the top."""
    density = lv.Density(lambda x: -jnp.sum(jnp.abs(x)), init=lambda key: jax.random.normal(key, (5,)))
    x = lv.fit(density, None, method, progress=False).posterior["position"].values.reshape(-1, 5)
    np.testing.assert_allclose(x.mean(axis=0), 0, atol=0.25)
    np.testing.assert_allclose(x.std(axis=0), np.sqrt(2), rtol=0.15)
