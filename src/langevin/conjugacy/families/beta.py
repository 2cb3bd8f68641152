"""A number between 0 and 1.

log p(z) = (a - 1) log z + (b - 1) log(1 - z) - A        A = log B(a, b)
"""

from __future__ import annotations

import dataclasses

import jax
import jax.numpy as jnp
from jax.scipy.special import digamma, gammaln

from langevin.conjugacy.families.base import Family, Statistics, finite, like_of, static_field


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class Beta(Family):
    """Independent z ~ Beta; t = {"log": log z, "log1m": log(1 - z)}.

    Attributes:
        shape: The shape of z.
    """

    shape: tuple[int, ...] = static_field()

    @property
    def value_shape(self) -> tuple[int, ...]:
        """The shape of z."""
        return self.shape

    def like(self) -> dict[str, jax.ShapeDtypeStruct]:
        """Two logarithms of each element."""
        return like_of(log=self.shape, log1m=self.shape)

    def statistics(self, value: jax.Array) -> Statistics:
        """Log z and log(1 - z)."""
        return {"log": jnp.log(value), "log1m": jnp.log1p(-value)}

    def log_normalizer(self, eta: Statistics) -> jax.Array:
        """A(eta), summed over the elements."""
        # JAX's betaln is an asymptotic series that is off by up to 4e-7, and by another amount on either side of 8.
        first, second = eta["log"] + 1, eta["log1m"] + 1
        return jnp.sum(gammaln(first) + gammaln(second) - gammaln(first + second))

    def expected(self, eta: Statistics) -> Statistics:
        """E log z and E log(1 - z)."""
        total = digamma(eta["log"] + eta["log1m"] + 2)
        return {name: digamma(array + 1) - total for name, array in eta.items()}

    def sample(self, key: jax.Array, eta: Statistics) -> jax.Array:
        """A draw, never quite 0 or 1: of two gamma variables, the share of the first."""
        first, second = jax.random.split(key)
        success = jax.random.loggamma(first, eta["log"] + 1, dtype=eta["log"].dtype)
        logit = success - jax.random.loggamma(second, eta["log1m"] + 1, dtype=eta["log1m"].dtype)
        limits = jnp.finfo(logit.dtype)
        return jnp.clip(jax.nn.sigmoid(logit), limits.tiny, 1 - limits.epsneg)

    def proper(self, eta: Statistics) -> jax.Array:
        """Whether both concentrations are positive."""
        return finite(eta) & jnp.all((eta["log"] > -1) & (eta["log1m"] > -1))

    def described(self, eta: Statistics) -> dict[str, jax.Array]:
        """Both concentrations."""
        return {"concentration1": eta["log"] + 1, "concentration0": eta["log1m"] + 1}
