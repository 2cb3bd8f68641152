"""What a user brings as data, turned into named arrays with one row an observation."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Literal, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from langevin import checks
from langevin.data.columns import Column
from langevin.data.frames import Named, named_columns
from langevin.data.levels import Label, check_names, plain, pruned, recoded
from langevin.data.numeric import as_numbers
from langevin.data.reading import read
from langevin.errors import DataError

Missing = Literal["error", "drop", "keep"]
GAPS = "_missing"


class Table(NamedTuple):
    """Named arrays that share their leading axis.

    Attributes:
        columns: The arrays.
        num_rows: How many rows there are.
        num_brought: How many there were before some were left out.
        levels: For each column of codes, the names that these stand for.
        kept: The numbers of the rows that were kept, where some were left out; None if all are here.
        dropped: For each column for whose sake rows were left out, how many rows lack it.
        lacking: For each column that may lack values, and does, the rows that lack them.
        left: The names of columns that nobody asked for.
        counts: Numbers of levels that the program asked for, by the name of its argument.
        unseen: For each column with levels that an earlier fit did not see, how many these are.
    """

    columns: dict[str, np.ndarray]
    num_rows: int
    num_brought: int = 0
    levels: Mapping[str, tuple[Label, ...]] = {}
    kept: np.ndarray | None = None
    dropped: Mapping[str, int] = {}
    lacking: Mapping[str, np.ndarray] = {}
    left: tuple[str, ...] = ()
    counts: Mapping[str, int] = {}
    unseen: Mapping[str, int] = {}

    @property
    def left_out(self) -> str:
        """Which rows were left out, in a sentence; empty if none were."""
        if not self.dropped:
            return ""
        by_column = ", ".join(f"{name!r} in {count}" for name, count in self.dropped.items())
        count = self.num_brought - self.num_rows
        return f"{count} of {self.num_brought} rows lack values and were left out: {by_column}."


def as_table(
    data: Any,
    *,
    wanted: frozenset[str] | None = None,
    levels: Mapping[str, Sequence[Any]] | None = None,
    missing: Missing = "error",
    may_lack: frozenset[str] = frozenset(),
    unseen: Literal["error", "draw"] = "error",
) -> Table:
    """Turns a dict of arrays or a frame (pandas, polars, Arrow, anything with named columns) into a `Table`.

    Values are checked once, here: equal row counts, numbers or names, nothing infinite or missing. Names become codes
    0, 1, ... in alphabetical order, or in the order of the column's own categories. Precision follows JAX: without
    `jax_enable_x64`, 64-bit numbers become 32-bit ones, and integers that do not fit are an error.

    Args:
        data: The rows.
        wanted: The columns to read; the others are left alone. None for all, and then columns of a frame that can be
            no numbers are left alone too.
        levels: Of an earlier fit, by column: names get the codes that they had there.
        missing: What to do where values are missing: "error"; "drop" leaves out the rows that lack a value in any
            column; "keep" leaves not-a-number there, for a program that knows what to do with it.
        may_lack: Columns of numbers for which it is "keep" whatever `missing` is, unless the data has a column of
            the same name with "_missing" behind.
        unseen: What to do with names that are not among `levels`: "error", or "draw" for codes beyond theirs.

    Raises:
        DataError: What is wrong, in which column, and at which row.

    Example:
        >>> table = as_table({"x": [1.0, 2.0, None], "carrier": ["UA", "AA", "UA"]}, missing="drop")
        >>> table.num_rows, table.columns["carrier"].tolist(), table.levels["carrier"]
        (2, [1, 0], ('AA', 'UA'))
    """
    checks.choice("fit", "missing", missing, ("error", "drop", "keep"))
    if data is None:
        return Table({}, 0)
    named = named_columns(data, wanted)
    if not named.columns and not named.left:
        raise DataError("`data` has no columns. Pass a dict such as {'x': x, 'y': y}, or a frame.")
    columns, left = _read(named, lenient=wanted is None and not named.chosen)
    num_rows = _num_rows(columns)
    extra: dict[str, int] = {}
    for name, column in columns.items():
        columns[name], extra[name] = _levelled(name, column, levels, unseen)
    given = {*named.columns, *named.left}
    free = columns if missing == "keep" else {name for name in may_lack if f"{name}{GAPS}" not in given}
    tolerant = {name for name, column in columns.items() if column.levels is None and name in free}
    columns, kept, dropped = _present(columns, tolerant, drop=missing == "drop")
    if levels is None and kept is not None:
        columns = {name: _pruned(column) for name, column in columns.items()}
    lacking = {name: np.flatnonzero(c.rows_lacking) for name, c in columns.items() if c.lacks is not None}
    arrays = {}
    for name, column in columns.items():
        arrays[name] = _as_array(name, column, kept)
    return Table(
        arrays,
        num_rows if kept is None else len(kept),
        num_rows,
        {name: column.levels for name, column in columns.items() if column.levels is not None},
        kept,
        dropped,
        lacking,
        left,
        unseen={name: count for name, count in extra.items() if count},
    )


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


def _read(named: Named, lenient: bool) -> tuple[dict[str, Column], tuple[str, ...]]:
    columns, left = {}, list(named.left)
    for name, raw in named.columns.items():
        try:
            columns[name] = read(name, raw)
        except DataError:
            if not lenient:
                raise
            left.append(name)
    return columns, tuple(left)


def _num_rows(columns: Mapping[str, Column]) -> int:
    counts = {name: len(column.values) for name, column in columns.items()}
    if len(set(counts.values())) > 1:
        listed = ", ".join(f"{name!r} has {count}" for name, count in counts.items())
        raise DataError(
            f"`data`: the columns have different numbers of rows: {listed}. The leading axis of each is the rows; "
            "what is not a row goes into `constants`."
        )
    num_rows = next(iter(counts.values()), 0)
    if counts and num_rows == 0:
        raise DataError(f"`data` is empty: {', '.join(map(repr, counts))} have 0 rows.")
    return num_rows


def _levelled(
    name: str, column: Column, levels: Mapping[str, Sequence[Any]] | None, unseen: Literal["error", "draw"]
) -> tuple[Column, int]:
    """The column with the codes that its names had in an earlier fit, if there was one; and how many are new."""
    if levels is None or (name not in levels and column.levels is None):
        if column.levels is not None and column.origin == "text":
            check_names(name, column.levels)
        return column, 0
    if name not in levels:
        raise DataError(
            f"`data[{name!r}]` holds names, such as {column.levels[0]!r}; the fit was made with numbers there."
            if column.levels
            else f"`data[{name!r}]` holds no values."
        )
    labels = tuple(plain(label) for label in levels[name])
    own, codes = column.levels, column.values
    if own is None:
        # Names may be numbers, of which only a categorical column says that they are names.
        numbers, codes = np.unique(column.values, return_inverse=True)
        own = tuple(plain(number) for number in numbers)
        codes = codes.reshape(column.values.shape)
    there = np.ones(codes.shape, bool) if column.lacks is None else ~column.lacks
    codes, count = recoded(name, codes, own, labels, there, unseen)
    return column._replace(values=codes, levels=labels, origin="declared"), count


def _present(
    columns: dict[str, Column], tolerant: set[str], drop: bool
) -> tuple[dict[str, Column], np.ndarray | None, dict[str, int]]:
    """The columns without the rows that lack a value where they must have one.

    Args:
        columns: By name.
        tolerant: Those that may lack values.
        drop: Whether such rows are left out; else they are an error.

    Returns:
        The columns, the rows that were kept (None for all), and for each column how many rows lack it.
    """
    bad = {name: c.rows_lacking for name, c in columns.items() if c.lacks is not None and name not in tolerant}
    if not bad:
        return columns, None, {}
    dropped = {name: int(rows.sum()) for name, rows in bad.items()}
    kept = np.flatnonzero(~np.any(list(bad.values()), axis=0))
    if drop and len(kept):
        return {name: column.at(kept) for name, column in columns.items()}, kept, dropped
    num_rows = len(next(iter(bad.values())))
    listed = ", ".join(_place(name, rows) for name, rows in bad.items())
    if drop:
        raise DataError(f"`data`: of its {num_rows} rows none has all values; missing are {listed}.")
    texts = [name for name in bad if columns[name].levels is not None]
    numeric = [name for name in bad if name not in texts]
    remedies = ["Leave those rows out with missing='drop'"]
    if texts:
        remedies.append(f"make what is missing a name of its own (x.fillna('unknown'), for {texts[0]!r})")
    if numeric:
        remedies.append(f"fill it in, or let the program do so: it gets the rows in an argument `{numeric[0]}{GAPS}`")
    raise DataError(f"`data` lacks values, of {num_rows} rows: {listed}. {'; or '.join(remedies)}.")


def _place(name: str, rows: np.ndarray) -> str:
    where = np.flatnonzero(rows)
    first = f"row {where[0]}" if len(where) == 1 else f"first in row {where[0]}"
    return f"{name!r} in {len(where)} ({first})"


def _pruned(column: Column) -> Column:
    """Without the levels that only rows had which were left out."""
    if column.levels is None or column.origin == "declared":
        return column
    codes, levels = pruned(column.values, column.levels)
    return column._replace(values=codes, levels=levels)


def _as_array(name: str, column: Column, kept: np.ndarray | None) -> np.ndarray:
    if column.levels is not None:
        return column.values.astype(np.int32, copy=False)
    values = column.values
    if column.lacks is not None:
        values = np.where(column.lacks, np.nan, values)
    return as_numbers(name, values, kept)
