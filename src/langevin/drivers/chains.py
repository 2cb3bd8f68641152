"""Chains in compiled chunks: many steps inside one scan, Python once a chunk.

A draw is what is left after a stride of steps. The compiled chunk takes the strides as data, and so serves warm-up,
thinning, the exploration of a cycle and a short last chunk (whose strides are padded with zeros) without compiling
again. Every random number is a function of the chain's key and the step's number, so the draws do not depend on how
the run was cut into chunks.
"""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from langevin.data.batches import Batches, reshuffled
from langevin.kernels.base import Kernel
from langevin.keys import at_step, derive
from langevin.methods import MAP, Sampler
from langevin.posterior import Batch, Key, Position, Posterior
from langevin.tuning import Tuning

SECONDS_A_CHUNK = 0.3
MOST_DRAWS_A_CHUNK = 64
MOST_BYTES_A_CHUNK = 64_000_000


class Carry(NamedTuple):
    """Chains between two draws, each leaf with the chains in front.

    Attributes:
        state: The kernel's states.
        info: What the last step told.
        step: How many steps were taken; the same for all chains.
        stopped: The step at which a chain's numbers stopped being finite, or -1. Such a chain stays at its last
            good draw.
    """

    state: Any
    info: Any
    step: jax.Array
    stopped: jax.Array


class Draws(NamedTuple):
    """What a run recorded, as NumPy arrays of shape (chains, draws, ...).

    Attributes:
        position: Unconstrained positions, a pytree.
        reported: What a user sees: constrained and deterministic sites by name.
        info: The kernel's scalars at each draw, by name.
        stopped: For each chain the step at which it blew up, or -1.
        valid: (chains, draws): whether the chain was still running.
    """

    position: Position
    reported: dict[str, np.ndarray]
    info: dict[str, np.ndarray]
    stopped: np.ndarray
    valid: np.ndarray


