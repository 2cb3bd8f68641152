"""Dual averaging of the step size, towards a given acceptance (Nesterov 2009; Hoffman & Gelman 2014, section 3.2).

After t rounds with acceptance rates a_1, ..., a_t, for the target a:

    error_t = (1 - 1 / (t + 10)) error_{t-1} + (a - a_t) / (t + 10)
    log eps_t = log eps_0 - sqrt(t) / 0.05 * error_t
    log average_t = t^(-3/4) log eps_t + (1 - t^(-3/4)) log average_{t-1}

All chains share one step. A round is over when every chain has ended a trajectory, or one of them has ended
`MOST_A_ROUND`. Its acceptance is the mean over the chains, each with the mean of the trajectories that it ended, or
with what it has seen so far of its first. If every trajectory counted as it ends, those that fail would be sums first
and most often, since they are short, and drive the step far down before a good one ends.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

DELAY, SHRINKAGE, FORGETTING = 10.0, 0.1, 0.75
MOST_A_ROUND = 3


class Adaptation(NamedTuple):
    """The state.

    Attributes:
        numbers: (log eps, log average, error, t, log eps_0), one array, as XLA compiles a kernel for each.
        sums: (chains, 2): the sum and the number of acceptance rates in this round.
    """

    numbers: Any
    sums: Any


def begin(step_size: float, num_chains: int, dtype: Any) -> Adaptation:
    """The state before any trajectory."""
    log_step = np.log(step_size)
    numbers = np.asarray([log_step, log_step, 0.0, 0.0, log_step], dtype)
    return Adaptation(numbers, np.zeros((num_chains, 2), dtype))


def step_size(state: Adaptation, adapting: jax.Array) -> jax.Array:
    """The step to take: the latest while it adapts, then the average."""
    return jnp.exp(jnp.where(adapting, state.numbers[0], state.numbers[1]))


def update(state: Adaptation, done: jax.Array, acceptance: jax.Array, target: jax.Array) -> Adaptation:
    """The state after the trajectories that are done.

    Args:
        state: The state.
        done: For each chain, whether its trajectory ended.
        acceptance: For each chain, the acceptance of its trajectory so far.
        target: The acceptance to reach.
    """
    said = jnp.where(done[:, None], jnp.stack([acceptance, jnp.ones_like(acceptance)], axis=1), 0.0)
    sums = state.sums + said
    over = (jnp.min(sums[:, 1]) > 0) | (jnp.max(sums[:, 1]) >= MOST_A_ROUND)
    by_chain = jnp.where(sums[:, 1] > 0, sums[:, 0] / jnp.maximum(sums[:, 1], 1.0), acceptance)
    miss = target - jnp.mean(by_chain)
    _, log_average, error, count, start = state.numbers
    count = count + 1
    error = error + (miss - error) / (count + DELAY)
    log_step = start - jnp.sqrt(count) / SHRINKAGE * error
    weight = count**-FORGETTING
    moved = jnp.stack([log_step, weight * log_step + (1 - weight) * log_average, error, count, start])
    return Adaptation(jnp.where(over, moved, state.numbers), jnp.where(over, 0.0, sums))
