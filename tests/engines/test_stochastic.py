"""What the stochastic-gradient methods find out before they draw: modes, metrics, gradient noise, and a step."""

import dataclasses

import jax.numpy as jnp
import numpy as np
import numpyro
import numpyro.distributions as dist
import pytest

import langevin as lv
from langevin.contracts import Plan
from langevin.data.table import as_table
from langevin.engines.stochastic import StochasticEngine
from langevin.geometry import landscape
from langevin.geometry.finding import Found
from langevin.models.program import Program
from langevin.run.keep import Keep
from langevin.run.seeds import Seed

WORDS = Seed.of(0).key_words()


def logistic(num_rows, scales, seed=1):
    generator = np.random.default_rng(seed)
    z = generator.normal(size=(num_rows, len(scales)))
    z[:, 1] = 0.8 * z[:, 0] + 0.6 * z[:, 1]
    x = np.concatenate([np.ones((num_rows, 1)), z * scales], axis=1)
    weights = np.concatenate([[0.5], generator.normal(size=len(scales)) * 0.5 / scales * (scales >= 0.1)])
    return x, generator.random(num_rows) < 1 / (1 + np.exp(-x @ weights))


def model(x, y=None):
    w = numpyro.sample("w", dist.Normal(0, 10).expand([x.shape[-1]]).to_event(1))
    with numpyro.plate("rows", x.shape[0]):
        numpyro.sample("y", dist.Bernoulli(logits=x @ w), obs=y)


def laplace(x, y):
    """The mode and the sds there, by Newton's method in double precision."""
    w = np.zeros(x.shape[1])
    for _ in range(50):
        p = 1 / (1 + np.exp(-x @ w))
        hessian = (x * (p * (1 - p))[:, None]).T @ x + np.eye(len(w)) / 100
        w = w + np.linalg.solve(hessian, x.T @ (y - p) - w / 100)
    return w, np.sqrt(np.diag(np.linalg.inv(hessian)))


def posterior_of(x, y):
    return Program(model).posterior(as_table({"x": x, "y": y}), minibatch=True)


def engine_of(posterior, method=lv.SGLD(), num_chains=4, batches=None):
    return StochasticEngine(method, posterior, Plan(num_chains, 1000, 1000, None, batches, Seed.of(0), Keep()))


def run_to(engine, phase):
    """The state at the beginning of a phase."""
    state = engine.begin()
    while state["phase"] != phase:
        state, _ = engine.advance(state, 2**30)
    return state


@pytest.mark.slow
@pytest.mark.parametrize("method", ["sgld", "sghmc"])
def test_automatic_steps_on_badly_scaled_logistic_regression(method):
    """200,000 rows, columns from 1e-3 to 1e3, no setting but the batch size."""
    scales = 10.0 ** np.random.default_rng(0).permutation(np.linspace(-3, 3, 10))
    x, y = logistic(200_000, scales)
    mode, sds = laplace(x, y)
    fit = lv.fit(model, {"x": x, "y": y}, method, batch_size=1000, progress=False)
    table = fit.summary()
    assert np.abs((table["mean"] - mode) / sds).max() < 0.15
    assert np.abs(table["sd"] / sds - 1).max() < 0.15
    assert fit.verdict == ()


def found_by(engine):
    return Found(**run_to(engine, "measure")["finder"]["found"])


def test_the_posterior_is_found_from_far_away_in_any_units():
    x, y = logistic(20_000, 10.0 ** np.linspace(-3, 3, 7))
    mode, sds = laplace(x, y)
    found = found_by(engine_of(posterior_of(x, y), num_chains=3, batches=lv.Batches(500, order="sweep")))
    assert np.abs((found.centre - mode) / sds).max() < 0.05
    assert np.abs((found.modes - mode) / sds).max() < 0.05
    np.testing.assert_allclose(np.sqrt(np.sum(found.factor**2, axis=1)), sds, rtol=0.02)


def test_diagonal_metric_knows_how_stiff_the_correlation_is():
    x, y = logistic(5_000, np.ones(2))
    found = found_by(engine_of(posterior_of(x, y), batches=lv.Batches(500, order="sweep")))
    curvature = landscape.curvature_of(found.factor)
    _, stiffest, softest = landscape.metric_and_spectrum("diagonal", curvature, {"w": np.zeros(3)})
    np.testing.assert_allclose([softest, stiffest], np.linalg.eigvalsh(curvature.matrix)[[0, -1]], rtol=1e-3)
    assert stiffest > 1.5


def test_measured_gradient_noise_is_the_sampling_variance():
    generator = np.random.default_rng(0)
    rows = generator.normal(size=1000)
    density = lv.Density(lambda m: -0.5 * m**2, lambda m, rows: -0.5 * (rows["x"] - m) ** 2, init=0.0)
    batches = lv.Batches(50, order="slices")
    posterior = density.posterior({"x": rows})
    positions = jnp.zeros(8)
    noise = landscape.gradient_noise((batches, "minibatch"), posterior, None, None, positions, WORDS)
    # The variance of N/B times the sum of B rows drawn without replacement.
    expected = 1000**2 / 50 * rows.var() * (1 - 50 / 1000)
    assert float(noise.variance.mean()) == pytest.approx(expected, rel=0.1)


