"""Rows that come in pieces, as a program takes them: each piece with the codes of the largest, and checked."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from langevin.data.pieces import Pieces
from langevin.data.table import Table
from langevin.errors import DataError, ModelError
from langevin.models.arguments import brought_again
from langevin.models.build import target_of

if TYPE_CHECKING:
    from langevin.contracts import Needs


def as_taken(
    pieces: Pieces,
    model: Any,
    largest: Table,
    constants: Mapping[str, Any],
    rows: str | tuple[str, ...] | None,
    needs: Needs,
) -> Pieces:
    """The pieces with names as codes. What is checked of the largest piece is checked of each that is read.

    Args:
        pieces: As a user brings them.
        model: The program.
        largest: The largest piece, whose levels and numbers of levels are those of the fit.
        constants: Arguments of the program that are passed whole.
        rows: The name of the program's plate over the rows, where it cannot be told by its size.
        needs: What the method needs.

    Returns:
        Pieces whose `read` raises a DataError that names the piece if it is not like the largest: by a name or a code
        that is not among its levels, a missing value, or a value that the program cannot have.
    """
    checked = {pieces.largest}

    def read(number: int) -> dict[str, Any]:
        try:
            table, given = brought_again(model, pieces.read(number), constants, largest.levels, largest.counts)
            if number not in checked:
                target_of(model, table, constants=given, rows=rows, noncentred=False, needs=needs, minibatch=True)
                checked.add(number)
        except (DataError, ModelError) as error:
            raise DataError(f"Piece {number}: {error}") from error
        return table.columns

    return Pieces(read, pieces.sizes)
