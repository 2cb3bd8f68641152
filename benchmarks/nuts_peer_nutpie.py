"""nutpie, in an environment of its own: nuts.py runs its worker there."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Callable
from pathlib import Path

import machine
import numpy as np
from programs import Problem

NUM_CHAINS = 4
VERSIONS = ("nutpie", "pymc", "pytensor", "numba")


def python() -> Path:
    """The Python of the environment."""
    return machine.environment("nutpie", ("nutpie", "pymc", "numba"))


def versions() -> dict[str, str]:
    """What is in the environment."""
    code = "import importlib.metadata, sys; print(*map(importlib.metadata.version, sys.argv[1:]))"
    done = subprocess.run([python(), "-c", code, *VERSIONS], stdout=subprocess.PIPE, text=True, check=True)
    return dict(zip(VERSIONS, done.stdout.split(), strict=True))


def nutpie_nuts() -> Callable[[Problem, int, int], Callable]:
    """Samples the PyMC model with nutpie; no compiled code, be it Numba's or C, is kept on the disk."""
    os.environ["PYTENSOR_FLAGS"] = "numba__cache=False,cxx="
    import nutpie
    import pymc_programs

    def prepare(problem: Problem, num_warmup: int, num_draws: int) -> Callable:
        compiled = nutpie.compile_pymc_model(pymc_programs.model(problem.name, problem.arguments))
        cores = min(NUM_CHAINS, len(os.sched_getaffinity(0)))
        settings = {"tune": num_warmup, "draws": num_draws, "chains": NUM_CHAINS, "cores": cores}

        def run(seed: int) -> tuple[dict[str, np.ndarray], int, int]:
            trace = nutpie.sample(compiled, **settings, seed=seed, progress_bar=False)
            draws = {name: np.asarray(trace.posterior[name]) for name in problem.reported}
            return draws, int(trace.sample_stats.n_steps.sum()), int(trace.sample_stats.diverging.sum())

        return run

    return prepare
