"""The draws of a chain, cut into blocks: full ones are written, once, and the rest waits in memory."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from langevin.run.hierarchy import padded, write_block
from langevin.run.integrity import Entry
from langevin.run.layout import Layout

if TYPE_CHECKING:
    from langevin.contracts import Draws

Arrays = dict[tuple[str, str], np.ndarray]
"""Consecutive draws of one chain by group and name."""


class Chain(NamedTuple):
    """How far the draws of a chain are written.

    Attributes:
        blocks: How many full blocks are on disk.
        pending: The draws after them, in the pieces in which they came.
    """

    blocks: int = 0
    pending: tuple[Arrays, ...] = ()

    @property
    def num_pending(self) -> int:
        """How many draws are not in a full block."""
        return sum(len(next(iter(piece.values()))) for piece in self.pending)

    def joined(self) -> Arrays:
        """The pending draws in one piece; empty if there are none."""
        if len(self.pending) < 2:
            return dict(*self.pending)
        return {key: np.concatenate([piece[key] for piece in self.pending]) for key in self.pending[0]}


def extended(folder: Path, layout: Layout, index: int, chain: Chain, draws: Draws) -> tuple[Chain, list[Entry]]:
    """Adds draws to a chain, and writes the blocks that are full then.

    Args:
        folder: Of the run.
        layout: Of the draws.
        index: Which chain it is.
        chain: How far it is.
        draws: At least one draw.

    Returns:
        How far the chain is then, and the blocks that were written.
    """
    arrays = layout.taken(draws)
    more = Chain(chain.blocks, (*chain.pending, arrays))
    full = more.num_pending // layout.block
    if not full:
        return Chain(chain.blocks, (*chain.pending, _copied(arrays, 0))), []
    arrays = more.joined()
    end = full * layout.block
    entries = write_blocks(folder, layout, index, chain.blocks, {key: part[:end] for key, part in arrays.items()})
    return Chain(chain.blocks + full, (_copied(arrays, end),) if more.num_pending > end else ()), entries


def write_blocks(folder: Path, layout: Layout, index: int, first: int, arrays: Arrays) -> list[Entry]:
    """Writes draws as blocks from the given one on; the last is filled up with zeros if it is not full."""
    entries = []
    for variable in layout.variables:
        values = arrays[variable.group, variable.name]
        for i in range(0, len(values) if variable.draw_bytes else 0, layout.block):
            key = f"{index}.{first + i // layout.block}" + ".0" * len(variable.shape)
            block = padded(values[i : i + layout.block], layout.block)
            entries.append(write_block(folder, f"{variable.group}/{variable.name}/{key}", block))
    return entries


def block_number(entry: Entry) -> int:
    """Which block of its chain an entry of `write_blocks` is."""
    return int(entry.path.rpartition("/")[2].split(".")[1])


def _copied(arrays: Arrays, start: int) -> Arrays:
    """The draws from there on, copied: a view would keep alive what may be far larger."""
    return {key: np.array(part[start:]) for key, part in arrays.items()}
