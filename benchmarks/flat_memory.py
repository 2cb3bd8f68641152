"""Does memory stay flat, however long a run on disk is? 10 million draws of 100 coordinates, 8 GB on disk.

    python benchmarks/flat_memory.py [draws] [folder]

Prints the peak of resident memory before and after the run, and what a fit of that size takes to load and to judge.
"""

from __future__ import annotations

import json
import resource
import shutil
import sys
import tempfile
import time
import warnings
from pathlib import Path

import jax.numpy as jnp
import machine

import langevin as lv

SIZE, NUM_CHAINS = 100, 4


def peak() -> float:
    """The most memory that the process has had, in GB."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1e6


def main() -> None:
    """Runs, loads, and prints."""
    total = int(float(sys.argv[1])) if len(sys.argv) > 1 else 10_000_000
    folder = Path(sys.argv[2] if len(sys.argv) > 2 else tempfile.mkdtemp())
    path = folder / "run"
    warnings.simplefilter("ignore")
    density = lv.Density(lambda x: -0.5 * jnp.sum(x**2), init=jnp.zeros(SIZE))
    method = lv.SGLD(step_size=0.5)
    lv.fit(density, None, method, num_draws=1000, num_warmup=100, thin=1, progress=False)
    before, began = peak(), time.perf_counter()
    settings = {"num_chains": NUM_CHAINS, "num_warmup": 100, "num_draws": total // NUM_CHAINS, "thin": 1}
    fit = lv.fit(density, None, method, store=path, progress=False, **settings)
    seconds = time.perf_counter() - began
    result = {
        "draws": total,
        "coordinates": SIZE,
        "seconds": seconds,
        "peak_before_gb": before,
        "peak_after_gb": peak(),
        "disk_gb": sum(file.stat().st_size for file in path.rglob("*") if file.is_file()) / 1e9,
        "sd_of_first": float(fit.posterior["position"][:, ::1000, 0].values.std()),
    }
    shutil.rmtree(path)
    print(json.dumps(result, indent=1))
    if total == 10_000_000:
        (machine.HERE / "results" / "flat_memory.json").write_text(
            json.dumps(machine.describe() | result, indent=2) + "\n"
        )


if __name__ == "__main__":
    main()
