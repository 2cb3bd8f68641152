"""The VAE of the demo in Pyro, in its own environment; and MNIST, for all contestants. Only NumPy is imported at first.

python vae_peer.py ROWS EPOCHS BATCH RATE REPEATS
"""

from __future__ import annotations

import importlib.metadata
import itertools
import json
import os
import statistics
import sys
import time
from pathlib import Path

import numpy as np

HIDDEN = (64, 256)
LATENT = 2


def mnist_images(folder: str) -> tuple[np.ndarray, np.ndarray]:
    """Binarised images, 784 pixels a row."""
    parts = []
    for name in ("train-images-idx3-ubyte", "t10k-images-idx3-ubyte"):
        pixels = np.frombuffer((Path(folder) / name).read_bytes(), np.uint8, offset=16).reshape(-1, 784)
        parts.append((pixels > 127).astype(np.float32))
    return parts[0], parts[1]


def main(num_rows: int, epochs: int, batch_size: int, rate: float, repeats: int) -> None:
    """Prints the seconds of an epoch and the bound of a test image, as JSON."""
    import pyro
    import pyro.distributions as dist
    import torch
    from pyro.infer import SVI, TraceMeanField_ELBO
    from pyro.optim import Adam
    from torch import nn

    def network(sizes: tuple[int, ...]) -> nn.Sequential:
        parts: list[nn.Module] = []
        for a, b in itertools.pairwise(sizes):
            parts += [nn.Linear(a, b), nn.ReLU()]
        return nn.Sequential(*parts[:-1])

    class VAE(nn.Module):
        """As Pyro's example: the model registers the decoder, the guide the encoder."""

        def __init__(self) -> None:
            super().__init__()
            self.encoder = network((784, *HIDDEN[::-1], 2 * LATENT))
            self.decoder = network((LATENT, *HIDDEN, 784))

        def model(self, x: torch.Tensor) -> None:
            pyro.module("decoder", self.decoder)
            with pyro.plate("rows", x.shape[0]):
                z = pyro.sample("z", dist.Normal(torch.zeros(LATENT), 1.0).to_event(1))
                logits = self.decoder(z)
                pyro.sample("x", dist.Bernoulli(logits=logits, validate_args=False).to_event(1), obs=x)

        def guide(self, x: torch.Tensor) -> None:
            pyro.module("encoder", self.encoder)
            with pyro.plate("rows", x.shape[0]):
                mean, log_scale = self.encoder(x).chunk(2, dim=-1)
                pyro.sample("z", dist.Normal(mean, log_scale.exp()).to_event(1))

    folder = os.environ.get("LANGEVIN_MNIST")
    if folder:
        train, test = (torch.from_numpy(part) for part in mnist_images(folder))
    else:
        train, test = (
            torch.from_numpy((np.random.default_rng(0).random((num_rows, 784)) < 0.2).astype(np.float32)),
        ) * 2
    train = train[:num_rows]
    pyro.set_rng_seed(0)
    pyro.enable_validation(False)
    vae = VAE()
    svi = SVI(vae.model, vae.guide, Adam({"lr": rate}), TraceMeanField_ELBO())

    def epoch() -> float:
        began = time.perf_counter()
        order = torch.randperm(len(train))
        for start in range(0, len(train) - batch_size + 1, batch_size):
            svi.step(train[order[start : start + batch_size]])
        return time.perf_counter() - began

    seconds = [epoch() for _ in range(epochs)]
    bound = -statistics.mean(svi.evaluate_loss(test) for _ in range(10)) / len(test) if folder else None
    while len(seconds) < 1 + 2 * repeats:
        seconds.append(epoch())
    versions = {name: importlib.metadata.version(name) for name in ("torch", "pyro-ppl")}
    print(json.dumps({"seconds_an_epoch": statistics.median(seconds[1:]), "bound": bound, "versions": versions}))


if __name__ == "__main__":
    main(*(kind(value) for kind, value in zip((int, int, int, float, int), sys.argv[1:], strict=True)))
