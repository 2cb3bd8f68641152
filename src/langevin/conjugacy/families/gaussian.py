"""A vector with a normal distribution.

log p(x) = h . x + <H, x x^T> - A        precision P = -(H + H^T), mean m = P^{-1} h

A = h^T P^{-1} h / 2 - log |P| / 2 + d log(2 pi) / 2        E x x^T = P^{-1} + m m^T
"""

from __future__ import annotations

import dataclasses
import math

import jax
import jax.numpy as jnp

from langevin.conjugacy.families import definite
from langevin.conjugacy.families.base import Family, Statistics, finite, like_of, static_field

LOG_TWO_PI = math.log(2 * math.pi)


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class Gaussian(Family):
    """Independent vectors x of a size; t = {"x": x, "xx": x x^T}. The eta of "xx" need not be symmetric.

    Attributes:
        batch: How many vectors, as a shape.
        size: The length of a vector.
    """

    batch: tuple[int, ...] = static_field()
    size: int = static_field()

    @property
    def value_shape(self) -> tuple[int, ...]:
        """The shape of all vectors."""
        return (*self.batch, self.size)

    def like(self) -> dict[str, jax.ShapeDtypeStruct]:
        """A vector and a matrix for each element of the batch."""
        return like_of(x=self.value_shape, xx=(*self.value_shape, self.size))

    def statistics(self, value: jax.Array) -> Statistics:
        """The vectors, and their outer products."""
        return {"x": value, "xx": value[..., :, None] * value[..., None, :]}

    def log_normalizer(self, eta: Statistics) -> jax.Array:
        """A(eta), summed over the batch."""
        root = _root(eta)
        lengths = jnp.sum(definite.whitened(root, eta["x"]) ** 2)
        return 0.5 * (lengths - jnp.sum(definite.log_det(root)) + eta["x"].size * LOG_TWO_PI)

    def expected(self, eta: Statistics) -> Statistics:
        """E x and E x x^T."""
        mean, covariance = _moments(eta)
        return {"x": mean, "xx": covariance + mean[..., :, None] * mean[..., None, :]}

    def sample(self, key: jax.Array, eta: Statistics) -> jax.Array:
        """A draw."""
        noise = jax.random.normal(key, eta["x"].shape, eta["x"].dtype)
        return definite.drawn(definite.from_halves(eta["xx"]), eta["x"], noise)

    def proper(self, eta: Statistics) -> jax.Array:
        """Whether every precision is positive definite."""
        return finite(eta) & definite.is_definite(_root(eta))

    def described(self, eta: Statistics) -> dict[str, jax.Array]:
        """The mean and the covariance; the mean and the standard deviation if the size is 1."""
        mean, covariance = _moments(eta)
        if self.size == 1:
            return {"loc": mean, "scale": jnp.sqrt(covariance[..., 0])}
        return {"loc": mean, "covariance_matrix": covariance}


def _root(eta: Statistics) -> jax.Array:
    return definite.inverse_root(definite.from_halves(eta["xx"]))


def _moments(eta: Statistics) -> tuple[jax.Array, jax.Array]:
    root = _root(eta)
    return definite.coloured(root, definite.whitened(root, eta["x"])), definite.inverse(root)
