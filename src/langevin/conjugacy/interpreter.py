"""Runs a jaxpr on polynomials: what a program computes of its latent sites, without values for them.

Numbers stay numbers: constants are computed at once, and data when the compiled function runs. A primitive that takes
polynomials to polynomials has a rule here; any other makes an `Opaque` value, which matters only if it reaches the
log-density. Equal computations are done once, so that an index that a program writes twice is one object.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.extend.core import ClosedJaxpr, Literal, Var

from langevin.conjugacy import polynomial as poly
from langevin.conjugacy.indexing import is_known
from langevin.conjugacy.polynomial import Opaque, is_symbolic
from langevin.conjugacy.products import multiplied, plain
from langevin.conjugacy.rules import RULES, WORDS

INLINED = {
    "pjit": "jaxpr",
    "jit": "jaxpr",
    "closed_call": "call_jaxpr",
    "core_call": "call_jaxpr",
    "remat": "jaxpr",
    "checkpoint": "jaxpr",
    "custom_jvp_call": "call_jaxpr",
    "custom_vjp_call": "call_jaxpr",
    "custom_vjp_call_jaxpr": "fun_jaxpr",
}


class Interpreter:
    """Runs jaxprs. One interpreter for one trace: it remembers what was computed."""

    def __init__(self) -> None:
        self._done: dict[Any, tuple[Any, list[Any]]] = {}

    def run(self, closed: Any, arguments: Sequence[Any]) -> list[Any]:
        """The outputs of a jaxpr at these arguments, each numbers or symbolic."""
        return self._run(closed.jaxpr, list(closed.consts), list(arguments))

    def _run(self, jaxpr: Any, constants: list[Any], arguments: list[Any]) -> list[Any]:
        values: dict[Var, Any] = {}
        for variable, value in zip((*jaxpr.constvars, *jaxpr.invars), (*constants, *arguments), strict=True):
            values[variable] = np.asarray(value) if is_known(value) else value

        def value_of(atom: Any) -> Any:
            return np.asarray(atom.val) if isinstance(atom, Literal) else values[atom]

        for equation in _needed(jaxpr):
            outputs = self._step(equation, [value_of(atom) for atom in equation.invars])
            values.update(zip(equation.outvars, outputs, strict=True))
        return [value_of(atom) for atom in jaxpr.outvars]

    def _step(self, equation: Any, inputs: list[Any]) -> list[Any]:
        name, params = equation.primitive.name, equation.params
        if name in INLINED:
            inner = params[INLINED[name]]
            if isinstance(inner, ClosedJaxpr):
                return self._run(inner.jaxpr, list(inner.consts), inputs)
            return self._run(inner, [], inputs)
        if not any(map(is_symbolic, inputs)):
            return self._numbers(equation, inputs)
        shapes = [tuple(variable.aval.shape) for variable in equation.outvars]
        made = multiplied(name, inputs, params)
        if made is not None:
            return [made]
        inputs = list(map(plain, inputs))
        rule = RULES.get(name)
        result = None
        if rule is not None and not any(isinstance(value, Opaque) for value in inputs):
            result = rule(*inputs, **params)
        if result is None:
            return [poly.opaque(shape, inputs, WORDS.get(name, f"`{name}`")) for shape in shapes]
        return [result]

    def _numbers(self, equation: Any, inputs: list[Any]) -> list[Any]:
        """A computation without latent sites; one that was done before is not done again."""
        key = (equation.primitive.name, str(equation.params), tuple(_identity(value) for value in inputs))
        if key in self._done:
            return self._done[key][1]
        bind = equation.primitive.bind
        params = equation.primitive.get_bind_params(equation.params)
        if is_known(*inputs) and equation.primitive.name not in ("random_bits", "random_seed"):
            with jax.ensure_compile_time_eval():
                found = bind(*inputs, **params)
                outputs = list(found) if equation.primitive.multiple_results else [found]
                outputs = [_known(value) for value in outputs]
        else:
            found = bind(*inputs, **params)
            outputs = list(found) if equation.primitive.multiple_results else [found]
        # The inputs are kept, so that no other array gets their identity.
        self._done[key] = (inputs, outputs)
        return outputs


def _needed(jaxpr: Any) -> list[Any]:
    """The equations that an output depends on."""
    wanted = {atom for atom in jaxpr.outvars if not isinstance(atom, Literal)}
    kept = []
    for equation in reversed(jaxpr.eqns):
        if any(variable in wanted for variable in equation.outvars):
            kept.append(equation)
            wanted.update(atom for atom in equation.invars if not isinstance(atom, Literal))
    return kept[::-1]


def _known(value: Any) -> Any:
    return np.asarray(value) if not jnp.issubdtype(jnp.result_type(value), jax.dtypes.extended) else value


def _identity(value: Any) -> Any:
    if is_known(value) and np.size(value) <= 64:
        array = np.asarray(value)
        return (array.dtype.str, array.shape, array.tobytes())
    return id(value)
