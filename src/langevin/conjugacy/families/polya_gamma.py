"""The Pólya-gamma variable that makes a logistic likelihood Gaussian.

    p(w) = exp(eta w - A) PG(w | n, 0)        eta = -c^2 / 2        which is PG(n, c)

    A = -n log cosh(c / 2)        E w = n tanh(c / 2) / (2 c)

Here, and in no other family, the density is with respect to the distribution PG(n, 0), not to Lebesgue measure. The
"entropy" A - eta E w is therefore minus the Kullback-Leibler divergence of PG(n, c) from PG(n, 0), which is what the
evidence lower bound of an augmented model needs.

Polson, Scott and Windle (2013), Bayesian inference for logistic models using Pólya-Gamma latent variables.
"""

from __future__ import annotations

import dataclasses
import math
from typing import Any

import jax
import jax.numpy as jnp

from langevin.conjugacy.families.base import Family, Statistics, finite, like_of, static_field
from langevin.conjugacy.families.polya_gamma_draws import polya_gamma_draw

# Below this (c / 2)^2, five terms of Taylor's series are as exact as double precision.
SMALL_SQUARE = 0.0025
LOG_COSH_SERIES = (1 / 2, -1 / 12, 1 / 45, -17 / 2520, 31 / 14175)
TANH_SERIES = (1.0, -1 / 3, 2 / 15, -17 / 315, 62 / 2835)


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True, eq=False)
class PolyaGamma(Family):
    """Independent w ~ PG(count, c); t = {"omega": w}.

    Attributes:
        shape: The shape of w.
        count: Positive whole numbers that broadcast to `shape`, and are a leaf of this pytree: 1 for a Bernoulli
            outcome, the number of trials for a binomial one.
    """

    shape: tuple[int, ...] = static_field()
    count: Any = 1

    @property
    def value_shape(self) -> tuple[int, ...]:
        """The shape of w."""
        return self.shape

    def like(self) -> dict[str, jax.ShapeDtypeStruct]:
        """One number for each element."""
        return like_of(omega=self.shape)

    def statistics(self, value: jax.Array) -> Statistics:
        """W itself."""
        return {"omega": value}

    def log_normalizer(self, eta: Statistics) -> jax.Array:
        """A(eta), summed over the elements."""
        square = -eta["omega"] / 2
        return -jnp.sum(self._count(eta) * _of_square(square, _log_cosh, LOG_COSH_SERIES, lowest=1))

    def expected(self, eta: Statistics) -> Statistics:
        """E w, which is count / 4 at c = 0."""
        square = -eta["omega"] / 2
        return {"omega": self._count(eta) * _of_square(square, _tanh_ratio, TANH_SERIES, lowest=0) / 4}

    def sample(self, key: jax.Array, eta: Statistics) -> jax.Array:
        """A draw: the sum of `count` exact draws of PG(1, c)."""
        return polya_gamma_draw(key, self._count(eta), jnp.sqrt(jnp.maximum(-2 * eta["omega"], 0)))

    def proper(self, eta: Statistics) -> jax.Array:
        """Whether eta is -c^2 / 2 of a number c, and every count is positive."""
        return finite(eta) & jnp.all(eta["omega"] <= 0) & jnp.all(self._count(eta) > 0)

    def described(self, eta: Statistics) -> dict[str, jax.Array]:
        """The count, and the tilt c."""
        return {"count": self._count(eta), "tilt": jnp.sqrt(jnp.maximum(-2 * eta["omega"], 0))}

    def _count(self, eta: Statistics) -> jax.Array:
        return jnp.broadcast_to(jnp.asarray(self.count, eta["omega"].dtype), eta["omega"].shape)


def _log_cosh(y: jax.Array) -> jax.Array:
    return y + jnp.log1p(jnp.exp(-2 * y)) - math.log(2)


def _tanh_ratio(y: jax.Array) -> jax.Array:
    return jnp.tanh(y) / y


def _of_square(square: jax.Array, function: Any, series: tuple[float, ...], lowest: int) -> jax.Array:
    """An even function of y, given y^2, whose derivatives are finite at 0 too."""
    small = square < SMALL_SQUARE
    near, little = jnp.zeros_like(square), jnp.where(small, square, 0)
    for coefficient in reversed(series):
        near = near * little + coefficient
    far = function(jnp.sqrt(jnp.where(small, 1, square)))
    return jnp.where(small, near * little**lowest, far)
