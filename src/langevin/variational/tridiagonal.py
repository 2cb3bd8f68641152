"""Gaussians with a tridiagonal precision, in O(length): paths of a Markov chain.

    P = tridiag(off, diag, off) = (I + U) D (I + U)^T,   D = diag(d),   U_{t, t+1} = u_t = off_t / d_{t+1}

read from the last step to the first,

    d_T = diag_T,   d_t = diag_t - off_t^2 / d_{t+1}

so that a path is drawn forwards in time, as a chain that is no longer homogeneous:

    x_1 = e_1 / sqrt(d_1),   x_{t+1} = -u_t x_t + e_{t+1} / sqrt(d_{t+1}),   e standard normal

and means, variances and covariances of neighbours follow by the same recursion. All are linear recurrences of first
order but that of d, which is a product of matrices; each can go step by step (`jax.lax.scan`) or in parallel
(`jax.lax.associative_scan`).
"""

from __future__ import annotations

from typing import NamedTuple

import jax
import jax.numpy as jnp

SMALLEST = 1e-30


class Factor(NamedTuple):
    """The factors of a precision.

    Attributes:
        d: (length,): of D.
        u: (length - 1,): above the diagonal of U.
    """

    d: jax.Array
    u: jax.Array


def factor(diag: jax.Array, off: jax.Array, *, parallel: bool | None = None) -> Factor:
    """The factors of the precision with this diagonal and this off-diagonal, which must be positive definite."""
    if _in_parallel(parallel):
        d = _pivots_in_parallel(diag, off)
    else:
        step = lambda later, x: (now := x[0] - x[1] / later, now)  # noqa: E731
        rest = jax.lax.scan(step, diag[-1], (diag[:-1], off**2), reverse=True)[1]
        d = jnp.concatenate([rest, diag[-1:]])
    return Factor(d, off / d[1:])


def log_det(factors: Factor) -> jax.Array:
    """The log-determinant of the precision."""
    return jnp.sum(jnp.log(factors.d))


def solve(factors: Factor, right: jax.Array, *, parallel: bool | None = None) -> jax.Array:
    """The x with P x = right."""
    z = _backwards(factors.u, right, parallel)
    return _forwards(factors.u, z / factors.d, parallel)


def moments(factors: Factor, *, parallel: bool | None = None) -> tuple[jax.Array, jax.Array]:
    """The variances, (length,), and the covariances of neighbours, (length - 1,)."""
    gain = jnp.concatenate([jnp.zeros_like(factors.u[:1]), factors.u**2])
    variance = _recurrence(gain, 1 / factors.d, parallel)
    return variance, -factors.u * variance[:-1]


def draw(factors: Factor, noise: jax.Array, *, parallel: bool | None = None) -> jax.Array:
    """A path with mean 0, from standard normal noise."""
    return _forwards(factors.u, noise / jnp.sqrt(factors.d), parallel)


def log_prob(factors: Factor, centred: jax.Array) -> jax.Array:
    """The log-density of a path minus its mean."""
    moved = centred.at[1:].add(factors.u * centred[:-1])
    return (log_det(factors) - jnp.sum(factors.d * moved**2) - centred.size * jnp.log(2 * jnp.pi)) / 2


def _forwards(u: jax.Array, pushes: jax.Array, parallel: bool | None) -> jax.Array:
    """x_{t+1} = -u_t x_t + push_{t+1}."""
    return _recurrence(jnp.concatenate([jnp.zeros_like(u[:1]), -u]), pushes, parallel)


def _backwards(u: jax.Array, pushes: jax.Array, parallel: bool | None) -> jax.Array:
    """z_t = -u_t z_{t+1} + push_t."""
    return _recurrence(jnp.concatenate([jnp.zeros_like(u[:1]), -u[::-1]]), pushes[::-1], parallel)[::-1]


def _recurrence(gains: jax.Array, pushes: jax.Array, parallel: bool | None) -> jax.Array:
    """x_t = gain_t x_{t-1} + push_t, from 0."""
    if _in_parallel(parallel):
        then = lambda a, b: (a[0] * b[0], b[0] * a[1] + b[1])  # noqa: E731
        return jax.lax.associative_scan(then, (gains, pushes))[1]
    step = lambda x, inputs: (now := inputs[0] * x + inputs[1], now)  # noqa: E731
    return jax.lax.scan(step, jnp.zeros_like(pushes[0]), (gains, pushes))[1]


def _pivots_in_parallel(diag: jax.Array, off: jax.Array) -> jax.Array:
    """The pivots by products of the matrices ((diag, -off^2), (1, 0)), each divided by its largest number."""
    squares = jnp.concatenate([jnp.zeros_like(off[:1]), off[::-1] ** 2])
    ones, zeros = jnp.ones_like(diag), jnp.zeros_like(diag)
    # Pivots of the size of the diagonal, so that no product overflows.
    scale = diag[::-1]
    matrices = (ones, -squares / scale, 1 / scale * ones, zeros)

    def then(one: tuple[jax.Array, ...], other: tuple[jax.Array, ...]) -> tuple[jax.Array, ...]:
        a, b, c, d = one
        e, f, g, h = other
        made = (e * a + f * c, e * b + f * d, g * a + h * c, g * b + h * d)
        largest = jnp.maximum(jnp.max(jnp.abs(jnp.stack(made)), axis=0), SMALLEST)
        return tuple(part / largest for part in made)

    a, _, c, _ = jax.lax.associative_scan(then, matrices)
    return (a / c)[::-1]


def _in_parallel(asked: bool | None) -> bool:
    # On a CPU step by step is two to four times faster at every length from 300 to 10^6 (one core), and loses fewer
    # digits; an accelerator has no use for a million steps one after another.
    return jax.default_backend() != "cpu" if asked is None else asked
