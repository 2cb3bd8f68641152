"""One `lv.fit` as a user calls it, in a fresh process: started by sgld_throughput.py."""

from __future__ import annotations

import time

import machine
import numpy as np
from problems import logistic_model


def worker(folder: str, step_size: str, batch_size: str, num_draws: str, thin: str) -> dict:
    """Seconds to import, and seconds of the call: layout of the data, compilation, draws and verdict."""
    data = {name: np.load(f"{folder}/{name}.npy") for name in "xy"}
    began = time.perf_counter()
    from langevin import SGLD, fit

    imported = time.perf_counter()
    fit(
        logistic_model,
        data,
        SGLD(step_size=float(step_size)),
        batch_size=int(batch_size),
        num_chains=1,
        num_warmup=0,
        num_draws=int(num_draws),
        thin=int(thin),
        progress=False,
    )
    return {"import_seconds": imported - began, "call_seconds": time.perf_counter() - imported}


if __name__ == "__main__":
    machine.main(worker=worker)
