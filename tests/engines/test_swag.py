"""SWAG: the Gaussian of SGD's iterates against NumPy, SGD's stationary width, the rate, and what is said of it."""

import dataclasses

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy.linalg import solve_continuous_lyapunov
from scipy.stats import multivariate_normal
from targets import linear_regression

import langevin as lv
from langevin.data.batches import Batches
from langevin.engines import moments as gaussian
from langevin.geometry.stationary import network_rate, stationary_rate
from langevin.run.compilation import Programs
from langevin.run.seeds import Seed

TARGET = linear_regression()


def moments_of(iterates, rank):
    """Of iterates (number, chains, size)."""
    moments = gaussian.begin(*iterates.shape[1:], np.float64)
    for one in iterates:
        moments = gaussian.added(moments, one, rank)
    return moments


@pytest.fixture(scope="module")
def iterates():
    generator = np.random.default_rng(0)
    mixing = generator.normal(size=(2, 5, 5))
    return 3.0 + np.einsum("cij,ncj->nci", mixing, generator.normal(size=(12, 2, 5)))


def covariance_by_hand(iterates, rank):
    """Maddox et al. (2019), equations (1) and section 3.2, of one chain."""
    means = np.cumsum(iterates, axis=0) / np.arange(1, len(iterates) + 1)[:, None]
    deviations = (iterates - means)[-rank:].T
    diagonal = np.mean(iterates**2, axis=0) - np.mean(iterates, axis=0) ** 2
    return (np.diag(diagonal) + deviations @ deviations.T / (deviations.shape[1] - 1)) / 2


def test_the_moments_are_those_of_the_iterates(iterates):
    moments = moments_of(iterates, rank=4)
    np.testing.assert_allclose(moments.mean, iterates.mean(axis=0), rtol=1e-12)
    np.testing.assert_allclose(moments.variance, iterates.var(axis=0), rtol=1e-10)
    for chain in range(2):
        covariance = np.diag(moments.variance[chain] / 2) + moments.factor[chain].T @ moments.factor[chain]
        np.testing.assert_allclose(covariance, covariance_by_hand(iterates[:, chain], 4), rtol=1e-10)


@pytest.mark.parametrize("rank", [4, 30])
def test_the_draws_have_the_covariance_that_the_moments_say(iterates, rank):
    count = 40_000
    draws = gaussian.drawn(moments_of(iterates, rank), np.random.default_rng(1), count)
    for chain in range(2):
        covariance = covariance_by_hand(iterates[:, chain], rank)
        sds = np.sqrt(np.diag(covariance))
        np.testing.assert_allclose(
            (draws[:, chain].mean(axis=0) - iterates[:, chain].mean(axis=0)) / sds, 0, atol=0.025
        )
        # The standard error of a correlation r is at most 1 / sqrt(count), and of a variance sqrt(2 / count).
        found = np.cov(draws[:, chain].T)
        np.testing.assert_allclose((found - covariance) / np.outer(sds, sds), 0, atol=5 * np.sqrt(2 / count))


def test_the_log_density_is_that_of_the_mixture(iterates):
    moments = moments_of(iterates, rank=4)
    at = np.random.default_rng(2).normal(3.0, 2.0, (7, 5))
    each = [
        multivariate_normal(iterates[:, c].mean(axis=0), covariance_by_hand(iterates[:, c], 4)).logpdf(at)
        for c in (0, 1)
    ]
    np.testing.assert_allclose(gaussian.log_density(moments, at), np.logaddexp(*each) - np.log(2), rtol=1e-9)


# Each row has 40 numbers; their means are 40 independent problems with the same answer.
MEANS = lv.Density(
    lambda m: 0.0 * jnp.sum(m), lambda m, rows: -jnp.sum((rows["x"] - m) ** 2, -1) / 2, init=jnp.zeros(40)
)
ROWS = {"x": np.random.default_rng(3).normal(size=(200, 40))}


@pytest.fixture(scope="module")
def seen():
    """A fit, and the iterates that its moments are of."""
    iterates, added = [], gaussian.added

    def noting(moments, one, rank):
        iterates.append(one)
        return added(moments, one, rank)

    method = lv.SWAG(learning_rate=0.2, momentum=0.0, num_snapshots=300, steps_between=12, climb=lv.MAP(num_steps=300))
    settings = {"batch_size": Batches(10, order="rows"), "num_chains": 2, "num_warmup": 50, "num_draws": 500}
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(gaussian, "added", noting)
        with pytest.warns(lv.LangevinWarning, match="far from the posterior"):
            fit = lv.fit(MEANS, ROWS, method, progress=False, **settings)
    return fit, np.stack(iterates)


