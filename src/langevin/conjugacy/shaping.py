"""Axes and elements of polynomials, and determinants of sites that are matrices."""

from __future__ import annotations

import dataclasses
from typing import Any

import jax.numpy as jnp
import numpy as np

from langevin.conjugacy.indexing import At, Label, Number, is_known, picked
from langevin.conjugacy.polynomial import (
    Opaque,
    Polynomial,
    broadcast_to,
    gathered,
    is_symbolic,
    log,
    monomial,
    opaque,
)
from langevin.conjugacy.terms import LOGDET, Term


def with_axis(value: Any, axis: int) -> Any:
    """With an axis of size 1, counted from the right in the result."""
    if not is_symbolic(value):
        return np.expand_dims(value, axis) if is_known(value) else jnp.expand_dims(value, axis)
    at = value.ndim + 1 + axis
    shape = (*value.shape[:at], 1, *value.shape[at:])
    if isinstance(value, Opaque):
        return dataclasses.replace(value, shape=shape)
    return Polynomial(shape, (*value.axes[:at], None, *value.axes[at:]), value.terms)


def at_last(value: Any, index: Any) -> Any:
    """The elements of the last axis that an index says, which the other axes broadcast with."""
    shape = np.broadcast_shapes(np.shape(index), value.shape[:-1])
    if isinstance(value, Opaque):
        return opaque(shape, [value], "")
    value = broadcast_to(value, (*shape, value.shape[-1]))
    of_index = [Label(size) if size != 1 else None for size in np.shape(index)]
    lead = len(shape) - len(of_index)
    axes = list(value.axes[:-1])
    mapping: dict[Label, Any] = {}
    for i, label in enumerate(of_index):
        own = axes[lead + i]
        if label is None:
            continue
        if own is not None:
            of_index[i] = own
    kept = tuple(label for label in of_index if label is not None)
    squeezed = index.reshape([label.size for label in kept])
    last = value.axes[-1]
    if last is not None:
        mapping[last] = picked(squeezed, kept, last.size)
    return value.moved(mapping, shape, tuple(axes))


def log_determinant(matrix: Any) -> Any:
    """Of the matrices of a site, each times a positive number."""
    shape = matrix.shape[:-2]
    if isinstance(matrix, Opaque):
        return opaque(shape, [matrix], "")
    term = monomial(matrix)
    if term is None or len(term.factors) != 1 or term.factors[0].exponent != 1:
        return opaque(shape, [matrix], "the determinant of more than a site")
    factor = term.factors[0]
    outer = matrix.axes[-2:]
    own = [access.label if isinstance(access, At) and not access.offset else None for access in factor.access[-2:]]
    inner = {id(label) for label in outer}
    if any(id(label) not in inner for label in own) or any(
        id(label) in inner for number in term.numbers for label in number.labels
    ):
        return opaque(shape, [matrix], "the determinant of a part of a site")
    size = matrix.shape[-1]
    terms = [Term((Number(log(number.array) * size, number.labels),)) for number in term.numbers]
    of_site = factor._replace(function=LOGDET, access=factor.access[:-2], positive=False)
    terms.append(Term((), (of_site,)))
    return Polynomial(shape, matrix.axes[:-2], gathered(tuple(terms), matrix.axes[:-2]))
