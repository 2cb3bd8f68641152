"""What a traced program does with the integers of its data: above all, which arrays it looks up with them.

An index that is too large is no error in JAX: `a[g]` then takes the last element. So whole numbers are followed through
the trace, from the columns of the data to the lookups, by NumPy and without compiling. What is not understood on the
way is not followed any further, and a lookup with it is not checked.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import jax
import numpy as np
from jax.extend import core
from jax.lax import GatherScatterMode

# Functions that JAX traces into a trace of their own, whose arguments are those of the call.
CALLS = {"jit", "pjit", "closed_call", "core_call", "custom_jvp_call", "custom_vjp_call", "checkpoint", "remat2"}
# Followed for every kind of number: they only move numbers around, and most copy nothing.
MOVES: dict[str, Callable[..., Any]] = {
    "broadcast_in_dim": lambda x, shape, broadcast_dimensions, **_: np.broadcast_to(
        np.reshape(x, [dict(zip(broadcast_dimensions, np.shape(x), strict=True)).get(d, 1) for d in range(len(shape))]),
        shape,
    ),
    "convert_element_type": lambda x, new_dtype, **_: np.asarray(x).astype(new_dtype, copy=False),
    "copy": lambda x: x,
    "copy_p": lambda x: x,
    "reshape": lambda x, new_sizes, **_: np.reshape(x, new_sizes),
    "slice": lambda x, start_indices, limit_indices, strides: x[
        tuple(map(slice, start_indices, limit_indices, strides or [1] * len(start_indices)))
    ],
    "squeeze": lambda x, dimensions: np.squeeze(x, dimensions),
    "transpose": lambda x, permutation: np.transpose(x, permutation),
}
# Followed where whole numbers or truth values come out.
SUMS: dict[str, Callable[..., Any]] = {
    "add": np.add,
    "and": np.logical_and,
    "clamp": lambda low, x, high: np.clip(x, low, high),
    "concatenate": lambda *x, dimension: np.concatenate(x, dimension),
    "eq": np.equal,
    "ge": np.greater_equal,
    "gt": np.greater,
    "le": np.less_equal,
    "lt": np.less,
    "max": np.maximum,
    "min": np.minimum,
    "mul": np.multiply,
    "ne": np.not_equal,
    "neg": np.negative,
    "not": np.logical_not,
    "or": np.logical_or,
    "select_n": lambda which, *cases: np.select([which == n for n in range(len(cases))], cases),
    "sub": np.subtract,
}


class Wrapped(NamedTuple):
    """Negative indices, which JAX counts from the end: where they are, and what they were."""

    where: np.ndarray
    values: np.ndarray


class Value(NamedTuple):
    """What is known of a value in a trace.

    Attributes:
        known: Its numbers, if they follow from the data.
        origins: The names of the inputs of the trace that it depends on.
        wrapped: The negative indices in it, which were counted from the end.
        is_sign: Whether it says of another value where that is negative.
    """

    known: np.ndarray | None
    origins: frozenset[str]
    wrapped: tuple[Wrapped, ...] = ()
    is_sign: bool = False


class Lookup(NamedTuple):
    """A lookup with indices that are out of bounds.

    Attributes:
        array: The names of the inputs that the array depends on.
        size: Of the axis.
        index: The names of the inputs that the indices depend on.
        where: Which indices are out of bounds.
        values: The indices.
    """

    array: frozenset[str]
    size: int
    index: frozenset[str]
    where: np.ndarray
    values: np.ndarray


class Followed(NamedTuple):
    """What was seen on the way.

    Attributes:
        outputs: The outputs of the trace.
        lookups: Those that are out of bounds.
        choices: Truth values that follow from the data, by which the program chooses between two values.
    """

    outputs: list[Value]
    lookups: list[Lookup]
    choices: list[Value]


def follow(trace: Any, inputs: Sequence[Value]) -> Followed:
    """Follows the numbers of the inputs through a trace that `jax.make_jaxpr` made.

    Example:
        >>> trace = jax.make_jaxpr(lambda a, g: a[g])(np.zeros(3), np.zeros(2, int))
        >>> g = Value(np.array([1, 5]), frozenset({"g"}))
        >>> (lookup,) = follow(trace, [Value(None, frozenset({"a"})), g]).lookups
        >>> lookup.size, lookup.where.tolist()
        (3, [False, True])
    """
    followed = Followed([], [], [])
    followed.outputs.extend(_run(trace.jaxpr, trace.consts, inputs, followed))
    return followed


def _run(jaxpr: Any, consts: Sequence[Any], inputs: Sequence[Value], followed: Followed) -> list[Value]:
    values: dict[Any, Value] = {}

    def read(atom: Any) -> Value:
        if isinstance(atom, core.Literal):
            return Value(np.asarray(atom.val), frozenset())
        return values[atom]

    constants = [Value(np.asarray(c) if _is_plain(c) else None, frozenset()) for c in consts]
    values.update(zip((*jaxpr.constvars, *jaxpr.invars), (*constants, *inputs), strict=True))
    last = {atom: number for number, equation in enumerate(jaxpr.eqns) for atom in _variables(equation.invars)}
    kept = set(_variables(jaxpr.outvars))
    for number, equation in enumerate(jaxpr.eqns):
        arguments = [read(atom) for atom in equation.invars]
        values.update(zip(equation.outvars, _results(equation, arguments, followed), strict=True))
        # Of many rows, the numbers on the way take much memory.
        for atom in {atom for atom in _variables(equation.invars) if last[atom] == number} - kept:
            del values[atom]
    return [read(atom) for atom in jaxpr.outvars]


def _results(equation: Any, arguments: list[Value], followed: Followed) -> list[Value]:
    name, params = equation.primitive.name, equation.params
    if name in CALLS:
        inner = params.get("jaxpr", params.get("call_jaxpr"))
        if inner is not None and len(_open(inner).invars) == len(arguments):
            return _run(_open(inner), getattr(inner, "consts", ()), arguments, followed)
    if name == "gather":
        followed.lookups.extend(_out_of_bounds(equation, *arguments))
    if name == "select_n" and arguments[0].known is not None and not arguments[0].is_sign:
        followed.choices.append(arguments[0])
    origins = frozenset().union(*(argument.origins for argument in arguments))
    known = _known(equation, arguments)
    if known is None:
        return [Value(None, origins) for _ in equation.outvars]
    wrapped = tuple(part for argument in arguments for part in argument.wrapped)
    if name == "select_n" and arguments[0].is_sign:
        wrapped += _wrapped(*arguments)
    return [Value(known, origins, wrapped, is_sign=name == "lt" and not np.any(arguments[1].known))]


def _known(equation: Any, arguments: list[Value]) -> np.ndarray | None:
    """The result of an operation, by NumPy; None if an argument is not known, or the operation is not followed."""
    name = equation.primitive.name
    if not arguments or any(argument.known is None for argument in arguments):
        return None
    given = [argument.known for argument in arguments]
    is_exact = name in (*MOVES, *SUMS) and equation.outvars[0].aval.dtype.kind in "biu"
    if name == "convert_element_type" and not is_exact and np.asarray(given[0]).ndim > 1:
        # A matrix of covariates, of which there would be a second one.
        return None
    if name in MOVES:
        return np.asarray(MOVES[name](*given, **equation.params))
    shape = {"dimension": equation.params["dimension"]} if name == "concatenate" else {}
    return np.asarray(SUMS[name](*given, **shape)) if is_exact else None


def _wrapped(sign: Value, index: Value, counted: Value, *_: Value) -> tuple[Wrapped, ...]:
    """The negative indices, if the second value is the first one counted from the end of an axis."""
    assert sign.known is not None
    assert index.known is not None
    assert counted.known is not None
    if index.known.dtype.kind not in "iu" or not sign.known.any() or np.ptp(counted.known - index.known):
        return ()
    return (Wrapped(sign.known, index.known),)


def _out_of_bounds(equation: Any, array: Value, indices: Value) -> list[Lookup]:
    # A program that asks for the nearest element gets it.
    if indices.known is None or equation.params["mode"] == GatherScatterMode.CLIP:
        return []
    shape, sizes = equation.invars[0].aval.shape, equation.params["slice_sizes"]
    axes = equation.params["dimension_numbers"].start_index_map
    found = []
    for place, axis in enumerate(axes):
        index = indices.known[..., place]
        wrong = (index < 0) | (index > shape[axis] - sizes[axis])
        if wrong.any():
            found.append(Lookup(array.origins, shape[axis], indices.origins, wrong, index))
    size = shape[axes[0]] if axes else 0
    found += [Lookup(array.origins, size, indices.origins, part.where, part.values) for part in indices.wrapped]
    return found


def _variables(atoms: Sequence[Any]) -> list[Any]:
    return [atom for atom in atoms if not isinstance(atom, core.Literal)]


def _open(jaxpr: Any) -> Any:
    return getattr(jaxpr, "jaxpr", jaxpr)


def _is_plain(constant: Any) -> bool:
    return isinstance(constant, np.ndarray | jax.Array) and not jax.dtypes.issubdtype(
        constant.dtype, jax.dtypes.prng_key
    )
