"""A frame of any kind, or a dict, as named columns: only those that are wanted, as they are."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any, NamedTuple

from langevin.data.reading import packages_of
from langevin.errors import DataError


class Named(NamedTuple):
    """Columns by name.

    Attributes:
        columns: Those that are wanted, whatever they are.
        left: The names of the others.
        chosen: Whether someone chose every one of them, as in a dict; a frame may have columns that nobody asked for.
    """

    columns: dict[str, Any]
    left: tuple[str, ...]
    chosen: bool


def named_columns(data: Any, wanted: frozenset[str] | None) -> Named:
    """The columns of a dict or a frame.

    Args:
        data: A dict, or a frame of pandas, polars or Arrow, or anything with named columns.
        wanted: The names to read; None for all.

    Raises:
        DataError: If there are no named columns, or two have one name.
    """
    if isinstance(data, Mapping):
        return _chosen(list(data), lambda i, name: data[name], wanted, chosen=True)
    packages = packages_of(data)
    kind = type(data).__name__
    if "polars" in packages and kind == "LazyFrame":
        names = data.collect_schema().names()
        read = [name for name in names if wanted is None or name in wanted]
        frame = data.select(read).collect()
        return _chosen(names, lambda i, name: frame[name], wanted)
    if "pyarrow" in packages and kind in ("Table", "RecordBatch"):
        return _chosen(data.schema.names, lambda i, name: data.column(i), wanted)
    if "pandas" in packages and getattr(data, "ndim", 0) == 2:
        return _with_index(data, _chosen(list(data.columns), lambda i, name: data.iloc[:, i], wanted), wanted)
    if callable(getattr(data, "__arrow_c_stream__", None)) and kind not in ("Series", "DataFrame"):
        import pyarrow

        return named_columns(pyarrow.table(data), wanted)
    names = getattr(data, "columns", None)
    if names is None or not hasattr(data, "__getitem__") or callable(names):
        raise DataError(
            f"`data` must be a dict of arrays or a frame; got {kind}. Try {{'x': x, 'y': y}}, or a frame of pandas, "
            "polars or Arrow."
        )
    return _chosen(list(names), lambda i, name: data[name], wanted)


def _chosen(
    names: list[Any], column: Callable[[int, Any], Any], wanted: frozenset[str] | None, chosen: bool = False
) -> Named:
    read = [(i, name) for i, name in enumerate(names) if wanted is None or str(name) in wanted]
    _check_unique(str(name) for _, name in read)
    columns = {str(name): column(i, name) for i, name in read}
    return Named(columns, tuple(str(name) for name in names if str(name) not in columns), chosen)


def _with_index(frame: Any, named: Named, wanted: frozenset[str] | None) -> Named:
    """Also the levels of a pandas index, where they are asked for by name."""
    more = {
        name: frame.index.get_level_values(name)
        for name in frame.index.names
        if wanted is not None and name in wanted and name not in named.columns
    }
    return named._replace(columns={**named.columns, **more})


def _check_unique(names: Iterable[str]) -> None:
    seen: set[str] = set()
    for name in names:
        if name in seen:
            raise DataError(f"`data` has two columns named {name!r}. Rename or drop one.")
        seen.add(name)
