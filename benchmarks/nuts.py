"""How fast is NUTS? Effective draws a second of the worst parameter, ours and others', on nine posteriors.

    python benchmarks/nuts.py [--quick] [--models funnel,logistic]

4 chains of 1,000 + 1,000, each run in a fresh process. Cold is a first run: imports, compilation and draws in NumPy,
with no compiled code kept from before. Warm is the same again in the same process with another seed, as far as a
library can use what it compiled. All draws are judged by one function, in the process that started the runs. Processes
alternate between the contestants, and figures are medians. Peers are run in all sensible ways.
"""

from __future__ import annotations

import argparse
import functools
import itertools
import json
import os
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path
from typing import NamedTuple

import machine
import numpy as np
import nuts_peer_nutpie as nutpie
from nuts_contestants import CONTESTANTS, Drawn
from programs import PROBLEMS

LIMIT = 600
"""Seconds after which a run is stopped."""
REPEATS = {"stochastic_volatility": 1}
LEFT_OUT = {"stochastic_volatility": ("numpyro, vectorised",)}
"""Ways that take minutes and are known to be slower than the library's other way."""
PHASES = ("cold", "warm")
NO_CACHE = {"JAX_ENABLE_COMPILATION_CACHE": "false"}
MOST_SHOWN = 10
MOST_MCSES = 5


def worker(contestant: str, name: str, folder: str, num_warmup: str, num_draws: str, seed: str, phases: str) -> dict:
    """Runs once for each phase: writes the draws to PHASE.npz, and prints what it took as a line of JSON."""
    problem = PROBLEMS[name].saved(Path(folder) / "arguments.npz")
    began = time.perf_counter()
    prepare, run, took = CONTESTANTS[contestant](), None, {}
    import_seconds = time.perf_counter() - began
    for number, phase in enumerate(phases.split(",")):
        if took:
            print(json.dumps(took), flush=True)
        began = time.perf_counter()
        run = run or prepare(problem, int(num_warmup), int(num_draws))
        drawn = Drawn(*run(int(seed) + number))
        call_seconds = time.perf_counter() - began
        np.savez(Path(folder) / f"{phase}.npz", **drawn.draws)
        took = {
            "import_seconds": import_seconds,
            "call_seconds": call_seconds,
            "seconds": call_seconds + (import_seconds if number == 0 else 0),
            "gradients": drawn.gradients,
            "divergences": drawn.divergences,
        }
    return took


def start(contestant: str, name: str, folder: str, counts: tuple[int, int], seed: int, phases: tuple[str, ...], **env):
    """Runs a worker in a fresh process: the figures of each phase, or how it ended if it brought none."""
    python = nutpie.python() if contestant == "nutpie" else sys.executable
    arguments = (contestant, name, folder, *counts, seed, ",".join(phases))
    command = [python, machine.HERE / "nuts.py", "--worker", *map(str, arguments)]
    found = {}
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=os.environ | env) as process:
        for phase in phases:
            watchdog = threading.Timer(LIMIT, process.kill)
            watchdog.start()
            began = time.perf_counter()
            line = next((line for line in process.stdout if line.startswith("{")), None)
            watchdog.cancel()
            if line is None:
                stopped = time.perf_counter() - began >= LIMIT
                return found | {"outcome": f"stopped after {LIMIT} s" if stopped else "failed"}
            found[phase] = json.loads(line)
    return found


class Moments(NamedTuple):
    """Of each reported coordinate."""

    labels: list[str]
    mean: np.ndarray
    sd: np.ndarray
    mcse: np.ndarray
    sd_mcse: np.ndarray


def judge(path: Path, reported: tuple[str, ...]) -> tuple[dict, Moments]:
    """The worst bulk effective size, at least 1, and the largest R-hat, over all reported coordinates; the moments."""
    from arviz_stats.base import array_stats

    with np.load(path) as file:
        parts = {name: file[name] for name in reported}
    draws = np.concatenate([part.reshape(*part.shape[:2], -1) for part in parts.values()], axis=-1).astype(np.float64)
    axes = {"chain_axis": 0, "draw_axis": 1}
    with np.errstate(divide="ignore", invalid="ignore"):
        sizes = np.asarray(array_stats.ess(draws, **axes, method="bulk"))
        rhat = np.asarray(array_stats.rhat(draws, **axes))
        sd = draws.std((0, 1), ddof=1)
        mcse = np.asarray(array_stats.mcse(draws, **axes, method="mean"))
        # By the effective size of the squares: trajectories that overshoot make means better than sds.
        squares = (draws - draws.mean((0, 1))) ** 2
        sd_mcse = np.asarray(array_stats.mcse(squares, **axes, method="mean")) / (2 * sd)
    # A coordinate that never moved would count as many effective draws as there are.
    sizes = np.where(np.isfinite(sizes) & (sd > 0), sizes, 1.0)
    figures = {"worst_ess": float(max(sizes.min(), 1.0)), "largest_rhat": float(np.nan_to_num(rhat, nan=99.0).max())}
    indices = [(name, index) for name, part in parts.items() for index in np.ndindex(part.shape[2:])]
    labels = [f"{name}[{','.join(map(str, index))}]" if index else name for name, index in indices]
    return figures, Moments(labels, draws.mean((0, 1)), sd, mcse, sd_mcse)


