"""Positive definite matrices, by the inverse of their Cholesky factor.

    P = L L^T        M = L^{-1}        P^{-1} = M^T M        log |P| = -2 sum_i log M_ii

Thousands of small matrices at a time are common. On a CPU one call of LAPACK for each is slow, and so is XLA's product
of a batch. Both are therefore written out up to some number of rows, and run on all matrices at once. NaN is the answer
for a matrix that is not positive definite.
"""

from __future__ import annotations

import functools
import operator

import jax
import jax.numpy as jnp
import numpy as np
from jax.scipy.linalg import solve_triangular

LARGEST_FACTOR = 6
LARGEST_PRODUCT = 16


def from_halves(half: jax.Array) -> jax.Array:
    """The precision -(H + H^T) of the density exp(x^T H x), for an H that need not be symmetric."""
    return -(half + transposed(half))


def inverse_root(matrix: jax.Array) -> jax.Array:
    """The inverse of the lower Cholesky factor, for each matrix on the last two axes."""
    if matrix.shape[-1] <= LARGEST_FACTOR:
        return _written_out(matrix)
    root = jnp.linalg.cholesky(matrix)
    identity = jnp.broadcast_to(jnp.eye(matrix.shape[-1], dtype=matrix.dtype), matrix.shape)
    return solve_triangular(root, identity, lower=True)


def drawn(matrix: jax.Array, vector: jax.Array, noise: jax.Array) -> jax.Array:
    """P^{-1} h, and noise with covariance P^{-1}: of large matrices without their inverse."""
    if matrix.shape[-1] <= LARGEST_FACTOR:
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
    return product(transposed(inverse_root), inverse_root)


def product(left: jax.Array, right: jax.Array) -> jax.Array:
    """The product of matrices."""
    size = left.shape[-1]
    if size > LARGEST_PRODUCT:
        return left @ right
    return _total([left[..., :, k, None] * right[..., k, None, :] for k in range(size)])


def transposed(matrix: jax.Array) -> jax.Array:
    """Its rows as columns."""
    return jnp.swapaxes(matrix, -1, -2)


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
            gap = matrix[..., i, j] - _dot(row, factor[j][:j])
            row.append(gap * inverted[j][j])
        diagonal = jax.lax.rsqrt(matrix[..., i, i] - _dot(row, row))
        left = [-diagonal * _dot(row[j:], [inverted[k][j] for k in range(j, i)]) for j in range(i)]
        factor.append(row)
        inverted.append([*left, diagonal])
    # A sum of unit matrices, which XLA makes in one pass; to stack the entries is several times slower.
    units = np.eye(size)[:, None, :, None] * np.eye(size)[None, :, None, :]
    entries = [(i, j) for i in range(size) for j in range(i + 1)]
    return _total([inverted[i][j][..., None, None] * units[i, j].astype(matrix.dtype) for i, j in entries])


def _dot(left: list[jax.Array], right: list[jax.Array]) -> jax.Array | float:
    return _total([a * b for a, b in zip(left, right, strict=True)]) if left else 0.0


def _total(terms: list[jax.Array]) -> jax.Array:
    return functools.reduce(operator.add, terms)
