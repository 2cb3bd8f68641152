"""A bound of a block inside samplers over the rest."""

import jax
import jax.numpy as jnp
import numpy as np
import numpyro
import numpyro.distributions as dist
import pytest
from compilation import forget
from targets import Target, check_within_errors, raw_regression

import langevin as lv
from langevin.variational import marginal, nested, tridiagonal

pytestmark = pytest.mark.filterwarnings("ignore::langevin.LangevinWarning")

LENGTH, NOISE, STEP = 12, 0.7, 0.5
GENERATOR = np.random.default_rng(2)
WALK = 0.8 + np.cumsum(STEP * GENERATOR.standard_normal(LENGTH))
ROWS = {"y": WALK + NOISE * GENERATOR.standard_normal(LENGTH)}


def walk(y):
    """A linear-Gaussian hierarchy: everything is Gaussian, in closed form."""
    mu = numpyro.sample("mu", dist.Normal(0.0, 2.0))
    s = numpyro.sample("s", lv.series.RandomWalk(STEP, y.shape[0], start=mu, start_scale=1.0))
    numpyro.sample("y", dist.Normal(s, NOISE), obs=y)


def exact():
    """The means and sds of mu and the path."""
    cov = np.empty((LENGTH + 1, LENGTH + 1))
    time = np.arange(LENGTH)
    cov[0, 0], cov[0, 1:], cov[1:, 0] = 4.0, 4.0, 4.0
    cov[1:, 1:] = 5.0 + STEP**2 * np.minimum(time[:, None], time[None])
    gain = np.linalg.solve(cov[1:, 1:] + NOISE**2 * np.eye(LENGTH), cov[1:]).T
    mean, left = gain @ ROWS["y"], np.diag(cov - gain @ cov[1:])
    return Target(walk, ROWS, {"mu": mean[0], "s": mean[1:]}, {"mu": np.sqrt(left[0]), "s": np.sqrt(left[1:])})


TRUTH = exact()
SETTINGS = {"num_chains": 4, "num_warmup": 100, "num_draws": 1500, "progress": False, "seed": 2}


def fit(family):
    return lv.fit(walk, ROWS, lv.Hybrid({"s": lv.VI(family), ...: lv.NUTS()}), **SETTINGS)


@pytest.mark.parametrize("family", ["markov", "fullrank"])
def test_an_exact_family_gives_the_exact_posterior(family):
    found = fit(family)
    check_within_errors(found, TRUTH)
    assert found.verdict.word == "trustworthy"
    # Where q is the block's own density the ratios are all one.
    assert found.settings["evidence"]["ratios"]["efficiency"] > 0.99
    assert abs(found.settings["evidence"]["nested"]["gap"]) < 1e-3


@pytest.mark.parametrize("family", ["auto", "fullrank"])
def test_columns_as_they_come(family):
    """Dollars beside ones: the curvatures of the coefficients are ten orders of magnitude apart."""
    truth = raw_regression("dollars and ones")
    found = lv.fit(truth.model, truth.data, lv.Hybrid({"w": lv.VI(family), ...: lv.NUTS()}), **SETTINGS)
    check_within_errors(found, truth)
    assert found.verdict.word == "trustworthy"


def test_a_chain_of_states_with_columns_as_they_come_is_none():
    truth = raw_regression("dollars and ones")
    with pytest.raises(lv.SettingError, match="not its neighbours"):
        lv.fit(truth.model, truth.data, lv.Hybrid({"w": lv.VI("markov"), ...: lv.NUTS()}), progress=False)


def precise(y):
    """Rows that tell a state within 0.01, of a walk whose steps are smaller: neighbours tell more."""
    scale = numpyro.sample("scale", dist.HalfNormal(1.0))
    s = numpyro.sample("s", lv.series.RandomWalk(scale, y.shape[0]))
    numpyro.sample("y", dist.Normal(s, 0.01), obs=y)


def test_neighbours_are_coupled_where_rows_tell_more_at_first():
    """At the start of the search a coupling is one in ten thousand of the rows' curvature."""
    generator = np.random.default_rng(5)
    path = np.cumsum(0.003 * generator.standard_normal(40))
    data = {"y": path + 0.01 * generator.standard_normal(40)}
    found = lv.fit(precise, data, lv.Hybrid({"s": lv.VI("markov"), ...: lv.NUTS()}), **SETTINGS | {"num_draws": 300})
    assert found.settings["evidence"]["ratios"]["efficiency"] > 0.99


