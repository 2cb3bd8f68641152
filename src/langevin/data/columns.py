"""One column of whatever kind: numbers, or codes with the names that they stand for; and where it lacks a value."""

from __future__ import annotations

import datetime
import decimal
import numbers
from typing import Any, Literal, NamedTuple

import numpy as np
from jax.core import Tracer

from langevin.data.levels import Label, coded
from langevin.errors import DataError

_BOOLS = (bool, np.bool_)
_INTEGERS = (numbers.Integral, np.bool_)
_NUMBERS = (numbers.Real, decimal.Decimal, np.bool_)
_TIMES = (datetime.date, datetime.time, datetime.timedelta, np.datetime64, np.timedelta64)


class Column(NamedTuple):
    """A column as arrays.

    Attributes:
        values: Numbers or booleans; of names, their codes. Where there is no value, anything.
        lacks: Where there is no value, of the same shape; None if there is one everywhere.
        levels: The names that codes stand for; None for numbers.
        origin: Where levels come from: "text"; "names", text that is said to be names; "declared", a list of levels
            that came with the column, in its order, also those that no row has.
    """

    values: np.ndarray
    lacks: np.ndarray | None = None
    levels: tuple[Label, ...] | None = None
    origin: Literal["text", "names", "declared"] = "text"

    @property
    def rows_lacking(self) -> np.ndarray:
        """For each row whether it lacks a value, or a part of it."""
        if self.lacks is None:
            return np.zeros(len(self.values), bool)
        return np.asarray(self.lacks.reshape(len(self.lacks), -1).any(axis=1))

    def at(self, rows: np.ndarray) -> Column:
        """These rows."""
        lacks = None if self.lacks is None else self.lacks[rows]
        return self._replace(values=self.values[rows], lacks=lacks if lacks is not None and lacks.any() else None)


def of_array(name: str, raw: Any) -> Column:
    """An array, a list, or whatever NumPy makes an array of.

    Raises:
        DataError: If it is none of numbers, and no names either; says what to do.
    """
    if isinstance(raw, Tracer):
        raise DataError(
            f"`data[{name!r}]` has no values yet: a fit cannot be made inside jax.jit, jax.vmap or jax.grad. Call "
            "it outside."
        )
    if type(raw).__module__.startswith("scipy.sparse"):
        raise DataError(f"`data[{name!r}]` is a sparse matrix. Pass it as a plain array, with its `toarray()`.")
    try:
        array = np.asarray(raw)
        if array.dtype.kind == "U" and isinstance(raw, list | tuple):
            # NumPy makes the text 'nan' of a number among names.
            array = np.array(raw, object)
    except ValueError as error:
        raise DataError(f"`data[{name!r}]` is not a regular array: {error}.") from error
    if array.ndim == 0:
        raise DataError(f"`data[{name!r}]` is a single value; the rows are missing. Pass it in `constants`.")
    if isinstance(raw, np.ma.MaskedArray) and np.ma.is_masked(raw):
        column = _of_kind(name, np.asarray(raw.filled(raw.dtype.type()) if array.dtype.kind in "biuf" else raw.data))
        return _lacking(column, np.ma.getmaskarray(raw))
    return _of_kind(name, array)


def of_numbers(values: np.ndarray, lacks: np.ndarray | None = None) -> Column:
    """Numbers or booleans; what is not a number lacks too."""
    column = Column(values)
    if values.dtype.kind == "f" and not np.isfinite(values).all():
        column = _lacking(column, np.isnan(values))
    return column if lacks is None else _lacking(column, lacks)


