"""Chains of a kernel: many steps inside one compiled loop, Python once a chunk.

A draw is what is left after a stride of steps. The compiled loop goes through segments: so many steps, and then a draw
or none. A stride may thus be cut anywhere, and the same program serves warm-up, thinning and the exploration of a
cycle. Every random number is a function of the chain's key and the step's number.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple, Protocol

import jax
import jax.numpy as jnp
import numpy as np

from langevin.contracts import Batch, Position, State
from langevin.data.batches import Batches, Layout
from langevin.kernels.base import Kernel
from langevin.keys import at_step
from langevin.posterior import Key, Posterior
from langevin.run.compilation import Programs
from langevin.run.keep import Keep
from langevin.run.seeds import Seed, key_of
from langevin.tuning import Tuning

MOST_DRAWS_A_CHUNK = 1024
MOST_BYTES_A_CHUNK = 16_000_000
NUM_LOOKS = 10


class MakesKernel(Protocol):
    """Frozen settings that make a kernel; their representation says all of them."""

    def kernel(self, posterior: Posterior, tuning: Tuning) -> Kernel:
        """The kernel."""
        ...


class Carry(NamedTuple):
    """Chains between two steps, each leaf but `step` and `taken` with the chains in front.

    Attributes:
        state: The kernel's states.
        info: What the last step told.
        last: State and info at the latest draw, to which a chain returns whose numbers are not finite at the next.
        step: How many steps were taken; the same for all chains.
        taken: Steps since the latest draw.
        accepted: The sum of acceptance rates since then.
        first_bad: The first step since then whose log-density was not finite, or -1.
        stopped: The step at which a chain's numbers stopped being finite, or -1. Such a chain stays at its last good
            draw.
    """

    state: Any
    info: Any
    last: Any
    step: jax.Array
    taken: jax.Array
    accepted: jax.Array
    first_bad: jax.Array
    stopped: jax.Array


class Segments(NamedTuple):
    """What a chunk goes through.

    Attributes:
        counts: The steps of each segment.
        draws: Whether there is a draw at its end.
        number: How many segments there are; the arrays may be longer.
    """

    counts: Any
    draws: Any
    number: Any


class Recorded(NamedTuple):
    """What a chunk recorded, as NumPy arrays of shape (draws, chains, ...).

    Attributes:
        position: Unconstrained positions, a pytree.
        reported: What is kept of the sites.
        stats: The kernel's scalars, by name, and `valid`: whether the chain was still running.
    """

    position: Position
    reported: dict[str, np.ndarray]
    stats: dict[str, np.ndarray]


class Chains:
    """Chains of one kernel on one target. What changes in a run is in a plain state, see `begin`.

    Args:
        maker: Makes the kernel.
        target: The posterior.
        layout: The rows in random orders; None for all rows in every step.
        batches: How minibatches are drawn from them.
        keep: What is kept of a draw; None to record nothing.
        seed: Everything random is a function of it.
        programs: The compiled programs of the run.
    """

    def __init__(
        self,
        maker: MakesKernel,
        target: Posterior,
        rows: tuple[Batches, Layout] | None,
        keep: Keep | None,
        seed: Seed,
        programs: Programs,
    ) -> None:
        self._target, self._programs = target, programs
        self._batches, self._layout = (None, None) if rows is None else rows
        self._static = (maker, self._batches, keep)
        self._seed = seed
        self._structure: Any = None
        self._bytes_a_draw: int | None = None

    def begin(self, positions: Position, tuning: Tuning) -> State:
        """The state of chains at these positions, with the chains in front."""
        carry = self._programs(_begin, self._static, self._rows(0)[0], tuning, self._keys(positions), positions)
        leaves, self._structure = jax.tree.flatten(carry)
        return {"carry": tuple(leaves), "step": 0, "drawn": 0, "left": 0}

    def advance(
        self, state: State, tuning: Tuning, limit: int, stride: Callable[[int], int], num_draws: int
    ) -> tuple[State, Recorded | None]:
        """Takes at most `limit` steps towards `num_draws` draws.

        Args:
            state: The state.
            tuning: As in `begin`.
            limit: The most steps.
            stride: How many steps lead to the draw of this number.
            num_draws: The draws since `begin`.
        """
        carry = self.carry(state, tuning)
        rows, most = self._rows(state["step"])
        step, drawn, left, limit = state["step"], state["drawn"], state["left"], min(limit, most)
        capacity = self._capacity(carry.state.position)
        counts, draws = np.zeros(capacity, np.int32), np.zeros(capacity, bool)
        number = made = 0
        while number < capacity and drawn + made < num_draws and limit > 0:
            left = left or max(stride(drawn + made), 1)
            counts[number] = min(left, limit)
            left, limit = left - int(counts[number]), limit - int(counts[number])
            draws[number] = left == 0
            made += left == 0
            number += 1
        segments = Segments(counts, draws, np.int32(number))
        arguments = (rows, tuning, self._keys(carry.state.position), carry, segments)
        carry, recorded = self._programs(_advance, self._static, *arguments)
        state = {
            "carry": tuple(jax.tree.leaves(carry)),
            "step": step + int(counts.sum()),
            "drawn": drawn + made,
            "left": left,
        }
        if self._static[2] is None or not made:
            return state, None
        # A copy: the rest of the buffers is not kept.
        return state, Recorded(
            *jax.tree.map(lambda array: np.array(np.asarray(array)[:number][draws[:number]]), recorded)
        )

    def carry(self, state: State, tuning: Tuning) -> Carry:
        """All that the chains know."""
        if self._structure is None:
            positions = _example_positions(self._target, len(state["carry"][-1]))
            shapes = jax.eval_shape(
                lambda *arguments: _begin(self._static, *arguments),
                self._rows(0)[0],
                tuning,
                self._keys(positions),
                positions,
            )
            self._structure = jax.tree.structure(shapes)
        return jax.tree.unflatten(self._structure, state["carry"])

    def _rows(self, step: int) -> tuple[Posterior, int]:
        """The target with its rows in the order of this step, and how many steps they keep it."""
        if self._layout is None:
            return self._target, 2**30
        data, most = self._layout.at(step)
        return self._target.with_data(data), most

    def _keys(self, positions: Position) -> Keys:
        """The words of the keys of steps and of minibatches."""
        num_chains = len(jax.tree.leaves(positions)[0])
        return self._seed.child("steps").keys(num_chains), self._seed.child("minibatches").keys(num_chains)

    def _capacity(self, positions: Position) -> int:
        """How many draws a chunk can have: by their size, and not by what is asked for."""
        if self._bytes_a_draw is None:
            keep, target = self._static[2], self._target
            sizes = [sum(leaf.nbytes for leaf in jax.tree.leaves(positions))]
            if keep is not None and keep.function is not None:
                reported = jax.eval_shape(
                    jax.vmap(lambda position: keep.reported(target.constrain(position))), positions
                )
                sizes.append(sum(leaf.size * leaf.dtype.itemsize for leaf in reported.values()))
            self._bytes_a_draw = max(*sizes, 1)
        return int(min(MOST_DRAWS_A_CHUNK, max(MOST_BYTES_A_CHUNK // self._bytes_a_draw, 1)))


def tenths(num_steps: int) -> list[int]:
    """So many steps in about ten parts, for runs of which only the end counts: numbers are looked at after each."""
    ends = np.linspace(0, num_steps, min(NUM_LOOKS, num_steps) + 1).astype(int)
    return np.diff(ends).tolist()


def _example_positions(target: Posterior, num_chains: int) -> Position:
    example = target.start(np.random.default_rng(0))
    return jax.tree.map(lambda leaf: np.broadcast_to(np.asarray(leaf), (num_chains, *np.shape(leaf))), example)


Static = tuple[MakesKernel, Batches | None, Keep | None]
Keys = tuple[Any, Any]
"""The words of the keys of steps and of minibatches, one a chain."""


def _begin(static: Static, target: Posterior, tuning: Tuning, keys: Keys, positions: Any) -> Carry:
    maker, batches, _ = static
    kernel = maker.kernel(target, tuning)
    step, taken = jnp.zeros((), jnp.int32), jnp.zeros((), jnp.int32)
    first = jax.vmap(lambda words: jax.random.fold_in(key_of(words), jnp.uint32(0xFFFFFFFF)))(keys[0])
    state = _for_each_chain(kernel.init, batches, target, first, positions, keys[1], step)
    info = jax.eval_shape(lambda s: _step(kernel, batches, target, keys, s, step)[1], state)
    info = jax.tree.map(lambda leaf: jnp.zeros(leaf.shape, leaf.dtype), info)
    never = jnp.full(len(keys[0]), -1, jnp.int32)
    return Carry(state, info, (state, info), step, taken, jnp.zeros(len(keys[0])), never, never)


def _advance(
    static: Static,
    target: Posterior,
    tuning: Tuning,
    keys: Keys,
    carry: Carry,
    segments: Segments,
) -> tuple[Carry, Any]:
    """Goes through segments, and records the draws at their ends."""
    maker, batches, keep = static
    kernel = maker.kernel(target, tuning)

    def one_step(_: jax.Array, carry: Carry) -> Carry:
        state, info = _step(kernel, batches, target, keys, carry.state, carry.step)
        bad = ~jnp.isfinite(info.log_density)
        return carry._replace(
            state=state,
            info=info,
            step=carry.step + 1,
            taken=carry.taken + 1,
            accepted=carry.accepted + info._asdict().get("acceptance_rate", 0.0),
            first_bad=jnp.where(bad & (carry.first_bad < 0), carry.step, carry.first_bad),
        )

    def record(carry: Carry, valid: jax.Array) -> Any:
        if keep is None:
            return ()
        reported = jax.vmap(lambda position: keep.reported(target.constrain(position)))(carry.state.position)
        return carry.state.position, reported, carry.info._asdict() | {"valid": valid}

    def one_segment(index: jax.Array, inner: Any) -> Any:
        carry, buffers = inner
        moved = jax.lax.fori_loop(0, segments.counts[index], one_step, carry)
        carry, valid = _at_segment_end(moved, segments.draws[index])
        put = lambda buffer, row: jax.lax.dynamic_update_index_in_dim(buffer, row, index, 0)  # noqa: E731
        return carry, jax.tree.map(put, buffers, record(carry, valid))

    shapes = jax.eval_shape(lambda c: record(c, c.stopped < 0), carry)
    buffers = jax.tree.map(lambda leaf: jnp.zeros((len(segments.counts), *leaf.shape), leaf.dtype), shapes)
    return jax.lax.fori_loop(0, segments.number, one_segment, (carry, buffers))


def _at_segment_end(moved: Carry, is_draw: jax.Array) -> tuple[Carry, jax.Array]:
    """At a draw, chains whose numbers are not finite return to the draw before, and stay there."""
    info = moved.info
    if "acceptance_rate" in info._fields:
        mean = jnp.where(is_draw, moved.accepted / jnp.maximum(moved.taken, 1), info.acceptance_rate)
        info = info._replace(acceptance_rate=mean)
    good = jax.vmap(_all_finite)(moved.state.position)
    running = moved.stopped < 0
    valid = running & good
    when = jnp.where(moved.first_bad < 0, moved.step, moved.first_bad)

    def returned(new: jax.Array, old: jax.Array) -> jax.Array:
        # Whole numbers count steps, which the chains do together, also those that stopped.
        if not jnp.issubdtype(new.dtype, jnp.inexact):
            return new
        stays = (valid | ~is_draw).reshape(-1, *[1] * (new.ndim - 1))
        return jnp.where(stays, new, old)

    state, info = jax.tree.map(returned, (moved.state, info), moved.last)
    last = jax.tree.map(lambda new, old: jnp.where(is_draw, new, old), (state, info), moved.last)
    carry = moved._replace(
        state=state,
        info=info,
        last=last,
        taken=jnp.where(is_draw, 0, moved.taken),
        accepted=jnp.where(is_draw, 0.0, moved.accepted),
        first_bad=jnp.where(is_draw, -1, moved.first_bad),
        stopped=jnp.where(is_draw & running & ~good, when, moved.stopped),
    )
    return carry, valid


def _step(
    kernel: Kernel, batches: Batches | None, target: Posterior, keys: Keys, state: Any, step: jax.Array
) -> tuple[Any, Any]:
    key = jax.vmap(lambda words: at_step(key_of(words), step))(keys[0])
    return _for_each_chain(kernel.step, batches, target, key, state, keys[1], step)


def _for_each_chain(
    function: Callable[[Key, Any, Batch | None], Any],
    batches: Batches | None,
    target: Posterior,
    keys: Key,
    operand: Any,
    batch_keys: jax.Array,
    step: jax.Array,
) -> Any:
    """Calls an init or step of every chain, with the minibatch that it sees at this step."""
    if batches is None:
        return jax.vmap(lambda key, x: function(key, x, None))(keys, operand)
    if batches.shared:
        batch = batches.take(target.data, target.num_data, key_of(batch_keys[0]), step)
        return jax.vmap(lambda key, x: function(key, x, batch))(keys, operand)

    def one_chain(key: Key, x: Any, words: jax.Array) -> Any:
        return function(key, x, batches.take(target.data, target.num_data, key_of(words), step))

    return jax.vmap(one_chain)(keys, operand, batch_keys)


def _all_finite(position: Position) -> jax.Array:
    return jnp.stack([jnp.isfinite(leaf).all() for leaf in jax.tree.leaves(position)]).all()
