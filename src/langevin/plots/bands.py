"""Predictive bands over one column, with what was observed."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from langevin.data.table import Table
from langevin.diagnostics import weighted
from langevin.errors import SettingError
from langevin.plots.canvas import BLUE, SMALL, bare, blank, saved, title, written
from langevin.plots.outcomes import Outcome, outcome_of
from langevin.predicting.blocks import What, blocks_of

if TYPE_CHECKING:
    from matplotlib.figure import Figure

    from langevin.result import Fit

BANDS = (0.9, 0.5)
MOST_ROWS = 2000
# Rows at more places than these are taken together in groups.
MOST_PLACES, MOST_GROUPS, ROWS_A_GROUP = 150, 30, 15
FEW = 500


class Place(NamedTuple):
    """Rows at one value of the column, or near it: where they are on average, and their numbers."""

    x: float
    rows: np.ndarray


def bands(
    fit: Fit,
    column: str,
    data: Any = None,
    *,
    name: str | None = None,
    num_draws: int | None = None,
    seed: Any = 0,
    path: str | Path | None = None,
) -> Figure:
    """The picture: see `langevin.pictures.Pictures.plot_bands`."""
    outcome = outcome_of(fit, "plot_bands", data, name, num_draws, seed)
    if outcome.site.classes:
        raise SettingError(
            f"`plot_bands` is for numbers, and {outcome.site.name!r} is one of {outcome.site.classes} classes. See "
            "`plot_reliability`."
        )
    total = outcome.predictor.columns.num_rows
    if total > MOST_ROWS:
        outcome = outcome_of(fit, "plot_bands", _fewer(outcome, column), name, num_draws, seed)
    x = _column(outcome, column)
    draws, means = _predicted(outcome)
    weights = outcome.predictor.chosen.shares
    places = _places(x, alone=set(outcome.predictor.columns.inputs) == {column})
    at = np.array([place.x for place in places])
    figure = blank(6.0, 4.0)
    axes = figure.subplots()
    for probability, alpha in zip(BANDS, (0.2, 0.35), strict=True):
        ends = (1 - probability) / 2, (1 + probability) / 2
        low, high = ([_quantile(draws, weights, place.rows, p) for place in places] for p in ends)
        axes.fill_between(at, low, high, color=BLUE, alpha=alpha, linewidth=0, label=f"{100 * probability:g} %")
    mean = [float(means[place.rows].mean()) for place in places]
    axes.plot(at, mean, color=BLUE, linewidth=1.6, zorder=4, label="mean")
    if outcome.observed is not None:
        size, alpha = (12, 0.7) if len(x) < FEW else (4, 0.35)
        axes.scatter(x, outcome.observed, s=size, color="0.25", alpha=alpha, linewidths=0, zorder=3, label="observed")
    axes.set_xlabel(written(column), fontsize=9)
    axes.set_ylabel(written(outcome.site.name), fontsize=9)
    axes.legend(fontsize=SMALL, frameon=False)
    bare(axes)
    notes = [f"{len(x):,} of {total:,} rows, evenly spread"] if len(x) < total else []
    notes += [f"in {len(places)} groups of rows by {column}"] if len(places) < len(np.unique(x)) else []
    title(figure, f"Predictions of {written(outcome.site.name)}", written("; ".join(notes), 200))
    return saved(figure, path)


def _column(outcome: Outcome, column: str) -> np.ndarray:
    """The values of a column, or of one of a matrix ("x[2]").

    Raises:
        SettingError: If there is none of that name, or it has no single number a row.
    """
    inputs = outcome.predictor.columns.inputs
    whole, _, index = column.partition("[")
    values, number = inputs.get(column), index.removesuffix("]")
    if values is None and whole in inputs and inputs[whole].ndim == 2 and number.isdigit():
        values = inputs[whole][:, int(number)] if int(number) < inputs[whole].shape[1] else None
    if values is None:
        raise SettingError(
            f"`plot_bands`: there is no column {column!r}; the model is called with {', '.join(map(repr, inputs))}. A "
            "column of a matrix is 'x[0]'."
        )
    if values.ndim > 1:
        raise SettingError(f"`plot_bands`: {column!r} has {values.shape[1]} columns; say which, as '{column}[0]'.")
    return np.asarray(values, np.float64)


def _fewer(outcome: Outcome, column: str) -> Table:
    """Rows that are evenly spread along the column, as many as a picture needs."""
    columns = outcome.predictor.columns
    order = np.argsort(_column(outcome, column), kind="stable")
    kept = np.sort(order[np.linspace(0, len(order) - 1, MOST_ROWS).astype(int)])
    return Table({name: values[kept] for name, values in {**columns.inputs, **columns.held}.items()}, MOST_ROWS)


def _predicted(outcome: Outcome) -> tuple[np.ndarray, np.ndarray]:
    """Draws of new observations, (draws, rows), and the mean of each row."""
    name, draws, means = outcome.site.name, [], []
    for block in blocks_of(outcome.predictor, What(True, "by row", False)):
        piece = block.pieces[name]
        assert piece.draws is not None
        draws.append(np.moveaxis(np.asarray(piece.draws, np.float64), -1, 0))
        means.append(np.asarray(piece.mean, np.float64))
    return np.concatenate(draws, axis=1), np.concatenate(means)


def _places(x: np.ndarray, *, alone: bool) -> list[Place]:
    """Where the bands are computed, from left to right.

    Rows with the same value are taken together. Where the model has other columns too, rows near one another differ in
    these, so that several of them are needed to see how the predictions depend on this one.
    """
    values, numbers = np.unique(x, return_inverse=True)
    most = MOST_PLACES if alone else max(min(MOST_GROUPS, len(x) // ROWS_A_GROUP), 1)
    if len(values) <= most:
        return [Place(float(value), np.flatnonzero(numbers == i)) for i, value in enumerate(values)]
    # Smaller groups at both ends, so that the bands go nearly as far as the rows.
    shares = (1 - np.cos(np.pi * np.arange(1, most) / most)) / 2
    groups = np.split(np.argsort(x, kind="stable"), np.unique((shares * len(x)).astype(int)))
    return [Place(float(x[rows].mean()), rows) for rows in groups if len(rows)]


def _quantile(draws: np.ndarray, weights: np.ndarray, rows: np.ndarray, probability: float) -> float:
    """Of the predictions of these rows together."""
    these = draws[:, rows]
    shares = np.broadcast_to(weights[:, None], these.shape)
    return float(weighted.quantile(these.reshape(1, -1), shares.reshape(1, -1), probability))
