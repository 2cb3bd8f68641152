"""A time series with a normal distribution, of which each vector depends on its neighbours only.

    log p(x) = sum_t h_t . x_t + <H_t, x_t x_t^T> + sum_t <C_t, x_t x_{t+1}^T> - A

The precision is block tridiagonal: J_tt = -(H_t + H_t^T), J_{t,t+1} = -C_t. Its Cholesky factorisation, from the first
block to the last, is the Kalman filter in information form. With M_t the inverse Cholesky factor of the block that the
past leaves of J_tt,

    W_t = M_t J_{t,t+1}        u_t = M_t (h_t - W_{t-1}^T u_{t-1})        M_t^{-T} x_t = u_t - W_t x_{t+1} + noise

    A = sum_t |u_t|^2 / 2 + sum_t log |M_t| + T d log(2 pi) / 2

The last equation of the first line, read from the last vector to the first, is how to draw the series; its mean and its
covariance are the smoother of Rauch, Tung and Striebel. All of it takes time in proportion to T d^3.
"""

from __future__ import annotations

import dataclasses
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from langevin.conjugacy.families import definite
from langevin.conjugacy.families.base import Family, Statistics, finite, like_of, static_field
from langevin.conjugacy.families.gaussian import LOG_TWO_PI


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class GaussianChain(Family):
    """Independent series x; t = {"x": x_t, "xx": x_t x_t^T, "cross": x_t x_{t+1}^T}.

    The eta of "xx" need not be symmetric.

    Attributes:
        batch: How many series, as a shape.
        length: T, how many vectors a series has.
        size: d, the length of a vector.
    """

    batch: tuple[int, ...] = static_field()
    length: int = static_field()
    size: int = static_field()

    @property
    def value_shape(self) -> tuple[int, ...]:
        """The shape of all series."""
        return (*self.batch, self.length, self.size)

    def like(self) -> dict[str, jax.ShapeDtypeStruct]:
        """A vector and a matrix for each time, and a matrix for each two neighbours."""
        matrix = (self.size, self.size)
        return like_of(
            x=self.value_shape, xx=(*self.batch, self.length, *matrix), cross=(*self.batch, self.length - 1, *matrix)
        )

    def statistics(self, value: jax.Array) -> Statistics:
        """The vectors, their outer products, and those of neighbours."""
        return {
            "x": value,
            "xx": value[..., :, None] * value[..., None, :],
            "cross": value[..., :-1, :, None] * value[..., 1:, None, :],
        }

    def log_normalizer(self, eta: Statistics) -> jax.Array:
        """A(eta), summed over the batch."""
        chain = _factored(eta)
        return 0.5 * (jnp.sum(chain.u**2) - jnp.sum(definite.log_det(chain.root)) + eta["x"].size * LOG_TWO_PI)

    def expected(self, eta: Statistics) -> Statistics:
        """E x_t, E x_t x_t^T and E x_t x_{t+1}^T."""
        mean, covariance, lagged = _moments(eta)
        return {
            "x": mean,
            "xx": covariance + mean[..., :, None] * mean[..., None, :],
            "cross": lagged + mean[..., :-1, :, None] * mean[..., 1:, None, :],
        }

    def sample(self, key: jax.Array, eta: Statistics) -> jax.Array:
        """A draw, from the last vector to the first."""
        chain = _factored(eta)
        noise = jax.random.normal(key, chain.u.shape, chain.u.dtype)

        def earlier(later: jax.Array, inputs: tuple[Chain, jax.Array]) -> tuple[jax.Array, jax.Array]:
            at, noise = inputs
            x = definite.coloured(at.root, at.u - definite.whitened(at.w, later) + noise)
            return x, x

        _, series = jax.lax.scan(earlier, jnp.zeros_like(noise[0]), (chain, noise), reverse=True)
        return jnp.moveaxis(series, 0, -2)

    def proper(self, eta: Statistics) -> jax.Array:
        """Whether the precision of every series is positive definite."""
        return finite(eta) & definite.is_definite(_factored(eta).root)

    def described(self, eta: Statistics) -> dict[str, jax.Array]:
        """The mean and the covariance of each vector, and its covariance with the next."""
        mean, covariance, lagged = _moments(eta)
        return {"loc": mean, "covariance_matrix": covariance, "lagged_covariance": lagged}


class Chain(NamedTuple):
    """The factorisation, with time on the first axis; the w of the last time is 0."""

    root: jax.Array
    u: jax.Array
    w: jax.Array


def _factored(eta: Statistics) -> Chain:
    """From the first vector to the last: what the past leaves of each block, factorised."""
    diagonal = jnp.moveaxis(definite.from_halves(eta["xx"]), -3, 0)
    linear = jnp.moveaxis(eta["x"], -2, 0)
    after = jnp.concatenate([-jnp.moveaxis(eta["cross"], -3, 0), jnp.zeros_like(diagonal[:1])])

    def later(past: tuple[jax.Array, jax.Array], inputs: tuple[jax.Array, ...]) -> tuple[Any, Chain]:
        block, h, to_next = inputs
        root = definite.inverse_root(block - past[0])
        u, w = definite.whitened(root, h - past[1]), definite.product(root, to_next)
        return (definite.product(definite.transposed(w), w), definite.coloured(w, u)), Chain(root, u, w)

    nothing = jnp.zeros_like(diagonal[0]), jnp.zeros_like(linear[0])
    return jax.lax.scan(later, nothing, (diagonal, linear, after))[1]


def _moments(eta: Statistics) -> tuple[jax.Array, jax.Array, jax.Array]:
    """The mean and the covariance of each vector, and its covariance with the next."""
    chain = _factored(eta)
    gain = -definite.product(definite.transposed(chain.root), chain.w)
    given_next = definite.inverse(chain.root)

    def earlier(later: tuple[jax.Array, jax.Array], inputs: tuple[Any, ...]) -> tuple[Any, Any]:
        at, gain, given_next = inputs
        mean = definite.coloured(at.root, at.u - definite.whitened(at.w, later[0]))
        lagged = definite.product(gain, later[1])
        covariance = given_next + definite.product(lagged, definite.transposed(gain))
        return (mean, covariance), (mean, covariance, lagged)

    nothing = jnp.zeros_like(chain.u[0]), jnp.zeros_like(gain[0])
    _, (mean, covariance, lagged) = jax.lax.scan(earlier, nothing, (chain, gain, given_next), reverse=True)
    return jnp.moveaxis(mean, 0, -2), jnp.moveaxis(covariance, 0, -3), jnp.moveaxis(lagged[:-1], 0, -3)
