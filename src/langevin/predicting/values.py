"""The values of a site at the draws that are predicted with: in memory, or read when they are asked for."""

from __future__ import annotations

from typing import Any

import jax
import numpy as np

# Larger ones are read piece by piece, from the disk if they are there.
MOST_BYTES = 64_000_000


class Read:
    """Values that are read some draws at a time; draws in front.

    Args:
        draws: A DataArray of all draws, (chain, draw, ...).
        index: The numbers of the chosen ones among the draws of all chains, in their order.
    """

    def __init__(self, draws: Any, index: np.ndarray) -> None:
        self._draws, self._index = draws, index
        self.shape = (len(index), *draws.shape[2:])

    def __getitem__(self, picked: Any) -> np.ndarray:
        """The values at some of the chosen draws, or at one."""
        index = np.atleast_1d(self._index[picked])
        chains, numbers = np.divmod(index, self._draws.shape[1])
        values = np.empty((len(index), *self.shape[1:]), used_type(self._draws.dtype))
        for chain in np.unique(chains):
            here = np.flatnonzero(chains == chain)
            wanted, places = np.unique(numbers[here], return_inverse=True)
            values[here] = self._draws.isel(chain=int(chain), draw=wanted).values[places]
        return values[0] if np.ndim(picked) == 0 and not isinstance(picked, slice) else values


def values_at(draws: Any, index: np.ndarray) -> np.ndarray | Read:
    """The values of a site at these draws: an array, or of a large site one that is read."""
    if draws.nbytes > MOST_BYTES:
        return Read(draws, index)
    flat = np.asarray(draws).reshape(-1, *draws.shape[2:])[index]
    return flat.astype(used_type(flat.dtype))


def used_type(dtype: np.dtype) -> np.dtype:
    """What is computed with: draws that were kept in 16 bits are computed with in 32."""
    return jax.dtypes.canonicalize_dtype(np.float32 if dtype == np.float16 else dtype)
