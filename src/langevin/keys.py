"""Random keys, derived cheaply."""

from __future__ import annotations

import jax
import jax.numpy as jnp

from langevin.posterior import Key


def derive(key: Key, count: int) -> list[Key]:
    """So many independent keys, outside compiled code.

    By `fold_in`, which compiles once for all uses, where splitting and unpacking compile anew for every count.
    """
    return [jax.random.fold_in(key, number) for number in range(count)]


def at_step(key: Key, step: jax.Array) -> Key:
    """The key of one step, inside a loop.

    For keys of other kinds (`rbg`, `unsafe_rbg`) this is `fold_in`: their last word is part of a counter, and how far
    apart the streams of two counters are is for the device to say.

    Threefry makes independent streams of any two different keys (Salmon et al. 2011, 'Parallel random numbers: as easy
    as 1, 2, 3'), so that the step is added to the key's last word: `fold_in` would hash once more, at a fifth of the
    price of a gradient of 1,000 x 50 rows. The keys of a run must themselves come from `derive`, `split` or `fold_in`:
    the streams of `jax.random.key(0)` and `jax.random.key(1)` would be the same but for one step.
    """
    if str(jax.random.key_impl(key)) != "threefry2x32":
        return jax.random.fold_in(key, step)
    words = jax.random.key_data(key)
    shifted = words.at[-1].add(jnp.asarray(step, words.dtype))
    return jax.random.wrap_key_data(shifted, impl=jax.random.key_impl(key))


def mix(word: jax.Array) -> jax.Array:
    """A bijective 32-bit finaliser (Wellons 2018, 'Prospecting for hash functions', lowbias32)."""
    word = (word ^ (word >> 16)) * jnp.uint32(0x7FEB352D)
    word = (word ^ (word >> 15)) * jnp.uint32(0x846CA68B)
    return word ^ (word >> 16)
