"""One root of randomness: named children of one seed, for JAX's keys and for NumPy's generators alike.

    child = SHA-256(words of the parent, name)

A stream of random numbers is a child and a counter. The counter is part of a run's state, so that a run can go on at
any number without having made those before it.
"""

from __future__ import annotations

import functools
import hashlib
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from langevin.errors import SettingError


class Seed(NamedTuple):
    """A seed, by its words of 32 bits.

    Example:
        >>> root = Seed.of(0)
        >>> root.child("noise") == root.child("noise"), root.child("noise") == root.child("starts")
        (True, False)
    """

    words: tuple[int, ...]

    @classmethod
    def of(cls, seed: Any) -> Seed:
        """The seed that a user gave: a whole number, or a key of JAX's of any kind.

        Raises:
            SettingError: If it is neither.
        """
        if isinstance(seed, jax.Array) and jnp.issubdtype(seed.dtype, jax.dtypes.prng_key) and seed.ndim == 0:
            words = cls(tuple(np.asarray(jax.random.key_data(seed)).ravel().tolist()))
            # A key of JAX's usual generator has the words of the whole number that it was made from.
            return words if len(words.words) == 2 else words.child(str(jax.random.key_impl(seed)))
        if isinstance(seed, bool) or not isinstance(seed, int | np.integer) or not -(2**63) <= seed < 2**63:
            raise SettingError(
                f"`seed` must be a whole number of 64 bits, or one key from jax.random.key; got {seed!r}."
            )
        return cls(divmod(int(seed) % 2**64, 2**32))

    def child(self, *names: str | int) -> Seed:
        """The child of this name; of several names, the child of the child."""
        words = self.words
        for name in names:
            digest = hashlib.sha256(np.asarray(words, np.uint64).tobytes() + repr(name).encode()).digest()
            words = tuple(np.frombuffer(digest[:16], np.uint32).tolist())
        return Seed(words)

    def key_words(self) -> np.ndarray:
        """The words of a key of the threefry generator."""
        return np.asarray(self.child("key").words[:2], np.uint32)

    def key(self) -> jax.Array:
        """A key of the threefry generator."""
        return key_of(self.key_words())

    def keys(self, count: int) -> np.ndarray:
        """The words of so many independent keys, one a row."""
        return np.stack([self.child(number).key_words() for number in range(count)])

    def generator(self, counter: int = 0) -> np.random.Generator:
        """A generator of NumPy's, another one for each value of the counter."""
        return np.random.Generator(np.random.Philox(np.random.SeedSequence([*self.words, counter])))


def key_of(words: Any) -> jax.Array:
    """The key with these words, of the threefry generator, whatever JAX's default is."""
    return jax.random.wrap_key_data(words, impl="threefry2x32")


class Stream:
    """Random numbers that can be read from any place: rows of one shape, made in blocks.

    Args:
        seed: Each block is a function of it and of the block's number.
        block: Rows in a block.
        make: `(generator, rows) -> array`, or a pytree of arrays, with the rows in front.
    """

    def __init__(self, seed: Seed, block: int, make: Any) -> None:
        self.seed, self.block = seed, block
        self._made = functools.lru_cache(maxsize=2)(lambda number: make(seed.generator(number), block))

    def read(self, start: int, count: int) -> Any:
        """Rows `start, ..., start + count - 1`; at most as many as a block has."""
        number, offset = divmod(start, self.block)
        first = self._made(number)
        if offset + count <= self.block:
            return jax.tree.map(lambda rows: rows[offset : offset + count], first)
        second = self._made(number + 1)
        left = offset + count - self.block
        return jax.tree.map(lambda a, b: np.concatenate([a[offset:], b[:left]]), first, second)
