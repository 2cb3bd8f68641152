"""The locations and scales of columns, for networks: whose priors and step sizes are for numbers of the order of 1."""

from __future__ import annotations

import warnings
from collections.abc import Sequence

import jax.numpy as jnp
import numpy as np

from langevin.data.table import Table
from langevin.errors import LangevinWarning, ModelError
from langevin.models.networks.likelihoods import Scale

# A column whose mean or sd is above, or whose values are all below, is far from standardised.
LARGE, SMALL = 50.0, 0.01
MOST_LOOKED_AT = 10_000


def scales_of(table: Table, names: Sequence[str]) -> dict[str, Scale]:
    """The means and standard deviations of columns; 1 for one that does not vary.

    Raises:
        ModelError: If there is no such column of numbers.
    """
    scales, dtype = {}, jnp.result_type(float)
    for name in names:
        if name not in table.columns:
            raise ModelError(f"`Network`: `standardise` has no column {name!r} of numbers.")
        location, spread = _moments(np.asarray(table.columns[name]))
        scale = np.where(spread > 0, spread, 1.0)
        scales[name] = Scale(np.asarray(location, dtype), np.asarray(scale, dtype))
    return scales


def warn_of_scales(table: Table, names: Sequence[str]) -> None:
    """Warns of columns that weights of the order of 1 cannot serve."""
    for name in names:
        column = np.asarray(table.columns[name][:: table.num_rows // MOST_LOOKED_AT + 1])
        means, sds = _moments(column)
        location, spread = float(np.abs(means).max()), float(sds.max())
        if max(location, spread) < LARGE and not 0 < np.abs(column).max() < SMALL:
            continue
        warnings.warn(
            f"`Network`: the column {name!r} is far from standardised (its mean is up to {location:.3g}, its sd up to "
            f"{spread:.3g}): priors and step sizes are for columns of the order of 1. Give lv.Network(..., "
            "standardise=data).",
            LangevinWarning,
            stacklevel=7,
        )


def _moments(column: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Mean and sd over the rows, in double precision, some rows at a time."""
    parts = [column[start : start + MOST_LOOKED_AT] for start in range(0, len(column), MOST_LOOKED_AT)]
    mean = sum(part.sum(axis=0, dtype=np.float64) for part in parts) / len(column)
    return mean, np.sqrt(sum(((part - mean) ** 2).sum(axis=0) for part in parts) / len(column))
