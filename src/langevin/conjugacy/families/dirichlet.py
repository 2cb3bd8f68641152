"""Positive numbers that sum to 1.

    log p(z) = sum_k (a_k - 1) log z_k - A        A = sum_k log Gamma(a_k) - log Gamma(sum_k a_k)

The density is that of all but the last number.
"""

from __future__ import annotations

import dataclasses

import jax
import jax.numpy as jnp
from jax.scipy.special import digamma, gammaln

from langevin.conjugacy.families.base import Family, Statistics, finite, like_of, static_field


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class Dirichlet(Family):
    """Independent z ~ Dirichlet; t = {"log": log z}.

    Attributes:
        shape: The shape of z; its last axis sums to 1.
    """

    shape: tuple[int, ...] = static_field()

    @property
    def value_shape(self) -> tuple[int, ...]:
        """The shape of z."""
        return self.shape

    def like(self) -> dict[str, jax.ShapeDtypeStruct]:
        """A logarithm of each number."""
        return like_of(log=self.shape)

    def statistics(self, value: jax.Array) -> Statistics:
        """Log z."""
        return {"log": jnp.log(value)}

    def log_normalizer(self, eta: Statistics) -> jax.Array:
        """A(eta), summed over the elements."""
        concentration = eta["log"] + 1
        return jnp.sum(gammaln(concentration)) - jnp.sum(gammaln(jnp.sum(concentration, axis=-1)))

    def expected(self, eta: Statistics) -> Statistics:
        """E log z."""
        concentration = eta["log"] + 1
        return {"log": digamma(concentration) - digamma(jnp.sum(concentration, axis=-1, keepdims=True))}

    def sample(self, key: jax.Array, eta: Statistics) -> jax.Array:
        """A draw, of no number quite 0: the shares of gamma variables."""
        value = jax.nn.softmax(jax.random.loggamma(key, eta["log"] + 1, dtype=eta["log"].dtype), axis=-1)
        return jnp.maximum(value, jnp.finfo(value.dtype).tiny)

    def proper(self, eta: Statistics) -> jax.Array:
        """Whether every concentration is positive."""
        return finite(eta) & jnp.all(eta["log"] > -1)

    def described(self, eta: Statistics) -> dict[str, jax.Array]:
        """The concentration."""
        return {"concentration": eta["log"] + 1}
