"""The curvature of a log-density at a point, and the Gaussian that it makes.

    q = N(mode, P^-1),    P = -Hessian of log p at the mode                    (Laplace's method; MacKay 1992)

The Hessian is summed over parts of the rows, in double precision, and so is all linear algebra.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax.flatten_util import ravel_pytree

from langevin.errors import SamplingError
from langevin.geometry import evaluating
from langevin.geometry.starts import flattened
from langevin.posterior import Batch, Position, Posterior, num_rows
from langevin.run.compilation import Programs

# A curvature below this share of the largest, in units in which it has a unit diagonal, is none: it may be rounding.
LEAST = 1e-7
# Numbers of one row in all directions that are computed side by side: many at a time are one matrix product.
MOST_AT_ONCE = 16_000_000

Sums = dict[str, np.ndarray]
"""What is summed over parts of the rows: "height", "gradient", and the curvature under names of its own."""


class Hessian:
    """Minus the second derivatives of a log-density, or their diagonal.

    Args:
        target: The posterior.
        example: A position, for its shape.
        programs: The compiled programs of the run.
        diagonal: Whether only the diagonal is computed.
        rows: Some of the rows, which then stand for all; None for all.
    """

    def __init__(
        self,
        target: Posterior,
        example: Position,
        programs: Programs,
        *,
        diagonal: bool = False,
        rows: Batch | None = None,
    ) -> None:
        self._target, self._example, self._programs, self._rows = target, example, programs, rows
        size, num_data = flattened(example).size, target.num_data if rows is None else num_rows(rows)
        a_part = None if rows is not None else evaluating.rows_of_curvature(target, size)
        self.num_parts = 1 if a_part is None else -(-num_data // a_part)
        # Directions at once: of a part of the rows all, of all rows as many as fit.
        at_once = size if a_part is not None else int(np.clip(MOST_AT_ONCE // max(num_data, 1), 1, size))
        self._static = _Work(a_part, at_once, diagonal)

    def add(self, sums: Sums, part: int, point: np.ndarray) -> Sums:
        """The sums with one more part of the rows."""
        at = point.astype(flattened(self._example).dtype)
        first = np.int32(part * (self._static.num_rows or 0))
        found = self._programs(_hessian, self._static, self._target, at, self._example, self._rows, first)
        return added(sums, dict(zip(("height", "gradient", "matrix"), found, strict=True)))

    def at(self, point: np.ndarray) -> Sums:
        """The sums over all parts."""
        sums: Sums = {}
        for part in range(self.num_parts):
            sums = self.add(sums, part, point)
        return sums


def added(sums: Sums, found: dict[str, Any]) -> Sums:
    """Sums and one more term, in double precision."""
    new = {name: np.asarray(value, np.float64) for name, value in found.items()}
    return {name: value + sums[name] if sums else value for name, value in new.items()}


class _Work(NamedTuple):
    """How the work is taken apart.

    Attributes:
        num_rows: How many rows to take at once; None for all.
        at_once: How many directions to take side by side.
        diagonal: Whether only the diagonal is computed.
    """

    num_rows: int | None
    at_once: int
    diagonal: bool


def _hessian(
    static: _Work, target: Posterior, point: jax.Array, example: Position, rows: Batch | None, first: jax.Array
) -> Any:
    _, unravel = ravel_pytree(example)

    def log_density(x: jax.Array) -> jax.Array:
        if static.num_rows is None:
            return target.log_density(unravel(x), rows)
        here, counts = rows_from(target, first, static.num_rows)
        log_prior, log_likelihood = target.terms(unravel(x), here)
        return jnp.where(first == 0, log_prior, 0.0) + jnp.sum(jnp.where(counts, log_likelihood, 0.0))

    def slope(x: jax.Array) -> tuple[jax.Array, jax.Array]:
        value, gradient = jax.value_and_grad(log_density)(x)
        return gradient, value

    gradient, back, value = jax.vjp(slope, point, has_aux=True)

    def row(index: jax.Array) -> jax.Array:
        product = back(jnp.zeros_like(point).at[index].set(1.0))[0]
        return product[index] if static.diagonal else product

    return value, gradient, -jax.lax.map(row, jnp.arange(point.size), batch_size=static.at_once)


def rows_from(target: Posterior, first: jax.Array, count: int) -> tuple[Batch, jax.Array]:
    """So many rows from this one on, and which of them count: the last part is as long as the others."""
    start = jnp.minimum(first, target.num_data - count)
    here = jax.tree.map(lambda array: jax.lax.dynamic_slice_in_dim(array, start, count), target.data)
    return here, start + jnp.arange(count) >= first


class Factor(NamedTuple):
    """A covariance R R^T.

    Attributes:
        factor: R, lower triangular with a positive diagonal.
        flat: In how many directions there was no curvature, or a negative one: there it is made up.
    """

    factor: np.ndarray
    flat: int


def factor_of(curvature: np.ndarray) -> Factor:
    """R with R R^T the inverse of a curvature.

    Where it is not positive definite, negative values count by their size, and a direction without any as if it had
    the least that can be told from rounding; a coordinate without any as if it had 1.

    Raises:
        SamplingError: If it is not finite.
    """
    check_finite(curvature)
    diagonal = np.diagonal(curvature)
    none = np.abs(diagonal) < 1e-30
    scale = 1 / np.sqrt(np.where(none, 1.0, np.abs(diagonal)))
    scaled = scale[:, None] * (curvature + curvature.T) / 2 * scale + np.diag(none.astype(np.float64))
    lower = None if none.any() or (diagonal < 0).any() else _inverse_root(scaled)
    if lower is not None:
        return Factor(scale[:, None] * lower, 0)
    values, vectors = np.linalg.eigh(scaled)
    least = LEAST * max(np.abs(values).max(), 1e-30)
    root = vectors / np.sqrt(np.maximum(np.abs(values), least))
    lower = np.linalg.qr(root.T)[1].T
    lower = lower * np.where(np.diagonal(lower) < 0, -1.0, 1.0)
    return Factor(scale[:, None] * lower, int((values < least).sum() + none.sum()))


def scales_of(diagonal: np.ndarray) -> tuple[np.ndarray, int]:
    """The sds that the diagonal of a curvature makes, and how many of them had none, or a negative one.

    Raises:
        SamplingError: If it is not finite.
    """
    check_finite(diagonal)
    least = LEAST * max(np.abs(diagonal).max(initial=0.0), 1e-30)
    return 1 / np.sqrt(np.maximum(np.abs(diagonal), least)), int((diagonal <= 0).sum())


def check_finite(curvature: np.ndarray) -> None:
    """Raises a SamplingError if there is a number that is not finite."""
    if not np.isfinite(curvature).all():
        raise SamplingError(
            "`Laplace`: the curvature at the mode is not finite, so there is no Gaussian around it. Look for a square "
            "root, a logarithm or an absolute value whose derivative is infinite there; or take method='nuts'."
        )


def _inverse_root(matrix: np.ndarray) -> np.ndarray | None:
    """Lower triangular R with R R^T the inverse; None if the matrix is not safely positive definite."""
    from scipy.linalg import solve_triangular

    try:
        # From the last coordinate to the first, so that the inverse of the root is lower triangular too.
        root = np.linalg.cholesky(matrix[::-1, ::-1])
    except np.linalg.LinAlgError:
        return None
    if np.diagonal(root).min() ** 2 < LEAST:
        return None
    inverse = solve_triangular(root, np.eye(len(root)), lower=True)
    return np.ascontiguousarray(inverse.T[::-1, ::-1])
