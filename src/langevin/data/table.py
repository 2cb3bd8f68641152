"""What a user brings as data, turned into named arrays with one row an observation."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from langevin.errors import DataError


class Table(NamedTuple):
    """Named arrays that share their leading axis."""

    columns: dict[str, np.ndarray]
    num_rows: int


def as_table(data: Any) -> Table:
    """Turns a dict of arrays or a frame (pandas, polars, anything with named columns) into a `Table`.

    Values are checked once, here: equal row counts, numbers only, nothing infinite or missing. Precision follows
    JAX: without `jax_enable_x64`, 64-bit numbers become 32-bit ones, and integers that do not fit are an error.

    Raises:
        DataError: What is wrong, in which column, and at which row.

    Example:
        >>> as_table({"x": [1.0, 2.0], "y": [True, False]}).num_rows
        2
    """
    if data is None:
        return Table({}, 0)
    columns = {name: _as_numbers(name, values) for name, values in _columns(data).items()}
    if not columns:
        raise DataError("`data` has no columns. Pass a dict such as {'x': x, 'y': y}, or a frame.")
    counts = {name: len(column) for name, column in columns.items()}
    if len(set(counts.values())) > 1:
        listed = ", ".join(f"{name!r} has {count}" for name, count in counts.items())
        raise DataError(
            f"`data`: the columns have different numbers of rows: {listed}. The leading axis of each is the rows; "
            "what is not a row goes into `constants`."
        )
    num_rows = next(iter(counts.values()))
    if num_rows == 0:
        raise DataError(f"`data` is empty: {', '.join(map(repr, counts))} have 0 rows.")
    return Table(columns, num_rows)


def as_arrays(table: Table, copy: bool) -> dict[str, jax.Array]:
    """The columns on the device.

    Without `copy`, JAX may go on reading the caller's memory, and a caller who later writes there changes the target.
    """

    def convert(column: Any) -> jax.Array:
        if isinstance(column, jax.Array) or not copy:
            return jnp.asarray(column)
        # A copy by NumPy: JAX would compile a program for it.
        return jax.device_put(np.array(column))

    return {name: convert(column) for name, column in table.columns.items()}


def _columns(data: Any) -> dict[str, Any]:
    if isinstance(data, Mapping):
        _check_unique(data)
        return {str(name): values for name, values in data.items()}
    names = getattr(data, "column_names", getattr(data, "columns", None))  # pyarrow calls its arrays `columns`
    if names is None or not hasattr(data, "__getitem__"):
        raise DataError(
            f"`data` must be a dict of arrays or a frame; got {type(data).__name__}. Try {{'x': x, 'y': y}}."
        )
    _check_unique(names)
    return {str(name): data[name].to_numpy() for name in names}


def _check_unique(names: Iterable[Any]) -> None:
    seen: set[str] = set()
    for name in map(str, names):
        if name in seen:
            raise DataError(f"`data` has two columns named {name!r}. Rename or drop one.")
        seen.add(name)


def _as_numbers(name: str, values: Any) -> np.ndarray:
    if np.ma.is_masked(values):
        raise DataError(
            f"`data[{name!r}]` is a masked array with missing values. Drop those rows, or model what is missing."
        )
    try:
        array = np.asarray(values)
    except ValueError as error:
        raise DataError(f"`data[{name!r}]` is not a regular array: {error}.") from error
    if array.ndim == 0:
        raise DataError(f"`data[{name!r}]` is a single value; the rows are missing. Pass it in `constants`.")
    if array.dtype.kind not in "biuf":
        raise DataError(
            f"`data[{name!r}]` holds {array.dtype}, not numbers. Encode categories as integers, and drop what the "
            "model does not use."
        )
    if array.dtype.kind == "f":
        _check_finite(name, array)
    target = jax.dtypes.canonicalize_dtype(array.dtype)
    if array.dtype.kind in "iu" and array.size:
        limits = np.iinfo(target)
        if array.min() < limits.min or array.max() > limits.max:
            raise DataError(
                f"`data[{name!r}]` has integers that do not fit in {target}. Rescale them, or enable 64 bits with "
                "jax.config.update('jax_enable_x64', True)."
            )
    with np.errstate(over="ignore"):
        converted = array.astype(target, copy=False)
    if array.dtype.kind == "f" and not np.isfinite(converted).all():
        row = np.argwhere(~np.isfinite(converted))[0]
        raise DataError(
            f"`data[{name!r}]` has {array[tuple(row)]} at row {row[0]}, which does not fit in {target}. Rescale the "
            "column, or enable 64 bits with jax.config.update('jax_enable_x64', True)."
        )
    return converted


def _check_finite(name: str, array: np.ndarray) -> None:
    finite = np.isfinite(array)
    if finite.all():
        return
    where = np.argwhere(~finite)
    value = array[tuple(where[0])]
    rows = len(np.unique(where[:, 0]))
    raise DataError(
        f"`data[{name!r}]` has {value} at row {where[0][0]} ({rows} such row{'s' if rows > 1 else ''} of {len(array)})."
        " Drop those rows, or model what is missing."
    )
