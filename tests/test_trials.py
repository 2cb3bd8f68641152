"""Fits at their defaults of what people have: small versions of the trials in docs/trials.md that once went wrong."""

import jax.numpy as jnp
import numpy as np
import numpyro
import numpyro.distributions as dist
import pytest
from jax.experimental.ode import odeint

import langevin as lv
from langevin.engines.pacing import MOST_TIME, MOST_TIME_OF_LARGE, pace_of, thin_of
from langevin.tuning import Landscape

quiet = pytest.mark.filterwarnings("ignore::langevin.LangevinWarning")


def linear(x, y):
    w = numpyro.sample("w", dist.Normal(0, 10).expand([x.shape[-1]]).to_event(1))
    with numpyro.plate("rows", len(y)):
        numpyro.sample("y", dist.Normal(x @ w, 1), obs=y)


def logistic(x, y):
    w = numpyro.sample("w", dist.Normal(0, 1).expand([x.shape[-1]]).to_event(1))
    with numpyro.plate("rows", len(y)):
        numpyro.sample("y", dist.Bernoulli(logits=x @ w), obs=y)


def rates(x, exposure, y):
    w = numpyro.sample("w", dist.Normal(0, 2).expand([x.shape[-1]]).to_event(1))
    with numpyro.plate("rows", len(y)):
        numpyro.sample("y", dist.Poisson(exposure * jnp.exp(x @ w)), obs=y)


def closed_form(x, y):
    covariance = np.linalg.inv(x.T @ x + np.eye(x.shape[1]) / 100)
    return covariance @ x.T @ y, np.sqrt(np.diag(covariance))


def laplace(x, y, prior_sd, fitted, weights):
    """By Newton's method in double precision."""
    mode = np.zeros(x.shape[1])
    for _ in range(50):
        mean = fitted(x @ mode)
        hessian = (x * weights(mean)[:, None]).T @ x + np.eye(x.shape[1]) / prior_sd**2
        mode += np.linalg.solve(hessian, x.T @ (y - mean) - mode / prior_sd**2)
    return mode, np.sqrt(np.diag(np.linalg.inv(hessian)))


def check(fit, mean, sd, most_shift=0.2, most_ratio=0.15, site="w"):
    draws = fit.posterior[site].values.reshape(-1, len(mean))
    np.testing.assert_array_less(np.abs(draws.mean(axis=0) - mean) / sd, most_shift)
    np.testing.assert_allclose(draws.std(axis=0) / sd, 1, atol=most_ratio)


@pytest.mark.parametrize("method", [lv.VI("fullrank"), "sgld", "sghmc"])
def test_columns_in_different_units(method):
    rng = np.random.default_rng(0)
    x = rng.normal(size=(50_000, 4)) * [1, 10, 0.1, 1]
    y = rng.random(50_000) < 1 / (1 + np.exp(-x @ [1, -0.1, 5, 0]))
    fit = lv.fit(logistic, {"x": x, "y": y}, method, batch_size=1000, progress=False)
    sigmoid = lambda eta: 1 / (1 + np.exp(-eta))  # noqa: E731
    check(fit, *laplace(x, y, 1.0, sigmoid, lambda p: p * (1 - p)))
    assert fit.verdict.word == "trustworthy"


@pytest.mark.parametrize("seed", range(3))
def test_twenty_columns_two_of_which_are_nearly_the_same(seed):
    rng = np.random.default_rng(seed)
    x = rng.normal(size=(20_000, 20))
    x[:, 1] = 0.95 * x[:, 0] + np.sqrt(1 - 0.95**2) * x[:, 1]
    y = x @ rng.normal(size=20) + rng.normal(size=20_000)
    fit = lv.fit(linear, {"x": x, "y": y}, lv.VI("fullrank"), batch_size=1000, seed=seed, progress=False)
    check(fit, *closed_form(x, y))
    assert fit.verdict.word == "trustworthy"


@pytest.mark.parametrize("seed", range(5))
def test_what_full_rank_claims_of_its_error_is_so(seed):
    """Four columns, 2,000 rows: the error that it claims is below a hundredth, and so it is."""
    rng = np.random.default_rng(seed)
    x = rng.normal(size=(2000, 4))
    y = x @ [1.0, -1, 0.5, 0] + rng.normal(size=2000)
    fit = lv.fit(linear, {"x": x, "y": y}, lv.VI("fullrank"), batch_size=200, seed=seed, num_draws=5000, progress=False)
    assert fit.settings["evidence"]["optimisation"]["error"] < 0.02
    check(fit, *closed_form(x, y), most_shift=0.05, most_ratio=0.03)


