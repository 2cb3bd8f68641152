"""The log-density and its derivatives at several flat points at once: on some rows, or on all of them, part by part.

Second derivatives go backwards twice: not every function can be differentiated forwards.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax.flatten_util import ravel_pytree

from langevin.posterior import Batch, Position, Posterior, num_rows

MOST_ROWS = 16_384
# Numbers of one row at all points that are computed side by side.
MOST_AT_ONCE = 4_000_000


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
    """Log-densities (points,) and gradients (points, size).

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
        return jax.vmap(one)(points) if static.num_points <= static.at_once else jax.lax.map(one, points)
    num_parts = -(-target.num_data // rows_a_part)

    def add(total: Any, part: jax.Array) -> tuple[Any, None]:
        first = part * rows_a_part
        # The last part is as long as the others: rows that an earlier one had do not count again.
        start = jnp.minimum(first, target.num_data - rows_a_part)
        here = jax.tree.map(lambda array: jax.lax.dynamic_slice_in_dim(array, start, rows_a_part), target.data)
        counts = start + jnp.arange(rows_a_part) >= first

        def log_density(x: jax.Array) -> jax.Array:
            log_prior, log_likelihood = target.terms(unravel(x), here)
            return log_prior / num_parts + jnp.sum(jnp.where(counts, log_likelihood, 0.0))

        found = jax.vmap(jax.value_and_grad(log_density))(points)
        return jax.tree.map(jnp.add, total, found), None

    zeros = (jnp.zeros(len(points), points.dtype), jnp.zeros_like(points))
    return jax.lax.scan(add, zeros, jnp.arange(num_parts))[0]


def curvatures(_: None, target: Posterior, points: jax.Array, example: Position, rows: Batch | None) -> Any:
    """Log-densities (points,), gradients (points, size) and negative Hessians (points, size, size)."""
    _, unravel = ravel_pytree(example)

    def log_density(x: jax.Array) -> jax.Array:
        return target.log_density(unravel(x), rows)

    def one(x: jax.Array) -> Any:
        value, gradient = jax.value_and_grad(log_density)(x)
        return value, gradient, -jax.jacrev(jax.grad(log_density))(x)

    return jax.lax.map(one, points)
