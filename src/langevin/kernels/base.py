"""The one shape of a Markov kernel."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any, NamedTuple, Protocol

import jax
import jax.numpy as jnp

from langevin.keys import mix
from langevin.posterior import Batch, Key, Position

# Numbers that are drawn together, from which on the time of the generator counts.
MANY = 32_768


class State(Protocol):
    """What a kernel carries from step to step: a NamedTuple with at least the position."""

    @property
    def position(self) -> Position:
        """Where the chain is."""
        ...


class Info(Protocol):
    """What a step tells about itself: a NamedTuple of scalars, each of which becomes a statistic of the draws.

    `log_density` is the (possibly minibatch) log-density that the step computed on its way. `step_size` is the
    length of time the step stands for, by which a draw is weighted where it changes.
    """

    @property
    def log_density(self) -> jax.Array:
        """The log-density, up to a constant."""
        ...

    @property
    def step_size(self) -> jax.Array:
        """The time that the step stands for."""
        ...


def keep(key: Key, state: Any, batch: Batch | None) -> Any:
    """The state as it is: the `refresh` of a kernel that remembers nothing of its target."""
    del key, batch
    return state


class Kernel(NamedTuple):
    """A Markov kernel: three pure functions.

    Attributes:
        init: `(key, position, batch) -> state`. May read all rows.
        step: `(key, state, batch) -> (state, info)`. `batch=None` means all rows.
        refresh: `(key, state, batch) -> state`: to be called when the target has changed since the state was made, as
            in a Gibbs sweep after another block has moved. What the state remembers of the target (log-densities,
            gradients) is computed anew; position, momentum and counts stay. May read all rows.

    Example:
        >>> import jax, langevin as lv
        >>> density = lv.Density(lambda x: -(x["a"]**2 + (x["b"] - x["a"])**2) / 2, init={"a": 0.0, "b": 0.0})
        >>> first, second = (lv.kernels.mala(density.posterior().given({"a": value}), 1.0) for value in (0.0, 5.0))
        >>> state = first.init(jax.random.key(0), {"b": jax.numpy.array(0.0)}, None)
        >>> state = second.refresh(jax.random.key(1), state, None)
        >>> float(state.stepper.draw.log_density)
        -25.0
    """

    init: Callable[[Key, Position, Batch | None], Any]
    step: Callable[[Key, Any, Batch | None], tuple[Any, Any]]
    refresh: Callable[[Key, Any, Batch | None], Any] = keep


def standard_normal(key: Key, like: Position) -> Position:
    """Independent standard normal numbers in the shape of a position, from one call of the generator."""
    leaves, structure = jax.tree.flatten(like)
    sizes, dtype = [jnp.size(leaf) for leaf in leaves], jnp.result_type(*leaves)
    if len(leaves) == 1 and sum(sizes) < MANY:
        return jax.tree.unflatten(structure, [jax.random.normal(key, jnp.shape(leaves[0]), leaves[0].dtype)])
    quick = sum(sizes) >= MANY and dtype == jnp.float32
    flat = many_normals(key, sum(sizes)) if quick else jax.random.normal(key, (sum(sizes),), dtype)
    parts = jnp.split(flat, [sum(sizes[: i + 1]) for i in range(len(sizes) - 1)])
    shaped = [part.reshape(jnp.shape(leaf)).astype(leaf.dtype) for part, leaf in zip(parts, leaves, strict=True)]
    return jax.tree.unflatten(structure, shaped)


def many_normals(key: Key, count: int) -> jax.Array:
    """Independent standard normal numbers in single precision, from a hash of their places and of two words of the key.

    Threefry takes two thirds of the time of a normal number, and those of a network two fifths of a step. The hash
    is a bijective 32-bit finaliser (Wellons 2018, 'Prospecting for hash functions', lowbias32), twice.
    """
    first, second = jax.random.bits(key, (2,), jnp.uint32)
    word = mix(mix(jax.lax.iota(jnp.uint32, count) ^ first) + second)
    # Odd multiples of 2^-24 in (-1, 1), all of which single precision has.
    uniform = (word >> 8).astype(jnp.float32) * jnp.float32(2**-23) - jnp.float32(1 - 2**-24)
    return jnp.float32(math.sqrt(2)) * jax.lax.erf_inv(uniform)


def dot(a: Position, b: Position) -> jax.Array:
    """The inner product of two positions."""
    return sum(jax.tree.leaves(jax.tree.map(lambda x, y: jnp.sum(x * y), a, b)), start=jnp.zeros(()))
