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

    In each pass the pieces come in a random order, are cut into blocks of equal size, and the rows of a block come in a
    random order; minibatches are of one block at a time. So pieces should be fair samples of all rows, or there should
    be many. The largest one says what the columns are: names in others must be among its own.

    Args:
        read: `number -> dict of arrays`, or a frame: reads the piece of this number.
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

    @property
    def largest(self) -> int:
        """The number of the largest piece, the first if there are several."""
        return int(np.argmax(self.sizes))

    @property
    def num_blocks(self) -> int:
        """Into how many blocks of equal size a pass is cut: as few as leave none larger than the largest piece."""
        return -(-self.num_rows // max(self.sizes))

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
    """Pieces in a random order, cut into blocks of random rows: a function of the seed and of the step.

    Compiled programs have arrays of one size, and the groups of a Parquet file often end with a small one. So what is
    laid out are blocks of equal size, and a pass leaves out fewer rows than there are blocks.

    Args:
        batches: How minibatches are drawn.
        pieces: The rows.
        like: A piece as the program takes it: names and types of the columns.
        seed: Of all orders.

    Attributes:
        num_rows: How many rows a block has.
        num_steps: How many steps a pass has.
    """

    def __init__(self, batches: Batches, pieces: Pieces, like: Any, seed: Seed) -> None:
        self._batches, self._pieces, self._like, self._seed = batches, pieces, like, seed
        self.num_rows = pieces.num_rows // pieces.num_blocks
        self._slices = batches.num_slices(self.num_rows)
        self.num_steps = pieces.num_blocks * self._slices
        self._at: tuple[int, Any] = (-1, None)

    def at(self, step: int) -> tuple[Any, int]:
        """The rows of the block of a step, and how many steps there are with it from there."""
        number, since = divmod(step, self._slices)
        if self._at[0] != number:
            block = self._block(*divmod(number, self._pieces.num_blocks))
            rows = np.random.default_rng([*self._seed.words, number]).permutation(self.num_rows)
            rows = np.concatenate([rows, rows[: self._batches.size]])
            self._at = (number, {name: column[rows] for name, column in block.items()})
        return self._at[1], self._slices - since

    def _block(self, passed: int, place: int) -> dict[str, np.ndarray]:
        """Rows one after the other, from as many pieces as they are in."""
        order = self._seed.child("pieces").generator(passed).permutation(len(self._pieces.sizes))
        ends = np.cumsum(np.asarray(self._pieces.sizes)[order])
        first, last = place * self.num_rows, (place + 1) * self.num_rows
        parts = []
        for number, end in zip(order, ends, strict=True):
            begin = end - self._pieces.sizes[number]
            if begin < last and end > first:
                part = slice(max(first - begin, 0), min(last, end) - begin)
                parts.append({name: column[part] for name, column in self._columns(int(number)).items()})
        return {name: np.concatenate([part[name] for part in parts]) for name in self._like}

    def _columns(self, number: int) -> dict[str, np.ndarray]:
        columns = self._pieces.columns(number)
        missing = [name for name in self._like if name not in columns]
        if missing:
            raise DataError(f"Piece {number} has no column {missing[0]!r}, which the largest one has.")
        return {name: columns[name].astype(leaf.dtype) for name, leaf in self._like.items()}
