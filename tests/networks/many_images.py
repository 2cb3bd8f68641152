"""Predictions of many images in a process of their own: prints by how many MB resident memory grows meanwhile.

python many_images.py WIDTH NUM_ROWS NUM_DRAWS
"""

import json
import sys
import threading
import time
import warnings
from pathlib import Path

import equinox as eqx
import jax
import numpy as np

import langevin as lv

PAGE = 4096


def resident():
    return int(Path("/proc/self/statm").read_text().split()[1]) * PAGE / 1e6


class Watched:
    """The highest resident memory while it is open."""

    def __enter__(self):
        self.before = self.highest = resident()
        self._open = True
        self._thread = threading.Thread(target=self._look)
        self._thread.start()
        return self

    def _look(self):
        while self._open:
            self.highest = max(self.highest, resident())
            time.sleep(0.005)

    def __exit__(self, *_):
        self._open = False
        self._thread.join()


def main(width, num_rows, num_draws):
    rng = np.random.default_rng(0)
    x = rng.uniform(size=(num_rows, 784)).astype(np.float32)
    network = lv.Network(eqx.nn.MLP(784, 10, width, 2, key=jax.random.key(0)), "categorical")
    few = {"x": x[:100], "y": rng.integers(0, 10, 100)}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", lv.LangevinWarning)
        settings = {"num_chains": 1, "num_warmup": 0, "num_draws": num_draws, "batch_size": 10, "progress": False}
        fit = lv.fit(network, few, lv.SGLD(step_size=1e-6), **settings)
        fit.predict({"x": x[:10]})
    began = time.perf_counter()
    with Watched() as watched:
        found = fit.predict({"x": x})
    seconds = time.perf_counter() - began
    grown = watched.highest - watched.before
    print(json.dumps({"grown": grown, "seconds": seconds, "rows": len(found["most_probable"])}))


if __name__ == "__main__":
    main(*map(int, sys.argv[1:]))
