"""The Pólya-gamma family, against its Laplace transform and its moments."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import scipy.stats

from langevin.conjugacy import families
from langevin.conjugacy.families.polya_gamma_draws import SWITCH, kept_probability

NUM_DRAWS = 100_000


@pytest.fixture(autouse=True)
def double_precision():
    with jax.enable_x64(True):
        yield


def eta_of(tilt):
    return {"omega": -(jnp.asarray(tilt, float) ** 2) / 2}


def draws_of(count, tilt):
    family = families.PolyaGamma((NUM_DRAWS,), count)
    return np.asarray(jax.jit(family.sample)(jax.random.key(7), eta_of(jnp.full(NUM_DRAWS, tilt))))


def variance(count, tilt):
    return count / (4 * tilt**3) * (np.sinh(tilt) - tilt) / np.cosh(tilt / 2) ** 2 if tilt else count / 24


TILTS = [0.0, 0.5, 2.0, 3.1, 3.2, 5.0, 20.0]


@pytest.mark.parametrize("tilt", TILTS)
def test_draws_have_the_laplace_transform(tilt):
    draws = draws_of(1, tilt)
    for s in (0.3, 2.0, 20.0):
        observed = np.exp(-s * draws)
        exact = np.cosh(tilt / 2) / np.cosh(np.sqrt(tilt**2 / 2 + s) / np.sqrt(2))
        assert abs(observed.mean() - exact) < 5 * observed.std() / np.sqrt(NUM_DRAWS), s


@pytest.mark.parametrize(("count", "tilt"), [*[(1, tilt) for tilt in TILTS], (3, 1.0), (70, 0.2)])
def test_draws_have_the_mean_and_the_variance(count, tilt):
    draws = draws_of(count, tilt)
    exact = variance(count, tilt)
    assert abs(draws.mean() - families.PolyaGamma((), count).expected(eta_of(tilt))["omega"]) < 5 * np.sqrt(
        exact / NUM_DRAWS
    )
    spread = (draws - draws.mean()) ** 2
    assert abs(spread.mean() - exact) < 5 * spread.std() / np.sqrt(NUM_DRAWS)


@pytest.mark.parametrize("tilt", [0.0, 4.0])
def test_draws_are_the_series_of_gamma_variables(tilt):
    rng, total, terms = np.random.default_rng(0), np.zeros(4000), 400
    for k in range(1, terms + 1):
        total += rng.exponential(size=4000) / ((k - 0.5) ** 2 + tilt**2 / (4 * np.pi**2))
    rest = 1 / terms
    assert scipy.stats.ks_2samp((total + rest) / (2 * np.pi**2), draws_of(1, tilt)[:40_000]).pvalue > 1e-3


def test_the_kept_candidates_have_the_density_of_the_other_series():
    """Either form of the theta function is exact everywhere with enough terms; each is used where it needs few."""
    x, n, sign = np.array([0.2, 0.5, 0.63, 0.65, 0.9, 3.0])[:, None], np.arange(60) + 0.5, (-1.0) ** np.arange(60)
    narrow = np.pi * n * (2 / (np.pi * x)) ** 1.5 * np.exp(-2 * n**2 / x)
    wide = np.pi * n * np.exp(-(n**2) * np.pi**2 * x / 2)
    below = x[:, 0] < SWITCH
    density = np.where(below, wide @ sign, narrow @ sign)
    kept = np.where(below, narrow[:, 0], wide[:, 0]) * kept_probability(jnp.asarray(x[:, 0]))
    np.testing.assert_allclose(kept, density, rtol=1e-10)


def test_counts_may_differ_and_are_data():
    count = jnp.asarray([1, 2, 30])
    sample = jax.jit(lambda family, key: family.sample(key, eta_of(jnp.ones(3))))
    keys = jax.random.split(jax.random.key(0), 20_000)
    draws = jax.vmap(sample, in_axes=(None, 0))(families.PolyaGamma((3,), count), keys)
    error = np.sqrt(variance(np.asarray(count), 1.0) / 20_000)
    assert np.all(np.abs(draws.mean(0) - count * np.tanh(0.5) / 2) < 5 * error)


def test_single_precision_draws_are_as_good():
    with jax.enable_x64(False):
        draws = draws_of(1, 1.5)
        assert draws.dtype == np.float32
    exact = np.tanh(0.75) / 3
    assert np.all(draws > 0)
    assert abs(draws.mean(dtype=float) - exact) < 5 * np.sqrt(variance(1, 1.5) / NUM_DRAWS)


def test_the_normaliser_and_the_mean_are_smooth_at_no_tilt():
    family = families.PolyaGamma((), 2)
    tilt = np.array([0.0, 1e-9, 0.0999, 0.1001, 1.0, 30.0, 1e4])

    @jax.jit
    @jax.vmap
    def says(eta):
        slope, curvature = jax.grad(family.log_normalizer), jax.grad(lambda eta: family.expected(eta)["omega"])
        return family.log_normalizer(eta), family.expected(eta)["omega"], slope(eta)["omega"], curvature(eta)["omega"]

    log_normalizer, expected, slope, curvature = says(eta_of(tilt))
    log_cosh = np.logaddexp(tilt / 2, -tilt / 2) - np.log(2)
    mean = np.where(tilt > 0, np.tanh(tilt / 2) / np.where(tilt > 0, tilt, 1), 0.5)
    np.testing.assert_allclose(log_normalizer, -2 * log_cosh, rtol=1e-12, atol=1e-15)
    np.testing.assert_allclose(expected, mean, rtol=1e-12)
    np.testing.assert_allclose(slope, mean, rtol=1e-10)
    assert np.all(np.isfinite(curvature))
    np.testing.assert_allclose(
        np.asarray(curvature)[[0, 2, 3, 4, 5]], [variance(2, t) for t in (0, *tilt[2:6])], rtol=1e-8
    )


def test_single_precision_gradients_are_finite_at_great_tilts():
    with jax.enable_x64(False):
        family = families.PolyaGamma((3,), 1)
        gradient = jax.grad(family.entropy)({"omega": jnp.asarray([0.0, -1e-12, -1e20])})
        assert jnp.all(jnp.isfinite(gradient["omega"]))


def test_the_entropy_is_minus_the_divergence_from_no_tilt():
    family, eta = families.PolyaGamma((), 1), eta_of(2.5)
    divergence = np.log(np.cosh(1.25)) - 2.5**2 / 2 * np.tanh(1.25) / 5
    np.testing.assert_allclose(family.entropy(eta), -divergence)
    draws = draws_of(1, 2.5)
    ratio = np.log(np.cosh(1.25)) - 2.5**2 / 2 * draws
    assert abs(ratio.mean() - divergence) < 5 * ratio.std() / np.sqrt(NUM_DRAWS)
