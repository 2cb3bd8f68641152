"""A positive definite matrix.

    log p(W) = <E, W> + (n - d - 1) / 2 log |W| - A        rate R = -(E + E^T), n degrees of freedom

    A = n d log(2) / 2 - n log |R| / 2 + log Gamma_d(n / 2)

    E W = n R^{-1}        E log |W| = sum_i digamma((n - i) / 2) + d log 2 - log |R|        i = 0 ... d - 1

The density is that of the entries on and below the diagonal.
"""

from __future__ import annotations

import dataclasses
import math

import jax
import jax.numpy as jnp
from jax.scipy.special import digamma, multigammaln

from langevin.conjugacy.families import definite
from langevin.conjugacy.families.base import Family, Statistics, finite, like_of, static_field


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class Wishart(Family):
    """Independent W ~ Wishart; t = {"matrix": W, "logdet": log |W|}. The eta of "matrix" need not be symmetric.

    Attributes:
        shape: How many matrices, as a shape.
        dim: d, the number of rows of a matrix.
    """

    shape: tuple[int, ...] = static_field()
    dim: int = static_field()

    @property
    def value_shape(self) -> tuple[int, ...]:
        """The shape of all matrices."""
        return (*self.shape, self.dim, self.dim)

    @property
    def precision_power(self) -> float:
        """That which multiplies squares."""
        return 1.0

    def like(self) -> dict[str, jax.ShapeDtypeStruct]:
        """A matrix and a number for each element."""
        return like_of(matrix=self.value_shape, logdet=self.shape)

    def statistics(self, value: jax.Array) -> Statistics:
        """The matrices, and the logarithms of their determinants."""
        return {"matrix": value, "logdet": definite.log_det(definite.inverse_root(value))}

    def log_normalizer(self, eta: Statistics) -> jax.Array:
        """A(eta), summed over the matrices."""
        concentration, root = self._usual(eta)
        log_scale = self.dim * math.log(2) - definite.log_det(root)
        return jnp.sum(concentration * log_scale / 2 + multigammaln(concentration / 2, self.dim))

    def expected(self, eta: Statistics) -> Statistics:
        """E W and E log |W|."""
        concentration, root = self._usual(eta)
        halves = (concentration[..., None] - jnp.arange(self.dim)) / 2
        log_det = jnp.sum(digamma(halves), axis=-1) + self.dim * math.log(2) - definite.log_det(root)
        return {"matrix": concentration[..., None, None] * definite.inverse(root), "logdet": log_det}

    def sample(self, key: jax.Array, eta: Statistics) -> jax.Array:
        """A draw by Bartlett's decomposition: B B^T of a triangle of chi and normal variables, given its scale."""
        concentration, root = self._usual(eta)
        of_diagonal, of_rest = jax.random.split(key)
        halves = (concentration[..., None] - jnp.arange(self.dim)) / 2
        chi = jnp.sqrt(2 * jnp.exp(jax.random.loggamma(of_diagonal, halves, dtype=halves.dtype)))
        normal = jnp.tril(jax.random.normal(of_rest, root.shape, root.dtype), -1)
        triangle = normal + chi[..., None] * jnp.eye(self.dim, dtype=root.dtype)
        scaled = definite.product(definite.transposed(root), triangle)
        return definite.product(scaled, definite.transposed(scaled))

    def proper(self, eta: Statistics) -> jax.Array:
        """Whether the rate is positive definite, and there are more than d - 1 degrees of freedom."""
        concentration, root = self._usual(eta)
        return finite(eta) & definite.is_definite(root) & jnp.all(concentration > self.dim - 1)

    def described(self, eta: Statistics) -> dict[str, jax.Array]:
        """The degrees of freedom, and the rate: the inverse of the scale."""
        return {"concentration": self._usual(eta)[0], "rate_matrix": definite.from_halves(eta["matrix"])}

    def _usual(self, eta: Statistics) -> tuple[jax.Array, jax.Array]:
        """The degrees of freedom, and the inverse Cholesky factor of the rate."""
        root = definite.inverse_root(definite.from_halves(eta["matrix"]))
        return 2 * eta["logdet"] + self.dim + 1, root
