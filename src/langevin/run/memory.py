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

        A chunk is let go once it is copied, so that memory never has all draws twice; further draws are let go too.

        Raises:
            SettingError: If a chain has fewer.
        """
        counts = self.counts[:num_chains]
        if min(counts, default=0) < num_draws:
            raise SettingError(f"`num_draws` is {num_draws}; the chains have {', '.join(map(str, counts))} draws.")
        some = next((draws for chunk in self._chunks for draws in chunk if length(draws)), {})
        # Memory that nobody has written to is not taken yet.
        arrays = {
            group: {
                name: np.empty((len(counts), num_draws, *np.shape(first)[1:]), np.asarray(first).dtype)
                for name, first in of_group.items()
            }
            for group, of_group in some.items()
        }
        filled = [0] * len(counts)
        while self._chunks:
            for chain, draws in enumerate(self._chunks.pop(0)[: len(counts)]):
                count = min(length(draws), num_draws - filled[chain]) if length(draws) else 0
                for group, of_group in arrays.items() if count else ():
                    for name, array in of_group.items():
                        array[chain, filled[chain] : filled[chain] + count] = np.asarray(draws[group][name])[:count]
                filled[chain] += count
        kept = [
            {group: {name: array[chain] for name, array in of_group.items()} for group, of_group in arrays.items()}
            for chain in range(len(counts))
        ]
        self._chunks = [(*kept, *({} for _ in range(self.num_chains - len(counts))))]
        return arrays