def compare(name: str, counts: tuple[int, int], repeats: int) -> dict:
    """All contestants on one problem, in turn."""
    problem = PROBLEMS[name]
    contestants = [contestant for contestant in CONTESTANTS if contestant not in LEFT_OUT.get(name, ())]
    runs: dict[str, list[dict]] = {contestant: [] for contestant in contestants}
    moments: dict[str, list[Moments]] = {contestant: [] for contestant in contestants}
    with tempfile.TemporaryDirectory() as folder:
        problem.save(Path(folder) / "arguments.npz")
        for repeat, contestant in itertools.product(range(repeats), contestants):
            found = start(contestant, name, folder, counts, 2 * repeat, PHASES, **NO_CACHE)
            for phase in found.keys() & set(PHASES):
                took = found[phase]
                judged, moment = judge(Path(folder) / f"{phase}.npz", problem.reported)
                took |= judged | {
                    "ess_a_second": judged["worst_ess"] / took["seconds"],
                    "gradients_an_effective_draw": took["gradients"] / judged["worst_ess"],
                }
                moments[contestant].append(moment)
            runs[contestant].append(found)
            print(f"  {name}, {contestant}: {_sentence(found)}", file=sys.stderr, flush=True)
    figures = {contestant: _medians(found) | {"runs": found} for contestant, found in runs.items()}
    pooled = {contestant: _pool(found) for contestant, found in moments.items() if found}
    return {
        "repeats": repeats,
        "contestants": figures,
        "fastest": {phase: fastest(figures, phase) for phase in PHASES},
        "ratios": {phase: ratios(figures, phase) for phase in PHASES},
        "disagreements": disagreements(pooled),
        "posterior": {contestant: _shown(moment) for contestant, moment in pooled.items()},
    }


def _sentence(found: dict) -> str:
    done = {phase: found[phase] for phase in PHASES if phase in found}
    parts = [f"{phase} {took['seconds']:.1f} s, ESS {took['worst_ess']:.0f}" for phase, took in done.items()]
    return "; ".join([*parts, found["outcome"]] if "outcome" in found else parts)


def _medians(runs: list[dict]) -> dict:
    """For each phase the medians over the runs that brought draws; if none did, how the first one ended."""
    medians = {}
    for phase in PHASES:
        good = [run[phase] for run in runs if phase in run]
        if good:
            medians[phase] = {key: statistics.median(figures[key] for figures in good) for key in good[0]}
            medians[phase]["finished"] = len(good)
        else:
            medians[phase] = {"outcome": runs[0]["outcome"]}
    return medians


def _pool(moments: list[Moments]) -> Moments:
    """The moments of several runs together."""
    mean, sd, *errors = (np.stack(values) for values in list(zip(*moments, strict=True))[1:])
    pooled = (np.sqrt((error**2).sum(0)) / len(moments) for error in errors)
    return Moments(moments[0].labels, mean.mean(0), np.sqrt((sd**2).mean(0)), *pooled)


def _shown(moments: Moments) -> dict[str, list[float]]:
    """Mean and sd of at most ten evenly spaced coordinates."""
    labels = moments.labels
    chosen = np.unique(np.linspace(0, len(labels) - 1, min(len(labels), MOST_SHOWN)).astype(int))
    return {labels[i]: [float(f"{moments.mean[i]:.5g}"), float(f"{moments.sd[i]:.5g}")] for i in chosen}


