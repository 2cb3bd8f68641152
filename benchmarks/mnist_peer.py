"""Bayes by Backprop in Pyro and bayesian-torch, and SGLD in posteriors: the seconds of an epoch, with torch.

    python mnist_peer.py NAME THREADS ROWS PIXELS WIDTH BATCH EPOCHS

Two hidden layers of ReLUs and ten classes, as in langevin's demo, on random images: an epoch takes as long with these.
Rows are taken by slices of a permutation, which spares the peers a DataLoader.
"""

from __future__ import annotations

import importlib.metadata
import itertools
import json
import statistics
import sys
import time
from collections.abc import Callable

import torch
from torch import nn
from torch.nn.functional import cross_entropy

CLASSES = 10
RATE = 1e-3
Step = Callable[[torch.Tensor, torch.Tensor], None]


def plain(pixels: int, width: int) -> nn.Sequential:
    """The network."""
    parts: list[nn.Module] = []
    for a, b in itertools.pairwise((pixels, width, width, CLASSES)):
        parts += [nn.Linear(a, b), nn.ReLU()]
    return nn.Sequential(*parts[:-1])


def pyro_step(num_rows: int, pixels: int, width: int) -> Step:
    """A mean-field guide of Pyro's, with priors by `PyroSample`."""
    import pyro
    import pyro.distributions as dist
    from pyro.infer import SVI, TraceMeanField_ELBO
    from pyro.infer.autoguide import AutoNormal
    from pyro.nn import PyroModule, PyroSample

    class Network(PyroModule):
        def __init__(self) -> None:
            super().__init__()
            layers = []
            for a, b in itertools.pairwise((pixels, width, width, CLASSES)):
                layer = PyroModule[nn.Linear](a, b)
                layer.weight = PyroSample(dist.Normal(0.0, (2 / a) ** 0.5).expand([b, a]).to_event(2))
                layer.bias = PyroSample(dist.Normal(0.0, 1.0).expand([b]).to_event(1))
                layers.append(layer)
            self.layers = PyroModule[nn.ModuleList](layers)

        def forward(self, x: torch.Tensor, y: torch.Tensor | None = None) -> torch.Tensor:
            for number, layer in enumerate(self.layers):
                x = layer(x if number == 0 else torch.relu(x))
            with pyro.plate("rows", num_rows, subsample_size=len(x)):
                pyro.sample("y", dist.Categorical(logits=x), obs=y)
            return x

    pyro.set_rng_seed(0)
    pyro.enable_validation(False)
    network = Network()
    svi = SVI(network, AutoNormal(network, init_scale=1e-2), pyro.optim.Adam({"lr": RATE}), TraceMeanField_ELBO())
    return lambda x, y: svi.step(x, y)


def bayesian_torch_step(num_rows: int, pixels: int, width: int, kind: str) -> Step:
    """The network turned into one of bayesian-torch's, with its loss: cross-entropy and the divergence."""
    from bayesian_torch.models.dnn_to_bnn import dnn_to_bnn, get_kl_loss

    network = plain(pixels, width)
    settings = {"prior_mu": 0.0, "prior_sigma": 1.0, "posterior_mu_init": 0.0, "posterior_rho_init": -3.0}
    dnn_to_bnn(network, {**settings, "type": kind, "moped_enable": False, "moped_delta": 0.5})
    optimizer = torch.optim.Adam(network.parameters(), RATE)

    def step(x: torch.Tensor, y: torch.Tensor) -> None:
        optimizer.zero_grad()
        loss = cross_entropy(network(x), y) + get_kl_loss(network) / num_rows
        loss.backward()
        optimizer.step()

    return step


def posteriors_step(num_rows: int, pixels: int, width: int) -> Step:
    """SGLD; the log-posterior is averaged over the rows, and the temperature is one over their number."""
    import posteriors

    network = plain(pixels, width)
    parameters = dict(network.named_parameters())

    def log_posterior(params: dict, batch: tuple) -> tuple[torch.Tensor, torch.Tensor]:
        logits = torch.func.functional_call(network, params, (batch[0],))
        return -cross_entropy(logits, batch[1]) + posteriors.diag_normal_log_prob(params) / num_rows, logits

    transform = posteriors.sgmcmc.sgld.build(log_posterior, lr=RATE, temperature=1 / num_rows)
    state = transform.init(parameters)

    def step(x: torch.Tensor, y: torch.Tensor) -> None:
        nonlocal state
        state, _ = transform.update(state, (x, y))

    return step


def main(name: str, threads: int, num_rows: int, pixels: int, width: int, batch_size: int, epochs: int) -> None:
    """Prints the median of the seconds of so many epochs, after a first one."""
    torch.manual_seed(0)
    if threads:
        torch.set_num_threads(threads)
    steps = {
        "pyro, AutoNormal": lambda: pyro_step(num_rows, pixels, width),
        "bayesian-torch, reparameterised": lambda: bayesian_torch_step(num_rows, pixels, width, "Reparameterization"),
        "bayesian-torch, Flipout": lambda: bayesian_torch_step(num_rows, pixels, width, "Flipout"),
        "posteriors, SGLD": lambda: posteriors_step(num_rows, pixels, width),
    }
    step = steps[name]()
    x, y = torch.rand(num_rows, pixels), torch.randint(CLASSES, (num_rows,))
    seconds = []
    for _ in range(epochs + 1):
        began = time.perf_counter()
        order = torch.randperm(num_rows)
        for rows in order.split(batch_size):
            step(x[rows], y[rows])
        seconds.append(time.perf_counter() - began)
    packages = ("torch", "pyro-ppl", "posteriors", "bayesian-torch")
    versions = {package: importlib.metadata.version(package) for package in packages}
    print(json.dumps({"seconds_an_epoch": statistics.median(seconds[1:]), "versions": versions}))


if __name__ == "__main__":
    main(sys.argv[1], *(int(value) for value in sys.argv[2:]))
