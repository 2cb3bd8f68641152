"""The constant learning rate at which the iterates of SGD are about as wide as the posterior.

    rate = (1 - momentum) 2 B d / (N tr C)

for the gradient of -log_density / N over minibatches of B of N rows, where C is the covariance of a row's gradient and
d the number of coordinates: there the stationary distribution of SGD is nearest to the posterior, in KL divergence, if
both are Gaussian. Mandt, Hoffman & Blei (2017), 'Stochastic gradient descent as approximate Bayesian inference',
sections 4.1 and 4.3. At most (1 - momentum) over the largest curvature, so that SGD is stable.

A network has no such rate: at its trained point the gradients of rows are almost zero, and its posterior is not round.
There the rate is a usual one, and at most 1 over the largest curvature, a quarter of where SGD with a momentum of 0.9
stops being stable (2 (1 + momentum) over it).
"""

from __future__ import annotations

import dataclasses

import jax
import numpy as np

from langevin.data.batches import Batches
from langevin.geometry import landscape
from langevin.geometry.evaluating import evenly
from langevin.posterior import Position, Posterior
from langevin.run.compilation import Programs
from langevin.run.seeds import Seed

TINY = 1e-30
RATE_OF_NETWORK = 0.03
# By so many rows the largest curvature of a network is known well enough.
MOST_ROWS_OF_NETWORK = 1000


def stationary_rate(
    programs: Programs, target: Posterior, batches: Batches, mode: Position, momentum: float, seed: Seed
) -> float:
    """Measures the noise of the gradient, and its largest curvature, at a mode.

    Args:
        programs: The compiled programs of the run.
        target: The posterior.
        batches: How minibatches are drawn.
        mode: Where to measure.
        momentum: Of SGD.
        seed: Of the minibatches.
    """
    modes = jax.tree.map(lambda leaf: np.asarray(leaf)[None], mode)
    arguments = (target, None, None, modes, seed.child("noise").key_words())
    noise = programs(landscape.gradient_noise, (batches, "minibatch"), *arguments).variance
    # Of the sum over all rows, so that this is N^2 tr C / B.
    trace = sum(np.sum(np.asarray(leaf), dtype=np.float64) for leaf in jax.tree.leaves(noise))
    size = sum(np.size(leaf) for leaf in jax.tree.leaves(mode))
    stiffest = programs(landscape.stiffest_curvature, "", target, mode, None, seed.child("curvature").key_words())
    longest = 1 / max(float(stiffest), TINY)
    return float((1 - momentum) * target.num_data * min(2 * size / max(float(trace), TINY), longest))


def network_rate(programs: Programs, target: Posterior, mode: Position, seed: Seed) -> float:
    """The usual rate of networks, or less where the curvature at a mode asks for less."""
    chosen = evenly(target.num_data, min(target.num_data, MOST_ROWS_OF_NETWORK))
    rows = jax.tree.map(lambda column: np.asarray(column)[chosen], target.data)
    few = dataclasses.replace(target, data=rows, num_data=len(chosen))
    arguments = (few, mode, None, seed.child("curvature").key_words())
    stiffest = programs(landscape.stiffest_curvature, "network", *arguments)
    return min(RATE_OF_NETWORK, len(chosen) / max(float(stiffest), TINY))