def test_the_fit_has_the_moments_of_its_iterates(seen):
    fit, iterates = seen
    assert iterates.shape == (300, 2, 40)
    np.testing.assert_allclose(fit.tree["iterates"]["mean"], iterates.mean(axis=0), rtol=1e-6)
    np.testing.assert_allclose(fit.tree["iterates"]["variance"], iterates.var(axis=0), rtol=1e-6)
    draws = fit.posterior["position"].values
    for chain in range(2):
        covariance = covariance_by_hand(iterates[:, chain], 20)
        ratio = draws[chain].var(axis=0) / np.diag(covariance)
        # Forty estimates with a standard error of sqrt(2 / 500) each.
        assert abs(ratio.mean() - 1) < 4 * np.sqrt(2 / 500 / 40)
        np.testing.assert_allclose(ratio, 1, atol=4.5 * np.sqrt(2 / 500))


def test_sgd_has_the_width_that_is_known(seen):
    """x <- x - rate (x - mean of B rows): its variance is rate / (2 - rate) times that of such a mean."""
    _, iterates = seen
    expected = 0.2 / (2 - 0.2) * ROWS["x"].var(axis=0) / 10
    ratio = iterates.var(axis=0) / expected
    # Iterates 12 steps apart have a correlation of 0.8^12 = 0.07.
    assert abs(ratio.mean() - 1) < 4 * np.sqrt(2 / (300 * 80))
    np.testing.assert_allclose(iterates.mean(axis=(0, 1)), ROWS["x"].mean(axis=0), atol=0.03)


def test_the_rate_by_hand():
    x, y, w = TARGET.data["x"], TARGET.data["y"], TARGET.means["w"]
    gradients = x * (y - x @ w)[:, None]
    trace, num_rows = np.trace(np.cov(gradients.T, ddof=0)), len(x)
    posterior = lv.Density(
        lambda w: -jnp.sum(w**2) / 2, lambda w, rows: -((rows["y"] - rows["x"] @ w) ** 2) / 2, init=jnp.zeros(3)
    ).posterior(TARGET.data)
    mode = jnp.asarray(w, jnp.float32)
    for size, momentum in ((20, 0.0), (50, 0.9)):
        rate = stationary_rate(
            Programs(lambda: None), posterior, Batches(size, order="rows"), mode, momentum, Seed.of(0)
        )
        expected = (1 - momentum) * 2 * size * 3 / (num_rows * trace)
        # The variance of 256 minibatches, in three coordinates.
        assert rate == pytest.approx(expected, rel=4 * np.sqrt(2 / 256 / 2))
    # All rows in a minibatch: the noise asks for a longer rate than is stable.
    stiff = np.linalg.eigvalsh(x.T @ x + np.eye(3))[-1] / num_rows
    rate = stationary_rate(Programs(lambda: None), posterior, Batches(499, order="slices"), mode, 0.5, Seed.of(0))
    assert rate == pytest.approx(0.5 / stiff, rel=0.02)
    # Rows ten times as large have a hundred times the curvature.
    steep = dataclasses.replace(posterior, data={name: 10 * rows for name, rows in posterior.data.items()})
    assert network_rate(Programs(lambda: None), posterior, mode, Seed.of(0)) == 0.03
    assert network_rate(Programs(lambda: None), steep, mode, Seed.of(0)) == pytest.approx(0.01 / stiff, rel=0.02)


