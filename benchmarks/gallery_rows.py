"""The gallery: regressions and other models of rows."""

from __future__ import annotations

import jax.numpy as jnp
import numpy as np
import numpyro
from gallery import Posterior, conjugate, laplace, register, shown
from numpyro import distributions as dist
from problems import badly_scaled_data
from programs import horseshoe as horseshoe_model
from programs import horseshoe_data

# The largest log-evidence of the network's hidden units that was seen in millions of draws is 286.2.
MOST_EVIDENCE = 286.4


def with_intercept(*columns: np.ndarray) -> np.ndarray:
    """A column of ones, then these."""
    return np.column_stack([np.ones(len(columns[0])), *columns])


def bernoulli(rng: np.random.Generator, logits: np.ndarray) -> np.ndarray:
    """Labels of a logistic model."""
    return (rng.random(len(logits)) < 1 / (1 + np.exp(-logits))).astype(np.float32)


def linear(x, y, prior_sd, noise):
    """Linear regression with known noise."""
    w = numpyro.sample("w", dist.Normal(0, prior_sd).to_event(1))
    with numpyro.plate("rows", x.shape[0]):
        numpyro.sample("y", dist.Normal(x @ w, noise), obs=y)


def logistic(x, y, prior_sd):
    """Logistic regression."""
    w = numpyro.sample("w", dist.Normal(0, prior_sd).to_event(1))
    with numpyro.plate("rows", x.shape[0]):
        numpyro.sample("y", dist.Bernoulli(logits=x @ w), obs=y)


def logistic_posterior(x: np.ndarray, y: np.ndarray, prior_sd: float | np.ndarray, **settings) -> Posterior:
    """Logistic regression on these rows."""
    prior = np.broadcast_to(prior_sd, x.shape[1:]).astype(np.float32)
    return Posterior(logistic, {"x": x, "y": y}, {"prior_sd": prior}, **settings)


@register
def normal_mean() -> Posterior:
    """The mean of 1,000 rows."""
    y = np.random.default_rng(0).normal(2.0, 1.0, size=1000)
    prior, x = np.array([10.0]), np.ones((1000, 1))
    constants = {"prior_sd": prior, "noise": 1.0}
    return Posterior(linear, {"x": x, "y": y}, constants, 100, conjugate("w", x, y, prior, 1.0))


@register
def linear_raw() -> Posterior:
    """Rents by year, income in dollars and height in centimetres, as they stand in a table; noise known."""
    rng = np.random.default_rng(0)
    year, dollars, height = rng.integers(1950, 2021, 300), rng.lognormal(10.8, 0.5, 300), rng.normal(172, 9, 300)
    x = with_intercept(year, dollars, height)
    y = x @ np.array([-4000.0, 2.2, 0.004, 1.5]) + 40 * rng.normal(size=300)
    prior = np.array([1e4, 100.0, 1.0, 100.0])
    constants = {"prior_sd": prior, "noise": 40.0}
    return Posterior(linear, {"x": x, "y": y}, constants, reference=conjugate("w", x, y, prior, 40.0))


@register
def linear_collinear() -> Posterior:
    """A column that is another one with noise of 1 %; noise known."""
    rng = np.random.default_rng(0)
    first = rng.normal(size=200)
    x = with_intercept(first, first + 0.01 * rng.normal(size=200))
    y = x @ np.array([1.0, 1.0, 1.0]) + rng.normal(size=200)
    prior = np.full(3, 10.0)
    constants = {"prior_sd": prior, "noise": 1.0}
    return Posterior(linear, {"x": x, "y": y}, constants, reference=conjugate("w", x, y, prior, 1.0))


@register
def linear_tall() -> Posterior:
    """20,000 rows, minibatches of 500; noise known."""
    rng = np.random.default_rng(0)
    x = with_intercept(*rng.normal(size=(5, 20_000)))
    y = x @ np.array([1.0, 0.5, -0.5, 0.2, 0.0, 2.0]) + 2 * rng.normal(size=20_000)
    prior = np.full(6, 10.0)
    constants = {"prior_sd": prior, "noise": 2.0}
    return Posterior(linear, {"x": x, "y": y}, constants, 500, conjugate("w", x, y, prior, 2.0))


