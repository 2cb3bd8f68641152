"""Where a benchmark runs: fresh processes, environments of their own, and what to say about the machine."""

from __future__ import annotations

import argparse
import datetime
import importlib.metadata
import json
import os
import platform
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

HERE = Path(__file__).parent
PACKAGES = ("langevin", "jax", "jaxlib", "numpy", "numpyro", "blackjax")


def describe() -> dict:
    """The date, the machine and the versions; peers in other environments add theirs."""
    return {
        "date": datetime.date.today().isoformat(),
        "cores": len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count(),
        "load_at_start": os.getloadavg()[0],
        "architecture": platform.machine(),
        "python": platform.python_version(),
        "versions": {name: importlib.metadata.version(name) for name in PACKAGES},
    }


def environment(name: str, *groups: tuple[str, ...]) -> Path:
    """The Python of a virtual environment, made on first use; each group of packages is one pip install, in order."""
    folder = HERE / ".envs" / name
    python = folder / "bin" / "python"
    ready = folder / "ready"
    if not ready.exists():
        subprocess.run([sys.executable, "-m", "venv", "--clear", folder], check=True)
        for packages in groups:
            subprocess.run([python, "-m", "pip", "install", "--quiet", *packages], check=True)
        ready.touch()
    return python


def fresh(script: str, *arguments: object, timeout: float | None = None) -> dict | None:
    """Runs a script of this folder in a fresh process; returns the JSON on its last line, or None after a timeout."""
    command = [sys.executable, HERE / script, "--worker", *map(str, arguments)]
    try:
        done = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True, timeout=timeout)
    except subprocess.TimeoutExpired:
        return None
    return json.loads(done.stdout.strip().splitlines()[-1])


def main(measure: Callable[[bool], dict] | None = None, worker: Callable[..., dict] | None = None) -> None:
    """The command line of one benchmark: `--quick`, or the worker that `fresh` starts."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--quick", action="store_true", help="a trial on little data")
    parser.add_argument("--worker", nargs="+", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.worker and worker:
        print(json.dumps(worker(*options.worker)))
    elif measure:
        print(json.dumps(measure(options.quick), indent=2))
