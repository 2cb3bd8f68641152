"""What a traced function computes, as a short string: two traces with one gist compute the same.

Tracing a model once takes far less time than building and lowering the whole program around it, so the gist of a
model tells whether that program is already there. Constants count by their values, also those inside nested functions,
which the text of a trace does not show. What is not understood has no gist, and then nothing is assumed.
"""

from __future__ import annotations

import dataclasses
import enum
import hashlib
import types
from collections.abc import Callable
from typing import Any

import jax
import numpy as np
from jax.extend import core

PLAIN = (bool, int, float, complex, str, bytes, type(None), np.dtype, np.generic, enum.Enum, range)
# Rules of differentiation, which a gradient that is already taken does not ask any more.
NOT_ASKED = ("jvp_jaxpr_fun", "jvp_jaxpr_thunk", "fwd_jaxpr_thunk", "bwd", "out_trees", "symbolic_zeros")


class _NotUnderstoodError(Exception):
    """Something is not understood."""


def gist(function: Callable[..., Any], *arguments: Any) -> str | None:
    """The gist of `function(*arguments)`, or None if there is something in it that is not understood.

    Args:
        function: Whatever JAX can trace. Gradients are to be taken inside it.
        arguments: Arrays, or their shapes.
    """
    traced, shapes = jax.make_jaxpr(function, return_shape=True)(*arguments)
    # A trace has no names, but what goes in and comes out does: of sites, for instance.
    paths = [jax.tree_util.keystr(path) for path, _ in jax.tree_util.tree_flatten_with_path((arguments, shapes))[0]]
    return gist_of_trace(traced, tuple(paths))


def gist_of_trace(traced: Any, names: tuple[str, ...] = ()) -> str | None:
    """The gist of what `jax.make_jaxpr` made, with the names of what goes in and comes out."""
    digest = hashlib.sha256()
    try:
        _add(digest, traced)
        _add(digest, names)
    except _NotUnderstoodError:
        return None
    settings = [getattr(jax.config, name) for name in ("jax_enable_x64", "jax_default_matmul_precision")]
    return f"{settings} {digest.hexdigest()}"


def gist_of_density(target: Any, position: Any, batch_size: int | None = None, *, twice: bool = False) -> str | None:
    """The gist of a log-density, its gradient, and what is reported of a position.

    Args:
        target: A `Posterior`.
        position: A position, for its shape.
        batch_size: Rows in a minibatch, if there are any.
        twice: Whether second derivatives are taken too.
    """

    def all_of_it(target: Any, position: Any, batch: Any) -> Any:
        def both(position: Any) -> Any:
            seen = (None,) if batch is None else (None, batch)
            return [jax.value_and_grad(target.log_density)(position, rows) for rows in seen]

        derived = jax.jvp(both, (position,), (position,)) if twice else both(position)
        return derived, target.constrain(position)

    batch = None if batch_size is None else jax.tree.map(lambda column: column[:batch_size], target.data)
    try:
        return gist(all_of_it, target, position, batch)
    except TypeError:
        # Not every function has a second derivative in forward mode.
        return None


def _add(digest: Any, value: Any) -> None:
    digest.update(type(value).__name__.encode())
    if isinstance(value, core.ClosedJaxpr):
        _add(digest, value.jaxpr)
        _add(digest, tuple(value.consts))
    elif isinstance(value, core.Jaxpr):
        _add_jaxpr(digest, value)
    elif isinstance(value, np.ndarray | jax.Array):
        digest.update(f"{value.dtype} {value.shape}".encode())
        is_key = jax.dtypes.issubdtype(value.dtype, jax.dtypes.prng_key)
        digest.update(np.asarray(jax.random.key_data(value) if is_key else value).tobytes())
    elif isinstance(value, dict):
        for name in sorted(value, key=repr):
            _add(digest, name)
            _add(digest, value[name])
    elif isinstance(value, tuple | list | frozenset):
        digest.update(str(len(value)).encode())
        for part in value if not isinstance(value, frozenset) else sorted(value, key=repr):
            _add(digest, part)
    elif dataclasses.is_dataclass(value):
        _add(digest, [getattr(value, field.name) for field in dataclasses.fields(value)])
    elif isinstance(value, PLAIN) or _is_described(value):
        digest.update(repr(value).encode())
    else:
        raise _NotUnderstoodError


def _is_described(value: Any) -> bool:
    """Whether the description of a type, or of an object or a plain function of JAX's own, says all of it.

    Then an address in it is the place of something that lives as long as the process.
    """
    if isinstance(value, types.FunctionType):
        return value.__module__.startswith("jax") and value.__closure__ is None
    if isinstance(value, type):
        return True
    return type(value).__module__.startswith("jax") and " at 0x" not in repr(value)


def _add_jaxpr(digest: Any, jaxpr: core.Jaxpr) -> None:
    numbers: dict[Any, int] = {}

    def add_atoms(atoms: Any) -> None:
        for atom in atoms:
            if isinstance(atom, core.Literal):
                _add(digest, np.asarray(atom.val))
            else:
                digest.update(f"v{numbers.setdefault(atom, len(numbers))}:{atom.aval}".encode())

    add_atoms((*jaxpr.constvars, *jaxpr.invars))
    for equation in jaxpr.eqns:
        digest.update(equation.primitive.name.encode())
        add_atoms(equation.invars)
        digest.update(b">")
        add_atoms(equation.outvars)
        _add(digest, {name: value for name, value in equation.params.items() if name not in NOT_ASKED})
    digest.update(b"=")
    add_atoms(jaxpr.outvars)
