"""Kills runs with SIGKILL at random moments, resumes them, and compares their bits with those of undisturbed runs.

    python tests/kill.py --kills 20 --methods nuts sgld sghmc vi

A run that is killed is in a process of its own. Compiled programs are kept on disk, so that most of the time of a
process is the run.
"""

from __future__ import annotations

import argparse
import hashlib
import os
import random
import signal
import subprocess
import sys
import tempfile
import time
import warnings
from pathlib import Path

METHODS = ("nuts", "sgld", "sghmc", "vi")


def problem():
    """A logistic regression, and settings by which each method runs for a few seconds."""
    import numpy as np
    import numpyro
    import numpyro.distributions as dist

    import langevin as lv

    def model(x, y=None):
        w = numpyro.sample("w", dist.Normal(0, 1).expand([x.shape[-1]]).to_event(1))
        with numpyro.plate("rows", x.shape[0]):
            numpyro.sample("y", dist.Bernoulli(logits=x @ w), obs=y)

    generator = np.random.default_rng(0)
    x = generator.normal(size=(2000, 10)).astype(np.float32)
    y = generator.random(2000) < 1 / (1 + np.exp(-x @ generator.normal(size=10)))
    settings = {
        "nuts": (lv.NUTS(), {"num_draws": 4000}),
        "sgld": (lv.SGLD(), {"num_draws": 4000, "thin": 30, "batch_size": 200}),
        "sghmc": (lv.SGHMC(), {"num_draws": 4000, "thin": 30, "batch_size": 200}),
        "vi": (lv.VI("fullrank", num_steps=60_000), {"num_draws": 2000, "batch_size": 200}),
    }
    return model, {"x": x, "y": y}, settings


def run(name: str, path: Path) -> str:
    """Begins a run, or goes on with it. Returns a digest of the result."""
    import langevin as lv

    warnings.simplefilter("ignore")
    model, data, settings = problem()
    method, more = settings[name]
    cache = Path(tempfile.gettempdir()) / "langevin-kill-cache"
    # Killed while the folder is made: there is nothing to go on with.
    if (path / "run.json").exists():
        fit = lv.resume(path, model, data, progress=False, cache=cache)
    else:
        fit = lv.fit(model, data, method, store=path, seed=1, progress=False, cache=cache, **more)
    return digest(fit)


def digest(fit) -> str:
    """Of every array of a fit, and its settings."""
    found = hashlib.sha256(str(fit.settings).encode())
    for group in sorted(fit.tree.groups):
        dataset = fit.tree[group].to_dataset()
        for name in sorted(map(str, dataset.variables)):
            values = dataset[name].values
            found.update(f"{group} {name} {values.dtype} {values.shape}".encode())
            found.update(values.tobytes())
    return found.hexdigest()


def in_process(name: str, path: Path, seconds: float | None = None) -> str | None:
    """Runs in another process; kills it after so many seconds. Returns the digest, or None if it was killed."""
    command = [sys.executable, __file__, "--run", name, "--path", str(path)]
    with subprocess.Popen(
        command, stdout=subprocess.PIPE, text=True, env=os.environ | {"PYTHONHASHSEED": "0"}
    ) as child:
        try:
            out, _ = child.communicate(timeout=seconds)
        except subprocess.TimeoutExpired:
            child.send_signal(signal.SIGKILL)
            child.communicate()
            return None
    if child.returncode:
        raise RuntimeError(f"{name} in {path} ended with {child.returncode}")
    return out.strip().splitlines()[-1]


def survive(name: str, kills: int, seed: int) -> tuple[int, int]:
    """How many of so many runs were killed before their end, and how many of these ended with the same bits."""
    moments = random.Random(seed)
    with tempfile.TemporaryDirectory() as folder:
        in_process(name, Path(folder) / "compiles")
        began = time.perf_counter()
        whole = in_process(name, Path(folder) / "whole")
        length = time.perf_counter() - began
        killed = same = tries = 0
        while killed < kills and tries < 3 * kills:
            tries += 1
            path = Path(folder) / str(tries)
            if in_process(name, path, moments.uniform(0.2, 1.0) * length) is not None:
                continue
            killed += 1
            if path.exists() and not (path / "run.json").exists():
                for file in path.iterdir():
                    file.unlink()
                path.rmdir()
            same += in_process(name, path) == whole
    return killed, same


def main() -> None:
    """The command."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--kills", type=int, default=20)
    parser.add_argument("--methods", nargs="*", default=METHODS, choices=METHODS)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--run")
    parser.add_argument("--path", type=Path)
    arguments = parser.parse_args()
    if arguments.run:
        print(run(arguments.run, arguments.path))
        return
    for name in arguments.methods:
        killed, same = survive(name, arguments.kills, arguments.seed)
        print(f"{name}: {killed} runs killed, {same} ended with the bits of an undisturbed run", flush=True)
        if killed < arguments.kills or same < killed:
            sys.exit(1)


if __name__ == "__main__":
    main()
