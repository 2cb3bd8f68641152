"""How many SGLD steps a second on logistic regression, 1,000,000 x 50, minibatches of 1,000, one chain?

Everybody has the same rows, prior, batch size and step, and keeps every tenth position. The rounds alternate between
the contestants, and a figure is the median over the rounds. Then the same step on ten thousand to ten million rows.
"""

from __future__ import annotations

import json
import statistics
import subprocess
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import blackjax
import jax
import jax.numpy as jnp
import machine
import numpy as np
from problems import logistic_data, logistic_model

import langevin as lv
from langevin.data.batches import Batches
from langevin.data.table import as_table
from langevin.run.keep import Keep
from langevin.runs import Asked, prepared

BATCH = 1000
THIN = 10
Run = Callable[[int], tuple[float, np.ndarray]]
"""Takes so many steps; returns the seconds and the mean of the positions it kept."""


def langevin_chunks(x: np.ndarray, y: np.ndarray, step_size: float) -> Run:
    """Our compiled chunks, as the loop of `lv.fit` asks for them."""
    asked = Asked(1, 0, 10**9, THIN, Batches(BATCH), (0, 0), None, False)
    run = prepared(logistic_model, as_table({"x": x, "y": y}), lv.SGLD(step_size=step_size), asked, Keep(), {}, None)
    state = run.engine.begin()
    while state["phase"] != "sampling":
        state, _ = run.engine.advance(state, 1)

    def take(num_steps: int) -> tuple[float, np.ndarray]:
        nonlocal state
        began, draws = time.perf_counter(), []
        while num_steps > 0:
            state, chunk = run.engine.advance(state, num_steps)
            draws += [one["posterior"]["w"] for one in chunk.draws]
            num_steps -= chunk.steps
        return time.perf_counter() - began, np.concatenate(draws).mean(0)

    return take


def scan(x: np.ndarray, y: np.ndarray, step_size: float) -> Run:
    """The floor: one scan written by hand, over slices of rows that are already in random order."""
    num_data, num_columns = x.shape
    num_slices = num_data // BATCH

    def log_density(w: jax.Array, rows: jax.Array, labels: jax.Array) -> jax.Array:
        logits = rows @ w
        log_likelihood = jnp.sum(labels * logits - jax.nn.softplus(logits))
        return -jnp.sum(w**2) / 2 + num_data / BATCH * log_likelihood

    @jax.jit(static_argnames="num_steps")
    def sample(x: jax.Array, y: jax.Array, w: jax.Array, key: jax.Array, num_steps: int):
        def one_step(carry, step):
            w, key = carry
            key, noise_key = jax.random.split(key)
            start = step % num_slices * BATCH
            rows = jax.lax.dynamic_slice_in_dim(x, start, BATCH)
            labels = jax.lax.dynamic_slice_in_dim(y, start, BATCH)
            gradient = jax.grad(log_density)(w, rows, labels)
            w += step_size / 2 * gradient + jnp.sqrt(step_size) * jax.random.normal(noise_key, w.shape)
            return (w, key), None

        def one_draw(carry, steps):
            carry, _ = jax.lax.scan(one_step, carry, steps)
            return carry, carry[0]

        return jax.lax.scan(one_draw, (w, key), jnp.arange(num_steps).reshape(-1, THIN))

    data = jnp.asarray(x), jnp.asarray(y)
    carry = jnp.zeros(num_columns), jax.random.key(0)

    def run(num_steps: int) -> tuple[float, np.ndarray]:
        nonlocal carry
        began = time.perf_counter()
        carry, draws = sample(*data, *carry, num_steps)
        draws = np.asarray(draws)
        return time.perf_counter() - began, draws.mean(0)

    return run


