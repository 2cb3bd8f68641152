"""Rows in memory -> minibatches, as contiguous slices.

The rows are laid out once in a random order, with the first `size` rows repeated after the last, so that a slice may
start at any row and wrap around. In epoch `e` the slices start at

    (offset_e + k * size) mod num_data,   k = 0, 1, ..., ceil(num_data / size) - 1,   offset_e uniform.

Every slice has exactly `size` rows (a batch size that does not divide the number of rows needs no short batch: the
last slice of the epoch meets the first again, at a place that moves with the offset), and over the offsets every row is
equally likely in every step, so the gradient is unbiased whatever the order is. A step costs a slice: nothing in it
grows with the number of rows. The order itself is drawn anew every `reshuffle_period` steps, which matters for small
data (where one order has few distinct slices) and costs little: it is rarer where there are many.

Within such a sweep the errors of the gradient cancel: what one minibatch has too much of, the others lack. SGLD gains
by that. A method that measures the noise and takes it into account (SGHMC, SGNHT), or an exact accept step, needs
minibatches that are independent from step to step: there, every slice starts at a row of its own, uniform over all.
Where there are few slices, they are a poor sample of all minibatches, and scattered rows are gathered instead.
"""

from __future__ import annotations

import dataclasses
from typing import Any, Literal

import jax
import jax.numpy as jnp
import numpy as np

from langevin import checks, spelling
from langevin.errors import SettingError
from langevin.keys import at_step, mix
from langevin.posterior import Batch, Key
from langevin.run.seeds import Seed

LEAST_SLICES = 200
FOREVER = 2**30


@dataclasses.dataclass(frozen=True)
class Batches:
    """How minibatches are drawn.

    Args:
        size: Rows in a minibatch.
        order: "sweep" goes through all rows in an epoch, without replacement. "slices" takes a slice at a random place
            in every step: without replacement within a minibatch, independent between steps. "rows" draws every row
            independently, with replacement; a step then gathers scattered rows, which is slower. "auto" sweeps, or,
            for a method that needs independent minibatches, takes slices if there are at least 200, and else rows.
        shared: Whether all chains see the same minibatch in a step. By default each sees its own.

    Raises:
        SettingError: If `size` is not a whole number above 0.
    """

    size: int
    order: Literal["auto", "sweep", "slices", "rows"] = "auto"
    shared: bool = False

    def __post_init__(self) -> None:
        checks.choice("Batches", "order", self.order, ("auto", "sweep", "slices", "rows"))
        if isinstance(self.size, bool) or not isinstance(self.size, (int, np.integer)) or self.size < 1:
            raise SettingError(f"`batch_size` must be a whole number of rows, at least 1; got {self.size!r}.")
        object.__setattr__(self, "size", int(self.size))

    def check(self, num_data: int) -> None:
        """Raises a SettingError if the data has fewer rows than a batch."""
        if num_data == 0:
            raise SettingError(f"`batch_size={self.size}` needs rows, and there is no `data`.")
        if self.size > num_data:
            raise SettingError(
                f"`batch_size` is {self.size}, but the data has {num_data} rows. Take at most {num_data}, or leave "
                "`batch_size` out to use all rows in every step."
            )

    def resolved(self, num_data: int, independent: bool) -> Batches:
        """The same with "auto" replaced by an order.

        Raises:
            SettingError: If a method needs independent minibatches and the order is "sweep".
        """
        if independent and self.order == "sweep":
            raise SettingError(
                "`Batches(order='sweep')`: this method needs minibatches that are independent from step to step, and "
                "those of a sweep are not. Take order='slices' or 'rows', or leave it out."
            )
        if self.order != "auto":
            return self
        order = "sweep" if not independent else "slices" if self.num_slices(num_data) >= LEAST_SLICES else "rows"
        return dataclasses.replace(self, order=order)

    def num_slices(self, num_data: int) -> int:
        """How many steps an epoch has."""
        return -(-num_data // self.size)

    def reshuffle_period(self, num_data: int) -> int:
        """After how many steps the order of the rows is drawn anew."""
        slices = self.num_slices(num_data)
        return max(1000, (100 if slices < LEAST_SLICES else 1000) * slices)

    def lay_out(self, columns: dict[str, np.ndarray], num_data: int, seed: Any) -> dict[str, jax.Array]:
        """The first `num_data` rows in random order, with the first `size` of them repeated at the end."""
        order = np.random.default_rng(seed).permutation(num_data)
        order = np.concatenate([order, order[: self.size]])
        return {name: jnp.asarray(column[order]) for name, column in columns.items()}

    def take(self, data: Batch, num_data: int, key: Key, step: jax.Array) -> Batch:
        """The minibatch of one step: a pure function of the key and the step."""
        if self.order == "rows":
            index = jax.random.randint(at_step(key, step), (self.size,), 0, num_data)
            return jax.tree.map(lambda array: array[index], data)
        start = self._start(key, step, num_data)
        return jax.tree.map(lambda array: jax.lax.dynamic_slice_in_dim(array, start, self.size), data)

    def _start(self, key: Key, step: jax.Array, num_data: int) -> jax.Array:
        # A counter-based hash and not a jax.random call: this runs in every step, and there a scalar threefry costs
        # a third of a whole gradient of 1,000 x 50 rows.
        slices = 1 if self.order == "slices" else self.num_slices(num_data)
        epoch, slice_ = jnp.divmod(jnp.asarray(step, jnp.uint32), slices)
        words = jax.random.key_data(key)
        offset = mix(words[0] ^ mix(words[-1] ^ mix(epoch))) % num_data
        return ((offset + slice_ * self.size) % num_data).astype(jnp.int32)


spelling.check_keywords(Batches)


class Layout:
    """Rows in random orders, one after the other, each a function of the seed and of its number.

    Args:
        batches: How minibatches are drawn.
        data: The rows, in their own order.
        seed: Of all orders.

    Attributes:
        num_rows: How many rows there are.
        num_steps: How many steps a pass has.
    """

    def __init__(self, batches: Batches, data: Batch, seed: Seed) -> None:
        self._columns = {name: np.asarray(column) for name, column in data.items()}
        self.num_rows = len(next(iter(self._columns.values())))
        self._batches, self._seed = batches, seed
        self.num_steps = batches.num_slices(self.num_rows)
        self._number, self._data = -1, data

    def at(self, step: int) -> tuple[Batch, int]:
        """The rows in the order that they have at a step, and how many steps they keep it from there."""
        period = self._batches.reshuffle_period(self.num_rows)
        number, since = divmod(step, period) if self._batches.order != "rows" else (0, 0)
        if number != self._number:
            words = [*self._seed.words, number]
            self._data = self._batches.lay_out(self._columns, self.num_rows, words)
            self._number = number
        return self._data, period - since if self._batches.order != "rows" else FOREVER
