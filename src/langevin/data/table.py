"""What a user brings as data, turned into named arrays with one row an observation."""

from __future__ import annotations

import numbers
import warnings
from collections.abc import Iterable, Mapping
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax.core import Tracer

from langevin.errors import DataError, LangevinWarning

MOST_LOOKED_AT = 100_000
# How large a rounding error may be, next to the sd of a column.
LEAST_RESOLUTION = 1e-3


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
    columns = {}
    for name, values in _columns(data).items():
        columns[name] = _as_numbers(name, values)
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
    if type(data).__name__ == "LazyFrame":
        raise DataError("`data` is a LazyFrame, which has no values yet. Pass data.collect().")
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
    if isinstance(values, Tracer):
        raise DataError(
            f"`data[{name!r}]` has no values yet: a fit cannot be made inside jax.jit, jax.vmap or jax.grad. Call "
            "it outside."
        )
    if type(values).__module__.startswith("scipy.sparse"):
        raise DataError(f"`data[{name!r}]` is a sparse matrix. Pass it as a plain array, with its `toarray()`.")
    try:
        array = _plain(np.asarray(values))
    except ValueError as error:
        raise DataError(f"`data[{name!r}]` is not a regular array: {error}.") from error
    if array.ndim == 0:
        raise DataError(f"`data[{name!r}]` is a single value; the rows are missing. Pass it in `constants`.")
    if array.dtype.kind in "mM":
        raise DataError(
            f"`data[{name!r}]` holds {array.dtype}, times and not numbers. Count from a time of your own, for instance "
            "(t - t.min()) / np.timedelta64(1, 'D')."
        )
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
    _warn_of_resolution(name, array)
    return converted


def _plain(array: np.ndarray) -> np.ndarray:
    """An array of objects that are all numbers as an array of numbers; any other as it is."""
    if array.dtype != object or not all(isinstance(value, numbers.Real) for value in array.flat):
        return array
    return np.array(array.tolist())


def _warn_of_resolution(name: str, array: np.ndarray) -> None:
    """Warns of numbers that differ by less than single precision can tell apart at their size.

    Also of integers: a program computes with them in floating point. Looks at evenly spread rows.
    """
    if array.size == 0 or array.dtype.itemsize < 4 or jax.config.values["jax_enable_x64"]:
        return
    some = array[:: max(len(array) // MOST_LOOKED_AT, 1)].reshape(-1, int(np.prod(array.shape[1:])))
    some = some[:, :: max(some.size // (10 * MOST_LOOKED_AT), 1)].astype(np.float64)
    size, spread = np.abs(some).max(axis=0, initial=0.0), some.std(axis=0)
    # What differs by less than this does so by rounding in double precision.
    varies = spread > 1e-10 * size
    if (varies & (np.spacing(size.astype(np.float32)) / 2 > LEAST_RESOLUTION * spread)).any():
        warnings.warn(
            f"`data[{name!r}]` loses its resolution in single precision: its values are of the size "
            f"{size.max():.2g}, and differ by little. Subtract an offset (x - x.mean()), or enable 64 bits with "
            "jax.config.update('jax_enable_x64', True).",
            LangevinWarning,
            stacklevel=6,
        )


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
