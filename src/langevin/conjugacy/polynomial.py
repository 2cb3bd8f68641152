"""Arrays whose elements are polynomials in functions of latent sites.

    value[i] = sum over terms, sum over inner labels   number[i, j] * f(z[..i, j..]) * g(u[..i, j..]) ...

The functions are powers, logarithms and indicators: what sufficient statistics are made of. A term is an `einsum` that
was not computed yet: arrays of numbers and factors, by label. Labels of the array's axes are outer, all others are
summed over. So sums, products and integer powers of polynomials are polynomials, and so are powers and logarithms of
single terms; everything else is `Opaque`, and says why.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Sequence
from typing import Any

import jax.numpy as jnp
import numpy as np

from langevin.conjugacy.cases import choice_of, side_by_side
from langevin.conjugacy.indexing import (
    Access,
    At,
    Case,
    Label,
    Mapped,
    Moves,
    Number,
    Shift,
    Taken,
    aligned,
    is_known,
)
from langevin.conjugacy.terms import LOG, LOG1M, VALUE, Factor, Term

MOST_TERMS = 400


class Symbolic:
    """What depends on latent sites. NumPy and JAX leave arithmetic with it to it."""

    __array_ufunc__ = None
    __hash__ = object.__hash__

    def __add__(self, other: Any) -> Any:
        return add(self, other)

    __radd__ = __add__

    def __mul__(self, other: Any) -> Any:
        return multiply(self, other)

    __rmul__ = __mul__

    def __neg__(self) -> Any:
        return multiply(self, -1.0)

    def __sub__(self, other: Any) -> Any:
        return add(self, multiply(other, -1.0))

    def __rsub__(self, other: Any) -> Any:
        return add(multiply(self, -1.0), other)

    def __pow__(self, exponent: float) -> Any:
        return power(self, exponent)

    def __truediv__(self, other: Any) -> Any:
        return multiply(self, power(other, -1.0))

    def __rtruediv__(self, other: Any) -> Any:
        return multiply(power(self, -1.0), other)


@dataclasses.dataclass(frozen=True, eq=False)
class Opaque(Symbolic):
    """What is no polynomial, of these sites, and why."""

    shape: tuple[int, ...]
    sites: frozenset[str]
    reason: str

    @property
    def ndim(self) -> int:
        """The number of axes."""
        return len(self.shape)


@dataclasses.dataclass(frozen=True, eq=False)
class Polynomial(Symbolic):
    """An array of polynomials. An axis of size 1 has no label."""

    shape: tuple[int, ...]
    axes: tuple[Label | None, ...]
    terms: tuple[Term, ...]

    @property
    def ndim(self) -> int:
        """The number of axes."""
        return len(self.shape)

    @property
    def sites(self) -> frozenset[str]:
        """The sites it depends on."""
        return frozenset(factor.site for term in self.terms for factor in term.factors)

    def moved(self, mapping: Mapped, shape: tuple[int, ...], axes: tuple[Label | None, ...]) -> Polynomial:
        """With other labels."""
        moves = Moves(mapping)
        return Polynomial(shape, axes, tuple(term.moved(moves) for term in self.terms))


def labels_for(shape: Sequence[int]) -> tuple[Label | None, ...]:
    """New labels for the axes of a shape."""
    return tuple(Label(size) if size != 1 else None for size in shape)


def constant(array: Any, case: Case | None = None) -> Polynomial:
    """Numbers as a polynomial; those of a case are 1 where it is chosen, and else 0."""
    shape = np.shape(array)
    axes = labels_for(shape)
    squeezed = array if 1 not in shape else array.reshape(tuple(size for size in shape if size != 1))
    number = Number(squeezed, tuple(label for label in axes if label is not None), case)
    return Polynomial(shape, axes, (Term((number,)),))


def variable(name: str, shape: Sequence[int], *, positive: bool = False) -> Polynomial:
    """A site: every element is itself."""
    axes = labels_for(shape)
    access = tuple(access_at(label) for label in axes)
    return Polynomial(tuple(shape), axes, (Term((), (Factor(name, VALUE, 1.0, access, positive),)),))


def access_at(label: Label | None) -> Access:
    """How an axis is read at a label; of an axis of size 1 the only element."""
    return Taken(np.asarray(0), ()) if label is None else At(label)


def is_symbolic(value: Any) -> bool:
    """Whether it depends on latent sites."""
    return isinstance(value, Symbolic)


def sites_of(*values: Any) -> frozenset[str]:
    """The latent sites that values depend on."""
    return frozenset().union(*(value.sites for value in values if isinstance(value, Opaque | Polynomial)))


def opaque(shape: Sequence[int], values: Iterable[Any], reason: str) -> Opaque:
    """No polynomial; for the first reason that there was."""
    values = list(values)
    earlier = next((value.reason for value in values if isinstance(value, Opaque)), reason)
    return Opaque(tuple(shape), sites_of(*values), earlier)


def as_polynomial(value: Any) -> Polynomial:
    """A polynomial as it is, and numbers as one."""
    return value if isinstance(value, Polynomial) else constant(value)


def broadcast_to(value: Any, shape: Sequence[int]) -> Any:
    """As NumPy does it."""
    shape = tuple(shape)
    if not is_symbolic(value):
        return np.broadcast_to(value, shape) if is_known(value) else jnp.broadcast_to(value, shape)
    if value.shape == shape:
        return value
    if isinstance(value, Opaque):
        return dataclasses.replace(value, shape=shape)
    lead = len(shape) - value.ndim
    axes = tuple(
        value.axes[i - lead] if i >= lead and value.axes[i - lead] is not None else labels_for((size,))[0]
        for i, size in enumerate(shape)
    )
    return Polynomial(shape, axes, value.terms)


def _unified(one: Polynomial, other: Polynomial) -> tuple[Polynomial, Polynomial]:
    """Both with the same shape, and the same labels for its axes."""
    shape = np.broadcast_shapes(one.shape, other.shape)
    one, other = broadcast_to(one, shape), broadcast_to(other, shape)
    mapping = {
        theirs: Shift(own)
        for own, theirs in zip(one.axes, other.axes, strict=True)
        if own is not None and theirs is not None and theirs is not own
    }
    return one, other.moved(mapping, shape, one.axes) if mapping else other


def add(one: Any, other: Any) -> Any:
    """The sum."""
    if not is_symbolic(one) and not is_symbolic(other):
        return one + other
    shape = np.broadcast_shapes(np.shape(one), np.shape(other))
    if isinstance(one, Opaque) or isinstance(other, Opaque):
        return opaque(shape, (one, other), "")
    a, b = _unified(as_polynomial(one), as_polynomial(other))
    return Polynomial(a.shape, a.axes, gathered(a.terms + b.terms, a.axes))


def gathered(terms: tuple[Term, ...], axes: tuple[Label | None, ...]) -> tuple[Term, ...]:
    """Terms of numbers alone as one, and none that are 0."""
    terms = tuple(term for term in terms if not any(_is_zero(number) for number in term.numbers))
    outer = [label for label in axes if label is not None]
    plain = [
        term
        for term in terms
        if not term.factors and all(any(label is own for own in outer) for label in term.labels())
    ]
    if len(plain) < 2:
        return terms
    total: Any = 0.0
    for term in plain:
        product: Any = 1.0
        for number in term.numbers:
            product = product * aligned(number, outer)
        total = total + product
    axis_sizes = np.shape(total)
    kept = tuple(label for label, size in zip(outer, axis_sizes, strict=True) if size == label.size)
    if len(kept) != len(outer):
        total = total.reshape(tuple(label.size for label in kept))
    number = Number(total, kept)
    return (Term((number,)), *(term for term in terms if all(term is not other for other in plain)))


def _is_zero(number: Number) -> bool:
    return is_known(number.array) and not np.any(number.array)


def _has_zeros(number: Number) -> bool:
    return number.case is not None or (is_known(number.array) and not np.all(number.array))


def multiply(one: Any, other: Any) -> Any:
    """The product."""
    if not is_symbolic(one) and not is_symbolic(other):
        return one * other
    shape = np.broadcast_shapes(np.shape(one), np.shape(other))
    if isinstance(one, Opaque) or isinstance(other, Opaque):
        return opaque(shape, (one, other), "")
    a, b = _unified(as_polynomial(one), as_polynomial(other))
    if len(a.terms) * len(b.terms) > MOST_TERMS:
        return opaque(shape, (a, b), f"a product of sums with more than {MOST_TERMS} terms")
    outer = {id(label) for label in a.axes if label is not None}
    terms = []
    for left in a.terms:
        for right in b.terms:
            inner = {label: Shift(Label(label.size)) for label in right.labels() if id(label) not in outer}
            terms.append(left.times(right.moved(Moves(inner))))
    return Polynomial(a.shape, a.axes, gathered(tuple(terms), a.axes))


def monomial(value: Polynomial) -> Term | None:
    """The only term, if nothing is summed in it."""
    if len(value.terms) != 1:
        return None
    outer = {id(label) for label in value.axes if label is not None}
    term = value.terms[0]
    return term if all(id(label) in outer for label in term.labels()) else None


def _by_parts(value: Polynomial, function: Any) -> Any:
    """A function of each of the cases of a choice, or of the parts that stand side by side; None if there are none."""
    parts = choice_of(value.terms) or side_by_side(value.terms, value.axes)
    if parts is None:
        return None
    result: Any = np.zeros(value.shape)
    for number, terms in parts:
        moved = function(Polynomial(value.shape, value.axes, terms))
        if isinstance(moved, Opaque):
            return moved
        # Parts of parts have other labels by now.
        result = add(result, multiply(moved, Polynomial(value.shape, value.axes, (Term((number,)),))))
    return result


def power(value: Any, exponent: float) -> Any:  # noqa: PLR0911 - one for each kind of value
    """`value ** exponent` for an exponent that is a number."""
    if not is_symbolic(value):
        if float(exponent).is_integer() and abs(exponent) < 20:
            value = np.asarray(value, np.result_type(value, float)) if is_known(value) else value
            return value ** int(exponent)
        return value**exponent
    if isinstance(value, Opaque):
        return value
    whole = float(exponent).is_integer()
    term = monomial(value)
    if term is not None and exponent < 0 and any(map(_has_zeros, term.numbers)):
        return opaque(value.shape, [value], f"its power {exponent:g} where it can be zero")
    if term is not None and (whole or all(factor.positive for factor in term.factors)):
        if any(factor.function != VALUE for factor in term.factors) and not (whole and exponent > 0):
            return opaque(value.shape, [value], f"a logarithm to the power of {exponent:g}")
        numbers = tuple(Number(power(number.array, exponent), number.labels) for number in term.numbers)
        factors = tuple(factor._replace(exponent=factor.exponent * exponent) for factor in term.factors)
        return Polynomial(value.shape, value.axes, (Term(numbers, factors),))
    if whole and 1 <= exponent <= 4:
        result: Any = value
        for _ in range(int(exponent) - 1):
            result = multiply(result, value)
        return result
    parts = _by_parts(value, lambda part: power(part, exponent))
    if parts is not None:
        return parts
    names = {0.5: "a square root", -1.0: "a reciprocal", -0.5: "a reciprocal square root"}
    what = "a sum" if len(value.terms) > 1 or term is None else "what can be negative"
    return opaque(value.shape, [value], f"{names.get(float(exponent), f'the power {exponent:g}')} of {what}")


def log(value: Any) -> Any:  # noqa: PLR0911 - one for each kind of value
    """The natural logarithm."""
    if not is_symbolic(value):
        return np.log(value) if is_known(value) else jnp.log(value)
    if isinstance(value, Opaque):
        return value
    term = monomial(value)
    if term is not None and any(map(_has_zeros, term.numbers)):
        return opaque(value.shape, [value], "its logarithm where it can be zero")
    if term is not None and all(factor.function == VALUE and factor.positive for factor in term.factors):
        terms = [Term((Number(log(number.array), number.labels),)) for number in term.numbers]
        for factor in term.factors:
            weight = Number(np.asarray(float(factor.exponent)), ())
            terms.append(Term((weight,), (factor._replace(function=LOG, exponent=1.0, positive=False),)))
        return Polynomial(value.shape, value.axes, gathered(tuple(terms), value.axes))
    complement = _complement(value)
    if complement is not None:
        factor = complement._replace(function=LOG1M, positive=False)
        return Polynomial(value.shape, value.axes, (Term((), (factor,)),))
    parts = _by_parts(value, log)
    if parts is not None:
        return parts
    what = "a sum" if len(value.terms) > 1 or term is None else "what can be negative"
    return opaque(value.shape, [value], f"the logarithm of {what}")


def _complement(value: Polynomial) -> Factor | None:
    """The factor x, if the value is 1 - x."""
    if len(value.terms) != 2 or monomial(Polynomial(value.shape, value.axes, value.terms[1:])) is None:
        return None
    ones, minus = sorted(value.terms, key=lambda term: len(term.factors))
    if ones.factors or len(minus.factors) != 1 or minus.factors[0].exponent != 1 or minus.factors[0].function != VALUE:
        return None
    known = all(is_known(number.array) for term in (ones, minus) for number in term.numbers)
    if not known or any(np.any(np.asarray(number.array) != 1) for number in ones.numbers):
        return None
    sign = np.prod([1.0, *(np.asarray(number.array).ravel()[0] for number in minus.numbers)])
    constant_sign = all(np.ptp(np.asarray(number.array)) == 0 for number in minus.numbers if np.size(number.array))
    return minus.factors[0] if sign == -1.0 and constant_sign else None


def total(value: Any, axes: Sequence[int] | None = None) -> Any:
    """The sum over some axes, or all."""
    axes = range(np.ndim(value) if not is_symbolic(value) else value.ndim) if axes is None else axes
    axes = sorted({axis % max(value.ndim, 1) for axis in axes})
    if not is_symbolic(value):
        return value.sum(axis=tuple(axes)) if axes else value
    shape = tuple(size for axis, size in enumerate(value.shape) if axis not in axes)
    if isinstance(value, Opaque):
        return dataclasses.replace(value, shape=shape)
    gone = [label for label in (value.axes[axis] for axis in axes) if label is not None]
    kept = tuple(label for axis, label in enumerate(value.axes) if axis not in axes)
    # What is summed over gets a label of its own: the old one may be an axis of another array, as in x - x.mean().
    moves = Moves({label: Shift(Label(label.size)) for label in gone})
    terms = []
    for term in value.terms:
        present = term.labels()
        missing = [label.size for label in gone if all(label is not own for own in present)]
        term = term.moved(moves)
        if missing:
            term = term.times(Term((Number(np.asarray(float(np.prod(missing))), ()),)))
        terms.append(term)
    return Polynomial(shape, kept, gathered(tuple(terms), kept))
