"""Sweeps over blocks: one compiled loop in which the kernels of a model's blocks take turns.

In a sweep every block moves once, in the order of the blocks, given the current values of the others:

    x_b <- K_b(x_b | x_others),    K_b leaves p(x_b | x_others, rows) where it is

so that the sweep leaves p(x | rows) where it is. What a kernel remembers of its target (log-densities, gradients) is
computed anew before it moves, since the others have moved. Discrete sites are drawn exactly, and so are blocks with
conditionals that are derived from the program. With minibatches, the labels of the rows of the batch are drawn anew
before each block that takes minibatches, z_B ~ p(z_B | x, rows of B), and its kernel sees the gradient given the
labels, whose mean over the labels is that of the log-density with the labels summed out (Fisher's identity).

Kernels that take minibatches may have a control variate around a centre c of all sites, which stays where it is while
the others move:

    grad_b log p(c) + g_b(x; B, z_B(x)) - g_b(c; B, z_B(c))

with both draws of labels from the same random numbers, so that few of them differ. The mean is the gradient at x, and
the noise shrinks with the distance from c.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from langevin.contracts import Batch, Position
from langevin.data.batches import Batches
from langevin.engines import conjugate
from langevin.engines.chains import Segments
from langevin.engines.parts import Part
from langevin.kernels import dual_averaging, metrics
from langevin.kernels.base import Kernel
from langevin.keys import at_step
from langevin.models.labelled import draw_labels, labelled, values_of
from langevin.posterior import Key, Posterior
from langevin.run.keep import Keep
from langevin.run.seeds import key_of
from langevin.tuning import Tuning

# Minibatches by which the noise of a gradient is measured.
NUM_FOR_NOISE = 64


class Static(NamedTuple):
    """What is compiled in.

    Attributes:
        parts: The blocks of continuous sites, in their order.
        has_labels: Whether discrete sites are drawn; first in the sweep.
        batches: How minibatches are drawn.
        keep: What is kept of a draw.
        anchored: Whether kernels that take minibatches have the control variate.
    """

    parts: tuple[Part, ...]
    has_labels: bool
    batches: Batches | None
    keep: Keep
    anchored: bool = False


class Carry(NamedTuple):
    """Chains between two sweeps, each leaf but `sweep` and `adaptations` with the chains in front.

    Attributes:
        position: The continuous sites.
        labels: The discrete ones, by index; empty with minibatches, where each step has its own.
        states: Of the kernels.
        infos: What their last steps told.
        adaptations: Of their steps.
        sweep: How many sweeps there were.
        stopped: The sweep at which a chain's numbers stopped being finite, or -1; it stays where it was before.
        gradients: Of each chain, since the latest draw.
    """

    position: Position
    labels: dict[str, jax.Array]
    states: tuple[Any, ...]
    infos: tuple[Any, ...]
    adaptations: tuple[dual_averaging.Adaptation, ...]
    sweep: jax.Array
    stopped: jax.Array
    gradients: jax.Array


class Drive(NamedTuple):
    """How the kernels step.

    Attributes:
        tunings: Of each block.
        adapting: Whether steps adapt.
        accepts: For each block, the acceptance to adapt to.
        keys: The words of the keys of sweeps and of minibatches, one a chain.
        anchor: The centre of the control variate, and the gradient on all rows there; None if there is none.
    """

    tunings: tuple[Tuning, ...]
    adapting: Any
    accepts: tuple[Any, ...]
    keys: tuple[Any, Any]
    anchor: tuple[Position, Position] | None = None


def begin(static: Static, target: Posterior, drive: Drive, adaptations: Any, positions: Position) -> Carry:
    """Chains at these positions, with labels drawn there."""
    steps = _steps(static, drive, adaptations)
    never = jnp.full(len(drive.keys[0]), -1, jnp.int32)

    def one(words: jax.Array, batch_words: jax.Array, position: Position) -> Any:
        key = jax.random.fold_in(key_of(words), jnp.uint32(0xFFFFFFFF))
        batch = _batch_of(static, target, batch_words, jnp.zeros((), jnp.uint32))
        labels = _labels_of_all(static, target, key, position)
        states = []
        for number, part in enumerate(static.parts):
            scene = _scene(static, target, number, position, labels, batch, key)
            kernel, seen = _kernel(static, target, drive, number, steps[number], scene)
            states.append(kernel.init(jax.random.fold_in(key, number + 1), _own(part, position), seen))
        return labels, tuple(states)

    labels, states = jax.vmap(one)(*drive.keys, positions)
    zeros = jnp.zeros(len(drive.keys[0]), jnp.int32)
    carry = Carry(positions, labels, states, (), adaptations, jnp.zeros((), jnp.int32), never, zeros)
    infos = jax.eval_shape(lambda carry: _sweep(static, target, drive, carry).infos, carry)
    return carry._replace(infos=jax.tree.map(lambda leaf: jnp.zeros(leaf.shape, leaf.dtype), infos))


def advance(
    static: Static, target: Posterior, drive: Drive, carry: Carry, segments: Segments
) -> tuple[Carry, dict[str, Any]]:
    """Goes through segments of sweeps, and records the draws at their ends."""

    def one_segment(index: jax.Array, inner: Any) -> Any:
        carry, buffers = inner
        sweep = lambda _, carry: _sweep(static, target, drive, carry)  # noqa: E731
        carry = jax.lax.fori_loop(0, segments.counts[index], sweep, carry)
        put = lambda buffer, row: jax.lax.dynamic_update_index_in_dim(buffer, row, index, 0)  # noqa: E731
        buffers = jax.tree.map(put, buffers, _record(static, target, carry))
        none = jnp.where(segments.draws[index], 0, carry.gradients)
        return carry._replace(gradients=none), buffers

    shapes = jax.eval_shape(lambda carry: _record(static, target, carry), carry)
    buffers = jax.tree.map(lambda leaf: jnp.zeros((len(segments.counts), *leaf.shape), leaf.dtype), shapes)
    return jax.lax.fori_loop(0, segments.number, one_segment, (carry, buffers))


def _sweep(static: Static, target: Posterior, drive: Drive, carry: Carry) -> Carry:
    """Every block of every chain moves once."""
    steps = _steps(static, drive, carry.adaptations, adapting=drive.adapting)

    def one(words: jax.Array, batch_words: jax.Array, position: Position, states: Any) -> Any:
        key = at_step(key_of(words), carry.sweep)
        batch = _batch_of(static, target, batch_words, carry.sweep)
        of_labels = jax.random.fold_in(key, 0)
        labels = _labels_of_all(static, target, of_labels, position)
        moved, infos = [], []
        for number in range(len(static.parts)):
            scene = _scene(static, target, number, position, labels, batch, of_labels)
            kernel, seen = _kernel(static, target, drive, number, steps[number], scene)
            anew, step = (jax.random.fold_in(key, 2 * number + 1 + odd) for odd in (0, 1))
            state = kernel.refresh(anew, states[number], seen)
            state, info = kernel.step(step, state, seen)
            position = {**position, **state.position}
            moved.append(state)
            infos.append(info)
        return position, labels, tuple(moved), tuple(infos)

    after = jax.vmap(one)(*drive.keys, carry.position, carry.states)
    before = (carry.position, carry.labels, carry.states, carry.infos if carry.infos else after[3])
    fine = jax.vmap(lambda position: _all_finite(position))(after[0]) & (carry.stopped < 0)
    kept = jax.tree.map(lambda new, old: _chosen(fine, new, old), after, before)
    position, labels, states, infos = kept
    adaptations = tuple(
        _adapted(part, adaptation, info, drive, accept)
        for part, adaptation, info, accept in zip(static.parts, carry.adaptations, infos, drive.accepts, strict=True)
    )
    return Carry(
        position,
        labels,
        states,
        infos,
        adaptations,
        carry.sweep + 1,
        jnp.where((carry.stopped < 0) & ~fine, carry.sweep, carry.stopped),
        carry.gradients
        + sum(_gradients_of(info, fine) for part, info in zip(static.parts, infos, strict=True) if not part.derived),
    )


class Scene(NamedTuple):
    """What a block of a chain sees in a sweep.

    Attributes:
        position: Of all continuous sites.
        labels: Of the discrete ones.
        batch: Rows; None for all.
        key: From which the labels were drawn.
    """

    position: Position
    labels: dict[str, jax.Array]
    batch: Batch | None
    key: Key


def _scene(
    static: Static,
    target: Posterior,
    number: int,
    position: Position,
    labels: dict[str, jax.Array],
    batch: Batch | None,
    key: Key,
) -> Scene:
    """What the block of this number sees: under minibatches with labels drawn anew, where the others are by now."""
    if batch is None or static.parts[number].all_rows:
        return Scene(position, labels, batch, key)
    key = jax.random.fold_in(key, number)
    return Scene(position, _labels(static, target, key, position, batch), batch, key)


def _kernel(
    static: Static, target: Posterior, drive: Drive, number: int, step: Any, scene: Scene
) -> tuple[Kernel, Batch | None]:
    """The kernel of a block given the others, and the rows that it sees."""
    part = static.parts[number]
    seen = None if part.all_rows else scene.batch
    if part.derived is not None:
        others = {name: value for name, value in scene.position.items() if name not in part.names}
        return conjugate.kernel(part.derived, part.names, target, others, scene.labels), seen
    conditional = _conditional(static, target, part, scene)
    if part.rowless:
        conditional = conditional.with_few_rows()
    if static.anchored and not part.all_rows:
        conditional = conditional.tilted(_correction(static, target, drive, part, scene))
    return part.method.kernel(conditional, drive.tunings[number]._replace(step_size=step)), seen


def _conditional(static: Static, target: Posterior, part: Part, scene: Scene) -> Posterior:
    """The target of a block given the others."""
    others = {name: value for name, value in scene.position.items() if name not in part.names}
    if scene.labels and (static.batches is None or not part.all_rows):
        target = labelled(target, target.rows if scene.batch is None else scene.batch)
        others = {**others, **scene.labels}
    return target.given(others) if others else target


def _correction(static: Static, target: Posterior, drive: Drive, part: Part, scene: Scene) -> Position:
    """What the control variate adds to the gradient of a block."""
    assert drive.anchor is not None
    centre, slope = drive.anchor
    labels = _labels(static, target, scene.key, centre, scene.batch)
    there = _conditional(static, target, part, scene._replace(position=centre, labels=labels))
    own = _own(part, centre)
    gradient = jax.grad(lambda at: there.log_density(at, scene.batch))(own)
    return {name: jax.lax.stop_gradient(slope[name] - gradient[name]) for name in own}


def noise_of(
    which: tuple[Static, int], target: Posterior, drive: Drive, places: Position, words: jax.Array
) -> Position:
    """The variance of a block's whitened gradient over minibatches and labels, the mean over places."""
    static, number = which
    part = static.parts[number]
    metric = drive.tunings[number].metric

    def at(inputs: Any) -> Position:
        position, place = inputs

        def one(draw: jax.Array) -> Position:
            key = at_step(key_of(words), place * NUM_FOR_NOISE + draw)
            batch = _batch_of(static, target, words, place * NUM_FOR_NOISE + draw)
            scene = Scene(position, _labels(static, target, key, position, batch), batch, key)
            conditional = _conditional(static, target, part, scene)
            if static.anchored:
                conditional = conditional.tilted(_correction(static, target, drive, part, scene))
            gradient = jax.grad(lambda own: conditional.log_density(own, batch))(_own(part, position))
            return metrics.whiten(metric, gradient)

        gradients = jax.lax.map(one, jnp.arange(NUM_FOR_NOISE, dtype=jnp.uint32))
        return jax.tree.map(lambda leaf: jnp.var(leaf, axis=0, ddof=1), gradients)

    count = len(jax.tree.leaves(places)[0])
    variances = jax.lax.map(at, (places, jnp.arange(count, dtype=jnp.uint32)))
    return jax.tree.map(lambda leaf: jnp.mean(leaf, axis=0), variances)


