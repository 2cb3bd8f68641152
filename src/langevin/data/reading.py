"""Columns of pandas, polars and Arrow, each by its own way to say what is missing and what is a category.

No package is imported here that the data did not bring: whoever holds a polars column has imported polars.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from langevin.data.columns import Column, objects, of_array, of_numbers, of_objects, of_text, times
from langevin.data.levels import plain


def packages_of(value: Any) -> set[str]:
    """The packages that the classes of a value are from."""
    return {kind.__module__.partition(".")[0] for kind in type(value).__mro__}


def read(name: str, raw: Any) -> Column:
    """A column of any package, or an array, or a list.

    Raises:
        DataError: What is wrong with it, and what to do.
    """
    packages = packages_of(raw)
    for package, reader in _READERS.items():
        if package in packages:
            return reader(name, raw)
    return of_array(name, raw)


def _of_pandas(name: str, raw: Any) -> Column:
    import pandas as pd

    if np.ndim(raw) != 1:
        return of_array(name, np.asarray(raw))
    series = raw if isinstance(raw, pd.Series) else pd.Series(raw)
    dtype: Any = series.dtype
    if isinstance(dtype, pd.ArrowDtype):
        import pyarrow as pa

        return _of_arrow(name, pa.array(series))
    if isinstance(dtype, pd.PeriodDtype) or dtype.kind in "mM":
        raise times(name, dtype)
    if isinstance(dtype, pd.CategoricalDtype):
        codes = series.cat.codes.to_numpy()
        return _of_codes(codes, codes < 0, [plain(label) for label in dtype.categories])
    if isinstance(dtype, np.dtype | pd.SparseDtype):
        return of_array(name, np.asarray(series))
    lacks = series.isna().to_numpy()
    if dtype.kind in "biuf":
        return of_numbers(series.to_numpy(dtype.numpy_dtype, na_value=0), lacks)
    values = series.to_numpy(object)
    return of_text(values[~lacks], lacks) if isinstance(dtype, pd.StringDtype) else of_objects(name, values)


def _of_polars(name: str, raw: Any) -> Column:
    import polars as pl

    if isinstance(raw, pl.DataFrame):
        return of_array(name, raw.to_numpy())
    dtype, lacks = raw.dtype, raw.is_null().to_numpy()
    if dtype.is_temporal():
        raise times(name, dtype, "(t - t.min()).dt.total_seconds() / 86400")
    if isinstance(dtype, pl.Enum | pl.String | pl.Categorical):
        return _of_polars_names(raw, lacks)
    if dtype.is_numeric() or isinstance(dtype, pl.Boolean):
        exact = raw.cast(pl.Float64) if dtype.is_decimal() else raw
        return of_numbers(exact.fill_null(False if isinstance(dtype, pl.Boolean) else 0).to_numpy(), lacks)
    if isinstance(dtype, pl.Array) and not raw.null_count():
        return of_array(name, raw.to_numpy())
    return of_objects(name, objects(raw.to_list()))


def _of_polars_names(raw: Any, lacks: np.ndarray) -> Column:
    import polars as pl

    if isinstance(raw.dtype, pl.Enum):
        return _of_codes(raw.to_physical().fill_null(0).to_numpy(), lacks, raw.dtype.categories.to_list())
    # A Categorical shares its categories with others, in the order in which the process met them.
    texts = raw.cast(pl.String)
    levels = texts.drop_nulls().unique().sort().to_list()
    codes = texts.cast(pl.Enum(levels)).to_physical().fill_null(0).to_numpy()
    return _of_codes(codes, lacks, levels)._replace(origin="text" if isinstance(raw.dtype, pl.String) else "names")


def _of_arrow(name: str, raw: Any) -> Column:
    import pyarrow as pa

    if isinstance(raw, pa.Table | pa.RecordBatch):
        return of_array(name, np.asarray(raw))
    if isinstance(raw, pa.ChunkedArray):
        raw = raw.combine_chunks()
    kind, lacks, is_ = raw.type, _as_numpy(raw.is_null()), pa.types
    if is_.is_temporal(kind):
        raise times(name, kind, "pyarrow.compute.days_between(first, t)")
    if is_.is_dictionary(kind) and raw.dictionary.null_count:
        raw = raw.dictionary_decode()
        kind, lacks = raw.type, _as_numpy(raw.is_null())
    if is_.is_dictionary(kind):
        levels = [plain(label) for label in raw.dictionary.to_pylist()]
        return _of_codes(_as_numpy(raw.indices.fill_null(0)), lacks, levels)
    if is_.is_string(kind) or is_.is_large_string(kind) or is_.is_string_view(kind):
        return of_text(_as_numpy(raw.cast(pa.large_string()).drop_null()), lacks)
    if is_.is_decimal(kind) or is_.is_float16(kind):
        raw = raw.cast(pa.float64())
        kind = raw.type
    if is_.is_boolean(kind):
        return of_numbers(_as_numpy(raw.fill_null(False)), lacks)
    if is_.is_integer(kind) or is_.is_floating(kind):
        return of_numbers(_as_numpy(raw.fill_null(0)), lacks)
    return of_objects(name, objects(raw.to_pylist()))


def _as_numpy(array: Any) -> np.ndarray:
    return np.asarray(array.to_numpy(zero_copy_only=False))


def _of_codes(codes: np.ndarray, lacks: np.ndarray, levels: list[Any]) -> Column:
    """Codes of levels that the column itself lists."""
    codes = np.where(lacks, 0, codes).astype(np.int32)
    return Column(codes, lacks if lacks.any() else None, tuple(levels), "declared")


_READERS = {"pandas": _of_pandas, "polars": _of_polars, "pyarrow": _of_arrow}
