"""Logistic likelihoods by auxiliary sites: the bound of Jaakkola and Jordan, and Gibbs sampling against a grid."""

import jax
import jax.numpy as jnp
import numpy as np
import numpyro
import numpyro.distributions as dist
import pytest

import langevin as lv

RNG = np.random.default_rng(31)
X = RNG.normal(size=(40, 2))
TRIED = RNG.integers(1, 6, size=40)
CHANCE = 1 / (1 + np.exp(-(X @ [1.0, -0.8])))
DATA = {"x": X, "tried": TRIED, "hits": RNG.binomial(TRIED, CHANCE)}
SETTINGS = {"num_chains": 2, "progress": False, "seed": 5}


def binomial(x, tried, hits):
    w = numpyro.sample("w", dist.Normal(0.0, 2.0).expand([2]).to_event(1))
    with numpyro.plate("rows", len(hits)):
        numpyro.sample("hits", dist.Binomial(tried, logits=x @ w), obs=hits)


def bernoulli(x, hits):
    w = numpyro.sample("w", dist.Normal(0.0, 2.0).expand([2]).to_event(1))
    with numpyro.plate("rows", len(hits)):
        numpyro.sample("hits", dist.Bernoulli(logits=x @ w), obs=hits)


def jaakkola_jordan(x, tried, hits, num_sweeps=500):
    """The mean and the covariance of q(w), and the bound."""
    mean, covariance = np.zeros(2), np.eye(2)
    for _ in range(num_sweeps):
        xi = np.sqrt(np.einsum("ni,ij,nj->n", x, covariance + np.outer(mean, mean), x))
        precision = np.eye(2) / 4 + (x * (tried * np.tanh(xi / 2) / (2 * xi))[:, None]).T @ x
        covariance = np.linalg.inv(precision)
        mean = covariance @ x.T @ (hits - tried / 2)
    return mean, covariance


@pytest.mark.parametrize("model", [binomial, bernoulli])
def test_updates_are_those_of_jaakkola_and_jordan(model):
    data = DATA if model is binomial else {"x": X, "hits": np.minimum(DATA["hits"], 1)}
    method = lv.CAVI(logistic="polya-gamma", tolerance=1e-12)
    with jax.enable_x64(True):
        fit = lv.fit(model, data, method, num_draws=2, **SETTINGS)
    mean, covariance = jaakkola_jordan(X, data.get("tried", np.ones(40)), data["hits"])
    q = fit.data_tree["parameters"]
    np.testing.assert_allclose(q["w.loc"].values, mean, rtol=1e-5)
    np.testing.assert_allclose(q["w.covariance_matrix"].values, covariance, rtol=1e-5, atol=1e-8)
    bounds = fit.data_tree["optimisation"]["elbo"].values[0]
    assert np.all(np.diff(bounds) >= -1e-10 * np.abs(bounds[1:]))
    # A bound it is: of the log evidence, by a grid.
    assert bounds[-1] < log_evidence(model, data)[0] < bounds[-1] + 1


def log_evidence(model, data):
    """The log evidence, and the mean and the sd of w, by a grid over it."""
    grid = np.linspace(-4, 4, 401)
    w = np.stack(np.meshgrid(grid, grid, indexing="ij"), -1).reshape(-1, 2)
    likelihood = dist.Binomial(data.get("tried", 1), logits=jnp.asarray(w @ data["x"].T)).log_prob(data["hits"])
    logs = np.asarray(likelihood, float).sum(-1) + np.asarray(dist.Normal(0.0, 2.0).log_prob(w)).sum(-1)
    weights = np.exp(logs - logs.max())
    mean = weights @ w / weights.sum()
    sd = np.sqrt(weights @ (w - mean) ** 2 / weights.sum())
    return np.log(weights.sum() * (grid[1] - grid[0]) ** 2) + logs.max(), mean, sd


def test_gibbs_draws_from_the_posterior():
    fit = lv.fit(binomial, DATA, lv.Gibbs(logistic="polya-gamma"), num_warmup=100, num_draws=1500, **SETTINGS)
    _, mean, sd = log_evidence(binomial, DATA)
    scaled = (fit.posterior["w"].values - mean) / sd
    for moment, known in ((scaled, 0.0), (scaled**2, 1.0)):
        batches = moment.reshape(30, 100, 2).mean(1)
        assert np.all(np.abs(batches.mean(0) - known) < 4.5 * batches.std(0, ddof=1) / np.sqrt(30))


def test_minibatches_have_the_same_optimum():
    fit = lv.fit(binomial, DATA, lv.CAVI(logistic="polya-gamma"), batch_size=20, num_draws=2, **SETTINGS)
    mean, covariance = jaakkola_jordan(**DATA)
    sds = np.sqrt(np.diagonal(covariance))
    q = fit.data_tree["parameters"]
    assert np.abs(q["w.loc"].values - mean).max() < 0.1 * sds.min()
    np.testing.assert_allclose(np.sqrt(np.diagonal(q["w.covariance_matrix"].values)), sds, rtol=0.03)


def test_likelihoods_to_a_power_are_refused():
    def twice(x, hits):
        with numpyro.handlers.scale(scale=2.0):
            bernoulli(x, hits)

    data = {"x": X, "hits": np.minimum(DATA["hits"], 1)}
    with pytest.raises(lv.ModelError, match="binomial one"):
        lv.fit(twice, data, lv.Gibbs(logistic="polya-gamma"), **SETTINGS)