def blackjax_loop(x: np.ndarray, y: np.ndarray, step_size: float, style: str) -> Run:
    """BlackJAX as its documentation shows it: `jax.jit(sgld.step)` in a Python loop over minibatches.

    Its step is `step_size * gradient + N(0, 2 step_size)`. Style "choice" draws a minibatch as the MNIST
    example of its sampling book does, with `jax.random.choice` over all row numbers; "indices" spares it that, and
    takes random rows with NumPy.
    """

    def log_prior(w: jax.Array) -> jax.Array:
        return -jnp.sum(w**2) / 2

    def log_likelihood(w: jax.Array, row: tuple[jax.Array, jax.Array]) -> jax.Array:
        logit = row[0] @ w
        return row[1] * logit - jax.nn.softplus(logit)

    gradient = blackjax.sgmcmc.gradients.grad_estimator(log_prior, log_likelihood, len(x))
    step = jax.jit(blackjax.sgld(gradient).step)
    minibatches = _choice(x, y) if style == "choice" else _indices(x, y)
    position, key = jnp.zeros(x.shape[1]), jax.random.key(0)

    def run(num_steps: int) -> tuple[float, np.ndarray]:
        nonlocal position, key
        draws = []
        began = time.perf_counter()
        for number in range(num_steps):
            key, step_key = jax.random.split(key)
            position = step(step_key, position, next(minibatches), step_size / 2)
            if number % THIN == 0:
                draws.append(position)
        position.block_until_ready()
        return time.perf_counter() - began, np.asarray(draws).mean(0)

    return run


def _choice(x: np.ndarray, y: np.ndarray) -> Iterator[tuple[jax.Array, jax.Array]]:
    rows, labels, key = jnp.asarray(x), jnp.asarray(y), jax.random.key(1)
    while True:
        key, batch_key = jax.random.split(key)
        index = jax.random.choice(batch_key, jnp.arange(len(x)), (BATCH,))
        yield rows[index], labels[index]


def _indices(x: np.ndarray, y: np.ndarray) -> Iterator[tuple[np.ndarray, np.ndarray]]:
    rng = np.random.default_rng(1)
    while True:
        index = rng.integers(len(x), size=BATCH)
        yield x[index], y[index]


class Posteriors:
    """`posteriors` in its own environment, waiting for requests while others are measured."""

    def __init__(self, folder: Path, step_size: float) -> None:
        # torch first and by version: left to itself, pip would bring the CUDA build.
        python = machine.environment("posteriors", ("torch==2.13.0",), ("posteriors", "numpy"))
        script = machine.HERE / "posteriors_peer.py"
        command = [python, "-W", "ignore::FutureWarning", script, folder, str(BATCH), str(step_size)]
        self._process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        self.versions = self._answer()

    def _answer(self) -> dict:
        line = self._process.stdout.readline()
        if not line:
            raise RuntimeError(f"The posteriors process ended with code {self._process.wait()}.")
        return json.loads(line)

    def runner(self, style: str, threads: int = 0) -> Run:
        """A contestant: minibatches from a "loader" or by "indices".

        Torch's default is a thread a core. On a busy machine these wait for each other, and a step so small takes ten
        times as long as with one thread; so it enters with both.
        """

        def run(num_steps: int) -> tuple[float, np.ndarray]:
            self._process.stdin.write(json.dumps({"style": style, "threads": threads, "steps": num_steps}) + "\n")
            self._process.stdin.flush()
            answer = self._answer()
            return answer["seconds"], np.asarray(answer["mean"])

        return run

    def close(self) -> None:
        """Ends the process."""
        self._process.stdin.close()
        self._process.wait()


def rounds(contestants: dict[str, tuple[Run, int]], repeats: int, weights: np.ndarray) -> dict[str, dict]:
    """Runs each contestant once to compile, then all in turn, `repeats` times."""
    seconds, distance = {name: [] for name in contestants}, {}
    for run, num_steps in contestants.values():
        run(num_steps)
    for _ in range(repeats):
        for name, (run, num_steps) in contestants.items():
            elapsed, mean = run(num_steps)
            seconds[name].append(elapsed / num_steps)
            distance[name] = float(np.abs(mean - weights).max())
    return {
        name: {
            "num_steps": contestants[name][1],
            "microseconds_a_step": 1e6 * statistics.median(times),
            "all_microseconds": [1e6 * value for value in times],
            "largest_distance_from_true_weight": distance[name],
        }
        for name, times in seconds.items()
    }


