"""What primitives of JAX do to polynomials: each rule takes values and parameters, and returns a value.

A rule returns None where it does not apply; then, as without a rule, the result is `Opaque`.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from langevin.conjugacy import polynomial as poly
from langevin.conjugacy import shaping
from langevin.conjugacy.indexing import Case, Label, Number, Pick, Shift, is_known, picked
from langevin.conjugacy.polynomial import Polynomial, is_symbolic
from langevin.conjugacy.terms import Term

Rule = Callable[..., Any]
# What is said of a primitive without a rule.
WORDS = {
    "exp": "an exponential",
    "logistic": "a logistic function",
    "tanh": "a hyperbolic tangent",
    "abs": "an absolute value",
    "max": "a maximum",
    "min": "a minimum",
    "clamp": "a clip",
    "cholesky": "a Cholesky factor",
    "lgamma": "a log-gamma function",
    "sin": "a sine",
    "cos": "a cosine",
    "sign": "a sign",
    "scan": "a loop",
    "while": "a loop",
    "gt": "a comparison",
    "lt": "a comparison",
    "ge": "a comparison",
    "le": "a comparison",
    "eq": "a comparison",
    "ne": "a comparison",
    "reduce_max": "a maximum",
    "reduce_prod": "a product over an axis",
    "cumprod": "a cumulative product",
    "triangular_solve": "a linear system",
    "erf": "an error function",
    "expm1": "an exponential",
}


def _broadcast_in_dim(value: Any, *_: Any, shape: Any, broadcast_dimensions: Any, **_params: Any) -> Any:
    axes: list[Label | None] = [Label(size) if size != 1 else None for size in shape]
    for own, to in enumerate(broadcast_dimensions):
        if value.axes[own] is not None:
            axes[to] = value.axes[own]
    return Polynomial(tuple(shape), tuple(axes), value.terms)


def _reshape(value: Any, *_: Any, new_sizes: Any, dimensions: Any = None, **_params: Any) -> Any:
    if dimensions is not None:
        return None
    old = [(label, label.size) for label in value.axes if label is not None]
    new = [size for size in new_sizes if size != 1]
    mapping: dict[Label, Any] = {}
    made: list[Label] = []
    i = j = 0
    while i < len(old) or j < len(new):
        left, right = [old[i][0]], [new[j]]
        a, b = old[i][1], new[j]
        i, j = i + 1, j + 1
        while a != b:
            if a < b:
                left.append(old[i][0])
                a, i = a * old[i][1], i + 1
            else:
                right.append(new[j])
                b, j = b * new[j], j + 1
        if len(left) == len(right) == 1:
            made.append(left[0])
            continue
        labels = [Label(size) for size in right]
        flat = np.arange(a).reshape(right)
        index = np.unravel_index(flat, [label.size for label in left])
        mapping.update({label: Pick(at, tuple(labels)) for label, at in zip(left, index, strict=True)})
        made += labels
    rest = iter(made)
    axes = tuple(next(rest) if size != 1 else None for size in new_sizes)
    # A label that a term lacks is a broadcast, before and after.
    return value.moved(mapping, tuple(new_sizes), axes)


def _squeeze(value: Any, *, dimensions: Any, **_params: Any) -> Any:
    gone = {axis % value.ndim for axis in dimensions}
    keep = [axis for axis in range(value.ndim) if axis not in gone]
    return Polynomial(tuple(value.shape[a] for a in keep), tuple(value.axes[a] for a in keep), value.terms)


def _transpose(value: Any, *, permutation: Any, **_params: Any) -> Any:
    shape, axes = (tuple(of[axis] for axis in permutation) for of in (value.shape, value.axes))
    return Polynomial(shape, axes, value.terms)


def _at(value: Any, axis: int, index: Any) -> tuple[dict[Label, Any], Label | None]:
    """How to read an axis at an index with one axis, and the label that it then has."""
    label = value.axes[axis]
    size = np.shape(index)[0]
    if label is None:
        return {}, Label(size) if size != 1 else None
    if size == 1:
        return {label: Pick(index[0], ())}, None
    new = Label(size)
    return {label: picked(index, (new,), label.size)}, new


def _slice(value: Any, *, start_indices: Any, limit_indices: Any, strides: Any = None, **_params: Any) -> Any:
    mapping: dict[Label, Any] = {}
    shape, axes = [], []
    for axis, (start, limit) in enumerate(zip(start_indices, limit_indices, strict=True)):
        index = np.arange(start, limit, 1 if strides is None else strides[axis])
        if len(index) == value.shape[axis]:
            moved, label = {}, value.axes[axis]
        else:
            moved, label = _at(value, axis, index)
        mapping |= moved
        shape.append(len(index))
        axes.append(label)
    return value.moved(mapping, tuple(shape), tuple(axes))


def _rev(value: Any, *, dimensions: Any, **_params: Any) -> Any:
    mapping: dict[Label, Any] = {}
    axes = list(value.axes)
    for axis in dimensions:
        moved, axes[axis] = _at(value, axis, np.arange(value.shape[axis])[::-1])
        mapping |= moved
    return value.moved(mapping, value.shape, tuple(axes))


def _dynamic_slice(value: Any, *starts: Any, slice_sizes: Any, **_params: Any) -> Any:
    if is_symbolic(value) and any(map(is_symbolic, starts)):
        return None
    mapping: dict[Label, Any] = {}
    axes: list[Label | None] = []
    for axis, (start, size) in enumerate(zip(starts, slice_sizes, strict=True)):
        if size == value.shape[axis]:
            axes.append(value.axes[axis])
            continue
        start = start if not is_known(start) else int(np.clip(start, 0, value.shape[axis] - size))
        moved, label = _at(value, axis, start + np.arange(size))
        mapping |= moved
        axes.append(label)
    return value.moved(mapping, tuple(slice_sizes), tuple(axes))


def _gather(value: Any, indices: Any, *, dimension_numbers: Any, slice_sizes: Any, **_params: Any) -> Any:
    if not isinstance(value, Polynomial) or is_symbolic(indices):
        return None
    dims = dimension_numbers
    batching, index_batching = dims.operand_batching_dims, dims.start_indices_batching_dims
    batch_shape = np.shape(indices)[:-1]
    batch = [Label(size) if size != 1 else None for size in batch_shape]
    mapping: dict[Label, Any] = {}
    for own, of_index in zip(batching, index_batching, strict=True):
        if value.axes[own] is not None and batch[of_index] is not None:
            mapping[value.axes[own]] = Shift(batch[of_index])
    offset_axes: list[Label | None] = []
    for axis, size in enumerate(slice_sizes):
        label = value.axes[axis]
        if axis in batching:
            continue
        if axis in dims.start_index_map:
            if size != 1:
                if size != value.shape[axis]:
                    return None
            elif label is not None:
                index = indices[..., dims.start_index_map.index(axis)]
                kept = [own for own in batch if own is not None]
                index = (
                    np.reshape(index, [own.size for own in kept])
                    if is_known(index)
                    else jnp.reshape(index, [own.size for own in kept])
                )
                mapping[label] = picked(index, kept, value.shape[axis])
                label = None
        elif size != value.shape[axis]:
            moved, label = _at(value, axis, np.arange(size))
            mapping |= moved
        if axis not in dims.collapsed_slice_dims:
            offset_axes.append(label)
    num_axes = len(dims.offset_dims) + len(batch)
    rest, offsets = iter(batch), iter(offset_axes)
    axes = tuple(next(offsets) if axis in dims.offset_dims else next(rest) for axis in range(num_axes))
    sizes = iter(size for a, size in enumerate(slice_sizes) if a not in dims.collapsed_slice_dims and a not in batching)
    batch_sizes = iter(batch_shape)
    shape = tuple(next(sizes) if axis in dims.offset_dims else next(batch_sizes) for axis in range(num_axes))
    return value.moved(mapping, shape, axes)


def _scatter(value: Any, indices: Any, updates: Any, **params: Any) -> Any:
    """Elements put into an array, as in `x.at[missing].set(site)`, where it is known which."""
    if is_symbolic(indices) or not is_known(indices):
        return None
    shape, count = np.shape(value), math.prod(np.shape(updates))
    numbers = np.arange(1, count + 1).reshape(np.shape(updates))
    known = ("dimension_numbers", "indices_are_sorted", "unique_indices", "mode")
    with jax.ensure_compile_time_eval():
        placed = jax.lax.scatter(jnp.zeros(shape, int), indices, numbers, **{name: params[name] for name in known})
    place = np.asarray(placed)
    flat = _reshape(poly.as_polynomial(updates), new_sizes=(count,))
    axes = poly.labels_for(shape)
    at = np.maximum(place - 1, 0).reshape([size for size in shape if size != 1])
    mapping = {} if flat.axes[0] is None else {flat.axes[0]: Pick(at, tuple(filter(None, axes)))}
    return _select(place > 0, value, flat.moved(mapping, shape, axes))


def _dot_general(left: Any, right: Any, *, dimension_numbers: Any, **_params: Any) -> Any:
    (left_in, right_in), (left_batch, right_batch) = dimension_numbers
    left, right = poly.as_polynomial(left), poly.as_polynomial(right)
    left_free = [axis for axis in range(left.ndim) if axis not in (*left_in, *left_batch)]
    right_free = [axis for axis in range(right.ndim) if axis not in (*right_in, *right_batch)]
    order = (*left_batch, *left_free, *left_in)
    other = (*right_batch, *right_free, *right_in)
    # Both with the axes: batch, free of the left one, free of the right one, summed.
    num_batch, num_free, num_other = len(left_batch), len(left_free), len(right_free)
    one = _transpose(left, permutation=order)
    two = _transpose(right, permutation=other)
    one = _with_ones(one, num_batch + num_free, num_other)
    two = _with_ones(two, num_batch, num_free)
    product = poly.multiply(one, two)
    return poly.total(product, range(product.ndim - len(left_in), product.ndim))


def _with_ones(value: Any, at: int, count: int) -> Any:
    shape = (*value.shape[:at], *(1,) * count, *value.shape[at:])
    return Polynomial(shape, (*value.axes[:at], *(None,) * count, *value.axes[at:]), value.terms)


def _concatenate(*values: Any, dimension: int, **_params: Any) -> Any:
    """The sum of the parts, each where it is: by an array of ones and zeros."""
    total = sum(np.shape(value)[dimension] for value in values)
    shape = tuple(total if axis == dimension else size for axis, size in enumerate(np.shape(values[0])))
    result: Any = np.zeros(shape)
    start = 0
    for value in values:
        size = np.shape(value)[dimension]
        part = poly.as_polynomial(value)
        label = part.axes[dimension]
        new = Label(total)
        axes = (*part.axes[:dimension], new, *part.axes[dimension + 1 :])
        if label is None:
            # One element: it is there, and nowhere else.
            here = np.zeros(total)
            here[start] = 1.0
            terms = tuple(term.times(Term((Number(here, (new,)),))) for term in part.terms)
        else:
            place = np.zeros((total, size))
            place[start + np.arange(size), np.arange(size)] = 1.0
            inner = Label(size)
            part = part.moved({label: Shift(inner)}, part.shape, part.axes)
            terms = tuple(term.times(Term((Number(place, (new, inner)),))) for term in part.terms)
        result = poly.add(result, Polynomial(shape, axes, terms))
        start += size
    return result


def _pad(value: Any, filling: Any, *, padding_config: Any, **_params: Any) -> Any:
    if is_symbolic(filling) or any(low < 0 or high < 0 or between for low, high, between in padding_config):
        return None
    for axis, (low, high, _) in enumerate(padding_config):
        sides = (
            np.full([count if own == axis else size for own, size in enumerate(value.shape)], float(filling))
            for count in (low, high)
        )
        before, after = ([side] if side.size else [] for side in sides)
        value = _concatenate(*before, value, *after, dimension=axis)
    return value


def _stack(*values: Any, axis: int = 0, **_params: Any) -> Any:
    expanded = [
        shaping.with_axis(value, axis - np.ndim(value) - 1 if not is_symbolic(value) else axis - value.ndim - 1)
        for value in values
    ]
    return _concatenate(*expanded, dimension=axis)


def _select(which: Any, *cases: Any, **_params: Any) -> Any:
    if is_symbolic(which) or len(cases) != 2:
        return None
    which = np.asarray(which, bool) if is_known(which) else jnp.asarray(which, bool)
    if is_known(which) and which.size and (which.all() or not which.any()):
        return cases[int(which.all())]
    result: Any = np.zeros(np.shape(which))
    choice = object()
    for number, (case, mask) in enumerate(zip(cases, (~which, which), strict=True)):
        if not is_symbolic(case):
            # What is not chosen may be missing values, which times 0 are none.
            case = poly.constant(np.where(mask, case, 1.0) if is_known(mask, case) else jnp.where(mask, case, 1.0))
        chosen = poly.constant(mask.astype(float), Case(choice, number, len(cases)))
        result = poly.add(result, poly.multiply(case, chosen))
    return result


def _pow(base: Any, exponent: Any, **_params: Any) -> Any:
    if is_symbolic(exponent) or not is_known(exponent) or np.size(exponent) == 0:
        return None
    first = float(np.ravel(exponent)[0])
    return poly.power(base, first) if np.all(np.asarray(exponent) == first) else None


def _reduce_sum(value: Any, *, axes: Any, **_params: Any) -> Any:
    return poly.total(value, axes)


def _same(value: Any, *_: Any, **_params: Any) -> Any:
    return value


def _cumsum(value: Any, *, axis: int, reverse: bool, **_params: Any) -> Any:
    size = value.shape[axis]
    lower = np.tril(np.ones((size, size)))
    moved = _dot_general(value, lower.T if reverse else lower, dimension_numbers=(((axis,), (1,)), ((), ())))
    order = list(range(value.ndim - 1))
    order.insert(axis, value.ndim - 1)
    return _transpose(moved, permutation=tuple(order))


RULES: dict[str, Rule] = {
    "add": lambda a, b, **_params: poly.add(a, b),
    "add_any": lambda a, b, **_params: poly.add(a, b),
    "sub": lambda a, b, **_params: poly.add(a, poly.multiply(b, -1.0)),
    "mul": lambda a, b, **_params: poly.multiply(a, b),
    "div": lambda a, b, **_params: poly.multiply(a, poly.power(b, -1.0)),
    "neg": lambda a, **_params: poly.multiply(a, -1.0),
    "square": lambda a, **_params: poly.power(a, 2.0),
    "integer_pow": lambda a, y, **_params: poly.power(a, float(y)),
    "pow": _pow,
    "sqrt": lambda a, **_params: poly.power(a, 0.5),
    "rsqrt": lambda a, **_params: poly.power(a, -0.5),
    "log": lambda a, **_params: poly.log(a),
    "log1p": lambda a, **_params: poly.log(poly.add(a, 1.0)),
    "broadcast_in_dim": _broadcast_in_dim,
    "reshape": _reshape,
    "squeeze": _squeeze,
    "transpose": _transpose,
    "slice": _slice,
    "rev": _rev,
    "dynamic_slice": _dynamic_slice,
    "gather": _gather,
    "scatter": _scatter,
    "dot_general": _dot_general,
    "concatenate": _concatenate,
    "pad": _pad,
    "stack": _stack,
    "select_n": _select,
    "reduce_sum": _reduce_sum,
    "cumsum": _cumsum,
    "convert_element_type": _same,
    "copy": _same,
    "copy_p": _same,
    "stop_gradient": _same,
    "reduce_precision": _same,
    "optimization_barrier": _same,
}