def slope_at(_: None, target: Posterior, centre: Position) -> Position:
    """The gradient on all rows."""
    return jax.grad(target.log_density)(centre)


def _labels_of_all(static: Static, target: Posterior, key: Key, position: Position) -> dict[str, jax.Array]:
    """The labels that are part of a chain: of all rows, if each step takes all of them."""
    return _labels(static, target, key, position, None) if static.batches is None else {}


def _labels(
    static: Static, target: Posterior, key: Key, position: Position, batch: Batch | None
) -> dict[str, jax.Array]:
    if not static.has_labels:
        return {}
    return draw_labels(target, key, position, target.rows if batch is None else batch)


def _batch_of(static: Static, target: Posterior, words: jax.Array, step: jax.Array) -> Batch | None:
    if static.batches is None:
        return None
    return static.batches.take(target.data, target.num_data, key_of(words), step)


def _steps(static: Static, drive: Drive, adaptations: Any, adapting: Any = True) -> list[Any]:
    """The step of each block: that of its adaptation, or the one of its tuning."""
    return [
        dual_averaging.step_size(adaptation, jnp.asarray(adapting)) if part.adapts else tuning.step_size
        for part, tuning, adaptation in zip(static.parts, drive.tunings, adaptations, strict=True)
    ]


def _adapted(part: Part, adaptation: Any, info: Any, drive: Drive, accept: Any) -> Any:
    if not part.adapts:
        return adaptation
    rate = jnp.where(jnp.isfinite(info.acceptance_rate), info.acceptance_rate, 0.0)
    updated = dual_averaging.update(adaptation, jnp.ones(rate.shape, bool), rate, accept)
    return jax.tree.map(lambda new, old: jnp.where(drive.adapting, new, old), updated, adaptation)


