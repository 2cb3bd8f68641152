"""New rows for an earlier fit: the same columns, with the codes that names had there."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import Any, Literal

import numpy as np

from langevin.data.levels import listed
from langevin.data.table import Missing, Table, as_table
from langevin.errors import DataError


def table_again(
    data: Any,
    levels: Mapping[str, Sequence[Any]],
    *,
    counts: Mapping[str, int] = MappingProxyType({}),
    wanted: frozenset[str] | None = None,
    missing: Missing = "error",
    may_lack: frozenset[str] = frozenset(),
    unseen: Literal["error", "draw"] = "error",
) -> tuple[Table, dict[str, int]]:
    """Turns new rows into a table with the levels of an earlier fit.

    Args:
        data: The rows; columns that are not there (what is to be predicted) are no matter here.
        levels: Of the fit, by column: `fit.levels`.
        counts: Numbers of levels that its program asked for, by argument: `fit.settings["counts"]`. Whole numbers that
            are codes must be below these, as names must be among the levels.
        wanted: The columns to read; None for all.
        missing: As in `lv.fit`.
        may_lack: Columns of numbers that may lack values whatever `missing` is: what is to be predicted.
        unseen: "error" refuses names that the fit did not see. "draw" gives them the codes after its own, J, J + 1,
            ..., in the order in which `Table.levels` of the new rows alone would have them: whoever predicts draws
            their effects from the distribution of the groups.

    Returns:
        The table, and for each column with names that the fit did not see, how many these are.

    Raises:
        DataError: Names the column and what the fit did not see.

    Example:
        >>> table, new = table_again({"carrier": ["UA", "ZZ"]}, {"carrier": ["AA", "UA"]}, unseen="draw")
        >>> table.columns["carrier"].tolist(), new
        ([1, 2], {'carrier': 1})
    """
    table = as_table(data, wanted=wanted, levels=levels, missing=missing, may_lack=may_lack, unseen=unseen)
    new = dict(table.unseen)
    for argument, count in counts.items():
        name = argument.removeprefix("num_")
        codes = table.columns.get(name)
        if codes is not None and name not in levels and codes.dtype.kind in "iu":
            table.columns[name], beyond = _within(name, codes, count, unseen)
            new |= {name: beyond} if beyond else {}
    return table, new


def _within(name: str, codes: np.ndarray, count: int, unseen: Literal["error", "draw"]) -> tuple[np.ndarray, int]:
    """Codes of which the fit saw so many; those beyond are one after the other. And how many those are."""
    beyond = np.unique(codes[(codes >= count) | (codes < 0)])
    if not len(beyond):
        return codes, 0
    if unseen == "error" or beyond[0] < 0:
        raise DataError(
            f"`data[{name!r}]` has groups that the fit did not see: {listed(beyond.tolist())}. It saw 0 to "
            f"{count - 1}. Leave those rows out; or, for groups whose effects have a distribution of their own, draw "
            "from it with unseen='draw'."
        )
    return np.where(codes < count, codes, count + np.searchsorted(beyond, codes)).astype(codes.dtype), len(beyond)