@register
def linear_unknown_noise() -> Posterior:
    """The diabetes data of scikit-learn, standardised: 442 x 10, two columns nearly collinear."""
    from sklearn.datasets import load_diabetes

    x, y = load_diabetes(return_X_y=True)
    x, y = x / x.std(0), (y - y.mean()) / y.std()

    def model(x, y):
        w = numpyro.sample("w", dist.Normal(0, 1).expand([x.shape[-1]]).to_event(1))
        sigma = numpyro.sample("sigma", dist.HalfNormal(1))
        with numpyro.plate("rows", x.shape[0]):
            numpyro.sample("y", dist.Normal(x @ w, sigma), obs=y)

    return Posterior(model, {"x": x, "y": y})


@register
def robust() -> Posterior:
    """Regression with Student-t noise of unknown scale and degrees of freedom; one row in ten is an outlier."""
    rng = np.random.default_rng(0)
    x = rng.normal(size=150)
    y = 1 + 2 * x + rng.normal(size=150) * np.where(rng.random(150) < 0.1, 8, 0.7)

    def model(x, y):
        a = numpyro.sample("a", dist.Normal(0, 5))
        b = numpyro.sample("b", dist.Normal(0, 5))
        sigma = numpyro.sample("sigma", dist.HalfNormal(2))
        nu = numpyro.sample("nu", dist.Gamma(2, 0.1))
        with numpyro.plate("rows", x.shape[0]):
            numpyro.sample("y", dist.StudentT(nu, a + b * x, sigma), obs=y)

    return Posterior(model, {"x": x, "y": y}, view=shown("a", "b", "sigma", logarithms=("nu",)))


@register
def logistic_small() -> Posterior:
    """200 rows, five columns."""
    rng = np.random.default_rng(0)
    x = with_intercept(*rng.normal(size=(5, 200)))
    return logistic_posterior(x, bernoulli(rng, x @ np.array([0.5, 1.0, -1.0, 0.5, 0.0, 0.0])), 2.0)


@register
def logistic_separated() -> Posterior:
    """30 rows that a line separates, prior sd 10: a long tail in one direction."""
    rng = np.random.default_rng(0)
    x = with_intercept(rng.normal(size=30), rng.normal(size=30))
    return logistic_posterior(x, (x[:, 1] + x[:, 2] > 0.2).astype(np.float32), 10.0)


@register
def logistic_rare() -> Posterior:
    """5,000 rows with about 20 events, minibatches of 250."""
    rng = np.random.default_rng(0)
    x = with_intercept(*rng.normal(size=(3, 5000)))
    return logistic_posterior(x, bernoulli(rng, x @ np.array([-6.0, 0.7, -0.5, 0.0])), 5.0, batch_size=250)


@register
def logistic_correlated() -> Posterior:
    """500 rows, four columns correlated at 0.99."""
    rng = np.random.default_rng(0)
    x = with_intercept(*(rng.normal(size=500) + 0.1 * rng.normal(size=(4, 500))))
    return logistic_posterior(x, bernoulli(rng, x @ np.array([0.0, 1.0, -1.0, 1.0, 0.0])), 5.0)


@register
def logistic_cancer() -> Posterior:
    """The breast cancer data of scikit-learn, standardised: 569 x 30, nearly separated."""
    from sklearn.datasets import load_breast_cancer

    x, y = load_breast_cancer(return_X_y=True)
    x = (x - x.mean(0)) / x.std(0)
    return logistic_posterior(with_intercept(*x.T), y.astype(np.float32), 1.0)


def _tall(raw: bool) -> Posterior:
    x, y = badly_scaled_data(20_000)
    scale = np.ones(20) if raw else x.std(0)
    x = with_intercept(*(x / scale).T)
    prior = 10 / np.sqrt(np.mean(x**2, axis=0))
    return logistic_posterior(x, y, prior, batch_size=500, reference=laplace("w", x, y, prior, "logistic"))


