"""A run of a large network in a process of its own: prints its peak of resident memory, in MB, and how long it took.

python large.py WIDTH NUM_DRAWS (predictions | disk | memory) [FOLDER]
"""

import json
import resource
import sys
import time
import warnings

import equinox as eqx
import jax
import numpy as np

import langevin as lv


def main(width, num_draws, where, folder=None):
    rng = np.random.default_rng(0)
    x = rng.normal(size=(500, 100)).astype(np.float32)
    data = {"x": x, "y": (x[:, 0] + 0.1 * rng.normal(size=500)).astype(np.float32)}
    network = lv.Network(eqx.nn.MLP(100, 1, width, 2, key=jax.random.key(0)))
    test = {name: column[:50] for name, column in data.items()}
    options = {"keep": lv.Keep(predict=test)} if where == "predictions" else {}
    options |= {"store": folder} if where == "disk" else {}
    began = time.perf_counter()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", lv.LangevinWarning)
        fit = lv.fit(
            network,
            data,
            lv.SGLD(step_size=1e-7),
            num_chains=1,
            num_warmup=10,
            num_draws=num_draws,
            batch_size=8,
            progress=False,
            **options,
        )
    sampled = time.perf_counter() - began
    scores = fit.evaluate(test, num_draws=100)
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    told = {"weights": network.num_weights, "peak": peak, "seconds": sampled, "all": time.perf_counter() - began}
    print(json.dumps(told | {"rmse": float(scores["RMSE"])}))


if __name__ == "__main__":
    main(int(sys.argv[1]), int(sys.argv[2]), *sys.argv[3:])
