"""New rows for an earlier fit: the same columns, with the codes that names had there."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Literal

from langevin.data.table import Missing, Table, as_table


def table_again(
    data: Any,
    levels: Mapping[str, Sequence[Any]],
    *,
    wanted: frozenset[str] | None = None,
    missing: Missing = "error",
    unseen: Literal["error", "draw"] = "error",
) -> tuple[Table, dict[str, int]]:
    """Turns new rows into a table with the levels of an earlier fit.

    Args:
        data: The rows; columns that are not there (what is to be predicted) are no matter here.
        levels: Of the fit, by column: `fit.levels`.
        wanted: The columns to read; None for all.
        missing: As in `lv.fit`.
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
    table = as_table(data, wanted=wanted, levels=levels, missing=missing, unseen=unseen)
    return table, dict(table.unseen)