def _record(static: Static, target: Posterior, carry: Carry) -> dict[str, Any]:
    """What is recorded of a draw of all chains."""

    def reported(position: Position, labels: Any) -> dict[str, jax.Array]:
        values = values_of(target.model.labels, labels) if labels else {}
        return static.keep.reported({**target.constrain(position), **values})

    stats = _stats(static, carry)
    if static.batches is None:
        stats["log_density"] = jax.vmap(lambda *at: _log_density(static, target, *at))(carry.position, carry.labels)
    gradients = tuple(
        state.stepper.draw.gradient if part.adapts else ()
        for part, state in zip(static.parts, carry.states, strict=True)
    )
    sites = jax.vmap(reported)(carry.position, carry.labels)
    return {"position": carry.position, "reported": sites, "stats": stats, "gradients": gradients}


def _log_density(static: Static, target: Posterior, position: Position, labels: dict[str, jax.Array]) -> jax.Array:
    """Of everything, at a draw."""
    if not static.has_labels:
        return target.log_density(position)
    return labelled(target, target.rows).given(labels).log_density(position)


def _stats(static: Static, carry: Carry) -> dict[str, jax.Array]:
    """How many gradients there were, the last log-density, and by block the acceptance and the step."""
    stats = {"n_steps": carry.gradients, "valid": carry.stopped < 0}
    for part, info in zip(static.parts, carry.infos, strict=True):
        if not part.all_rows:
            stats["log_density"] = info.log_density
    diverging = [info.diverging for info in carry.infos if "diverging" in info._asdict()]
    if diverging:
        stats["diverging"] = jnp.any(jnp.stack(diverging), axis=0)
    for part, info in zip(static.parts, carry.infos, strict=True):
        numbers = info._asdict()
        for name in ("acceptance_rate", "step_size"):
            if name in numbers:
                stats[f"{name}_{part.names[0]}"] = numbers[name]
    return stats


def _gradients_of(info: Any, fine: jax.Array) -> jax.Array:
    """Gradients in a step: those of the trajectory and the one of the refresh."""
    taken = info._asdict().get("n_steps")
    return jnp.where(fine, 1 if taken is None else taken + 1, 0)


def _own(part: Part, position: Position) -> Position:
    return {name: position[name] for name in part.names}


def _chosen(fine: jax.Array, new: jax.Array, old: jax.Array) -> jax.Array:
    return jnp.where(fine.reshape(-1, *[1] * (new.ndim - 1)), new, old)


def _all_finite(position: Position) -> jax.Array:
    return jnp.stack([jnp.isfinite(leaf).all() for leaf in jax.tree.leaves(position)]).all()
