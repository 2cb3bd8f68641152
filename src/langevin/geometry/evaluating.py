"""The log-density and its derivatives at several flat points at once: on some rows, or on all of them, part by part.

Second derivatives go backwards twice: not every function can be differentiated forwards.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax.flatten_util import ravel_pytree

from langevin.posterior import Batch, Position, Posterior, num_rows

MOST_ROWS = 16_384
# Numbers of one row at all points that are computed side by side.
MOST_AT_ONCE = 2_000_000


def row_sample(posterior: Posterior) -> Batch | None:
    """Evenly spread rows, at most `MOST_ROWS`; None for all, where there are no more or the model needs all."""
    if not posterior.by_rows or posterior.num_data <= MOST_ROWS:
        return None
    return jax.tree.map(lambda array: array[evenly(posterior.num_data, MOST_ROWS)], posterior.data)


def evenly(num_data: int, count: int) -> np.ndarray:
    """The numbers of evenly spread rows."""
    return (np.arange(count) * num_data // count).astype(np.int32)


class Parts(NamedTuple):
    """How `slopes` takes its work apart.

    Attributes:
        num_points: How many points there are.
        num_rows: How many rows to take at once; None for all.
        at_once: How many points to take side by side, if all rows are taken at once.
    """

    num_points: int
    num_rows: int | None
    at_once: int


def parts(target: Posterior, num_points: int, rows: Batch | None = None) -> Parts:
    """What fits into memory, on all rows or on these."""
    most = max(MOST_AT_ONCE // num_points, 1)
    num_data = target.num_data if rows is None else num_rows(rows)
    if rows is None and target.by_rows and num_data > most:
        return Parts(num_points, most, num_points)
    return Parts(num_points, None, num_points if num_data <= most or target.by_rows else 1)


def slopes(static: Parts, target: Posterior, points: jax.Array, example: Position, rows: Batch | None) -> Any:
    """Log-densities (points,) and gradients (points, size), of each part of the rows: see `summed`.

    Args:
        static: How to take it apart: see `parts`.
        target: The posterior.
        points: Flat positions (points, size).
        example: A position, for its shape.
        rows: Some of the rows, which then stand for all; None for all.
    """
    _, unravel = ravel_pytree(example)
    rows_a_part = static.num_rows
    if rows_a_part is None:
        one = jax.value_and_grad(lambda x: target.log_density(unravel(x), rows))
        whole = jax.vmap(one)(points) if static.num_points <= static.at_once else jax.lax.map(one, points)
        return jax.tree.map(lambda leaf: leaf[None], whole)
    return _in_parts(
        target, rows_a_part, lambda share: jax.vmap(jax.value_and_grad(lambda x: share(unravel(x))))(points)
    )


def curvatures(
    rows_a_part: int | None, target: Posterior, points: jax.Array, example: Position, rows: Batch | None
) -> Any:
    """Log-densities (points,), gradients (points, size) and negative Hessians, of each part of the rows: see `summed`.

    Args:
        rows_a_part: How many rows to take at once; None for all.
        target: The posterior.
        points: Flat positions (points, size).
        example: A position, for its shape.
        rows: Some of the rows, which then stand for all; None for all.
    """
    _, unravel = ravel_pytree(example)

    def derivatives(log_density: Callable[[jax.Array], jax.Array], x: jax.Array) -> Any:
        value, gradient = jax.value_and_grad(log_density)(x)
        return value, gradient, -jax.jacrev(jax.grad(log_density))(x)

    if rows_a_part is None:
        whole = jax.lax.map(lambda x: derivatives(lambda x: target.log_density(unravel(x), rows), x), points)
        return jax.tree.map(lambda leaf: leaf[None], whole)

    def of_part(share: Callable[[Position], jax.Array]) -> Any:
        return jax.lax.map(lambda x: derivatives(lambda x: share(unravel(x)), x), points)

    return _in_parts(target, rows_a_part, of_part)


class Products(NamedTuple):
    """How `products` takes its work apart.

    Attributes:
        num_points: How many points there are.
        num_vectors: How many vectors there are.
        num_rows: How many rows to take at once; None for all.
    """

    num_points: int
    num_vectors: int
    num_rows: int | None


def products_of(target: Posterior, num_points: int, num_vectors: int) -> Products:
    """What fits into memory."""
    return Products(num_points, num_vectors, rows_of_curvature(target, num_vectors))


def products(
    static: Products, target: Posterior, points: jax.Array, vectors: jax.Array, example: Position
) -> tuple[Any, jax.Array]:
    """Log-densities (points,) and gradients (points, size), of each part of the rows: see `summed`.

    And, of all rows, the products of the Hessian with vectors (vectors, size), as means over the points.
    """
    _, unravel = ravel_pytree(example)

    def at_points(log_density: Callable[[Position], jax.Array]) -> Any:
        def one(total: jax.Array, x: jax.Array) -> Any:
            def slope(x: jax.Array) -> tuple[jax.Array, jax.Array]:
                value, gradient = jax.value_and_grad(lambda x: log_density(unravel(x)))(x)
                return gradient, value

            gradient, back, value = jax.vjp(slope, x, has_aux=True)
            return total + jax.vmap(lambda v: back(v)[0])(vectors), (value, gradient)

        total, seen = jax.lax.scan(one, jnp.zeros_like(vectors), points)
        return total / len(points), seen

    if static.num_rows is None:
        total, seen = at_points(target.log_density)
        return jax.tree.map(lambda leaf: leaf[None], seen), total
    totals, seen = _in_parts(target, static.num_rows, at_points)
    return seen, jnp.sum(totals, axis=0)


def summed(parts: Any) -> tuple[np.ndarray, ...]:
    """The sum over parts of the rows, in double precision: in single, a sum over many rows loses what is to be seen."""
    return tuple(np.asarray(leaf, np.float64).sum(axis=0) for leaf in parts)


def rows_of_curvature(target: Posterior, size: int) -> int | None:
    """How many rows to take at once for `curvatures` on all of them; None for all."""
    most = max(MOST_AT_ONCE // size, 1)
    return most if target.by_rows and target.num_data > most else None


def _in_parts(target: Posterior, rows_a_part: int, compute: Callable[[Callable[[Position], jax.Array]], Any]) -> Any:
    """What is computed of the share that each part of the rows has in the log-density."""
    num_parts = -(-target.num_data // rows_a_part)

    def at(part: jax.Array) -> Any:
        first = part * rows_a_part
        # The last part is as long as the others: rows that an earlier one had do not count again.
        start = jnp.minimum(first, target.num_data - rows_a_part)
        here = jax.tree.map(lambda array: jax.lax.dynamic_slice_in_dim(array, start, rows_a_part), target.data)
        counts = start + jnp.arange(rows_a_part) >= first

        def share(position: Position) -> jax.Array:
            log_prior, log_likelihood = target.terms(position, here)
            return log_prior / num_parts + jnp.sum(jnp.where(counts, log_likelihood, 0.0))

        return compute(share)

    return jax.lax.map(at, jnp.arange(num_parts))
