"""The No-U-Turn sampler, as a stepper of one gradient a step.

A trajectory of leapfrog steps is doubled, forwards or backwards in time at random, until it turns back on itself.
Positions are chosen in proportion to `exp(-H)`, with `H = |velocity|^2 / 2 - log_density`: evenly within the part that
is being added, and with a preference for the added part when it joins the rest (Betancourt 2017, 'A conceptual
introduction to Hamiltonian Monte Carlo', appendix A). A stretch from leaf i to leaf j turns back if

    velocity_i . q <= 0  or  velocity_j . q <= 0,    q = velocity_i + ... + velocity_j,

which is checked for every subtree of the doubling; and, as Stan does since 2.21, for each of its halves with the
nearest leaf of the other half. The targeted density is the posterior, exactly.

Nothing recurses. With the leaves of a part numbered from 0 in the order they are made, every stretch to be checked at
leaf n starts at an earlier leaf, of which one slot of a small memory keeps the velocity and the sum of velocities
before it:

    slot 0          leaf 0
    slot k          the last leaf n with 2^k as the largest power of two that divides n       (k = 1, 2, ...)
    slot K + k      the last leaf n with 2^k as the largest power of two that divides n + 1

At an even leaf n the stretch from `n & (n - 1)` is checked: a left half with its neighbour. At an odd one, with 2^t the
largest power of two that divides n + 1, these are checked: the subtrees of 2, 4, ..., 2^t leaves that end here, and,
for each but the smallest, its right half with its neighbour. Each leaf is written to one slot.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from langevin.kernels import metrics
from langevin.kernels.base import Kernel
from langevin.kernels.metrics import Metric, product
from langevin.kernels.steppers import (
    MOST_ENERGY_ERROR,
    Inputs,
    Point,
    Report,
    Stepper,
    acceptance_of,
    as_kernel,
    barrier,
    inner,
    pick,
)
from langevin.posterior import Posterior


class End(NamedTuple):
    """An end of the trajectory."""

    position: jax.Array
    gradient: jax.Array
    velocity: jax.Array


class Memory(NamedTuple):
    """Earlier leaves of the part: see the top of this module.

    Attributes:
        velocities: (slots, size).
        sums: (slots, size): the sums of velocities before each.
        dots: (slots,): the products of the two.
    """

    velocities: jax.Array
    sums: jax.Array
    dots: jax.Array


class Tree(NamedTuple):
    """A trajectory, and the part of equal length that is being added to it.

    Attributes:
        draw: Chosen from the trajectory.
        part: Chosen from the part.
        end: The end that moves: the last leaf of the part.
        far: The other end.
        near: The velocity where the part joins the trajectory.
        total: The sum of the trajectory's velocities.
        sum: The sum of the part's.
        memory: Earlier leaves of the part.
        ready: False while the log-density at the position is not known.
        direction: 1.0 or -1.0: whether the moving end goes forwards in time.
        depth: Doublings so far.
        leaf: How many leaves the part has.
        steps: Gradients so far.
        start_energy: H where the trajectory began.
        log_weight: log sum exp(start_energy - H) over the trajectory.
        part_log_weight: The same of the part.
        acceptance: The sum of min(1, exp(start_energy - H)) over the steps.
        turned: Whether the trajectory, with the first leaf of the part, turns back.
    """

    draw: Point
    part: Point
    end: End
    far: End
    near: jax.Array
    total: jax.Array
    sum: jax.Array
    memory: Memory
    ready: jax.Array
    direction: jax.Array
    depth: jax.Array
    leaf: jax.Array
    steps: jax.Array
    start_energy: jax.Array
    log_weight: jax.Array
    part_log_weight: jax.Array
    acceptance: jax.Array
    turned: jax.Array


class Events(NamedTuple):
    """What happens in a step.

    Attributes:
        take: The new leaf is chosen from the part.
        joins: The part is complete, and joins the trajectory.
        take_part: The part's choice becomes the trajectory's.
        heads: The coin that decides on the direction.
        done: The trajectory ends.
        began: A new one begins.
        diverging: The energy was lost.
        turned: See `Tree`.
    """

    take: Any
    joins: Any
    take_part: Any
    heads: Any
    done: Any
    began: Any
    diverging: Any
    turned: Any


def nuts(posterior: Posterior, step_size: float, metric: Metric | None = None, *, max_depth: int = 10) -> Kernel:
    """The No-U-Turn sampler as a bare kernel, whose step is a whole draw.

    Args:
        posterior: The target.
        step_size: Of the leapfrog, in units of the metric.
        metric: G; None for the identity.
        max_depth: A trajectory has at most `2**max_depth - 1` steps.

    Example:
        >>> import jax, jax.numpy as jnp, langevin as lv
        >>> posterior = lv.Density(lambda x: -x @ x / 2, init=jnp.zeros(2)).posterior()
        >>> kernel = lv.kernels.nuts(posterior, 0.5)
        >>> state = kernel.init(jax.random.key(0), posterior.init(jax.random.key(1)), None)
        >>> state, info = kernel.step(jax.random.key(2), state, None)
        >>> bool(info.n_steps >= 1)
        True
    """
    return as_kernel(nuts_stepper(max_depth), posterior, step_size, metric)


def nuts_stepper(max_depth: int) -> Stepper:
    """The stepper: see the top of this module."""
    num_slots = 1 + 2 * _levels(max_depth)

    def idle(position: jax.Array) -> Tree:
        zeros, zero = jnp.zeros_like(position), jnp.zeros((), position.dtype)
        count, no = jnp.zeros((), jnp.int32), jnp.zeros((), bool)
        place, end = Point(position, zeros, zero, zero), End(position, zeros, zeros)
        slots = jnp.zeros((num_slots, position.size), position.dtype)
        memory = Memory(slots, slots, jnp.zeros(num_slots, position.dtype))
        counts = (zero, count, count, count)
        return Tree(place, place, end, end, zeros, zeros, zeros, memory, no, *counts, zero, zero, zero, zero, no)

    def step(tree: Tree, inputs: Inputs) -> tuple[Tree, Report]:
        eps = inputs.step_size * tree.direction
        midway = tree.end.velocity + eps / 2 * tree.end.gradient
        position = tree.end.position + eps * metrics.unwhiten(inputs.metric, midway)
        log_density, gradient = inputs.evaluate(position)
        new = End(position, gradient, midway + eps / 2 * gradient)
        place = Point(position, gradient, log_density, inner(new.velocity, new.velocity) / 2 - log_density)
        drop = barrier(tree.start_energy - place.energy)
        drop = jnp.where(jnp.isnan(drop), -jnp.inf, drop)
        part_log_weight = jnp.logaddexp(tree.part_log_weight, drop)
        tree, turns = _turns(tree, new, max_depth)
        cut = (tree.depth + 1 >= max_depth) | (tree.steps + 1 >= inputs.most_steps)
        events = _events(tree, inputs, place, drop, part_log_weight, turns, cut)
        return _next(tree, inputs, events, new, place, drop, part_log_weight)

    return Stepper(idle, step)


def _turns(tree: Tree, new: End, max_depth: int) -> tuple[Tree, tuple[jax.Array, jax.Array, jax.Array]]:
    """Remembers the new leaf; and tells whether the part, the whole, and the part with its neighbour turn back.

    No stretch that is checked at a leaf starts in the slot that it is written to. So the memory is written first, and
    then read, which lets XLA write it in place.
    """
    slot, checked = _stretches(tree.leaf, _levels(max_depth))
    written = jnp.arange(len(checked)) == slot
    velocities = pick(written[:, None], new.velocity, tree.memory.velocities)
    sums = pick(written[:, None], tree.sum, tree.memory.sums)
    dots = pick(written, inner(new.velocity, tree.sum), tree.memory.dots)
    summed = tree.sum + new.velocity
    back = (product(velocities, summed) <= dots) | (inner(new.velocity, summed) <= product(sums, new.velocity))
    whole, joint = tree.total + summed, tree.near + summed
    whole_turns = (inner(tree.far.velocity, whole) <= 0) | (inner(new.velocity, whole) <= 0)
    joint_turns = (inner(tree.near, joint) <= 0) | (inner(new.velocity, joint) <= 0)
    turns = (jnp.any(checked & back), whole_turns, joint_turns)
    return tree._replace(memory=Memory(velocities, sums, dots)), turns


def _stretches(leaf: jax.Array, levels: int) -> tuple[jax.Array, jax.Array]:
    """The slot that a leaf is written to, and which slots start a stretch that is checked at it."""
    odd = leaf & 1
    even = leaf + odd
    power, start = _power_of_two(even), even & (even - 1)
    slots = jnp.arange(1 + 2 * levels)
    from_start = (slots == jnp.where(start == 0, 0, _power_of_two(start))) & (leaf > 0)
    level = jnp.where(slots > levels, slots - levels, slots)
    checked = from_start | ((odd > 0) & (level >= 1) & (level < power))
    return jnp.where(odd > 0, levels + power, jnp.where(leaf == 0, 0, power)), checked


def _events(
    tree: Tree,
    inputs: Inputs,
    place: Point,
    drop: jax.Array,
    part_log_weight: jax.Array,
    turns: tuple[jax.Array, jax.Array, jax.Array],
    cut: jax.Array,
) -> Events:
    part_turns, whole_turns, joint_turns = turns
    turned = jnp.where(tree.leaf == 0, whole_turns, tree.turned)
    diverging = drop < -MOST_ENERGY_ERROR
    failed = diverging | part_turns
    joins = (tree.leaf + 1 == 1 << tree.depth) & ~failed & tree.ready
    ends = whole_turns | joint_turns | turned | cut
    done = (failed | (joins & ends)) & tree.ready
    finite = jnp.isfinite(place.log_density) & jnp.isfinite(jnp.sum(place.gradient))
    events = Events(
        take=inputs.uniforms[0] < jnp.exp(drop - part_log_weight),
        joins=joins,
        take_part=joins & (inputs.uniforms[1] < jnp.exp(part_log_weight - tree.log_weight)),
        heads=inputs.uniforms[2] < 0.5,
        done=done,
        began=done | (~tree.ready & finite),
        diverging=diverging & tree.ready,
        turned=turned,
    )
    # One number for all events, so that XLA computes each of them once: a fit of a logistic regression with 20 columns
    # took 1.12 s, and without it 1.18 (CPU; 15 seeds, medians of three alternating processes).
    code = barrier(jnp.asarray(sum(jnp.where(flag, 1 << bit, 0) for bit, flag in enumerate(events))))
    return Events(*((code >> bit) & 1 > 0 for bit in range(len(events))))


def _next(
    tree: Tree,
    inputs: Inputs,
    events: Events,
    new: End,
    place: Point,
    drop: jax.Array,
    part_log_weight: jax.Array,
) -> tuple[Tree, Report]:
    began, joins, summed = events.began, events.joins, tree.sum + new.velocity
    swap, anew = joins & events.heads, joins | began
    part = pick(events.take, place, tree.part)
    draw = pick(tree.ready, pick(events.take_part, part, tree.draw), place)
    start = End(draw.position, draw.gradient, inputs.noise)
    end = pick(began, start, pick(swap, tree.far, new))
    start_energy = inner(inputs.noise, inputs.noise) / 2 - draw.log_density
    depth, steps, acceptance = tree.depth + joins, tree.steps + 1, tree.acceptance + acceptance_of(drop)
    log_weight = jnp.where(joins, jnp.logaddexp(tree.log_weight, part_log_weight), tree.log_weight)
    following = Tree(
        draw=draw._replace(energy=jnp.where(began, start_energy, draw.energy)),
        part=part,
        end=end,
        far=pick(began, start, pick(swap, new, tree.far)),
        near=pick(anew, end.velocity, tree.near),
        total=pick(began, inputs.noise, pick(joins, tree.total + summed, tree.total)),
        sum=pick(anew, jnp.zeros_like(summed), summed),
        memory=tree.memory,
        ready=tree.ready | began,
        direction=pick(began, jnp.where(events.heads, 1.0, -1.0), pick(swap, -tree.direction, tree.direction)),
        depth=jnp.where(began, 0, depth),
        leaf=jnp.where(anew, 0, tree.leaf + 1),
        steps=jnp.where(began, 0, steps),
        start_energy=jnp.where(began, start_energy, tree.start_energy),
        log_weight=jnp.where(began, 0.0, log_weight),
        part_log_weight=jnp.where(anew, -jnp.inf, part_log_weight),
        acceptance=jnp.where(began, 0.0, acceptance),
        turned=events.turned,
    )
    error = draw.energy - tree.start_energy
    report = Report(events.done, began, draw, acceptance / steps, error, steps, depth, events.diverging)
    return following, report


def _levels(max_depth: int) -> int:
    """The largest part has `2**(max_depth - 1)` leaves: how many powers of two strictly within it need a slot."""
    return max(max_depth - 2, 0)


def _power_of_two(number: jax.Array) -> jax.Array:
    """The largest k such that 2^k divides the number."""
    return jax.lax.population_count((number & -number) - 1)
