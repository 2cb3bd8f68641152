"""Logarithms of sums, and shares of them, where some terms may be impossible (-inf), or even all of them.

    log_sum(x) = log sum_k exp(x_k)        shares(x)_k = exp(x_k) / sum_k exp(x_k)

Without a possible term they are -inf and 0, and their gradients 0; JAX's own would be NaN.

A few labels of many rows are most of the work of a sweep, and there XLA's reductions over the first axis are slow on
CPUs: in double precision the sum and the maximum of ten rows take four times as long as their exponentials. A loop over
the rows and a product with ones take a tenth of them.
"""

from __future__ import annotations

import jax
import jax.numpy as jnp

LARGE = 10_000


def log_sum(x: jax.Array, axis: int = 0) -> jax.Array:
    """The logarithm of the sum of exp(x)."""
    terms, largest = _scaled(x, axis)
    total = _total(terms, axis)
    possible = total != 0
    log_total = jnp.log(jnp.where(possible, total, 1)) + jnp.squeeze(largest, axis)
    return jnp.where(possible, log_total, -jnp.inf)


def shares(x: jax.Array, axis: int = 0) -> jax.Array:
    """Each exp(x) as a share of their sum."""
    terms, _ = _scaled(x, axis)
    total = jnp.expand_dims(_total(terms, axis), axis)
    return terms / jnp.where(total == 0, 1, total)


def draw(key: jax.Array, x: jax.Array) -> jax.Array:
    """Indices along the first axis, drawn in proportion to exp(x).

    One uniform number an element: it picks the first index whose running total exceeds it. As the number is less than
    the whole total, an impossible index is never drawn.
    """
    terms, _ = _scaled(x, 0)
    totals = jnp.cumsum(terms, axis=0)
    threshold = jax.random.uniform(key, x.shape[1:], x.dtype) * totals[-1]
    return jnp.sum(totals[:-1] <= threshold, axis=0)


def _scaled(x: jax.Array, axis: int) -> tuple[jax.Array, jax.Array]:
    """Exp(x) over its largest term, and the logarithm of that, or 0 where no term is possible."""
    largest = jnp.expand_dims(_largest(jax.lax.stop_gradient(x), axis), axis)
    largest = jnp.where(jnp.isneginf(largest), 0, largest)
    return jnp.exp(x - largest), largest


def _largest(x: jax.Array, axis: int) -> jax.Array:
    if axis != 0 or x.size < LARGE:
        return jnp.max(x, axis)
    return jax.lax.fori_loop(1, len(x), lambda row, largest: jnp.maximum(largest, x[row]), x[0])


def _total(x: jax.Array, axis: int) -> jax.Array:
    if axis != 0 or x.size < LARGE:
        return jnp.sum(x, axis)
    return jnp.tensordot(jnp.ones(len(x), x.dtype), x, axes=1, precision=jax.lax.Precision.HIGHEST)
