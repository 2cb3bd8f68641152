"""Numbers that are given to a site, in the types and without the gaps that polynomials of them need."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp

from langevin.conjugacy.polynomial import is_symbolic
from langevin.models.joint import Joint
from langevin.posterior import Batch


def abstract(joint: Joint, count: int) -> Batch:
    """So many rows, in the precision in which statements are computed of them."""
    return jax.tree.map(lambda a: jax.ShapeDtypeStruct((count, *a.shape[1:]), _precise(a.dtype)), joint.data)


def as_traced(leaf: Any, like: Any) -> Any:
    """Numbers in the type that they had when the program was read: its primitives take no other."""
    dtype = jax.dtypes.canonicalize_dtype(like.dtype)
    return leaf if is_symbolic(leaf) or leaf.dtype == dtype else leaf.astype(dtype)


def without_gaps(value: Any) -> Any:
    """An observation without what is missing: that is masked, and NaN times 0 is not 0."""
    if is_symbolic(value) or not jnp.issubdtype(jnp.result_type(value), jnp.floating):
        return value
    return jnp.where(jnp.isnan(value), 1.0, value)


def floats(value: Any) -> Any:
    """Numbers as floating-point numbers."""
    if is_symbolic(value) or jnp.issubdtype(jnp.result_type(value), jnp.floating):
        return value
    return value * 1.0


def _precise(dtype: Any) -> Any:
    return jnp.result_type(float) if jnp.issubdtype(dtype, jnp.floating) else dtype