def test_a_mean_field_q_is_too_narrow_and_says_so():
    """The sds of a mean-field q are the reciprocals of the precision's diagonal, whatever mu is."""
    found = fit("meanfield")
    alone = 1 / np.sqrt(1 / NOISE**2 + 2 / STEP**2)
    middle = found.posterior["s"].values[..., 1:-1]
    mean = middle.mean((0, 1))
    np.testing.assert_allclose(mean, TRUTH.means["s"][1:-1], atol=0.05)
    ratio = middle.std((0, 1)) / TRUTH.sds["s"][1:-1]
    assert np.median(ratio) < 0.8
    assert np.median(middle.std((0, 1))) == pytest.approx(alone, rel=0.03)
    assert "far off" in {finding.code for finding in found.verdict}


def forget_the_prior_of_the_path(patch):
    """The walk's own terms are left out of the density: the text's mistake."""
    real = marginal._density

    def density(whole, nest, others, batch, centring):
        of_all, unravel = real(whole, nest, others, batch, centring)
        walk = lambda flat: lv.series.RandomWalk(STEP, LENGTH, start=others["mu"]).log_prob(flat)  # noqa: E731
        return lambda flat: of_all(flat) - 0.9 * walk(flat), unravel

    patch.setattr(marginal, "_density", density)


def freeze_q(patch):
    """The q stays where it was at the centre."""
    start = lambda form, density, mean, log_sd: nested.Solved(  # noqa: E731
        nested.Q(jnp.zeros_like(mean), form.first(mean, jnp.zeros_like(log_sd))), jnp.int32(1), jnp.asarray(True)
    )
    patch.setattr(marginal, "solved", start)


def reuse_the_key(patch):
    import langevin.engines.nested as engine

    patch.setattr(engine, "at_step", lambda key, number: key)


@pytest.mark.parametrize("bug", [forget_the_prior_of_the_path, freeze_q, reuse_the_key])
def test_the_check_fails_with_the_bug_in(bug, monkeypatch):
    forget()
    bug(monkeypatch)
    with pytest.raises((AssertionError, lv.SamplingError)):
        check_within_errors(fit("markov"), TRUTH)
    forget()


def test_tridiagonal_algebra_is_that_of_matrices():
    size, generator = 30, np.random.default_rng(0)
    off = generator.normal(size=size - 1)
    diag = 0.5 + generator.random(size)
    diag[1:] += np.abs(off)
    diag[:-1] += np.abs(off)
    matrix = np.diag(diag) + np.diag(off, 1) + np.diag(off, -1)
    inverse, right = np.linalg.inv(matrix), generator.normal(size=size)
    for parallel in (False, True):
        factors = tridiagonal.factor(jnp.asarray(diag), jnp.asarray(off), parallel=parallel)
        variance, covariance = tridiagonal.moments(factors, parallel=parallel)
        np.testing.assert_allclose(variance, np.diag(inverse), rtol=1e-3)
        np.testing.assert_allclose(covariance, np.diag(inverse, 1), rtol=1e-3, atol=1e-5)
        np.testing.assert_allclose(
            tridiagonal.solve(factors, jnp.asarray(right), parallel=parallel), inverse @ right, rtol=1e-3, atol=1e-5
        )
        assert float(tridiagonal.log_det(factors)) == pytest.approx(np.linalg.slogdet(matrix)[1], abs=1e-3)
    moved = jax.vmap(lambda noise: tridiagonal.draw(factors, noise))(
        jax.random.normal(jax.random.key(0), (20_000, size))
    )
    np.testing.assert_allclose(np.cov(np.asarray(moved).T), inverse, atol=0.05)
    normal = dist.MultivariateNormal(jnp.zeros(size), precision_matrix=jnp.asarray(matrix))
    assert float(tridiagonal.log_prob(factors, moved[0])) == pytest.approx(float(normal.log_prob(moved[0])), abs=1e-3)


def test_an_autoregression_is_a_multivariate_normal():
    series = lv.series.Autoregression(0.8, 0.5, 6, level=1.0)
    stationary, time = 0.25 / (1 - 0.64), np.arange(6)
    covariance = stationary * 0.8 ** np.abs(time[:, None] - time[None])
    normal = dist.MultivariateNormal(jnp.ones(6), jnp.asarray(covariance))
    draws = series.sample(jax.random.key(1), (20_000,))
    np.testing.assert_allclose(np.cov(np.asarray(draws).T), covariance, atol=0.04)
    np.testing.assert_allclose(series.log_prob(draws[:5]), normal.log_prob(draws[:5]), rtol=1e-3)
