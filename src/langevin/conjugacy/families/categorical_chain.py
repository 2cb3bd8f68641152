"""A time series of indices, each of which depends on its neighbours only: the path of a hidden Markov model.

    log p(z) = sum_t a_t(z_t) + sum_t b_t(z_t, z_{t+1}) - A

The filter runs forward, on the logarithmic scale, and the smoother back:

    f_1 = a_1 - A_1        f_{t+1}(j) = a_{t+1}(j) + log sum_i exp(f_t(i) + b_t(i, j)) - A_{t+1}        A = sum_t A_t

    p(z_t = i | z_{t+1} = j) ~ exp(f_t(i) + b_t(i, j))

where A_t is what makes exp(f_t) sum to 1. The last line gives the probabilities of pairs, and the draws.
"""

from __future__ import annotations

import dataclasses
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from langevin.conjugacy.families.base import Family, Statistics, like_of, static_field
from langevin.conjugacy.families.shares import draw, log_sum, shares


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class CategoricalChain(Family):
    """Independent series of indices from 0 to K - 1.

    t = {"onehot": 1[z_t = k], "pair": 1[z_t = i] 1[z_{t+1} = j]}, on the axes k, t and i, j, t, then those of `shape`.
    An eta of -inf makes a value, or a step, impossible.

    Attributes:
        num_values: K.
        length: T, how many indices a series has.
        shape: How many series, as a shape.
    """

    num_values: int = static_field()
    length: int = static_field()
    shape: tuple[int, ...] = static_field()

    @property
    def value_shape(self) -> tuple[int, ...]:
        """The shape of z, with time first."""
        return (self.length, *self.shape)

    def like(self) -> dict[str, jax.ShapeDtypeStruct]:
        """An indicator of each value at each time, and of each pair of values at neighbouring times."""
        values = self.num_values
        return like_of(onehot=(values, self.length, *self.shape), pair=(values, values, self.length - 1, *self.shape))

    def statistics(self, value: jax.Array) -> Statistics:
        """The indicators."""
        onehot = jax.nn.one_hot(value, self.num_values, axis=0, dtype=jnp.result_type(float))
        return {"onehot": onehot, "pair": onehot[:, None, :-1] * onehot[None, :, 1:]}

    def log_normalizer(self, eta: Statistics) -> jax.Array:
        """A(eta), summed over the series."""
        return jnp.sum(_filtered(eta).log_scale)

    def expected(self, eta: Statistics) -> Statistics:
        """The probabilities of values and of pairs."""
        filtered = _filtered(eta)
        backward = shares(filtered.log_probs[:-1, :, None] + filtered.pair, axis=1)

        def earlier(probs: jax.Array, backward: jax.Array) -> tuple[jax.Array, tuple[jax.Array, jax.Array]]:
            pair = backward * probs
            probs = jnp.sum(pair, axis=1)
            return probs, (probs, pair)

        last = shares(filtered.log_probs[-1])
        _, (probs, pair) = jax.lax.scan(earlier, last, backward, reverse=True)
        onehot = jnp.concatenate([probs, last[None]])
        return {"onehot": jnp.moveaxis(onehot, 0, 1), "pair": jnp.moveaxis(pair, 0, 2)}

    def sample(self, key: jax.Array, eta: Statistics) -> jax.Array:
        """A draw, from the last index to the first."""
        filtered = _filtered(eta)
        keys = jax.random.split(key, self.length)

        def earlier(later: jax.Array, inputs: tuple[jax.Array, ...]) -> tuple[jax.Array, jax.Array]:
            key, log_probs, pair = inputs
            to_later = jnp.take_along_axis(pair, later[None, None], axis=1)[:, 0]
            value = draw(key, log_probs + to_later)
            return value, value

        last = draw(keys[-1], filtered.log_probs[-1])
        inputs = (keys[:-1], filtered.log_probs[:-1], filtered.pair)
        _, values = jax.lax.scan(earlier, last, inputs, reverse=True)
        return jnp.concatenate([values, last[None]])

    def proper(self, eta: Statistics) -> jax.Array:
        """Whether every series has a possible path, and no eta is NaN or inf."""
        return jnp.all(jnp.isfinite(_filtered(eta).log_scale))

    def described(self, eta: Statistics) -> dict[str, jax.Array]:
        """The probabilities of each value at each time, and of each next value, with values on the last axes."""
        expected = self.expected(eta)
        before = expected["onehot"][:, None, :-1]
        onward = expected["pair"] / jnp.where(before == 0, 1, before)
        return {
            "probs": jnp.moveaxis(expected["onehot"], 0, -1),
            "transition_probs": jnp.moveaxis(onward, (0, 1), (-2, -1)),
        }


class Filtered(NamedTuple):
    """The filter, with time on the first axis: f_t, A_t, and the etas of pairs."""

    log_probs: jax.Array
    log_scale: jax.Array
    pair: jax.Array


def _filtered(eta: Statistics) -> Filtered:
    """From the first index to the last: its probabilities given the past."""
    onehot, pair = jnp.moveaxis(eta["onehot"], 1, 0), jnp.moveaxis(eta["pair"], 2, 0)

    def later(log_probs: jax.Array, inputs: tuple[jax.Array, jax.Array]) -> tuple[jax.Array, Any]:
        value, pair = inputs
        scaled = _scaled(value + log_sum(log_probs[:, None] + pair))
        return scaled[0], scaled

    first = _scaled(onehot[0])
    _, (log_probs, log_scale) = jax.lax.scan(later, first[0], (onehot[1:], pair))
    return Filtered(jnp.concatenate([first[0][None], log_probs]), jnp.concatenate([first[1][None], log_scale]), pair)


def _scaled(log_probs: jax.Array) -> tuple[jax.Array, jax.Array]:
    """Logarithms of probabilities that sum to 1, and of what they were divided by."""
    log_scale = log_sum(log_probs)
    return log_probs - jnp.where(jnp.isneginf(log_scale), 0, log_scale), log_scale
