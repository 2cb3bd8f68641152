"""Predictive bands over one column, with what was observed."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from langevin.data.table import Table
from langevin.diagnostics import weighted
from langevin.errors import SettingError
from langevin.plots.canvas import BLUE, SMALL, bare, blank, saved, title, written
from langevin.plots.grids import checked_range, column_of, rows_at, single_columns
from langevin.plots.outcomes import Outcome, outcome_of
from langevin.predicting.blocks import What, blocks_of

if TYPE_CHECKING:
    from matplotlib.figure import Figure

    from langevin.result import Fit

WHO = "plot_bands"
BANDS = (0.9, 0.5)
SHADES = (0.2, 0.35)
NUM_SDS = 2
MOST_ROWS = 2000
# Rows at more places than these are taken together in groups.
MOST_PLACES, MOST_GROUPS, ROWS_A_GROUP = 150, 30, 15
FEW = 500


class Place(NamedTuple):
    """Rows at one value of the column, or near it: where they are on average, and their numbers."""

    x: float
    rows: np.ndarray


class Band(NamedTuple):
    """What is filled: its ends at each place."""

    label: str
    low: np.ndarray
    high: np.ndarray


class Bands(NamedTuple):
    """What the picture shows.

    Attributes:
        at: The places, from left to right.
        mean: The mean at each.
        bands: The wide one first.
        x: Of the rows that are shown.
        observed: What was observed there; None if that is not known.
        site: The name of what is predicted.
        notes: What was chosen.
    """

    at: np.ndarray
    mean: np.ndarray
    bands: tuple[Band, ...]
    x: np.ndarray
    observed: np.ndarray | None
    site: str
    notes: str


class _Rows(NamedTuple):
    """What is predicted of each row."""

    draws: np.ndarray | None
    mean: np.ndarray
    aleatoric: np.ndarray | None
    epistemic: np.ndarray


def bands(
    fit: Fit,
    column: str,
    data: Any = None,
    *,
    over: tuple[float, float] | None = None,
    parts: bool = False,
    name: str | None = None,
    num_draws: int | None = None,
    seed: Any = 0,
    path: str | Path | None = None,
) -> Figure:
    """The picture: see `langevin.pictures.Pictures.plot_bands`."""
    shown = bands_of(fit, column, data, over=over, parts=parts, name=name, num_draws=num_draws, seed=seed)
    figure = blank(6.0, 4.0)
    axes = figure.subplots()
    draw_bands(axes, shown)
    axes.set_xlabel(written(column), fontsize=9)
    axes.set_ylabel(written(shown.site), fontsize=9)
    axes.legend(fontsize=SMALL, frameon=False)
    if over is not None:
        axes.set_xlim(*over)
    title(figure, f"Predictions of {written(shown.site)}", written(shown.notes, 200))
    return saved(figure, path)


def bands_of(
    fit: Fit,
    column: str,
    data: Any = None,
    *,
    over: tuple[float, float] | None = None,
    parts: bool = False,
    name: str | None = None,
    num_draws: int | None = None,
    seed: Any = 0,
) -> Bands:
    """What the picture shows: see `langevin.pictures.Pictures.plot_bands`."""
    ends = None if over is None else checked_range(WHO, "over", over)
    outcome = outcome_of(fit, WHO, data, name, num_draws, seed)
    if outcome.site.classes:
        raise SettingError(
            f"`plot_bands` is for numbers, and {outcome.site.name!r} is one of {outcome.site.classes} classes. See "
            "`plot_reliability` and `plot_boundary`."
        )
    total = outcome.predictor.columns.num_rows
    if total > MOST_ROWS:
        outcome = outcome_of(fit, WHO, _fewer(outcome, column), name, num_draws, seed)
    inputs = outcome.predictor.columns.inputs
    x = column_of(inputs, column, WHO)
    notes = [f"{len(x):,} of {total:,} rows, evenly spread"] if len(x) < total else []
    alone = len(single_columns(inputs)) == 1
    if ends is None:
        places = _places(x, alone=alone)
        notes += [f"in {len(places)} groups of rows by {column}"] if len(places) < len(np.unique(x)) else []
        predicted = _predicted(outcome, parts)
    else:
        at = np.linspace(*ends, MOST_PLACES)
        places = [Place(float(value), np.array([number])) for number, value in enumerate(at)]
        notes += [] if alone else ["other columns at their median or most frequent value"]
        grid = outcome_of(fit, WHO, rows_at(inputs, {column: at}), name, num_draws, seed)
        predicted = _predicted(grid, parts)
    mean = np.array([float(predicted.mean[place.rows].mean()) for place in places])
    made = _parts(predicted, places, mean, outcome) if parts else _quantiles(predicted, places, outcome)
    at = np.array([place.x for place in places])
    return Bands(at, mean, made, x, outcome.observed, outcome.site.name, "; ".join(notes))


def draw_bands(axes: Any, shown: Bands) -> None:
    """Draws the bands, the mean and the rows on some axes."""
    for band, alpha in zip(shown.bands, SHADES, strict=True):
        axes.fill_between(shown.at, band.low, band.high, color=BLUE, alpha=alpha, linewidth=0, label=band.label)
    axes.plot(shown.at, shown.mean, color=BLUE, linewidth=1.6, zorder=4, label="mean")
    if shown.observed is not None:
        size, alpha = (12, 0.7) if len(shown.x) < FEW else (4, 0.35)
        style: dict[str, Any] = {"s": size, "color": "0.25", "alpha": alpha, "linewidths": 0, "zorder": 3}
        axes.scatter(shown.x, shown.observed, label="observed", **style)
    bare(axes)


def _quantiles(predicted: _Rows, places: list[Place], outcome: Outcome) -> tuple[Band, ...]:
    """The bands that hold 90 and 50 % of new observations."""
    assert predicted.draws is not None
    weights, made = outcome.predictor.chosen.shares, []
    for probability in BANDS:
        low, high = (
            np.array([_quantile(predicted.draws, weights, place.rows, end) for place in places])
            for end in ((1 - probability) / 2, (1 + probability) / 2)
        )
        made.append(Band(f"{100 * probability:g} %", low, high))
    return tuple(made)


def _parts(predicted: _Rows, places: list[Place], mean: np.ndarray, outcome: Outcome) -> tuple[Band, ...]:
    """Two sds of a new observation, and of the mean.

    Rows of a group that differ in their means do so by other columns, which is no part of what is not known.
    """
    if predicted.aleatoric is None:
        raise SettingError(
            f"`plot_bands`: the uncertainty of {outcome.site.name!r} has no parts: its distribution does not know its "
            "mean and variance, or its rows have unknowns of their own. Leave out `parts`."
        )
    epistemic = np.array([predicted.epistemic[place.rows].mean() for place in places])
    noise = [predicted.aleatoric[place.rows].mean() + predicted.mean[place.rows].var() for place in places]
    made = []
    for label, variance in (("with noise", epistemic + np.array(noise)), ("of the mean", epistemic)):
        reach = NUM_SDS * np.sqrt(variance)
        made.append(Band(f"{NUM_SDS} sd, {label}", mean - reach, mean + reach))
    return tuple(made)


def _fewer(outcome: Outcome, column: str) -> Table:
    """Rows that are evenly spread along the column, as many as a picture needs."""
    columns = outcome.predictor.columns
    order = np.argsort(column_of(columns.inputs, column, WHO), kind="stable")
    kept = np.sort(order[np.linspace(0, len(order) - 1, MOST_ROWS).astype(int)])
    return Table({name: values[kept] for name, values in {**columns.inputs, **columns.held}.items()}, MOST_ROWS)


def _predicted(outcome: Outcome, parts: bool) -> _Rows:
    """The moments of each row; and unless parts are asked for, draws of new observations, (draws, rows)."""
    name = outcome.site.name
    pieces = [block.pieces[name] for block in blocks_of(outcome.predictor, What(True, None if parts else "by row"))]

    def joined(values: list[Any]) -> np.ndarray | None:
        return None if values[0] is None else np.concatenate([np.asarray(value, np.float64) for value in values])

    draws = joined([piece.draws for piece in pieces])
    mean, epistemic = joined([piece.mean for piece in pieces]), joined([piece.epistemic for piece in pieces])
    assert mean is not None
    assert epistemic is not None
    return _Rows(
        None if draws is None else np.moveaxis(draws, -1, 0),
        mean,
        joined([piece.aleatoric for piece in pieces]),
        epistemic,
    )


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
