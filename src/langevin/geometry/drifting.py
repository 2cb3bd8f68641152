"""Whether draws move on when steps that leave the posterior as it is are applied to them.

A step of the Metropolis-adjusted Langevin algorithm leaves the posterior invariant, whatever the draws are: if their
means or sds change by more than chance after some of them, they were not the posterior's. Unlike a gradient's sign or
length, that sees every bias of a sampler, in every coordinate, as far as so few steps can undo it.

Few steps show a small bias against little chance; many show what is far away, such as arms of a curved posterior that
the draws stopped short of. So there is a second look after as many as can be afforded; where few are accepted, these
are shorter, since long ones are rejected just where the curvature is strong.
"""

from __future__ import annotations

import math
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.flatten_util import ravel_pytree

from langevin.kernels.mala import mala
from langevin.kernels.metrics import Diagonal, Metric
from langevin.posterior import Position, Posterior
from langevin.run.compilation import Programs
from langevin.run.seeds import Seed, key_of
from langevin.tuning import Tuning

NUM_STEPS = 32
MOST_STEPS = 1024
# Of the second look: gradients of a row, and the acceptance below which its steps are shorter, by so much.
MOST_LATER_GRADIENTS = 50_000_000
LEAST_ACCEPTANCE, SHORTER = 0.75, 0.5
# Gradients of a row that it may take, and numbers of a row at all draws that are computed side by side.
MOST_GRADIENTS = 200_000_000
MOST_AT_ONCE = 2_000_000
LEAST_DRAWS = 10
NUM_BLOCKS = 4
LARGEST_DIFFERENCE = 1.5
CHANCE = 0.01


def affordable(num_data: int, num_chains: int, num_draws: int) -> int:
    """How many draws of each chain can be looked at: none if that is too few."""
    count = MOST_GRADIENTS // (NUM_STEPS * num_chains * max(num_data, 1))
    return min(count, num_draws) if count >= LEAST_DRAWS else 0


def drift(
    programs: Programs, target: Posterior, tuning: Tuning | None, draws: Position, seed: Seed
) -> dict[str, float]:
    """By how much draws move on, in their worst coordinate.

    Args:
        programs: The compiled programs of the run.
        target: The posterior.
        tuning: With the metric; None for the variances of the draws.
        draws: Positions (chains, draws, ...).
        seed: For the steps.

    Returns:
        mean: The largest change of a mean, in sds, beyond what may be chance; sd: that of the logarithm of an sd;
        acceptance: how many of the first steps were accepted.
    """
    leaves = jax.tree.leaves(draws)
    num_chains, num_draws = leaves[0].shape[:2]
    at_once = int(np.clip(MOST_AT_ONCE // max(target.num_data, 1), 1, num_chains * num_draws))
    size = sum(leaf[0, 0].size for leaf in leaves)
    metric: Metric | None
    if tuning is None:
        spread = lambda leaf: np.asarray(np.var(leaf, axis=(0, 1), dtype=np.float64), leaf.dtype)  # noqa: E731
        metric, stiffest = Diagonal(jax.tree.map(spread, draws)), 1.0
    else:
        metric, stiffest = tuning.metric, max(float(tuning.stiffest), 1.0)
    step_size = np.asarray(size ** (-1 / 6) / math.sqrt(stiffest), leaves[0].dtype)
    flat = jax.tree.map(lambda leaf: leaf.reshape(-1, *leaf.shape[2:]), draws)
    static, shape = (at_once, num_chains * num_draws), (num_chains, num_draws, -1)

    def look(number: int, step_size: np.ndarray, num_steps: int) -> tuple[dict[str, float], float]:
        words = seed.child(number).key_words()
        arguments = (target, metric, flat, step_size, np.int32(num_steps), words)
        before, after, accepted = programs(_moved, static, *arguments)
        changes = _changes(*(np.asarray(array, np.float64).reshape(shape) for array in (before, after)))
        return changes, float(np.mean(accepted))

    found, acceptance = look(0, step_size, NUM_STEPS)
    affordable = MOST_LATER_GRADIENTS // (num_chains * num_draws * max(target.num_data, 1))
    if affordable > 2 * NUM_STEPS:
        shorter = SHORTER if acceptance < LEAST_ACCEPTANCE else 1.0
        later = look(1, np.asarray(shorter * step_size, step_size.dtype), min(affordable, MOST_STEPS))[0]
        found = {name: max(found[name], later[name]) for name in found}
    return {"acceptance": acceptance} | found


def _changes(before: np.ndarray, after: np.ndarray) -> dict[str, float]:
    """The largest changes of mean and log sd beyond chance."""
    from scipy.special import ndtri

    num_chains, num_draws, size = before.shape
    most = float(-ndtri(CHANCE / 4 / size))
    every = after.reshape(-1, size)
    sd = np.maximum(every.std(axis=0), 1e-300)
    shift = (after - before) / sd
    middle, earlier = every.mean(axis=0), before.reshape(-1, size).mean(axis=0)
    first = np.maximum(before.reshape(-1, size).std(axis=0), 1e-300)
    # The influence of each draw on the logarithm of the sd before and after.
    square = ((after - middle) / sd) ** 2 / 2
    stretch = square - ((before - earlier) / first) ** 2 / 2
    usable = num_draws - num_draws % NUM_BLOCKS
    found = {}

    def error_of(influence: np.ndarray) -> np.ndarray:
        blocks = influence[:, :usable].reshape(num_chains * NUM_BLOCKS, -1, size).mean(axis=1)
        return blocks.std(axis=0, ddof=1) / math.sqrt(len(blocks))

    # Few draws far outside make the sd before as uncertain as it is large. If the draws were the posterior's, both sds
    # had the error of the one after: their difference at most 1.4 times that.
    errors = {"mean": error_of(shift), "sd": np.fmin(error_of(stretch), LARGEST_DIFFERENCE * error_of(square))}
    total = {"mean": shift.mean(axis=(0, 1)), "sd": np.log(sd / first)}
    for name, error in errors.items():
        beyond = np.abs(total[name]) - most * error
        found[name] = float(np.max(beyond, initial=0.0)) if np.isfinite(beyond).all() else math.inf
    return found


def _moved(
    static: tuple[int, int],
    target: Posterior,
    metric: Any,
    draws: Position,
    step_size: jax.Array,
    num_steps: jax.Array,
    words: jax.Array,
) -> Any:
    at_once, count = static
    kernel = mala(target, step_size, metric)
    keys = jax.random.split(key_of(words), count)

    def one(inputs: Any) -> Any:
        position, key = inputs
        first, rest = jax.random.split(key)

        def step(number: jax.Array, carry: Any) -> Any:
            state, total = carry
            state, info = kernel.step(jax.random.fold_in(rest, number), state, None)
            return state, total + info.acceptance_rate

        state = kernel.init(first, position, None)
        state, total = jax.lax.fori_loop(0, num_steps, step, (state, jnp.zeros(())))
        return ravel_pytree(position)[0], ravel_pytree(state.position)[0], total / num_steps

    return jax.lax.map(one, (draws, keys), batch_size=at_once)