class Chains:
    """Chains of one method on one posterior, between chunks.

    Args:
        method: Makes the kernel.
        posterior: The target; with minibatches, its data laid out by `batches`.
        batches: How minibatches are drawn; None for all rows in every step.
        tuning: What warm-up found.
        key: Everything random is a function of it.
        positions: Where to start, with the chains in front.
    """

    def __init__(
        self,
        method: Sampler | MAP,
        posterior: Posterior,
        batches: Batches | None,
        tuning: Tuning,
        key: Key,
        positions: Position,
    ) -> None:
        self.method, self.posterior, self.batches, self.tuning = method, posterior, batches, tuning
        step_key, batch_key, self._order_key = derive(key, 3)
        num_chains = len(jax.tree.leaves(positions)[0])
        self._keys = jax.random.split(step_key, num_chains)
        self._batch_keys = jax.random.split(batch_key, num_chains)
        self._shuffles = 0
        self.carry = _begin(method, batches, posterior, tuning, self._keys, self._batch_keys, positions)
        self._seconds_a_step: float | None = None

    @property
    def positions(self) -> Position:
        """Where the chains are."""
        return self.carry.state.position

    def run(self, strides: np.ndarray, on_chunk: Callable[[int, Any], None] = lambda steps, info: None) -> Draws:
        """Takes `sum(strides)` steps and records a draw after each stride.

        Args:
            strides: How many steps lead to each draw.
            on_chunk: Called after each chunk with the steps it took and the chains' last info.
        """
        bytes_a_draw = max(sum(leaf.nbytes for leaf in jax.tree.leaves(self.positions)), 1)
        capacity = int(min(MOST_DRAWS_A_CHUNK, max(MOST_BYTES_A_CHUNK // bytes_a_draw, 1)))
        parts, done = [], 0
        while done < len(strides):
            self._maybe_reshuffle()
            count = self._chunk_length(strides[done:], capacity)
            padded = np.zeros(capacity, np.int32)
            padded[:count] = strides[done : done + count]
            began = time.perf_counter()
            self.carry, recorded = _advance(
                self.method,
                self.batches,
                self.posterior,
                self.tuning,
                self._keys,
                self._batch_keys,
                self.carry,
                padded,
            )
            parts.append(jax.tree.map(lambda array, count=count: np.asarray(array)[:count], recorded))
            steps = int(padded.sum())
            self._note_speed(time.perf_counter() - began, steps)
            on_chunk(steps, self.carry.info)
            done += count
        position, reported, info, valid = jax.tree.map(lambda *xs: np.concatenate(xs).swapaxes(0, 1), *parts)
        return Draws(position, reported, info._asdict(), np.asarray(self.carry.stopped), valid)

    def _chunk_length(self, strides: np.ndarray, capacity: int) -> int:
        steps = np.cumsum(strides[:capacity])
        budget = 1 if self._seconds_a_step is None else SECONDS_A_CHUNK / self._seconds_a_step
        if self.batches is not None and self.batches.order != "rows":
            period = self.batches.reshuffle_period(self.posterior.num_data)
            budget = min(budget, (self._shuffles + 1) * period - int(self.carry.step))
        return int(np.clip(np.searchsorted(steps, budget) + 1, 1, len(steps)))

    def _note_speed(self, seconds: float, steps: int) -> None:
        # The first chunk compiles, so its time says nothing; the second is short for the same reason.
        if self._seconds_a_step is None:
            self._seconds_a_step = SECONDS_A_CHUNK / 100
        elif steps:
            self._seconds_a_step = max(seconds / steps, 1e-9)

    def _maybe_reshuffle(self) -> None:
        if self.batches is None or self.batches.order == "rows":
            return
        due = int(self.carry.step) // self.batches.reshuffle_period(self.posterior.num_data)
        while self._shuffles < due:
            self._shuffles += 1
            seed = [*np.asarray(jax.random.key_data(self._order_key)).tolist(), self._shuffles]
            data = reshuffled(self.batches, self.posterior.data, self.posterior.num_data, seed)
            self.posterior = dataclasses.replace(self.posterior, data=data)


@jax.jit(static_argnames=("method", "batches"))
def _begin(
    method: Sampler | MAP,
    batches: Batches | None,
    posterior: Posterior,
    tuning: Tuning,
    keys: Key,
    batch_keys: Key,
    positions: Position,
) -> Carry:
    kernel = method.kernel(posterior, tuning)
    step = jnp.zeros((), jnp.int32)
    key = jax.vmap(lambda k: jax.random.fold_in(k, jnp.uint32(0xFFFFFFFF)))(keys)
    state = _for_each_chain(kernel.init, batches, posterior, key, positions, batch_keys, step)
    info = jax.eval_shape(lambda s: _step(kernel, batches, posterior, keys, batch_keys, s, step)[1], state)
    info = jax.tree.map(lambda leaf: jnp.zeros(leaf.shape, leaf.dtype), info)
    return Carry(state, info, step, jnp.full(len(keys), -1, jnp.int32))


@jax.jit(static_argnames=("method", "batches"), donate_argnames=("carry",))
def _advance(
    method: Sampler | MAP,
    batches: Batches | None,
    posterior: Posterior,
    tuning: Tuning,
    keys: Key,
    batch_keys: Key,
    carry: Carry,
    strides: jax.Array,
) -> tuple[Carry, Any]:
    kernel = method.kernel(posterior, tuning)

    def one_draw(carry: Carry, stride: jax.Array) -> tuple[Carry, Any]:
        def one_step(_: jax.Array, inner: Any) -> Any:
            state, info, step, first_bad, accepted = inner
            state, info = _step(kernel, batches, posterior, keys, batch_keys, state, step)
            bad = ~jnp.isfinite(info.log_density)
            first_bad = jnp.where(bad & (first_bad < 0), step, first_bad)
            return state, info, step + 1, first_bad, accepted + _acceptance(info)

        inner = (carry.state, carry.info, carry.step, jnp.full_like(carry.stopped, -1), jnp.zeros(len(keys)))
        moved, info, step, first_bad, accepted = jax.lax.fori_loop(0, stride, one_step, inner)
        if hasattr(info, "acceptance_rate"):
            mean = jnp.where(stride > 0, accepted / jnp.maximum(stride, 1), info.acceptance_rate)
            info = info._replace(acceptance_rate=mean)
        good = jax.vmap(_all_finite)(moved.position)
        running = carry.stopped < 0
        stopped = jnp.where(running & ~good, jnp.where(first_bad < 0, step, first_bad), carry.stopped)
        keep = running & good
        state, info = jax.tree.map(
            lambda new, old: jnp.where(keep.reshape(-1, *[1] * (new.ndim - 1)), new, old),
            (moved, info),
            (carry.state, carry.info),
        )
        if hasattr(state, "estimator"):
            # Its age is the chains' common one, also in a chain that stopped.
            state = state._replace(estimator=moved.estimator)
        position = state.position
        reported = jax.vmap(posterior.constrain)(position)
        return Carry(state, info, step, stopped), (position, reported, info, keep)

    return jax.lax.scan(one_draw, carry, strides)


def _step(
    kernel: Kernel,
    batches: Batches | None,
    posterior: Posterior,
    keys: Key,
    batch_keys: Key,
    state: Any,
    step: jax.Array,
) -> tuple[Any, Any]:
    key = jax.vmap(lambda k: at_step(k, step))(keys)
    return _for_each_chain(kernel.step, batches, posterior, key, state, batch_keys, step)


def _for_each_chain(
    function: Callable[[Key, Any, Batch | None], Any],
    batches: Batches | None,
    posterior: Posterior,
    keys: Key,
    operand: Any,
    batch_keys: Key,
    step: jax.Array,
) -> Any:
    """Calls an init or step of every chain, with the minibatch that it sees at this step."""
    if batches is None:
        return jax.vmap(lambda key, x: function(key, x, None))(keys, operand)
    if batches.shared:
        batch = batches.take(posterior.data, posterior.num_data, batch_keys[0], step)
        return jax.vmap(lambda key, x: function(key, x, batch))(keys, operand)

    def one_chain(key: Key, x: Any, batch_key: Key) -> Any:
        return function(key, x, batches.take(posterior.data, posterior.num_data, batch_key, step))

    return jax.vmap(one_chain)(keys, operand, batch_keys)


def _acceptance(info: Any) -> Any:
    return info.acceptance_rate if hasattr(info, "acceptance_rate") else 0.0


def _all_finite(tree: Any) -> jax.Array:
    return jnp.stack([jnp.all(jnp.isfinite(leaf)) for leaf in jax.tree.leaves(tree)]).all()