@register
def logistic_tall() -> Posterior:
    """20,000 rows, 20 standardised columns, minibatches of 500."""
    return _tall(raw=False)


@register
def logistic_tall_raw() -> Posterior:
    """The same with columns scaled from 1e-3 to 1e3."""
    return _tall(raw=True)


def poisson(x, log_exposure, y, prior_sd):
    """Poisson regression with an exposure."""
    w = numpyro.sample("w", dist.Normal(0, prior_sd).to_event(1))
    with numpyro.plate("rows", x.shape[0]):
        numpyro.sample("y", dist.Poisson(jnp.exp(x @ w + log_exposure)), obs=y)


def _poisson(num_rows: int, batch_size: int | None) -> Posterior:
    rng = np.random.default_rng(0)
    x = with_intercept(*rng.normal(size=(3, num_rows)))
    log_exposure = rng.normal(1.0, 0.7, size=num_rows)
    y = rng.poisson(np.exp(x @ np.array([-2.0, 0.5, -0.3, 0.0]) + log_exposure)).astype(np.float32)
    prior = np.full(4, 5.0, np.float32)
    exact = laplace("w", x, y, prior, "poisson", log_exposure) if num_rows >= 10_000 else None
    return Posterior(poisson, {"x": x, "log_exposure": log_exposure, "y": y}, {"prior_sd": prior}, batch_size, exact)


@register
def poisson_exposure() -> Posterior:
    """300 rows of few counts, with exposures."""
    return _poisson(300, None)


@register
def poisson_tall() -> Posterior:
    """20,000 rows, minibatches of 500."""
    return _poisson(20_000, 500)


@register
def negative_binomial() -> Posterior:
    """Counts with more spread than Poisson's, 400 rows."""
    rng = np.random.default_rng(0)
    x = with_intercept(*rng.normal(size=(2, 400)))
    mean = np.exp(x @ np.array([1.0, 0.5, -0.5]))
    y = rng.poisson(mean * rng.gamma(1.5, 1 / 1.5, size=400)).astype(np.float32)

    def model(x, y):
        w = numpyro.sample("w", dist.Normal(0, 3).expand([3]).to_event(1))
        concentration = numpyro.sample("concentration", dist.LogNormal(0, 1.5))
        with numpyro.plate("rows", x.shape[0]):
            numpyro.sample("y", dist.NegativeBinomial2(jnp.exp(x @ w), concentration), obs=y)

    return Posterior(model, {"x": x, "y": y})


@register
def zero_inflated() -> Posterior:
    """Counts with extra zeros: 200 rows with a rate of about 1, so that the two explanations compete."""
    rng = np.random.default_rng(0)
    y = rng.poisson(1.2, size=200) * (rng.random(200) > 0.3)

    def model(y):
        gate = numpyro.sample("gate", dist.Beta(1, 1))
        rate = numpyro.sample("rate", dist.LogNormal(0, 1))
        with numpyro.plate("rows", y.shape[0]):
            numpyro.sample("y", dist.ZeroInflatedPoisson(gate, rate), obs=y)

    return Posterior(model, {"y": y})


@register
def survival() -> Posterior:
    """Weibull survival times, half of them censored: 120 rows."""
    rng = np.random.default_rng(0)
    x = rng.normal(size=120)
    times = np.exp(1 + 0.5 * x) * rng.weibull(1.5, size=120)
    limit = rng.uniform(0.5, 4, size=120)
    data = {"x": x, "time": np.minimum(times, limit), "died": (times <= limit).astype(np.float32)}

    def model(x, time, died):
        a = numpyro.sample("a", dist.Normal(0, 3))
        b = numpyro.sample("b", dist.Normal(0, 3))
        shape = numpyro.sample("shape", dist.LogNormal(0, 1))
        hazard = (time / jnp.exp(a + b * x)) ** shape
        log_density = died * (jnp.log(shape) + jnp.log(hazard) - jnp.log(time)) - hazard
        with numpyro.plate("rows", x.shape[0]):
            numpyro.sample("time", dist.Unit(log_density), obs=jnp.zeros((x.shape[0], 0)))

    return Posterior(model, data)