def compare(num_rows: int, repeats: int, shrink: int) -> dict:
    """All contestants on the same rows; and the whole call in a fresh process."""
    x, y, weights = logistic_data(num_rows)
    step_size = 1 / num_rows
    with tempfile.TemporaryDirectory() as folder:
        np.save(f"{folder}/x.npy", x)
        np.save(f"{folder}/y.npy", y)
        peer = Posteriors(Path(folder), step_size)
        ours, shuffling = langevin_chunks(x, y, step_size), reshuffle_cost(x, y)
        contestants = {
            "langevin": (ours, 20_000 // shrink),
            "hand-written scan": (scan(x, y, step_size), 20_000 // shrink),
            "blackjax, loop, rows by NumPy": (blackjax_loop(x, y, step_size, "indices"), 2000 // shrink),
            "blackjax, documented loop": (blackjax_loop(x, y, step_size, "choice"), 500 // shrink),
            "posteriors, rows by indices": (peer.runner("indices"), 500 // shrink),
            "posteriors, rows by indices, one thread": (peer.runner("indices", 1), 1000 // shrink),
            "posteriors, DataLoader, one thread": (peer.runner("loader", 1), 200 // shrink),
        }
        measured = rounds(contestants, repeats, weights)
        peer.close()
        num_draws = 10_000 // shrink
        settings = (folder, step_size, BATCH, num_draws, THIN)
        cold = [machine.fresh("sgld_cold.py", *settings) for _ in range(min(repeats, 3))]
    ours = measured["langevin"]["microseconds_a_step"]
    for figures in measured.values():
        figures["ratio_to_langevin"] = figures["microseconds_a_step"] / ours
    return {
        "num_rows": num_rows,
        "contestants": measured,
        "reshuffle_microseconds_a_step": shuffling,
        "cold": {
            "num_steps": num_draws * THIN,
            "import_seconds": statistics.median(run["import_seconds"] for run in cold),
            "call_seconds": statistics.median(run["call_seconds"] for run in cold),
            "all_call_seconds": [run["call_seconds"] for run in cold],
        },
        "targets": targets(measured),
        "versions": peer.versions,
    }


def reshuffle_cost(x: np.ndarray, y: np.ndarray) -> float:
    """What drawing the order of the rows anew costs a step: on many rows it is too rare to show in a round."""
    batches = Batches(BATCH)

    def shuffle(seed: int) -> float:
        began = time.perf_counter()
        jax.block_until_ready(batches.lay_out({"x": x, "y": y}, len(x), seed))
        return time.perf_counter() - began

    return 1e6 * min(shuffle(0), shuffle(1)) / batches.reshuffle_period(len(x))


def targets(measured: dict[str, dict]) -> list[dict]:
    """What we set out to reach; BlackJAX both as documented and as fast as its loop goes, posteriors at its fastest."""

    def fastest(prefix: str) -> float:
        return min(value["ratio_to_langevin"] for name, value in measured.items() if name.startswith(prefix))

    documented, loop = fastest("blackjax, documented"), fastest("blackjax")
    torch, floor = fastest("posteriors"), 1 / fastest("hand-written")
    return [
        {"target": "at least 8 times BlackJAX's documented loop", "measured": documented, "reached": documented >= 8},
        {"target": "at least 8 times that loop with rows by NumPy", "measured": loop, "reached": loop >= 8},
        {"target": "at least 25 times posteriors", "measured": torch, "reached": torch >= 25},
        {"target": "at most 1.3 times the time of the hand-written scan", "measured": floor, "reached": floor <= 1.3},
    ]


def by_size(sizes: list[int], repeats: int, num_steps: int) -> list[dict]:
    """The time a step takes as the rows grow, for us and for the scan beside us."""
    rows = []
    for num_rows in sizes:
        x, y, weights = logistic_data(num_rows)
        ours, shuffling = langevin_chunks(x, y, 1 / num_rows), reshuffle_cost(x, y)
        contestants = {
            "langevin": (ours, num_steps),
            "hand-written scan": (scan(x, y, 1 / num_rows), num_steps),
        }
        measured = rounds(contestants, repeats, weights)
        rows.append({"num_rows": num_rows, "contestants": measured, "reshuffle_microseconds_a_step": shuffling})
        del x, y, ours, contestants
    return rows


def measure(quick: bool) -> dict:
    """All of it."""
    if quick:
        return compare(50_000, 2, 10) | {"by_size": by_size([10_000, 100_000], 2, 2000)}
    return compare(1_000_000, 5, 1) | {"by_size": by_size([10**4, 10**5, 10**6, 10**7], 5, 20_000)}


if __name__ == "__main__":
    machine.main(measure)
