"""Draws of what is predicted, as arrays by batches of rows or as one data set."""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import xarray as xr

from langevin.errors import SettingError
from langevin.predicting.blocks import blocks_of
from langevin.predicting.calling import ROWS
from langevin.predicting.predictor import Predictor, predictor_of
from langevin.predicting.reduction import What

if TYPE_CHECKING:
    from langevin.result import Fit

MOST_RESULT_BYTES = 4_000_000_000


class Drawn(NamedTuple):
    """Draws on rows `start, ..., stop - 1`: for each site an array (draws, rows, ...).

    A site without rows, (draws, ...), is in the first batch only.
    """

    start: int
    stop: int
    draws: dict[str, np.ndarray]


def predictive_draws(
    fit: Fit,
    data: Any = None,
    *,
    names: str | list[str] | tuple[str, ...] | None = None,
    num_draws: int | None = None,
    seed: Any = 0,
    unseen: Any = "error",
    batch_size: int | None = None,
) -> Iterator[Drawn]:
    """Draws of the observed sites of a fit's model on rows, batch by batch.

    Whatever the number of rows, one batch is in memory at a time. The draws of a batch are joint ones: all rows of draw
    `s` are called with draw `s` of the posterior. Which draws of the fit these are, and their shares, says
    `langevin.predicting.chosen.choose(fit.weights.values, num_draws, "...")`: with `num_draws=fit.weights.size`, all
    draws with a weight, in their order.

    Args:
        fit: A fit that knows its model.
        data: Rows, as in `Fit.predict`; None for those of the fit.
        names: The sites; by default those that were observed.
        num_draws: As in `Fit.predict`.
        seed: The same seed gives the same bits.
        unseen: As in `Fit.predict`.
        batch_size: Rows in a batch; by default as many as go into the memory that is allowed.
    """
    predictor = predictor_of(fit, data, names=names, num_draws=num_draws, seed=seed, unseen=unseen)
    yield from drawn_of(predictor, batch_size)


def drawn_of(predictor: Predictor, batch_size: int | None = None) -> Iterator[Drawn]:
    """The same, of a fit that is ready to predict."""
    rowless = {site.name for site in predictor.asked if site.row_axis is None}
    for block in blocks_of(predictor, What(draws="joint"), batch_size):
        yield Drawn(
            block.start,
            block.stop,
            {
                name: np.moveaxis(piece.draws, -1, 0)
                for name, piece in block.pieces.items()
                if piece.draws is not None and (block.start == 0 or name not in rowless)
            },
        )


def dataset_of(predictor: Predictor, batch_size: int | None, weights: np.ndarray) -> xr.Dataset:
    """All draws: dimensions sample, rows, then the site's own.

    Args:
        predictor: The fit and the rows.
        batch_size: Rows in a batch.
        weights: Of all draws of the fit, (chains, draws).

    Raises:
        SettingError: If the draws would not go into memory.
    """
    count, chosen = len(predictor.chosen.index), predictor.chosen
    needed = 4 * count * sum(math.prod(site.shape) for site in predictor.asked)
    if needed > MOST_RESULT_BYTES:
        raise SettingError(
            f"`predict`: {count:,} draws of {predictor.columns.num_rows:,} rows would take {needed / 1e9:.1f} GB. Ask "
            "for fewer draws (`num_draws`), for some of the rows, or for kind='summary', which keeps no draws."
        )
    arrays: dict[str, np.ndarray] = {}
    for drawn in drawn_of(predictor, batch_size):
        for site in predictor.asked:
            if site.name not in drawn.draws:
                continue
            values = drawn.draws[site.name]
            if site.row_axis is None:
                arrays[site.name] = values
                continue
            if site.name not in arrays:
                arrays[site.name] = np.empty((count, predictor.columns.num_rows, *values.shape[2:]), values.dtype)
            arrays[site.name][:, drawn.start : drawn.stop] = values
    variables = {site.name: (("sample", *site.front), arrays[site.name]) for site in predictor.asked}
    chain, draw = np.divmod(chosen.index, weights.shape[1])
    coords: dict[str, Any] = {
        "chain": ("sample", chain),
        "draw": ("sample", draw),
        "weight": ("sample", chosen.shares * count),
        **row_coords(predictor),
    }
    return xr.Dataset(variables, coords)


def row_coords(predictor: Predictor) -> dict[str, Any]:
    """The rows by the names that a frame gave them, or by their numbers."""
    dims = {site.dims[site.row_axis] for site in predictor.asked if site.row_axis is not None}
    columns = predictor.columns
    index = np.arange(columns.num_rows) if columns.index is None else np.asarray(columns.index)
    return {dim: (dim, index) for dim in sorted(dims)}


def row_dim(predictor: Predictor) -> str:
    """The name of the dimension of the rows."""
    return next((site.dims[site.row_axis] for site in predictor.asked if site.row_axis is not None), ROWS)