@register
def ordered() -> Posterior:
    """Ratings from 0 to 4 by ordered cut points: 150 rows, one rating rare."""
    rng = np.random.default_rng(0)
    x = rng.normal(size=150)
    y = np.searchsorted([-2.0, -1.8, 0.0, 2.0], x + rng.logistic(size=150)).astype(np.int32)

    def model(x, y):
        b = numpyro.sample("b", dist.Normal(0, 3))
        base = dist.TransformedDistribution(dist.Normal(0, 3).expand([4]), dist.transforms.OrderedTransform())
        cuts = numpyro.sample("cuts", base)
        with numpyro.plate("rows", x.shape[0]):
            numpyro.sample("y", dist.OrderedLogistic(b * x, cuts), obs=y)

    return Posterior(model, {"x": x, "y": y})


@register
def horseshoe() -> Posterior:
    """A regression in which 4 of 20 columns matter, with a horseshoe prior."""
    data = horseshoe_data()[0]
    return Posterior(horseshoe_model, data, view=shown("sigma", "beta", logarithms=("tau",)))


@register
def network() -> Posterior:
    """A network of two hidden units on 40 rows: units can be exchanged, and change sign. Weights and predictions."""
    rng = np.random.default_rng(0)
    x = rng.uniform(-2, 2, size=40)
    y = np.tanh(2 * x) - 0.5 * np.tanh(x - 1) + 0.2 * rng.normal(size=40)

    def model(x, y):
        w = numpyro.sample("w", dist.Normal(0, 1).expand([3, 2]).to_event(2))
        with numpyro.plate("rows", x.shape[0]):
            numpyro.sample("y", dist.Normal(jnp.tanh(x[:, None] * w[0] + w[1]) @ w[2], 0.2), obs=y)

    def view(draws):
        w, points = draws["w"][..., None, :, :], np.linspace(-2.5, 2.5, 5)[:, None]
        return {"w": draws["w"], "f": np.sum(np.tanh(points * w[..., 0, :] + w[..., 1, :]) * w[..., 2, :], axis=-1)}

    def sampler(rng):
        hidden = np.concatenate([_likely_units(rng, x, y) for _ in range(40)])
        hidden = hidden[: len(hidden) // 4 * 4].reshape(4, -1, 2, 2)
        mean, factor, _ = _output_weights(hidden, x, y)
        output = mean + np.squeeze(factor @ rng.normal(size=(*mean.shape, 1)), axis=-1)
        return {"w": np.concatenate([hidden, output[..., None, :]], axis=-2)}

    return Posterior(model, {"x": x, "y": y}, view=view, sampler=sampler)


def _output_weights(hidden: np.ndarray, x: np.ndarray, y: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Given the hidden units, the output weights are Gaussian: mean, a factor of the covariance, log-evidence."""
    units = np.tanh(x[:, None] * hidden[..., None, 0, :] + hidden[..., None, 1, :])
    precision = np.swapaxes(units, -1, -2) @ units / 0.2**2 + np.eye(2)
    moment = np.einsum("...nk,n->...k", units, y) / 0.2**2
    covariance = np.linalg.inv(precision)
    mean = np.einsum("...jk,...k->...j", covariance, moment)
    evidence = np.sum(mean * moment, axis=-1) / 2 - np.linalg.slogdet(precision)[1] / 2
    return mean, np.linalg.cholesky(covariance), evidence


def _likely_units(rng: np.random.Generator, x: np.ndarray, y: np.ndarray) -> np.ndarray:
    """Hidden units of the prior, accepted by their evidence: exact draws, as long as no evidence is over the bound."""
    hidden = rng.normal(size=(200_000, 2, 2))
    evidence = _output_weights(hidden, x, y)[2]
    assert evidence.max() < MOST_EVIDENCE
    return hidden[np.log(rng.random(len(hidden))) < evidence - MOST_EVIDENCE]
