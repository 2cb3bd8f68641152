"""Positive definite matrices, by the inverse of their Cholesky factor.

    P = L L^T        M = L^{-1}        P^{-1} = M^T M        log |P| = -2 sum_i log M_ii

Thousands of small matrices at a time are common, for which one call of LAPACK each is slow: up to 3 rows, the
factorisation is written out, and runs on all of them at once. A matrix that is not positive definite gives NaN.
"""

from __future__ import annotations

import jax
import jax.numpy as jnp
from jax.scipy.linalg import solve_triangular

LARGEST_WRITTEN_OUT = 3


def from_halves(half: jax.Array) -> jax.Array:
    """The precision -(H + H^T) of the density exp(x^T H x), for an H that need not be symmetric."""
    return -(half + jnp.swapaxes(half, -1, -2))


def inverse_root(matrix: jax.Array) -> jax.Array:
    """The inverse of the lower Cholesky factor, for each matrix on the last two axes."""
    if matrix.shape[-1] <= LARGEST_WRITTEN_OUT:
        return _written_out(matrix)
    root = jnp.linalg.cholesky(matrix)
    identity = jnp.broadcast_to(jnp.eye(matrix.shape[-1], dtype=matrix.dtype), matrix.shape)
    return solve_triangular(root, identity, lower=True)


def drawn(matrix: jax.Array, vector: jax.Array, noise: jax.Array) -> jax.Array:
    """P^{-1} h, and noise with covariance P^{-1}: of large matrices without their inverse."""
    if matrix.shape[-1] <= LARGEST_WRITTEN_OUT:
        root = _written_out(matrix)
        return coloured(root, whitened(root, vector) + noise)
    root = jnp.linalg.cholesky(matrix)
    white = solve_triangular(root, vector[..., None], lower=True) + noise[..., None]
    return solve_triangular(root, white, lower=True, trans=1)[..., 0]


def log_det(inverse_root: jax.Array) -> jax.Array:
    """The logarithm of the determinant of P."""
    return -2 * jnp.sum(jnp.log(jnp.diagonal(inverse_root, axis1=-2, axis2=-1)), axis=-1)


def inverse(inverse_root: jax.Array) -> jax.Array:
    """The inverse of P."""
    return jnp.einsum("...ki,...kj->...ij", inverse_root, inverse_root)


def whitened(inverse_root: jax.Array, vector: jax.Array) -> jax.Array:
    """M v, whose squared length is v^T P^{-1} v."""
    return jnp.einsum("...ij,...j->...i", inverse_root, vector)


def coloured(inverse_root: jax.Array, vector: jax.Array) -> jax.Array:
    """M^T v: of standard normal numbers v, a draw with covariance P^{-1}; of M h, the solution of P x = h."""
    return jnp.einsum("...ji,...j->...i", inverse_root, vector)


def is_definite(inverse_root: jax.Array) -> jax.Array:
    """Whether every P was positive definite."""
    return jnp.all(jnp.isfinite(jnp.diagonal(inverse_root, axis1=-2, axis2=-1)))


def _written_out(matrix: jax.Array) -> jax.Array:
    """The rows of L, and of its inverse M, from the first to the last."""
    size = matrix.shape[-1]
    factor: list[list[jax.Array]] = []
    inverted: list[list[jax.Array]] = []
    for i in range(size):
        row: list[jax.Array] = []
        for j in range(i):
            gap = matrix[..., i, j] - _dot(row, factor[j][:j], like=matrix)
            row.append(gap * inverted[j][j])
        diagonal = jax.lax.rsqrt(matrix[..., i, i] - _dot(row, row, like=matrix))
        left = [-diagonal * _dot(row[j:], [inverted[k][j] for k in range(j, i)], like=matrix) for j in range(i)]
        factor.append([*row, jnp.reciprocal(diagonal)])
        inverted.append([*left, diagonal])
    zero = jnp.zeros_like(matrix[..., 0, 0])
    rows = [jnp.stack([*row, *[zero] * (size - len(row))], axis=-1) for row in inverted]
    return jnp.stack(rows, axis=-2)


def _dot(left: list[jax.Array], right: list[jax.Array], like: jax.Array) -> jax.Array:
    return sum((a * b for a, b in zip(left, right, strict=True)), start=jnp.zeros((), like.dtype))
