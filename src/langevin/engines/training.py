"""How a network is trained: by an optimiser, at a rate that falls along half a cosine, on minibatches.

    x <- x + update(rate_t, grad(x)),   rate_t = rate / 2 * (1 + cos(pi t / num_steps))

Targets no density: it leads to a mode of the posterior, from which chains set out, or which is all that is asked for.

How long, by default: `EPOCHS` times through the rows, but at least `LEAST_STEPS` and at most `MOST_STEPS`. How fast:
Adam moves every weight by about the rate in a step, whatever its gradient; so the rate is a share of the usual size of
a first weight, which networks with many inputs have smaller.
"""

from __future__ import annotations

import dataclasses

import numpy as np

from langevin.contracts import Plan
from langevin.kernels.ascent import OptimizerName, ascent, optimizer_of
from langevin.kernels.base import Kernel
from langevin.posterior import Posterior
from langevin.tuning import Tuning

EPOCHS = 10
LEAST_STEPS, MOST_STEPS = 3_000, 20_000
# Of the root mean square of the first weights; and at least and at most so much.
SHARE = 0.04
LEAST_RATE, MOST_RATE = 2e-4, 1e-2
# Gradient descent has no such units: with momentum 0.9 this serves a mean loss of the order of 1.
RATE_OF_SGD = 0.02


@dataclasses.dataclass(frozen=True)
class Training:
    """Settings of a training; they make a kernel."""

    num_steps: int
    learning_rate: float
    optimizer: OptimizerName = "adam"

    def kernel(self, posterior: Posterior, tuning: Tuning = Tuning()) -> Kernel:
        """The bare kernel."""
        del tuning
        return ascent(posterior, optimizer_of(self.optimizer, self.learning_rate, self.num_steps, "cosine"))


def epoch_of(target: Posterior, plan: Plan) -> int:
    """Steps in an epoch: 1 where every step takes all rows."""
    return 1 if plan.batches is None else plan.batches.num_slices(target.num_data)


def steps_of(epochs: float, epoch: int, least: int, most: int) -> int:
    """So many epochs, but at least and at most so many steps."""
    return int(np.clip(round(epochs * epoch), least, most))


def training_steps(target: Posterior, plan: Plan) -> int:
    """How many steps a network is trained for, where nobody says so."""
    return steps_of(EPOCHS, epoch_of(target, plan), LEAST_STEPS, MOST_STEPS)


def rate_of(target: Posterior, optimizer: str = "adam") -> float:
    """The rate at which a network is trained at first, where nobody says so."""
    if optimizer == "sgd":
        return RATE_OF_SGD
    net = target.model.network.net
    squares = 0.0
    for name, shape in net.shapes.items():
        # Weights that are all the same are drawn anew for every start.
        same = net.fan_ins[name] > 0 and np.ptp(net.first[name]) == 0
        mean = 1 / net.fan_ins[name] if same else np.mean(np.square(net.first[name], dtype=np.float64))
        squares += mean * np.prod(shape)
    size = float(np.sqrt(squares / target.model.network.num_weights))
    return float(np.clip(SHARE * size, LEAST_RATE, MOST_RATE))
