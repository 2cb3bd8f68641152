"""Stochastic volatility of a million steps, in pieces: are the true values inside the 95 % intervals?

Run: python benchmarks/series_pieces.py [steps] [seeds]
"""

from __future__ import annotations

import json
import sys
import time
import warnings
from typing import Any

import jax.numpy as jnp
import numpy as np
import numpyro
import numpyro.distributions as dist
from scipy.signal import lfilter

import langevin as lv

PERSISTENCE, SIGMA, NU, LEVEL = 0.98, 0.1, 9.0, -4.5
PIECES = lv.Subsequences(length=1000, buffer=100)


def model(r: Any) -> None:
    """Returns whose log-volatility is an autoregression."""
    sigma = numpyro.sample("sigma", dist.Exponential(10.0))
    nu = numpyro.sample("nu", dist.Exponential(0.1))
    persistence = numpyro.sample("persistence", dist.Beta(20.0, 1.5))
    level = numpyro.sample("level", dist.Normal(-4.5, 1.0))
    s = numpyro.sample("s", lv.series.Autoregression(persistence, sigma, r.shape[0], level=level))
    numpyro.sample("r", dist.StudentT(nu, 0.0, jnp.exp(s)), obs=r)


def make_data(steps: int, seed: int) -> dict[str, np.ndarray]:
    """A series of the model."""
    generator = np.random.default_rng(seed)
    pushes = SIGMA * generator.standard_normal(steps)
    pushes[0] /= np.sqrt(1 - PERSISTENCE**2)
    path = LEVEL + lfilter([1.0], [1.0, -PERSISTENCE], pushes)
    return {"r": (np.exp(path) * generator.standard_t(NU, steps)).astype(np.float32)}


def main(steps: int = 1_000_000, seeds: int = 10) -> None:
    """Prints one line of JSON for each seed."""
    warnings.simplefilter("ignore", lv.LangevinWarning)
    method = lv.Hybrid({"s": lv.VI("markov"), ...: lv.SGLD()}, subsequences=PIECES)
    for seed in range(seeds):
        begun = time.perf_counter()
        data = make_data(steps, seed)
        fit = lv.fit(model, data, method, num_chains=2, num_warmup=100, num_draws=200, seed=seed, progress=False)
        found: dict[str, Any] = {"seed": seed, "steps": steps, "seconds": round(time.perf_counter() - begun, 1)}
        for name, true in {"sigma": SIGMA, "nu": NU, "persistence": PERSISTENCE, "level": LEVEL}.items():
            low, high = np.quantile(fit.posterior[name].values, [0.025, 0.975])
            found[name] = [round(float(low), 5), round(float(high), 5), bool(low < true < high)]
        print(json.dumps(found | {"verdict": [finding.code for finding in fit.verdict]}), flush=True)


if __name__ == "__main__":
    main(*(int(float(argument)) for argument in sys.argv[1:3]))