def of_objects(name: str, array: np.ndarray) -> Column:
    """Objects that are numbers, booleans, text or vectors, with None or its like where there is no value.

    Raises:
        DataError: If they are something else, or of several kinds.
    """
    import pandas as pd

    lacks = np.asarray(pd.isna(array))
    there = array[~lacks]
    if there.size == 0:
        return _lacking(Column(np.full(array.shape, np.nan)), lacks)
    kinds = {type(value) for value in there.flat}
    called = " and ".join(sorted(kind.__name__ for kind in kinds))

    def all_are(classes: tuple[type, ...]) -> bool:
        return all(issubclass(kind, classes) for kind in kinds)

    if all_are((str, bytes)):
        if bytes in kinds:
            there = np.array([value.decode() if isinstance(value, bytes) else value for value in there], object)
        return of_text(there, lacks)
    if all_are(_NUMBERS):
        kind = bool if all_are(_BOOLS) else int if all_are(_INTEGERS) else float
        found = np.array([kind(value) for value in there.flat])
        if found.dtype == object:
            raise DataError(f"`data[{name!r}]` has integers that do not fit in 64 bits. Rescale them.")
        return _lacking(_placed(found, ~lacks), lacks)
    if all_are((list, tuple, np.ndarray)):
        return _of_vectors(name, there, ~lacks)
    if any(issubclass(kind, (*_TIMES, pd.Period)) for kind in kinds):
        raise times(name, called)
    raise DataError(
        f"`data[{name!r}]` holds {called}, which are neither all numbers nor all names. Make numbers of it, for "
        "instance with pd.to_numeric(x, errors='coerce'), or text with x.astype(str)."
    )


def of_text(texts: np.ndarray, lacks: np.ndarray) -> Column:
    """Names, as codes in alphabetical order.

    Args:
        texts: Those that are there, flat.
        lacks: Where there is none, in the shape of the column.
    """
    codes, levels = coded(texts)
    return _lacking(_placed(codes, ~lacks)._replace(levels=levels), lacks)


def times(name: str, kind: Any, remedy: str = "(t - t.min()) / np.timedelta64(1, 'D')") -> DataError:
    """The error for a column of times."""
    return DataError(
        f"`data[{name!r}]` holds {kind}, times and not numbers. Count from a time of your own, for instance "
        f"{remedy}, or take the part that matters (year, month, hour)."
    )


def objects(values: list[Any]) -> np.ndarray:
    """An array of objects, whatever they are."""
    array = np.empty(len(values), object)
    array[:] = values
    return array


def _of_kind(name: str, array: np.ndarray) -> Column:
    kind = array.dtype.kind
    if kind in "biuf":
        return of_numbers(array)
    if kind in "mM":
        raise times(name, array.dtype)
    if kind == "S":
        array, kind = np.char.decode(array), "U"
    if kind in "OUT":
        return of_objects(name, array.astype(object))
    raise DataError(
        f"`data[{name!r}]` holds {array.dtype}, neither numbers nor names. Make numbers of it, for instance its real "
        "part."
    )


def _of_vectors(name: str, there: np.ndarray, where: np.ndarray) -> Column:
    """Rows that each hold a list of numbers, all of one length."""
    try:
        found = np.array([np.asarray(value) for value in there])
    except ValueError as error:
        raise DataError(f"`data[{name!r}]` is not a regular array: {error}.") from error
    column = _of_kind(name, found)
    if where.all():
        return column
    values = np.zeros((len(where), *found.shape[1:]), column.values.dtype)
    values[where] = column.values
    lacks = np.broadcast_to(~where.reshape(-1, *[1] * (found.ndim - 1)), values.shape).copy()
    if column.lacks is not None:
        lacks[where] = column.lacks
    return column._replace(values=values, lacks=lacks)


def _placed(found: np.ndarray, where: np.ndarray) -> Column:
    """Values at their places; elsewhere 0."""
    values = np.zeros(where.shape, found.dtype)
    values[where] = found
    return Column(values)


def _lacking(column: Column, lacks: np.ndarray) -> Column:
    """The column, which lacks values also there."""
    lacks = lacks if column.lacks is None else lacks | column.lacks
    return column._replace(lacks=lacks if lacks.any() else None)
