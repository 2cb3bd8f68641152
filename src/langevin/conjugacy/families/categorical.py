"""One of K values.

log p(z) = eta_z - A        A = log sum_k exp(eta_k)        E 1[z = k] = exp(eta_k - A)
"""

from __future__ import annotations

import dataclasses

import jax
import jax.numpy as jnp

from langevin.conjugacy.families.base import Family, Statistics, like_of, static_field
from langevin.conjugacy.families.shares import draw, log_sum, shares


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class Categorical(Family):
    """Independent indices z from 0 to K - 1; t = {"onehot": 1[z = k]}, k on the first axis.

    An eta of -inf makes a value impossible.

    Attributes:
        num_values: K.
        shape: The shape of z.
    """

    num_values: int = static_field()
    shape: tuple[int, ...] = static_field()

    @property
    def value_shape(self) -> tuple[int, ...]:
        """The shape of z."""
        return self.shape

    def like(self) -> dict[str, jax.ShapeDtypeStruct]:
        """An indicator of each value of each element."""
        return like_of(onehot=(self.num_values, *self.shape))

    def statistics(self, value: jax.Array) -> Statistics:
        """The indicators."""
        return {"onehot": jax.nn.one_hot(value, self.num_values, axis=0, dtype=jnp.result_type(float))}

    def log_normalizer(self, eta: Statistics) -> jax.Array:
        """A(eta), summed over the elements."""
        return jnp.sum(log_sum(eta["onehot"]))

    def expected(self, eta: Statistics) -> Statistics:
        """The probabilities."""
        return {"onehot": shares(eta["onehot"])}

    def sample(self, key: jax.Array, eta: Statistics) -> jax.Array:
        """A draw by inversion."""
        return draw(key, eta["onehot"])

    def proper(self, eta: Statistics) -> jax.Array:
        """Whether every element has a possible value, and none is NaN or inf."""
        return jnp.all(jnp.isfinite(log_sum(eta["onehot"])))

    def described(self, eta: Statistics) -> dict[str, jax.Array]:
        """The probabilities, with the values on the last axis."""
        return {"probs": jnp.moveaxis(shares(eta["onehot"]), 0, -1)}
