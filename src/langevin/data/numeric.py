"""Numbers as JAX will hold them: what does not fit, or loses its resolution, is told."""

from __future__ import annotations

import warnings

import jax
import numpy as np

from langevin.errors import DataError, LangevinWarning

MOST_LOOKED_AT = 100_000
# How large a rounding error may be, next to the sd of a column.
LEAST_RESOLUTION = 1e-3


def as_numbers(name: str, array: np.ndarray, rows: np.ndarray | None = None) -> np.ndarray:
    """The column in JAX's precision: without `jax_enable_x64`, 64-bit numbers become 32-bit ones.

    Args:
        name: The column.
        array: Its numbers; those that are not a number stay so.
        rows: The numbers of its rows, if some were left out.

    Raises:
        DataError: If a number is infinite, or does not fit.
    """
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
    if array.dtype.kind == "f" and np.isinf(converted).any():
        _refuse_infinite(name, array, converted, rows)
    _warn_of_resolution(name, array)
    return converted


def _refuse_infinite(name: str, array: np.ndarray, converted: np.ndarray, rows: np.ndarray | None) -> None:
    infinite = np.isinf(array)
    where = np.argwhere(infinite if infinite.any() else np.isinf(converted))
    row = where[0][0] if rows is None else rows[where[0][0]]
    value = array[tuple(where[0])]
    if not infinite.any():
        raise DataError(
            f"`data[{name!r}]` has {value} at row {row}, which does not fit in {converted.dtype}. Rescale the "
            "column, or enable 64 bits with jax.config.update('jax_enable_x64', True)."
        )
    count = len(np.unique(where[:, 0]))
    raise DataError(
        f"`data[{name!r}]` has {value} at row {row} ({count} such row{'s' if count > 1 else ''} of {len(array)}). "
        "Leave those rows out, or say what the value is."
    )


def _warn_of_resolution(name: str, array: np.ndarray) -> None:
    """Warns of numbers that differ by less than single precision can tell apart at their size.

    Also of integers: a program computes with them in floating point. Looks at evenly spread rows.
    """
    if array.size == 0 or array.dtype.itemsize < 4 or jax.config.values["jax_enable_x64"]:
        return
    some = array[:: max(len(array) // MOST_LOOKED_AT, 1)].reshape(-1, int(np.prod(array.shape[1:])))
    some = some[:, :: max(some.size // (10 * MOST_LOOKED_AT), 1)].astype(np.float64)
    some = some[~np.isnan(some).any(axis=1)]
    if not len(some):
        return
    size, spread = np.abs(some).max(axis=0, initial=0.0), some.std(axis=0)
    # What differs by less than this does so by rounding in double precision.
    varies = spread > 1e-10 * size
    if (varies & (np.spacing(size.astype(np.float32)) / 2 > LEAST_RESOLUTION * spread)).any():
        warnings.warn(
            f"`data[{name!r}]` loses its resolution in single precision: its values are of the size "
            f"{size.max():.2g}, and differ by little. Subtract an offset (x - x.mean()), or enable 64 bits with "
            "jax.config.update('jax_enable_x64', True).",
            LangevinWarning,
            stacklevel=7,
        )