def disagreements(pooled: dict[str, Moments]) -> list[dict]:
    """Pairs of contestants with a mean or sd that differs by more than 5 of its Monte Carlo errors, and where most."""
    found = []
    for (first, second), kind in itertools.product(itertools.combinations(pooled, 2), ("mean", "sd")):
        one, other = pooled[first], pooled[second]
        error = np.hypot(*((each.mcse if kind == "mean" else each.sd_mcse) for each in (one, other)))
        apart = np.abs(getattr(one, kind) - getattr(other, kind))
        with np.errstate(divide="ignore", invalid="ignore"):
            distance = np.nan_to_num(apart / error)
        worst = int(distance.argmax())
        if distance[worst] > MOST_MCSES:
            pair = {"between": [first, second], "of": kind, "coordinate": one.labels[worst]}
            found.append(pair | {"mcses": float(distance[worst]), "sds": float(apart[worst] / other.sd[worst])})
    return found


def fastest(contestants: dict[str, dict], phase: str) -> dict[str, str]:
    """For each library, its quickest way to run.

    By seconds, not by effective draws a second: a library's ways draw alike, and to choose by what they drew would be
    to choose the luckiest.
    """
    ways: dict[str, list[str]] = {}
    for name in contestants:
        ways.setdefault(name.split(",")[0], []).append(name)
    return {
        library: min(names, key=lambda name: contestants[name][phase].get("seconds", float("inf")))
        for library, names in ways.items()
    }


def ratios(contestants: dict[str, dict], phase: str) -> dict[str, float]:
    """Our effective draws a second over those of each contestant, of each library, and of the best of these."""
    speeds = {name: figures[phase].get("ess_a_second") for name, figures in contestants.items()}
    libraries = {library: speeds[name] for library, name in fastest(contestants, phase).items()}
    ours = libraries.pop("langevin")
    peers = {library: speed for library, speed in libraries.items() if speed is not None}
    if ours is None or not peers:
        return {}
    others = {name: speed for name, speed in speeds.items() if name != "langevin" and speed is not None}
    return {name: ours / speed for name, speed in (others | peers | {"best peer": max(peers.values())}).items()}


def geometric_means(models: dict[str, dict]) -> dict[str, dict[str, float]]:
    """Of each ratio, over the models that have it."""
    means = {}
    for phase in PHASES:
        found = [model["ratios"][phase] for model in models.values()]
        names = dict.fromkeys(name for ratio in found for name in ratio)
        means[phase] = {name: statistics.geometric_mean(r[name] for r in found if name in r) for name in names}
    return means


def compilation(repeats: int) -> dict:
    """Seconds of a call of 10 + 10, most of which is tracing and compiling; and again with JAX's cache on disk.

    The first run fills the cache, and the second, in another process, is measured.
    """
    name, counts = "eight_schools_noncentred", (10, 10)
    contestants = [contestant for contestant in CONTESTANTS if contestant != "nutpie"]
    runs = {contestant: {"fresh": [], "cached": []} for contestant in contestants}
    for _, contestant in itertools.product(range(repeats), contestants):
        with tempfile.TemporaryDirectory() as folder:
            PROBLEMS[name].save(Path(folder) / "arguments.npz")
            cache = {
                "JAX_COMPILATION_CACHE_DIR": f"{folder}/cache",
                "JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS": "0",
                "JAX_PERSISTENT_CACHE_MIN_ENTRY_SIZE_BYTES": "-1",
            }
            for kind, env in (("fresh", NO_CACHE), ("filling", cache), ("cached", cache)):
                found = start(contestant, name, folder, counts, 0, ("cold",), **env)
                if kind != "filling" and "cold" in found:
                    runs[contestant][kind].append(found["cold"]["call_seconds"])
    medians = {
        contestant: {kind: statistics.median(seconds) if seconds else None for kind, seconds in kinds.items()}
        for contestant, kinds in runs.items()
    }
    return {"model": name, "num_steps": sum(counts), "repeats": repeats, "seconds": medians, "all_seconds": runs}


def measure(quick: bool, models: str | None = None) -> dict:
    """All of it, or some models, separated by commas."""
    counts = (200, 200) if quick else (1000, 1000)
    names = models.split(",") if models else ["eight_schools_noncentred", "mixture"] if quick else list(PROBLEMS)
    for name in names:
        # What data a problem lacks is said before the first run, not after an hour.
        _ = PROBLEMS[name].arguments
    found = {name: compare(name, counts, 1 if quick else REPEATS.get(name, 2)) for name in names}
    return {
        "num_warmup": counts[0],
        "num_draws": counts[1],
        "models": found,
        "compared": ["mean", "sd"],
        "geometric_means": geometric_means(found),
        "compilation": compilation(1 if quick else 2),
        "versions": nutpie.versions(),
    }


if __name__ == "__main__":
    parser = argparse.ArgumentParser(add_help=False)
    parser.add_argument("--models")
    options, sys.argv[1:] = parser.parse_known_args()
    machine.main(functools.partial(measure, models=options.models), worker)
