"""Draws in memory."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from langevin.errors import SettingError
from langevin.run.layout import length

if TYPE_CHECKING:
    from langevin.contracts import Draws, State


class Memory:
    """The sink of a run that is not stored.

    Args:
        num_chains: How many chains bring draws.
    """

    durable = False

    def __init__(self, num_chains: int) -> None:
        self.num_chains = num_chains
        self._chunks: list[tuple[Draws, ...]] = []

    def add(self, draws: tuple[Draws, ...]) -> None:
        """Takes the draws of a chunk. An interruption finds all of them taken, or none."""
        self._chunks.append(draws)

    def checkpoint(self, state: State) -> None:
        """Nothing: what is in memory does not outlive the program."""
        del state

    @property
    def counts(self) -> tuple[int, ...]:
        """How many draws each chain has made."""
        chunks = [chunk for chunk in self._chunks if chunk]
        return tuple(sum(length(chunk[chain]) for chunk in chunks) for chain in range(self.num_chains))

    def arrays(self, num_draws: int, num_chains: int | None = None) -> dict[str, dict[str, np.ndarray]]:
        """The first draws of every chain, or of the first chains: group -> name -> array (chains, draws, ...).

        Raises:
            SettingError: If a chain has fewer.
        """
        counts = self.counts[:num_chains]
        if min(counts, default=0) < num_draws:
            raise SettingError(f"`num_draws` is {num_draws}; the chains have {', '.join(map(str, counts))} draws.")
        some = next((draws for chunk in self._chunks for draws in chunk if length(draws)), {})
        sizes = len(counts), num_draws
        return {
            group: {name: self._array(group, name, np.asarray(first), *sizes) for name, first in arrays.items()}
            for group, arrays in some.items()
        }

    def _array(self, group: str, name: str, first: np.ndarray, num_chains: int, num_draws: int) -> np.ndarray:
        array = np.empty((num_chains, num_draws, *first.shape[1:]), first.dtype)
        filled = [0] * num_chains
        for chunk in self._chunks:
            for chain, draws in enumerate(chunk[:num_chains]):
                if length(draws):
                    piece = np.asarray(draws[group][name])[: num_draws - filled[chain]]
                    array[chain, filled[chain] : filled[chain] + len(piece)] = piece
                    filled[chain] += len(piece)
        return array
