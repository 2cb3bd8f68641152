"""Targets with known answers, and the check that every sampler has to pass on them."""

from typing import Any, NamedTuple

import numpy as np
import numpyro
import numpyro.distributions as dist

from langevin.diagnostics import weighted


class Target(NamedTuple):
    """A model, its data, and the exact posterior means and sds of its sites."""

    model: Any
    data: dict[str, np.ndarray]
    means: dict[str, np.ndarray]
    sds: dict[str, np.ndarray]


def linear_regression(num_rows: int = 500, scales: tuple[float, ...] = (1.0, 1.0, 1.0)) -> Target:
    """y ~ N(x w, 1), w ~ N(0, 1), with correlated columns: the posterior is Gaussian in closed form."""
    generator = np.random.default_rng(11)
    x = generator.normal(size=(num_rows, len(scales)))
    x[:, 1] = 0.6 * x[:, 0] + 0.8 * x[:, 1]
    x = x * np.asarray(scales)
    y = x @ (np.array([1.0, -2.0, 0.5])[: len(scales)] / np.asarray(scales)) + generator.normal(size=num_rows)
    precision = x.T @ x + np.eye(len(scales))
    covariance = np.linalg.inv(precision)

    def model(x, y=None):
        w = numpyro.sample("w", dist.Normal(0, 1).expand([x.shape[-1]]).to_event(1))
        with numpyro.plate("rows", x.shape[0]):
            numpyro.sample("y", dist.Normal(x @ w, 1.0), obs=y)

    sds = np.sqrt(np.diag(covariance))
    return Target(model, {"x": x, "y": y}, {"w": covariance @ (x.T @ y)}, {"w": sds})


def raw_regression(kind: str = "year") -> Target:
    """y ~ N(x w, s) with columns as they come: a year, its square, earnings in dollars. Given s, w is Gaussian.

    Args:
        kind: "year", "square" (of the year), "dollars" (on a height in inches), or "dollars and ones".
    """
    generator = np.random.default_rng(7)
    year = np.arange(1952.0, 2014.0)
    columns, sds, noise, y = {
        "year": ([year**0, year], [10.0, 1.0], 5.0, 0.03 * (year - 1740) + generator.normal(0, 0.7, len(year))),
        "square": ([year**0, year, year**2], [10.0, 1.0, 1.0], 5.0, 0.03 * (year - 1740) + generator.normal(size=62)),
        "dollars": (
            [np.ones(200), 60 + 15 * generator.random(200)],
            [50_000.0, 2000.0],
            20_000.0,
            30_000 + 15_000 * generator.normal(size=200),
        ),
        "dollars and ones": (
            [np.ones(120), np.sin(np.arange(120.0)), np.linspace(1e4, 9e4, 120)],
            [50.0, 10.0, 1.0],
            5.0,
            20 + 2e-4 * np.linspace(1e4, 9e4, 120) + 2 * generator.normal(size=120),
        ),
    }[kind]
    x, prior = np.stack(columns, axis=1), np.diag(np.asarray(sds) ** -2)
    # In coordinates in which the columns are orthogonal, or their squares would be lost in rounding.
    q, r = np.linalg.qr(x)
    log_s = np.log(np.std(y - q @ (q.T @ y))) + np.linspace(-1, 1, 4001)
    inverse = np.linalg.inv(r)
    prior = inverse.T @ prior @ inverse
    values, vectors = np.linalg.eigh(prior)
    precision = np.exp(-2 * log_s)[:, None] + values
    mean = np.exp(-2 * log_s)[:, None] * (vectors.T @ q.T @ y) / precision
    log_weight = (
        -len(y) * log_s
        - 0.5 * np.exp(-2 * log_s) * (y @ y)
        + 0.5 * np.sum(mean**2 * precision, axis=1)
        - 0.5 * np.sum(np.log(precision), axis=1)
        + log_s
        - 0.5 * np.exp(2 * log_s) / noise**2
    )
    weight = np.exp(log_weight - log_weight.max())
    weight /= weight.sum()
    back = inverse @ vectors
    centre = weight @ mean
    spread = np.diag(weight @ (1 / precision)) + (weight[:, None] * (mean - centre)).T @ (mean - centre)
    s_mean = weight @ np.exp(log_s)

    def model(x, y=None):
        w = numpyro.sample("w", dist.Normal(0, np.asarray(sds)).to_event(1))
        s = numpyro.sample("s", dist.HalfNormal(noise))
        with numpyro.plate("rows", x.shape[0]):
            numpyro.sample("y", dist.Normal(x @ w, s), obs=y)

    means = {"w": back @ centre, "s": np.array(s_mean)}
    s_sd = np.sqrt(weight @ np.exp(2 * log_s) - s_mean**2)
    return Target(model, {"x": x, "y": y}, means, {"w": np.sqrt(np.diag(back @ spread @ back.T)), "s": s_sd})