@pytest.mark.filterwarnings("ignore::langevin.LangevinWarning")
def test_at_its_own_rate_it_is_about_as_wide_as_a_gaussian_posterior():
    x, y = TARGET.data["x"], TARGET.data["y"]
    fit = lv.fit(TARGET.model, TARGET.data, "swag", batch_size=50, num_chains=4, progress=False)
    w = fit.posterior["w"]
    np.testing.assert_allclose(w.mean(("chain", "draw")), TARGET.means["w"], atol=0.3 * TARGET.sds["w"].max())
    # Mandt et al. (2017), equation (12): A S + S A = rate C / (B (1 - momentum)). It is round where C = A.
    gradients = x * (y - x @ TARGET.means["w"])[:, None]
    noise, curvature = np.cov(gradients.T, ddof=0), (x.T @ x + np.eye(3)) / len(x)
    stationary = solve_continuous_lyapunov(curvature, 10 * fit.settings["learning_rate"] / 50 * noise)
    # Of 4 x 400 iterates, and 4 x 20 deviations, which are half of it.
    variance = w.var(("chain", "draw")).values
    np.testing.assert_allclose(variance / np.diag(stationary), 1, atol=4 * np.sqrt(2 / 80) / 2)
    np.testing.assert_allclose(np.sqrt(variance) / TARGET.sds["w"], 1, atol=0.3)
    assert fit.settings["num_snapshots"] == 400
    assert fit.settings["steps_between"] == 10
    assert "ratios" in fit.settings["evidence"]
    assert 0.2 < fit.settings["evidence"]["ratios"]["efficiency"] < 1


@pytest.mark.filterwarnings("ignore::langevin.LangevinWarning")
def test_several_chains_are_several_gaussians():
    square = lv.Density(lambda m: -(m**2) / 200, lambda m, rows: -((rows["x"] - m**2) ** 2) / 2, init=jax.random.normal)
    rows = {"x": np.random.default_rng(0).normal(4.0, 1.0, 200)}
    fit = lv.fit(
        square, rows, lv.SWAG(num_snapshots=40), batch_size=20, num_chains=6, num_draws=100, seed=1, progress=False
    )
    means = fit.posterior["position"].mean("draw").values
    np.testing.assert_allclose(np.abs(means), np.sqrt(rows["x"].mean()), atol=0.05)
    assert set(np.sign(means)) == {-1.0, 1.0}
    assert "each of 6 trained points" in fit.settings["approximation"]


def test_of_a_network_nothing_is_known():
    generator = np.random.default_rng(1)
    x = generator.uniform(-1, 1, 60).astype("float32")
    rows = {"x": x, "y": (x**2 + 0.1 * generator.normal(size=60)).astype("float32")}
    network = lv.Network(eqx.nn.MLP(1, 1, 8, 1, key=jax.random.key(0)), lv.likelihoods.Gaussian(0.1))
    method = lv.SWAG(rank=5, climb=lv.MAP(learning_rate=0.01, num_steps=300))
    fit = lv.fit(network, rows, method, batch_size=20, num_chains=2, num_warmup=10, num_draws=30, progress=False)
    assert [finding.code for finding in fit.verdict] == ["unchecked"]
    assert "too many weights" in fit.verdict[0].finding
    assert fit.settings["num_snapshots"] == 10
    assert 0 < fit.settings["learning_rate"] <= 0.03
    assert float(fit.predict()["sd_epistemic"].min()) > 0
    assert fit.evaluate()["RMSE"] < 0.3


def test_settings():
    with pytest.raises(lv.SettingError, match="from the noise of minibatches"):
        lv.fit(TARGET.model, TARGET.data, "swag")
    with pytest.raises(lv.SettingError, match="`rank` must be a whole number, at least 2; got 1"):
        lv.SWAG(rank=1)
    with pytest.raises(lv.SettingError, match=r"`momentum` must be in \[0, 1\); got 1"):
        lv.SWAG(momentum=1)
    with pytest.raises(lv.SettingError, match="`climb` must be an lv.MAP; got 'map'"):
        lv.SWAG(climb="map")
    with pytest.raises(lv.SettingError, match="independent from step to step"):
        lv.fit(TARGET.model, TARGET.data, "swag", batch_size=Batches(50, order="sweep"))


def test_a_rate_that_is_too_long_is_said():
    method = lv.SWAG(learning_rate=1e4, num_snapshots=5, climb=lv.MAP(num_steps=10))
    with pytest.raises(lv.SamplingError, match=r"SGD left the finite numbers.*`learning_rate` below 1e\+04"):
        lv.fit(TARGET.model, TARGET.data, method, batch_size=50, progress=False)


def test_a_network_is_trained_once_unless_more_is_asked_for():
    assert [lv.SWAG().counts(size).num_chains for size in (0, 1000)] == [4, 1]
