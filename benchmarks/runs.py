"""What does it cost to keep every draw, in memory and on disk? What does a second fit cost? Does memory stay flat?

1. SGLD at `thin=1` on logistic regression, 1,000,000 x 50, minibatches of 1,000, one chain: the time of a step inside
   `lv.fit`, with draws in memory and on disk, against a scan written by hand that stores its draws. The difference of a
   long and a short fit, so that what a fit does once does not count; alternating rounds, medians.
2. A first and a second fit of a small model in a fresh process, by every method.
3. 10 million draws of 100 coordinates to disk: the peak of resident memory.
"""

from __future__ import annotations

import resource
import shutil
import statistics
import tempfile
import time
import warnings
from collections.abc import Callable
from pathlib import Path

import jax
import jax.numpy as jnp
import machine
import numpy as np
from problems import logistic_data, logistic_model

import langevin as lv

BATCH = 1000
ALL_ROWS = ("nuts", "hmc", "mala", "rwm")
METHODS = (*ALL_ROWS, "sgld", "psgld", "sghmc", "sgnht", "cyclicalsgld", "cyclicalsghmc", "map", "vi")


def fits(x: np.ndarray, y: np.ndarray, on_disk: bool) -> Callable[[int], None]:
    """`lv.fit` with every draw kept."""

    def run(num_steps: int) -> None:
        with tempfile.TemporaryDirectory() as folder:
            store = Path(folder) / "run" if on_disk else None
            settings = {"num_chains": 1, "num_warmup": 0, "num_draws": num_steps, "thin": 1, "progress": False}
            method = lv.SGLD(step_size=1 / len(x))
            lv.fit(logistic_model, {"x": x, "y": y}, method, batch_size=BATCH, store=store, **settings)

    return run


def scan(x: np.ndarray, y: np.ndarray) -> Callable[[int], None]:
    """The floor: one scan written by hand, which stores its draws."""
    num_data, num_columns = x.shape
    step_size, num_slices = 1 / num_data, num_data // BATCH

    def log_density(w: jax.Array, rows: jax.Array, labels: jax.Array) -> jax.Array:
        logits = rows @ w
        return -jnp.sum(w**2) / 2 + num_data / BATCH * jnp.sum(labels * logits - jax.nn.softplus(logits))

    @jax.jit(static_argnames="num_steps")
    def sample(x: jax.Array, y: jax.Array, key: jax.Array, num_steps: int):
        def one_step(carry, step):
            w, key = carry
            key, noise_key = jax.random.split(key)
            start = step % num_slices * BATCH
            rows, labels = (jax.lax.dynamic_slice_in_dim(column, start, BATCH) for column in (x, y))
            gradient = jax.grad(log_density)(w, rows, labels)
            w += step_size / 2 * gradient + jnp.sqrt(step_size) * jax.random.normal(noise_key, w.shape)
            return (w, key), w

        return jax.lax.scan(one_step, (jnp.zeros(num_columns), key), jnp.arange(num_steps))[1]

    data = jnp.asarray(x), jnp.asarray(y)
    return lambda num_steps: np.asarray(sample(*data, jax.random.key(0), num_steps))


def every_draw(num_rows: int, short: int, long: int, repeats: int) -> dict:
    """Microseconds a step, of each contestant."""
    x, y, _ = logistic_data(num_rows)
    contestants = {"hand-written scan": scan(x, y), "in memory": fits(x, y, False), "on disk": fits(x, y, True)}
    found: dict[str, list[float]] = {name: [] for name in contestants}
    for run in contestants.values():
        run(short)
        run(long)
    for _ in range(repeats):
        for name, run in contestants.items():
            times = []
            for num_steps in (short, long):
                began = time.perf_counter()
                run(num_steps)
                times.append(time.perf_counter() - began)
            found[name].append(1e6 * (times[1] - times[0]) / (long - short))
    floor = statistics.median(found["hand-written scan"])
    return {
        name: {"microseconds": statistics.median(times), "all": times, "ratio": statistics.median(times) / floor}
        for name, times in found.items()
    }


def first_and_second(name: str) -> dict:
    """Seconds of a first and a second fit in this process, whatever was compiled before in others."""
    warnings.simplefilter("ignore")
    x, y, _ = logistic_data(1000)
    batch_size = None if name in ALL_ROWS else 100
    times = []
    for seed in (0, 1):
        began = time.perf_counter()
        lv.fit(logistic_model, {"x": x[:, :5], "y": y}, name, batch_size=batch_size, seed=seed, progress=False)
        times.append(time.perf_counter() - began)
    return {"first": times[0], "second": times[1]}


def flat_memory(total: int) -> dict:
    """The peak of resident memory, in GB, before and after a long run to disk."""
    warnings.simplefilter("ignore")
    density = lv.Density(lambda x: -0.5 * jnp.sum(x**2), init=jnp.zeros(100))
    method, peak = lv.SGLD(step_size=0.5), lambda: resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1e6
    lv.fit(density, None, method, num_draws=1000, num_warmup=100, thin=1, progress=False)
    folder = Path(tempfile.mkdtemp())
    before, began = peak(), time.perf_counter()
    settings = {"num_chains": 4, "num_warmup": 100, "num_draws": total // 4, "thin": 1, "progress": False}
    lv.fit(density, None, method, store=folder / "run", **settings)
    seconds = time.perf_counter() - began
    size = sum(file.stat().st_size for file in folder.rglob("*") if file.is_file()) / 1e9
    shutil.rmtree(folder)
    return {"draws": total, "seconds": seconds, "before_gb": before, "after_gb": peak(), "disk_gb": size}


def worker(what: str, argument: str) -> dict:
    """One measurement in a process of its own."""
    if what == "flat":
        return flat_memory(int(argument))
    if what == "second":
        return first_and_second(argument)
    warnings.simplefilter("ignore")
    from langevin.result import Fit

    # Judging long chains takes longer than drawing them, and is not the question.
    Fit.verdict = property(lambda self: ())
    sizes = (50_000, 2000, 6000, 1) if argument == "quick" else (1_000_000, 50_000, 250_000, 3)
    return every_draw(*sizes)


def measure(quick: bool) -> dict:
    """All of it."""
    return {
        "every_draw": machine.fresh("runs.py", "every", "quick" if quick else "full"),
        "second_fit": {name: machine.fresh("runs.py", "second", name) for name in (METHODS[:1] if quick else METHODS)},
        "flat_memory": machine.fresh("runs.py", "flat", 100_000 if quick else 10_000_000),
    }


if __name__ == "__main__":
    machine.main(measure, worker)
