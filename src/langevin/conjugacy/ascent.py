"""Coordinate ascent on the bound, block by block; and its version for minibatches.

    bound = E_q[F] + sum over blocks of entropy(q_b)
    eta_b = dF / dt_b   at the expected statistics of the other blocks       (each update maximises the bound over q_b)

On minibatches, blocks of the rows are brought to their optimum for the rows of the batch, and the others take a step of
their natural gradient, which is the difference between that update and what they are:

    eta_b <- (1 - rho) eta_b + rho dF_batch / dt_b,      rho_t = (t + delay)^-forgetting

Reference:
    Hoffman, Blei, Wang, Paisley (2013), Stochastic variational inference.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from langevin.conjugacy.blocks import Block
from langevin.conjugacy.conditionals import Conditionals, Equations
from langevin.posterior import num_rows

# What is left to gain, from the last gains as a geometric series, in nats.
NUM_LAST = 3
NUM_LOCAL = 6

Blocked = dict[str, dict[str, jax.Array]]


class Climb(NamedTuple):
    """Where an ascent is.

    Attributes:
        naturals: The natural parameters of each block.
        statistics: Their expected statistics.
        last: The bound after the last sweeps.
        fall: By how much the bound fell in a sweep at most, relative to its size: round-off, if all is right.
        proper: Whether all q have been distributions.
        settled: Whether less than the tolerance is left to gain.
    """

    naturals: Blocked
    statistics: Blocked
    last: jax.Array
    fall: jax.Array
    proper: jax.Array
    settled: jax.Array


def swept(blocks: Sequence[Block], equations: Equations, statistics: Blocked) -> tuple[Blocked, Blocked, jax.Array]:
    """Every block updated once, and the bound after it."""
    naturals: Blocked = {}
    statistics = dict(statistics)
    for block in blocks:
        naturals[block.name] = eta = equations.natural(block.name, statistics)
        statistics[block.name] = equations.families[block.name].expected(eta)
    return naturals, statistics, bound(blocks, equations, naturals, statistics)


def bound(blocks: Sequence[Block], equations: Equations, naturals: Blocked, statistics: Blocked) -> jax.Array:
    """The bound where the last block has just been updated: its part is the normaliser of its conditional."""
    last = blocks[-1]
    entropies = [equations.families[block.name].entropy(naturals[block.name]) for block in blocks[:-1]]
    rest = equations.log_joint(statistics, without=last.name)
    return rest + equations.families[last.name].log_normalizer(naturals[last.name]) + sum(entropies, jnp.zeros(()))


def climbed(
    conditionals: Conditionals, climb: Climb, equations: Equations, count: Any, most: int, tolerance: Any
) -> tuple[Climb, jax.Array, jax.Array]:
    """At most `count` sweeps, fewer if it settles.

    Returns:
        Where it is then, the bounds after the sweeps (padded to `most`), and how many sweeps there were.
    """
    blocks = conditionals.blocks

    def go_on(carried: Any) -> jax.Array:
        climb, _, done = carried
        return (done < count) & ~climb.settled & climb.proper

    def sweep(carried: Any) -> Any:
        climb, bounds, done = carried
        naturals, statistics, value = swept(blocks, equations, climb.statistics)
        proper = jnp.isfinite(value)
        for block in blocks:
            if not block.local:
                proper = proper & block.family.proper(naturals[block.name])
        fall = jnp.where(jnp.isfinite(climb.last[-1]), climb.last[-1] - value, 0.0) / (1 + jnp.abs(value))
        last = jnp.append(climb.last[1:], value)
        settled = left_to_gain(last) < tolerance
        moved = Climb(naturals, statistics, last, jnp.maximum(climb.fall, fall), proper, settled)
        return moved, bounds.at[done].set(value), done + 1

    bounds = jnp.full(most, jnp.nan, climb.last.dtype)
    return jax.lax.while_loop(go_on, sweep, (climb, bounds, jnp.zeros((), jnp.int32)))


def left_to_gain(last: jax.Array) -> jax.Array:
    """About how much the bound will still rise, if its gains are a geometric series; infinite if that is unknown."""
    before, now = last[-2] - last[-3], last[-1] - last[-2]
    # Below round-off there is nothing to be gained that could be seen.
    noise = 1e-13 * (1 + jnp.abs(last[-1]))
    ratio = jnp.clip(now / jnp.maximum(before, 1e-300), 0.0, 0.999)
    left = jnp.where(now < noise, 0.0, jnp.maximum(now, 0.0) * ratio / (1 - ratio) + jnp.maximum(now, 0.0))
    return jnp.where(jnp.isfinite(before), left, jnp.inf)


def begun(statistics: Blocked, conditionals: Conditionals) -> Climb:
    """An ascent before its first sweep."""
    naturals: Any = {
        block.name: {name: np.zeros(like.shape) for name, like in block.family.like().items()}
        for block in conditionals.blocks
    }
    nothing: Any = np.full(NUM_LAST, -np.inf), np.zeros(()), np.ones((), bool), np.zeros((), bool)
    return Climb(naturals, statistics, *nothing)


def local_optimum(
    conditionals: Conditionals, equations: Equations, statistics: Blocked, scale: float
) -> tuple[Blocked, Blocked]:
    """The blocks of the rows of a batch at their optimum, given the others.

    Args:
        conditionals: Of the program.
        equations: At the rows of the batch, whose terms are multiplied by `scale`.
        statistics: Of all blocks; those of the rows are where it begins.
        scale: num_data / rows in the batch.
    """
    local = [block for block in conditionals.blocks if block.local]
    statistics, naturals = dict(statistics), {}
    for _ in range(1 if len(local) == 1 else NUM_LOCAL):
        for block in local:
            scaled = equations.natural(block.name, statistics)
            naturals[block.name] = eta = jax.tree.map(lambda leaf: leaf / scale, scaled)
            statistics[block.name] = equations.families[block.name].expected(eta)
    return naturals, statistics


def neutral(block: Block) -> dict[str, jax.Array]:
    """Statistics of a block of rows to begin with in every batch."""
    like = block.family.like()
    if block.values:
        return {name: jnp.full(leaf.shape, 1.0 / leaf.shape[0]) for name, leaf in like.items()}
    if "xx" in like:
        size = like["xx"].shape[-1]
        return {
            name: jnp.broadcast_to(jnp.eye(size), leaf.shape) if name == "xx" else jnp.zeros(leaf.shape)
            for name, leaf in like.items()
        }
    return {name: jnp.full(leaf.shape, 0.25) for name, leaf in like.items()}


def stepped(
    conditionals: Conditionals, batch: Any, naturals: Blocked, rho: Any
) -> tuple[Blocked, jax.Array, jax.Array]:
    """One step on a minibatch: the natural parameters of the blocks that are not of the rows.

    Returns:
        Them, the estimate of the bound before the step, and whether all are proper.
    """
    scale = conditionals.joint.num_data / num_rows(batch)
    equations = conditionals.at(batch)
    statistics: Blocked = {}
    for block in conditionals.blocks:
        statistics[block.name] = neutral(block) if block.local else block.family.expected(naturals[block.name])
    own, statistics = local_optimum(conditionals, equations, statistics, scale)
    value = estimate(conditionals, equations, naturals | own, statistics, scale)
    moved: Blocked = {}
    proper = jnp.isfinite(value)
    for block in conditionals.blocks:
        if block.local:
            continue
        target = equations.natural(block.name, statistics)
        moved[block.name] = jax.tree.map(lambda a, b: (1 - rho) * a + rho * b, naturals[block.name], target)
        proper = proper & block.family.proper(moved[block.name])
    return moved, value, proper


def estimate(
    conditionals: Conditionals, equations: Equations, naturals: Blocked, statistics: Blocked, scale: float
) -> jax.Array:
    """The bound, estimated from a batch."""
    value = equations.log_joint(statistics)
    for block in conditionals.blocks:
        value = value + equations.families[block.name].entropy(naturals[block.name]) * (scale if block.local else 1.0)
    return value


def blank(block: Block) -> dict[str, jax.Array]:
    """Statistics of nothing: where F has what does not depend on the block."""
    return {name: jnp.zeros(like.shape) for name, like in block.family.like().items()}


def named(blocks: Sequence[Block], naturals: Mapping[str, Any]) -> dict[str, dict[str, jax.Array]]:
    """For each block its q, by the names of NumPyro's arguments."""
    return {block.name: block.family.described(naturals[block.name]) for block in blocks}
