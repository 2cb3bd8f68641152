"""Axes by label, and how arrays and sites are read along them.

A label is an axis that several arrays share, as a letter of an `einsum` is. A site is read, along each of its own axes,
at a label (shifted by a fixed number), or where an array of indices says.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

Array = Any


@dataclasses.dataclass(frozen=True, eq=False)
class Label:
    """An axis of this size. Two labels are the same only if they are one object."""

    size: int


class At(NamedTuple):
    """Element `label + offset` of an axis."""

    label: Label
    offset: int = 0


class Taken(NamedTuple):
    """The element of an axis that `index` says, for every combination of its labels."""

    index: Array
    labels: tuple[Label, ...]


Access = At | Taken


class Shift(NamedTuple):
    """What was at a label `l` is read at `label + offset`, of a label that is at most as long."""

    label: Label
    offset: int = 0


class Pick(NamedTuple):
    """What was at a label is read where an index says."""

    index: Array
    labels: tuple[Label, ...]


Mapped = Mapping[Label, Shift | Pick]


class Case(NamedTuple):
    """One of the cases of a choice.

    Attributes:
        choice: The choice: two are the same only if they are one object.
        number: Which case it is.
        count: How many there are.
    """

    choice: object
    number: int
    count: int


class Number(NamedTuple):
    """An array of numbers.

    Attributes:
        array: The numbers.
        labels: One for each of its axes.
        case: Of a choice, if the numbers are 1 where the choice is this case, and else 0.
    """

    array: Array
    labels: tuple[Label, ...]
    case: Case | None = None


def is_known(*arrays: Any) -> bool:
    """Whether all are numbers now, and not only when a compiled function runs."""
    return all(isinstance(array, np.ndarray | np.generic | int | float | bool) for array in arrays)


def picked(index: Array, labels: Sequence[Label], full: int) -> Shift | Pick:
    """How to read an axis of a size at an index: a shift where the index says no more than that."""
    labels = tuple(labels)
    if is_known(index):
        index = np.asarray(index)
        if index.ndim == 1 and index.size and labels[0].size == index.size:
            start = int(index[0])
            if start >= 0 and np.array_equal(index, start + np.arange(index.size)) and start + index.size <= full:
                return Shift(labels[0], start)
    return Pick(index, labels)


def labels_of(access: Access) -> tuple[Label, ...]:
    """The labels that say which element is read."""
    return (access.label,) if isinstance(access, At) else access.labels


def same(one: Access, other: Access) -> bool:
    """Whether two accesses certainly read the same element."""
    if isinstance(one, At) and isinstance(other, At):
        return one.label is other.label and one.offset == other.offset
    if isinstance(one, Taken) and isinstance(other, Taken):
        if len(one.labels) != len(other.labels) or any(
            a is not b for a, b in zip(one.labels, other.labels, strict=True)
        ):
            return False
        if one.index is other.index:
            return True
        return is_known(one.index, other.index) and np.array_equal(one.index, other.index)
    return False


class Moves:
    """Applies a mapping of labels; the same index is moved once, so that it stays one object."""

    def __init__(self, mapping: Mapped) -> None:
        self.mapping = mapping
        self._moved: dict[tuple[int, tuple[int, ...]], tuple[Any, Number]] = {}

    def access(self, access: Access) -> Access:
        """The access after the mapping."""
        if isinstance(access, At):
            to = self.mapping.get(access.label)
            if to is None:
                return access
            if isinstance(to, Shift):
                return At(to.label, access.offset + to.offset)
            return Taken(to.index if not access.offset else to.index + access.offset, to.labels)
        moved = self.number(Number(access.index, access.labels))
        return Taken(moved.array, moved.labels)

    def number(self, number: Number) -> Number:
        """The array after the mapping."""
        if not any(label in self.mapping for label in number.labels):
            return number
        key = (id(number.array), tuple(map(id, number.labels)))
        if key not in self._moved:
            # The array is kept with its number, so that no other one gets its identity.
            self._moved[key] = (number.array, _moved(number, self.mapping))
        return self._moved[key][1]


def _moved(number: Number, mapping: Mapped) -> Number:
    array, labels, case = number
    for axis, label in enumerate(labels):
        to = mapping.get(label)
        if isinstance(to, Shift) and (to.offset or to.label.size != label.size):
            case = None
            array = array[(slice(None),) * axis + (slice(to.offset, to.offset + to.label.size),)]
    moved: list[Any] = [mapping.get(label) for label in labels]
    picks = [axis for axis, to in enumerate(moved) if isinstance(to, Pick)]
    kept = tuple(to.label if isinstance(to, Shift) else label for to, label in zip(moved, labels, strict=True))
    if not picks:
        return Number(array, kept, case)
    if len(picks) == 1 and not set(map(id, moved[picks[0]].labels)) & {
        id(label) for axis, label in enumerate(kept) if axis != picks[0]
    }:
        axis = picks[0]
        return Number(take(array, moved[axis].index, axis), (*kept[:axis], *moved[axis].labels, *kept[axis + 1 :]))
    after: list[Label] = []
    for axis, to in enumerate(moved):
        for label in to.labels if isinstance(to, Pick) else (kept[axis],):
            if not any(label is other for other in after):
                after.append(label)
    index = []
    for axis, to in enumerate(moved):
        where = to if isinstance(to, Pick) else Pick(np.arange(kept[axis].size), (kept[axis],))
        index.append(aligned(Number(where.index, where.labels), after))
    return Number(array[tuple(index)], tuple(after))


def take(array: Array, index: Array, axis: int) -> Array:
    """`array` at an index along one axis; numbers that are known stay so."""
    if is_known(array, index):
        return np.take(np.asarray(array), np.asarray(index), axis=axis)
    return jnp.take(jnp.asarray(array), jnp.asarray(index), axis=axis, mode="clip")


def aligned(number: Number, labels: Sequence[Label]) -> Array:
    """The array with an axis for each of these labels, of size 1 where it has none."""
    axes = [next(i for i, own in enumerate(number.labels) if own is label) for label in labels if _in(label, number)]
    shape = [label.size if _in(label, number) else 1 for label in labels]
    if is_known(number.array):
        return np.reshape(np.transpose(np.asarray(number.array), axes), shape)
    return jnp.reshape(jnp.transpose(number.array, axes), shape)


def _in(label: Label, number: Number) -> bool:
    return any(label is own for own in number.labels)


def read(array: jax.Array, accesses: Sequence[Access]) -> Number:
    """An array along accesses, one for each of its axes. A label may stand twice: then it is a diagonal."""
    labels: list[Label] = []
    indices: list[Access] = []
    for axis, access in enumerate(accesses):
        if isinstance(access, At):
            size = access.label.size
            if access.offset or size != array.shape[axis]:
                array = jax.lax.slice_in_dim(array, access.offset, access.offset + size, axis=axis)
        indices.append(access)
    if not any(isinstance(access, Taken) for access in indices):
        return Number(array, tuple(access.label for access in indices if isinstance(access, At)))
    taken = [(axis, access) for axis, access in enumerate(indices) if isinstance(access, Taken)]
    if len(taken) == 1:
        axis, access = taken[0]
        others = [labels_of(a)[0] for i, a in enumerate(indices) if i != axis]
        if not any(label is other for label in access.labels for other in others):
            labels = [label for a in indices for label in labels_of(a)]
            return Number(jnp.take(array, jnp.asarray(access.index), axis=axis, mode="clip"), tuple(labels))
    for access in indices:
        for label in labels_of(access):
            if not any(label is other for other in labels):
                labels.append(label)
    index = tuple(
        aligned(
            Number(np.arange(access.label.size), (access.label,))
            if isinstance(access, At)
            else Number(access.index, access.labels),
            labels,
        )
        for access in indices
    )
    return Number(array[index], tuple(labels))
