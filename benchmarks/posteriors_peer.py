"""SGLD of `posteriors`, in its own environment: reads requests from standard input, answers with one JSON line each.

The log-posterior is averaged over the rows and the temperature is 1 / num_data, as its documentation asks. Its step is
`lr * gradient + N(0, 2 lr T)`, so that `lr = step_size * num_data / 2` is our `step_size`.
"""

from __future__ import annotations

import importlib.metadata
import json
import sys
import time
from collections.abc import Iterator

import numpy as np
import posteriors
import torch
from torch.nn.functional import binary_cross_entropy_with_logits
from torch.utils.data import DataLoader, TensorDataset

THIN = 10


def batches(style: str, x: torch.Tensor, y: torch.Tensor, size: int) -> Iterator[tuple[torch.Tensor, torch.Tensor]]:
    """Minibatches without end: from a DataLoader, or by random indices into the tensors."""
    while style == "loader":
        yield from DataLoader(TensorDataset(x, y), batch_size=size, shuffle=True)
    while True:
        rows = torch.randint(len(x), (size,))
        yield x[rows], y[rows]


def main(folder: str, batch_size: int, step_size: float) -> None:
    """Answers requests {"style": ..., "threads": ..., "steps": ...} until standard input ends.

    0 threads stands for torch's default.
    """
    default_threads = torch.get_num_threads()
    x, y = (torch.from_numpy(np.load(f"{folder}/{name}.npy")) for name in "xy")
    num_data = len(x)

    def log_posterior(params: dict, batch: tuple) -> tuple[torch.Tensor, torch.Tensor]:
        rows, labels = batch
        logits = rows @ params["w"]
        log_likelihood = -binary_cross_entropy_with_logits(logits, labels)
        return log_likelihood + posteriors.diag_normal_log_prob(params) / num_data, logits

    transform = posteriors.sgmcmc.sgld.build(log_posterior, lr=step_size * num_data / 2, temperature=1 / num_data)
    state = transform.init({"w": torch.zeros(x.shape[1])})
    sources = {style: batches(style, x, y, batch_size) for style in ("loader", "indices")}
    for source in sources.values():
        for _ in range(20):
            state, _ = transform.update(state, next(source))
    print(json.dumps({name: importlib.metadata.version(name) for name in ("torch", "posteriors")}), flush=True)
    for line in sys.stdin:
        request = json.loads(line)
        source, draws = sources[request["style"]], []
        torch.set_num_threads(request["threads"] or default_threads)
        began = time.perf_counter()
        for step in range(request["steps"]):
            state, _ = transform.update(state, next(source))
            if step % THIN == 0:
                draws.append(state.params["w"])
        seconds = time.perf_counter() - began
        print(json.dumps({"seconds": seconds, "mean": torch.stack(draws).mean(0).tolist()}), flush=True)


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]), float(sys.argv[3]))
