"""Sums of terms of which at each place only some count: choices between values, and arrays that stand side by side.

Each term of such a sum is multiplied by an array of ones and zeros that says where it counts. A function of the sum is
then the sum of the function of each part, at the places of the part.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from langevin.conjugacy.indexing import Label, Number, is_known
from langevin.conjugacy.terms import Term

Parts = list[tuple[Number, tuple[Term, ...]]]


def side_by_side(terms: Sequence[Term], axes: Sequence[Label | None]) -> Parts | None:
    """Terms that stand side by side along some axes, each with the array of ones where it is; None if none do."""
    outer = {id(label) for label in axes if label is not None}
    parts: dict[bytes, tuple[Number, list[Term]]] = {}
    labels: tuple[Label, ...] | None = None
    for term in terms:
        if not term.factors and not term.numbers:
            return None
        for number in term.numbers:
            is_outer = number.labels and all(id(label) in outer for label in number.labels)
            if is_outer and is_known(number.array) and np.isin(number.array, (0.0, 1.0)).all():
                break
        else:
            return None
        if labels is not None and tuple(map(id, number.labels)) != tuple(map(id, labels)):
            return None
        labels = number.labels
        rest = term._replace(numbers=tuple(other for other in term.numbers if other is not number))
        parts.setdefault(np.asarray(number.array).tobytes(), (number, []))[1].append(rest)
    covered = sum(np.asarray(number.array) for number, _ in parts.values())
    if len(parts) < 2 or np.any(np.asarray(covered) != 1.0):
        return None
    return [(number, tuple(rest)) for number, rest in parts.values()]


def choice_of(terms: Sequence[Term]) -> Parts | None:
    """The cases of a choice that all terms are of, each with the numbers that say where it is; None if there is none.

    A term is of a choice if it is multiplied by the numbers of one of its cases.
    """
    if not terms:
        return None
    for first in terms[0].numbers:
        cases: dict[int, tuple[Number, list[Term]]] = {}
        for term in terms:
            own = next((number for number in term.numbers if _is_of(number, first)), None)
            if own is None or own.case is None:
                break
            rest = term._replace(numbers=tuple(number for number in term.numbers if number is not own))
            cases.setdefault(own.case.number, (own, []))[1].append(rest)
        else:
            if first.case is not None and len(cases) == first.case.count:
                return [(own, tuple(rest)) for own, rest in cases.values()]
    return None


def _is_of(number: Number, first: Number) -> bool:
    """Whether both are cases of one choice, read in the same way."""
    if number.case is None or first.case is None or number.case.choice is not first.case.choice:
        return False
    return tuple(map(id, number.labels)) == tuple(map(id, first.labels))
