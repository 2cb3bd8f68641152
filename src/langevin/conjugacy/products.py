"""Products over an axis: values whose logarithm is a polynomial, though they are none.

    w[k] = v[k] prod_{j<k} (1 - v[j])        log w[k] = log v[k] + sum_{j<k} log(1 - v[j])

So are the weights of a Dirichlet process, made by breaking a stick. They can be moved and multiplied, and densities of
labels take their logarithm; in any other place they are `Opaque`.
"""

from __future__ import annotations

import dataclasses
from typing import Any

import numpy as np

from langevin.conjugacy import polynomial as poly
from langevin.conjugacy.indexing import Label, Moves, Number, Pick, is_known
from langevin.conjugacy.polynomial import Opaque, Polynomial, Symbolic, is_symbolic
from langevin.conjugacy.rules import RULES, WORDS
from langevin.conjugacy.terms import Term

# What only moves elements.
MOVING = (
    *("broadcast_in_dim", "reshape", "squeeze", "transpose", "slice", "rev", "gather", "dynamic_slice"),
    *("convert_element_type", "copy", "copy_p", "stop_gradient"),
)
SUMS = {"cumprod": "cumsum", "reduce_prod": "reduce_sum"}


@dataclasses.dataclass(frozen=True, eq=False)
class Logged(Symbolic):
    """The exponential of a polynomial."""

    log: Polynomial

    @property
    def shape(self) -> tuple[int, ...]:
        """The shape of the value."""
        return self.log.shape

    @property
    def ndim(self) -> int:
        """How many axes it has."""
        return self.log.ndim


def multiplied(name: str, inputs: list[Any], params: dict[str, Any]) -> Any:
    """What a primitive makes of products, or of polynomials that it multiplies; None if that is not known."""
    has_products = any(isinstance(value, Logged) for value in inputs)
    if name == "log" and has_products:
        return inputs[0].log
    if name in MOVING and has_products:
        logs = [_log(inputs[0]), *inputs[1:]] if isinstance(inputs[0], Logged) else []
    elif name in SUMS or (has_products and name in ("concatenate", "stack", "pad", "mul", "div")):
        logs = [_log(value) for value in inputs]
    else:
        return None
    if not logs or any(value is None or isinstance(value, Opaque) for value in logs):
        return None
    rule = RULES[{**SUMS, "mul": "add", "div": "sub"}.get(name, name)]
    result = rule(*logs, **params)
    return Logged(result) if isinstance(result, Polynomial) else None


def log_of(value: Any) -> Any:
    """The logarithm of a polynomial or of a product."""
    return value.log if isinstance(value, Logged) else poly.log(value)


def plain(value: Any) -> Any:
    """The value without products: where they are not expected, they are opaque."""
    return poly.opaque(value.shape, [value.log], WORDS["cumprod"]) if isinstance(value, Logged) else value


def _log(value: Any) -> Any:
    if isinstance(value, Logged) or is_symbolic(value):
        return log_of(_side_by_side(value) if isinstance(value, Polynomial) else value)
    return np.log(value) if is_known(value) and np.all(np.asarray(value) > 0) else None


def _side_by_side(value: Polynomial) -> Polynomial:
    """Parts that were put together, each read where it is: its logarithm is then known."""
    return Polynomial(value.shape, value.axes, tuple(_placed(term, value.axes) for term in value.terms))


def _placed(term: Term, axes: tuple[Label | None, ...]) -> Term:
    for number in term.numbers:
        if not is_known(number.array) or len(number.labels) != 2:
            continue
        (outer, inner), places = number.labels, np.asarray(number.array)
        is_placed = any(outer is label for label in axes) and all(inner is not label for label in axes)
        if is_placed and np.isin(places, (0.0, 1.0)).all() and np.all(places.sum(1) <= 1):
            rest = term._replace(numbers=tuple(other for other in term.numbers if other is not number))
            read = rest.moved(Moves({inner: Pick(places.argmax(1), (outer,))}))
            return read.times(Term((Number(places.sum(1), (outer,)),)))
    return term
