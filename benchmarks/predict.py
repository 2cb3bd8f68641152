"""What `fit.predict` takes, beside `numpyro.infer.Predictive`: 1,000 draws of a posterior on many new rows.

Predictive gives draws, and holds them all: 4 GB on a million rows. `fit.predict` gives mean, sd with its parts and
three quantiles, and holds a batch. Predictive is measured alone, and with what a user does next: mean, sd and quantiles
of its draws by NumPy. The contestants take turns in one process, after one call each that compiles.
"""

from __future__ import annotations

import functools
import resource
import statistics
import time
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import machine
import numpy as np
import numpyro
import numpyro.distributions as dist
from numpyro.infer import Predictive

import langevin as lv

NUM_DRAWS, NUM_COLUMNS = 1000, 10
OUTCOMES: dict[str, Callable[..., Any]] = {
    "linear": lambda location, scale: dist.Normal(location, scale),
    "logistic": lambda location, scale: dist.Bernoulli(logits=location),
}


def program(outcome: str) -> Callable[..., None]:
    """A regression with this outcome."""

    def model(x: Any, y: Any = None) -> None:
        w = numpyro.sample("w", dist.Normal(0, 1).expand([x.shape[-1]]).to_event(1))
        scale = numpyro.sample("scale", dist.HalfNormal(1.0))
        with numpyro.plate("rows", x.shape[0]):
            numpyro.sample("y", OUTCOMES[outcome](x @ w, scale), obs=y)

    return model


def fitted(outcome: str) -> tuple[lv.Fit, dict[str, jax.Array]]:
    """A fit of 1,000 draws, and the draws as NumPyro takes them."""
    generator = np.random.default_rng(0)
    x = generator.normal(size=(500, NUM_COLUMNS)).astype(np.float32)
    truth = {"w": jnp.asarray(generator.normal(size=NUM_COLUMNS)), "scale": jnp.asarray(1.0)}
    sampled = numpyro.handlers.seed(numpyro.handlers.substitute(program(outcome), truth), 0)
    y = np.asarray(numpyro.handlers.trace(sampled).get_trace(x)["y"]["value"])
    fit = lv.fit(program(outcome), {"x": x, "y": y}, num_draws=NUM_DRAWS // 4, progress=False)
    flat = {name: fit.posterior[name].values for name in ("w", "scale")}
    return fit, {name: jnp.asarray(values.reshape(NUM_DRAWS, *values.shape[2:])) for name, values in flat.items()}


def summarised(draws: np.ndarray) -> tuple[np.ndarray, ...]:
    """What `fit.predict` says, of draws, by NumPy; in batches of rows, which is twice as fast as all at once."""
    parts = [draws[:, start : start + 10_000] for start in range(0, draws.shape[1], 10_000)]
    found = [(p.mean(axis=0), p.std(axis=0), *np.quantile(p, (0.05, 0.5, 0.95), axis=0)) for p in parts]
    return tuple(np.concatenate(column) for column in zip(*found, strict=True))


def compare(outcome: str, num_rows: int, repeats: int) -> dict:
    """Seconds of each contestant, and how far apart their means are."""
    fit, posterior = fitted(outcome)
    x = np.random.default_rng(1).normal(size=(num_rows, NUM_COLUMNS)).astype(np.float32)
    predictive = Predictive(program(outcome), posterior)
    all_at_once = Predictive(program(outcome), posterior, parallel=True)

    def theirs(which: Predictive) -> np.ndarray:
        return np.asarray(which(jax.random.key(0), x=x)["y"])

    contestants: dict[str, Callable[[], Any]] = {
        "langevin": lambda: fit.predict({"x": x}),
        "langevin without quantiles": lambda: fit.predict({"x": x}, quantiles=()),
        "Predictive": functools.partial(theirs, predictive),
        "Predictive, then NumPy's summary": lambda: summarised(theirs(predictive)),
    }
    contestants["langevin, draws"] = lambda: fit.predict({"x": x}, kind="draws")
    contestants["Predictive(parallel=True)"] = functools.partial(theirs, all_at_once)
    seconds: dict[str, list[float]] = {name: [] for name in contestants}
    for repeat in range(repeats + 1):
        for name, call in contestants.items():
            began = time.perf_counter()
            call()
            if repeat:
                seconds[name].append(time.perf_counter() - began)
    medians = {name: statistics.median(times) for name, times in seconds.items()}
    ours, draws = fit.predict({"x": x[:2000]}), np.asarray(predictive(jax.random.key(0), x=x[:2000])["y"], np.float64)
    gap = (ours["mean"].values if "mean" in ours else ours["probability_1"].values) - draws.mean(axis=0)
    return {
        "outcome": outcome,
        "num_rows": num_rows,
        "num_draws": NUM_DRAWS,
        "seconds": medians,
        "all_seconds": seconds,
        "ratio_to_predictive": medians["Predictive"] / medians["langevin"],
        "ratio_to_the_same_summary": medians["Predictive, then NumPy's summary"] / medians["langevin"],
        "mean_square_distance_in_errors": float(
            np.mean(gap**2 / (np.maximum(draws.var(axis=0), 1 / NUM_DRAWS) / NUM_DRAWS))
        ),
    }


def memory(num_rows: str) -> dict:
    """In a fresh process: how much more memory a prediction of so many rows takes at its peak, in megabytes."""
    fit, _ = fitted("linear")
    x = np.random.default_rng(1).normal(size=(int(num_rows), NUM_COLUMNS)).astype(np.float32)
    fit.predict({"x": x[:5000]})
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    began = time.perf_counter()
    fit.predict({"x": x})
    after = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return {"num_rows": int(num_rows), "megabytes": (after - before) / 1000, "seconds": time.perf_counter() - began}


def measure(quick: bool) -> dict:
    """All of it."""
    num_rows, repeats = (20_000, 1) if quick else (50_000, 5)
    contests = [compare(outcome, num_rows, repeats) for outcome in OUTCOMES]
    return {"contests": contests, "memory": machine.fresh("predict.py", 100_000 if quick else 1_000_000)}


if __name__ == "__main__":
    machine.main(measure, memory)
