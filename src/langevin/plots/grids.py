"""Rows at evenly spaced values of some columns, with the other columns at typical values."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from langevin import checks
from langevin.data.table import Table
from langevin.errors import SettingError

Inputs = Mapping[str, np.ndarray]
# How far beyond the rows a grid goes, in parts of their range.
MARGIN = 0.15


def column_of(inputs: Inputs, column: str, who: str) -> np.ndarray:
    """The values of a column, or of one of a matrix ("x[2]").

    Args:
        inputs: The columns that the model is called with.
        column: Which.
        who: The picture, for messages.

    Raises:
        SettingError: If there is none of that name, or it has no single number a row.
    """
    whole, index = _place(inputs, column)
    if whole is None:
        raise SettingError(
            f"`{who}`: there is no column {column!r}; the model is called with {', '.join(map(repr, inputs))}. A "
            "column of a matrix is 'x[0]'."
        )
    values = inputs[whole] if index is None else inputs[whole][:, index]
    if values.ndim > 1:
        raise SettingError(f"`{who}`: {column!r} has {values.shape[1]} columns; say which, as '{column}[0]'.")
    return np.asarray(values, np.float64)


def single_columns(inputs: Inputs) -> list[str]:
    """The names of all columns of single numbers, those of matrices too."""
    names: list[str] = []
    for name, values in inputs.items():
        names += [name] if values.ndim == 1 else [f"{name}[{i}]" for i in range(values.shape[1])]
    return names


def spread(low: float, high: float) -> tuple[float, float]:
    """A range that goes a little beyond another."""
    margin = MARGIN * ((high - low) or 1.0)
    return low - margin, high + margin


def checked_range(who: str, setting: str, over: tuple[float, float]) -> tuple[float, float]:
    """The ends of a range that a user gives.

    Raises:
        SettingError: If they are not two numbers, the lower one first.
    """
    ends = tuple(over) if np.ndim(over) == 1 else ()
    if len(ends) != 2 or not all(checks.is_number(end) and np.isfinite(end) for end in ends) or not ends[0] < ends[1]:
        raise SettingError(f"`{who}`: `{setting}` must be two numbers, the lower one first; got {over!r}.")
    return float(ends[0]), float(ends[1])


def rows_at(inputs: Inputs, values: Mapping[str, np.ndarray]) -> Table:
    """Rows with these values of some columns; of the others, the median, or the most frequent of whole numbers.

    Args:
        inputs: The columns that the model is called with.
        values: For columns, one value a row.

    Example:
        >>> import numpy as np
        >>> inputs = {"x": np.array([[0.0, 5.0], [2.0, 9.0]]), "group": np.array([1, 1])}
        >>> rows = rows_at(inputs, {"x[0]": np.array([3.0, 4.0])})
        >>> rows.columns["x"].tolist(), rows.columns["group"].tolist()
        ([[3.0, 7.0], [4.0, 7.0]], [1, 1])
    """
    count = len(next(iter(values.values())))
    columns = {name: np.repeat(_typical(column)[None], count, axis=0) for name, column in inputs.items()}
    for column, numbers in values.items():
        whole, index = _place(inputs, column)
        assert whole is not None
        if index is None:
            columns[whole] = numbers.astype(inputs[whole].dtype)
        else:
            columns[whole][:, index] = numbers
    return Table(columns, count)


def _place(inputs: Inputs, column: str) -> tuple[str | None, int | None]:
    """The column, and which one of it if it is a matrix."""
    if column in inputs:
        return column, 0 if inputs[column].ndim == 2 and inputs[column].shape[1] == 1 else None
    whole, _, index = column.partition("[")
    number = index.removesuffix("]")
    if whole in inputs and inputs[whole].ndim == 2 and number.isdigit() and int(number) < inputs[whole].shape[1]:
        return whole, int(number)
    return None, None


def _typical(column: np.ndarray) -> np.ndarray:
    if column.dtype.kind == "f":
        return np.median(column, axis=0).astype(column.dtype)
    flat = column.reshape(len(column), -1)
    found = []
    for values in flat.T:
        different, counts = np.unique(values, return_counts=True)
        found.append(different[counts.argmax()])
    return np.asarray(found, column.dtype).reshape(column.shape[1:])