# The noise of sixty rows is poorly known, and may be found to be another one than was measured.
@pytest.mark.filterwarnings("ignore:The gradient noise")
@pytest.mark.parametrize("method", [lv.VI("fullrank"), "sgld", "sghmc"])
def test_rates_with_rare_columns(method):
    """Columns of ones and zeros, of which the rarest has 60 rows."""
    rng = np.random.default_rng(0)
    count = 30_000
    x = np.concatenate([np.ones((count, 1)), rng.normal(size=(count, 2)), np.zeros((count, 3))], axis=1)
    for column, rows in zip((3, 4, 5), (60, 300, 3000), strict=True):
        x[rng.choice(count, rows, replace=False), column] = 1
    exposure = rng.uniform(0.1, 1, size=count)
    y = rng.poisson(exposure * np.exp(x @ [-1.5, 0.3, -0.2, 1.0, 0.5, -0.5]))
    fit = lv.fit(rates, {"x": x, "exposure": exposure, "y": y}, method, batch_size=1000, progress=False)
    offset = np.log(exposure)
    mean, sd = laplace(x, y, 2.0, lambda eta: np.exp(eta + offset), lambda mean: mean)
    check(fit, mean, sd)
    assert fit.verdict.word != "wrong"


@quiet
@pytest.mark.parametrize("method", ["sghmc", lv.VI("fullrank")])
def test_a_differential_equation(method):
    """`odeint` cannot be differentiated forwards. The rate of decay, against NUTS."""
    t = jnp.linspace(0.0, 3.0, 20)
    y = np.exp(-0.7 * np.asarray(t)) + 0.05 * np.random.default_rng(0).normal(size=20)

    def decay(y):
        rate = numpyro.sample("rate", dist.LogNormal(0, 1))
        path = odeint(lambda state, _, rate: -rate * state, jnp.ones(()), t, rate)
        numpyro.sample("y", dist.Normal(path, 0.05).to_event(1), obs=y)

    right, fit = (lv.fit(decay, constants={"y": y}, method=m, progress=False) for m in ("nuts", method))
    mean, sd = (float(getattr(right.posterior["rate"], name)()) for name in ("mean", "std"))
    assert abs(float(fit.posterior["rate"].mean()) - mean) < 0.2 * sd
    assert float(fit.posterior["rate"].std()) == pytest.approx(sd, rel=0.15)


@pytest.mark.slow
def test_a_random_walk_of_unknown_scale():
    """Sixty returns whose volatility is a random walk: its steps stay non-centred, and SGHMC agrees with NUTS."""
    rng = np.random.default_rng(0)
    returns = np.exp(-1 + np.cumsum(0.2 * rng.normal(size=60))) * rng.normal(size=60)

    def volatility(returns):
        sigma = numpyro.sample("sigma", dist.Exponential(5))
        walk = numpyro.sample("walk", dist.GaussianRandomWalk(sigma, num_steps=60))
        numpyro.sample("returns", dist.Normal(0, jnp.exp(walk - 1)).to_event(1), obs=returns)

    right, fit = (
        lv.fit(volatility, constants={"returns": returns}, method=method, progress=False, seed=1)
        for method in ("nuts", "sghmc")
    )
    log_sigma, expected = (np.log(f.posterior["sigma"].values) for f in (fit, right))
    assert abs(log_sigma.mean() - expected.mean()) < 0.25 * expected.std()
    assert log_sigma.std() == pytest.approx(expected.std(), rel=0.2)
    assert float(np.max(fit.data_tree["centring"]["walk"].values)) < 0.5


@pytest.mark.parametrize(("size", "most"), [(100, MOST_TIME), (10_000, MOST_TIME_OF_LARGE)])
def test_a_chain_that_would_take_forever_is_told_to_end(size, most):
    """As pSGLD on many rare columns, or any sampler on the weights of a network."""
    with pytest.warns(lv.LangevinWarning, match="autocorrelation time"):
        pace = pace_of(lv.SGHMC(), Landscape(1e6, 1e-6, 0.0, size))
    assert pace.autocorrelation_time == most


def test_cheap_steps_are_taken_more_often():
    assert thin_of(100.0, 1000, 80) == 60
    assert thin_of(100.0, 1000, 10**9) == 15
    assert thin_of(100.0, 10, 80) == 100


@quiet
@pytest.mark.parametrize("seed", range(2))
def test_a_fit_that_lags_behind_does_not_spoil_the_others(seed):
    """Counts with intercepts and slopes of 100 groups: some starts are so far off that they take long to arrive."""
    rng = np.random.default_rng(seed)
    shares = rng.pareto(1.0, 100) + 0.05
    g = rng.choice(100, 20_000, p=shares / shares.sum())
    x = rng.normal(size=20_000)
    y = rng.poisson(np.exp(-1 + 0.5 * rng.normal(size=100)[g] + (0.5 + 0.3 * rng.normal(size=100))[g] * x))

    def counts(g, x, y):
        centre = numpyro.sample("centre", dist.Normal(0, 2).expand([2]).to_event(1))
        tau = numpyro.sample("tau", dist.HalfNormal(2).expand([2]).to_event(1))
        with numpyro.plate("groups", 100):
            a = numpyro.sample("a", dist.Normal(centre[0], tau[0]))
            b = numpyro.sample("b", dist.Normal(centre[1], tau[1]))
        with numpyro.plate("rows", len(y)):
            numpyro.sample("y", dist.Poisson(jnp.exp(a[g] + b[g] * x)), obs=y)

    fit = lv.fit(counts, {"g": g, "x": x, "y": y}, "vi", batch_size=1000, seed=seed, progress=False)
    assert fit.settings["evidence"]["optimisation"]["error"] < 0.1