def test_many_coordinates_get_a_diagonal_metric():
    """Above 128 coordinates: the scales of independent Gaussians."""
    size = 150
    generator = np.random.default_rng(0)
    x = generator.normal(size=(600, size)) * np.linspace(0.1, 10, size)
    density = lv.Density(
        lambda w: -0.5 * jnp.sum(w**2), lambda w, rows: -0.5 * (rows["y"] - rows["x"] @ w) ** 2, init=jnp.zeros(size)
    )
    posterior = density.posterior({"x": x, "y": generator.normal(size=600)})
    exact = np.linalg.inv(x.T @ x + np.eye(size))
    data = {"x": x, "y": np.asarray(posterior.data["y"])}
    fit = lv.fit(density, data, "sghmc", batch_size=100, num_draws=400, thin=20, progress=False)
    ratio = fit.summary()["sd"].to_numpy() / np.sqrt(np.diag(exact))
    assert np.abs(np.median(ratio) - 1) < 0.1


@dataclasses.dataclass(frozen=True)
class Hasty(lv.SGLD):
    """Takes a step that is eight times too long."""

    def pace(self, landscape):
        pace = super().pace(landscape)
        return pace._replace(step_size=8 * pace.step_size)


def test_a_step_that_proves_too_long_is_halved():
    """On a Gaussian the draws have 1 / (1 - h / 4) times its variance: 1.92, 1.32, and then 1.14, which will do."""
    posterior = lv.Density(lambda x: -0.5 * jnp.sum(x**2), init=jnp.zeros(5)).posterior()
    right, hasty = (run_to(engine_of(posterior, method, num_chains=32), "sampling") for method in (lv.SGLD(), Hasty()))
    assert right["attempt"] == 0
    assert hasty["attempt"] == 2
    np.testing.assert_allclose(hasty["tuning"]["step_size"], 2 * right["tuning"]["step_size"], rtol=1e-5)
    assert hasty["autocorrelation_time"] == pytest.approx(4 * right["autocorrelation_time"])


@pytest.mark.parametrize("num_warmup", [1, 7, 25, 1000])
def test_a_warm_up_takes_as_many_steps_as_were_asked_for(num_warmup):
    method, phase = lv.SGLD(step_size=0.01), "burn-in"
    posterior = lv.Density(lambda x: -0.5 * jnp.sum(x**2), init=jnp.zeros(5)).posterior()
    engine = StochasticEngine(method, posterior, Plan(2, num_warmup, 10, None, None, Seed.of(0), Keep()))
    state, steps = engine.begin(), 0
    while state["phase"] in ("start", phase):
        state, chunk = engine.advance(state, 3)
        steps += chunk.steps if chunk.phase == phase else 0
    assert steps == num_warmup


@pytest.mark.filterwarnings("ignore::langevin.LangevinWarning")
@pytest.mark.parametrize("num_warmup", [1, 2000])
def test_noise_that_was_measured_elsewhere_is_found_out(num_warmup):
    """The noise of a slope's gradient grows with its distance from the truth: far away it is a thousandfold."""
    generator = np.random.default_rng(0)
    x = generator.normal(size=200)
    density = lv.Density(lambda w: -0.5 * w**2, lambda w, rows: -0.5 * (rows["y"] - rows["x"] * w) ** 2, init=50.0)
    method, batches = lv.SGHMC(step_size=0.01, friction=20.0), lv.Batches(50, order="rows")
    data = {"x": x, "y": x + generator.normal(size=200)}
    fit = lv.fit(density, data, method, batch_size=batches, num_warmup=num_warmup, thin=20, progress=False)
    assert ("noise" in [finding.code for finding in fit.verdict]) == (num_warmup == 1)


def test_a_start_that_is_never_finite_names_the_site():
    def broken(y):
        scale = numpyro.sample("scale", dist.HalfNormal(1.0))
        with numpyro.plate("rows", y.shape[0]):
            numpyro.sample("y", dist.Uniform(0, scale), obs=y)

    with pytest.raises(lv.SamplingError, match=r"'y'.*row"):
        lv.fit(broken, {"y": np.array([0.1, 1e9])}, "sgld", batch_size=1, progress=False)


@pytest.mark.parametrize("method", [lv.SGLD(), lv.SGLD(step_size=1e-5)])
def test_burn_in_knows_how_many_steps_come_after_it(method):
    x, y = logistic(500, np.ones(2))
    posterior = Program(model).posterior(as_table({"x": x, "y": y}), minibatch=True)
    plan = Plan(2, 100, 30, None, lv.Batches(50).resolved(500, False), Seed.of(0), Keep())
    engine = StochasticEngine(method, posterior, plan)
    state, chunk, later = engine.begin(), None, None
    while chunk is None or not chunk.finished:
        state, chunk = engine.advance(state, 10_000)
        later = chunk.later if chunk.phase == "burn-in" else later
    assert later == pytest.approx(chunk.total, rel=1.0)