def poisson_rate(num_rows: int = 20) -> Target:
    """y ~ Poisson(rate), rate ~ Gamma(2, 1): a conjugate pair on the positive half-line.

    Few counts, so that forgetting the Jacobian moves the mean by a third of an sd.
    """
    y = np.random.default_rng(5).poisson(0.3, size=num_rows)

    def model(y):
        rate = numpyro.sample("rate", dist.Gamma(2.0, 1.0))
        with numpyro.plate("rows", y.shape[0]):
            numpyro.sample("y", dist.Poisson(rate), obs=y)

    shape, scale = 2.0 + y.sum(), 1.0 + num_rows
    return Target(model, {"y": y}, {"rate": np.array(shape / scale)}, {"rate": np.array(np.sqrt(shape) / scale)})


def check_against_exact(fit: Any, target: Target, sd_tolerance: float = 0.05) -> None:
    """Means within 3 Monte Carlo errors, and never further than 0.15 sd; sds within the tolerance.

    The chains must be long enough for the tolerance to mean something: an effective size of 1,500 puts the error of an
    sd at 2 %.
    """
    weights = fit.weights.values
    for name, mean in target.means.items():
        draws = fit.posterior[name].values
        size = weighted.effective_size(draws, weights)
        assert (size > 1500).all(), f"{name}: effective size {size}"
        error = np.abs(weighted.mean(draws, weights) - mean)
        # The bias of a finite step is up to 0.03 sd on a target that is not Gaussian.
        assert (error < 3 * weighted.mcse(draws, weights) + 0.03 * target.sds[name]).all(), f"{name}: off by {error}"
        assert (error < 0.15 * target.sds[name]).all(), f"{name}: off by {error}, sds {target.sds[name]}"
        ratio = weighted.sd(draws, weights) / target.sds[name]
        assert (np.abs(ratio - 1) < sd_tolerance).all(), f"{name}: sd ratio {ratio}"


def moments(draws: np.ndarray) -> dict[str, tuple[np.ndarray, np.ndarray]]:
    """Mean and sd of draws (chain, draw, ...), each with its Monte Carlo error.

    The error of an sd is that of the mean square: where draws alternate around the mean, their squares do not, and the
    effective size of the draws themselves (which ArviZ takes for it) is several times too large.
    """
    from arviz_stats.base import array_stats

    draws = np.asarray(draws, np.float64)
    axes = {"chain_axis": 0, "draw_axis": 1}
    sd, squares = draws.std((0, 1)), (draws - draws.mean((0, 1))) ** 2
    errors = {
        "mean": sd / np.sqrt(array_stats.ess(draws, **axes, method="mean")),
        "sd": squares.std((0, 1)) / np.sqrt(array_stats.ess(draws, **axes, method="sd")) / (2 * sd),
    }
    return {"mean": (draws.mean((0, 1)), errors["mean"]), "sd": (sd, errors["sd"])}


def check_within_errors(fit: Any, target: Target) -> None:
    """Means and sds of an exact method within 4 Monte Carlo errors of theirs, which must be small."""
    for name, mean in target.means.items():
        sd = target.sds[name]
        for (kind, (found, error)), exact in zip(moments(fit.posterior[name].values).items(), (mean, sd), strict=True):
            assert (error < 0.03 * sd).all(), f"{kind} of {name}: the chains are too short, {error / sd}"
            distance = (found - exact) / error
            assert (np.abs(distance) < 4).all(), f"{kind} of {name}: {distance} Monte Carlo errors off"
