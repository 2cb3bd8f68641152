"""Rows that are read in pieces, because they do not fit into memory together."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from langevin import checks, spelling
from langevin.data.batches import Batches
from langevin.errors import DataError, SettingError
from langevin.run.seeds import Seed


@dataclasses.dataclass(frozen=True, eq=False)
class Pieces:
    """Rows in pieces, for methods that go through them in minibatches and hold none (`lv.CAVI` with `batch_size`).

    In each pass the pieces come in a random order, and the rows of each in a random order; minibatches are of one piece
    at a time. So each piece should be a fair sample of all rows, or there should be many.

    Args:
        read: `number -> dict of arrays`: reads the piece of this number.
        sizes: How many rows each piece has.

    Raises:
        SettingError: If sizes are not whole numbers above 0.

    Example:
        >>> import numpy as np
        >>> pieces = Pieces(lambda number: {"y": np.full(3, float(number))}, [3, 3])
        >>> pieces.num_rows, pieces.columns(1)["y"].tolist()
        (6, [1.0, 1.0, 1.0])
    """

    read: Callable[[int], Any]
    sizes: Sequence[int]

    def __post_init__(self) -> None:
        if not callable(self.read):
            raise SettingError(f"`Pieces`: `read` must be a function of the number of a piece; got {self.read!r}.")
        object.__setattr__(self, "sizes", tuple(checks.count("Pieces", "sizes", size) for size in self.sizes))
        if not self.sizes:
            raise SettingError("`Pieces`: `sizes` is empty: there is no piece.")

    @classmethod
    def parquet(cls, path: str | Path, columns: Sequence[str] | None = None) -> Pieces:
        """The row groups of a Parquet file.

        Args:
            path: The file.
            columns: Those to read; None for all.
        """
        import pyarrow.parquet as parquet

        file = parquet.ParquetFile(path)
        sizes = [file.metadata.row_group(i).num_rows for i in range(file.num_row_groups)]

        def read(number: int) -> dict[str, np.ndarray]:
            table = file.read_row_group(number, columns=None if columns is None else list(columns))
            return {name: table[name].to_numpy() for name in table.column_names}

        return cls(read, sizes)

    @property
    def num_rows(self) -> int:
        """How many rows there are in all."""
        return sum(self.sizes)

    def columns(self, number: int) -> dict[str, np.ndarray]:
        """A piece.

        Raises:
            DataError: If it has another number of rows than was said.
        """
        columns = {str(name): np.asarray(column) for name, column in dict(self.read(number)).items()}
        for name, column in columns.items():
            if len(column) != self.sizes[number]:
                raise DataError(
                    f"Column {name!r} of piece {number} has {len(column)} rows, and `sizes` says {self.sizes[number]}."
                )
        return columns


spelling.check_keywords(Pieces)


class LayoutOfPieces:
    """Pieces in a random order, with their rows in a random order: a function of the seed and of the step.

    Args:
        batches: How minibatches are drawn.
        pieces: The rows.
        like: A piece as the program takes it: names and types of the columns.
        seed: Of all orders.

    Attributes:
        num_rows: How many rows of a piece there are at a time.
    """

    def __init__(self, batches: Batches, pieces: Pieces, like: Any, seed: Seed) -> None:
        self._batches, self._pieces, self._like, self._seed = batches, pieces, like, seed
        # Compiled programs have arrays of one size: of a longer piece each pass leaves other rows out.
        self.num_rows = min(pieces.sizes)
        self._slices = batches.num_slices(self.num_rows)
        self._at: tuple[int, Any] = (-1, None)

    def at(self, step: int) -> tuple[Any, int]:
        """The rows of the piece of a step, and how many steps there are with it from there."""
        number, since = divmod(step, self._slices)
        if self._at[0] != number:
            passed, place = divmod(number, len(self._pieces.sizes))
            order = self._seed.child("pieces").generator(passed).permutation(len(self._pieces.sizes))
            columns = self._pieces.columns(int(order[place]))
            missing = [name for name in self._like if name not in columns]
            if missing:
                raise DataError(f"Piece {order[place]} has no column {missing[0]!r}, which the first one has.")
            rows = np.random.default_rng([*self._seed.words, number]).permutation(len(columns[next(iter(columns))]))
            rows = np.concatenate([rows[: self.num_rows], rows[: self._batches.size]])
            self._at = (number, {n: columns[n][rows].astype(leaf.dtype) for n, leaf in self._like.items()})
        return self._at[1], self._slices - since
