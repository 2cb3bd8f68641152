"""Variables that are computed when their values are read, as those of a file are read from the disk.

xarray reads a variable of a `BackendArray` when something asks for its values, and then only what was asked for: of
`variable.isel(rows=chosen)` the chosen rows. A whole variable that was read once stays in memory.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import numpy as np
import xarray as xr
from xarray.backends import BackendArray
from xarray.core import indexing

from langevin.errors import SettingError

MOST_VALUES = 50_000_000
Indices = tuple[np.ndarray, ...]


class Limit(NamedTuple):
    """How many values are computed at once.

    Attributes:
        what: The name of what is computed, to begin a sentence.
        remedy: What to do where that would be more values, as a sentence.
        most: So many values are computed at most.
    """

    what: str
    remedy: str
    most: int = MOST_VALUES

    def check(self, count: int) -> None:
        """Raises a SettingError if these are more values."""
        if count > self.most:
            raise SettingError(
                f"{self.what} would be {count:,} numbers ({8 * count / 1e9:.2g} GB), and at most {self.most:,} are "
                f"computed at once. {self.remedy}"
            )


def variable(
    dims: Sequence[str], shape: Sequence[int], dtype: Any, read: Callable[[Indices], np.ndarray], limit: Limit
) -> xr.Variable:
    """A variable of which parts can be computed.

    Args:
        dims: Its dimensions.
        shape: Its shape.
        dtype: The type of its values.
        read: From the indices that are asked for along each axis to the values there.
        limit: How many are computed at once.
    """
    kept: list[np.ndarray] = []

    def checked(indices: Indices) -> np.ndarray:
        if kept:
            return kept[0][np.ix_(*indices)]
        limit.check(math.prod(len(index) for index in indices))
        values = read(indices)
        if all(np.array_equal(index, np.arange(size)) for index, size in zip(indices, shape, strict=True)):
            # xarray keeps what it read as it is, but not what it transposes first, as ArviZ does.
            kept.append(values)
        return values

    return _cached(dims, _Computed(tuple(shape), np.dtype(dtype), checked))


def whole(
    dims: Sequence[str], shape: Sequence[int], dtype: Any, make: Callable[[], np.ndarray], limit: Limit
) -> xr.Variable:
    """A variable that is computed as a whole, when the first of its values is asked for; see `variable`."""

    def made(indices: Indices) -> np.ndarray:
        limit.check(math.prod(shape))
        return make()[np.ix_(*indices)]

    return _cached(dims, _Computed(tuple(shape), np.dtype(dtype), made))


class _Computed(BackendArray):
    """An array of which xarray asks for parts."""

    def __init__(self, shape: tuple[int, ...], dtype: np.dtype, read: Callable[[Indices], np.ndarray]) -> None:
        self.shape, self.dtype, self._read = shape, dtype, read

    def __getitem__(self, key: indexing.ExplicitIndexer) -> Any:
        return indexing.explicit_indexing_adapter(key, self.shape, indexing.IndexingSupport.OUTER, self._taken)

    def __deepcopy__(self, memo: Any) -> _Computed:
        return self

    def _taken(self, key: tuple[Any, ...]) -> np.ndarray:
        indices = [np.atleast_1d(np.arange(size)[part]) for size, part in zip(self.shape, key, strict=True)]
        values = self._read(tuple(indices)).astype(self.dtype, copy=False)
        single = tuple(axis for axis, part in enumerate(key) if np.ndim(part) == 0 and not isinstance(part, slice))
        return values.squeeze(single)


def _cached(dims: Sequence[str], array: _Computed) -> xr.Variable:
    lazy: Any = indexing.LazilyIndexedArray(array)
    lazy = indexing.CopyOnWriteArray(lazy)
    return xr.Variable(tuple(dims), indexing.MemoryCachedArray(lazy))
