"""Intervals of many coordinates, one below the other."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from langevin.diagnostics import weighted
from langevin.diagnostics.mixing import not_mixed
from langevin.errors import SettingError
from langevin.plots.canvas import BLUE, RED, bare, blank, saved, title, written
from langevin.plots.choosing import Coordinate, choose, draws_of

if TYPE_CHECKING:
    from matplotlib.figure import Figure

    from langevin.result import Fit

# Sites share an axis as long as it is not so many times as long as an interval of one of them.
LONGEST = 60.0
INNER = 0.5
INCHES_A_ROW, INCHES_A_PANEL = 0.21, 0.3


def forest(
    fit: Fit,
    names: str | Sequence[str] | None = None,
    *,
    probability: float = 0.89,
    most: int = 40,
    path: str | Path | None = None,
) -> Figure:
    """The picture: see `langevin.pictures.Pictures.plot_forest`."""
    if not 0 < probability < 1:
        raise SettingError(f"`plot_forest`: `probability` must be between 0 and 1; got {probability!r}. Try 0.89.")
    chosen = choose(fit, "plot_forest", names, most, worst_first=False)
    draws, weights = draws_of(fit, chosen.coordinates), fit.weights.values
    mean = weighted.mean(draws, weights)
    low, inner_low, inner_high, high = (
        weighted.quantile(draws, weights, p)
        for p in ((1 - probability) / 2, (1 - INNER) / 2, (1 + INNER) / 2, (1 + probability) / 2)
    )
    together = fit.settings["evidence"].get("mixing", {}).get("together", 1)
    colors = np.where(not_mixed(draws, weights, together, chosen.total), RED, BLUE)
    panels = _panels(chosen.coordinates, low, high)
    heights = [INCHES_A_ROW * len(rows) + INCHES_A_PANEL for rows in panels]
    figure = blank(6.4, sum(heights) + 0.8)
    grid = figure.subplots(len(panels), 1, squeeze=False, height_ratios=heights)[:, 0]
    for axes, rows in zip(grid, panels, strict=True):
        y = np.arange(len(rows))[::-1]
        axes.hlines(y, low[rows], high[rows], colors=colors[rows], linewidth=1.2, label="outer")
        axes.hlines(y, inner_low[rows], inner_high[rows], colors=colors[rows], linewidth=3.6, label="inner")
        axes.scatter(mean[rows], y, s=16, facecolors="white", edgecolors=colors[rows], zorder=3, label="mean")
        axes.set_yticks(y, [written(chosen.coordinates[row].label) for row in rows])
        axes.set_ylim(-0.7, len(rows) - 0.3)
        axes.grid(axis="x", color="0.9", linewidth=0.6)
        axes.set_axisbelow(True)
        bare(axes)
    note = f"mean, {100 * INNER:g} % and {100 * probability:g} % intervals" if weights.size > 1 else "a single point"
    if RED in colors:
        note += "; in red: chains that have not mixed"
    title(figure, "Posterior", note, chosen.note)
    return saved(figure, path)


def _panels(coordinates: Sequence[Coordinate], low: np.ndarray, high: np.ndarray) -> list[np.ndarray]:
    """The rows of each panel: sites in a row whose intervals can be read on one axis."""
    sites = dict.fromkeys(coordinate.site for coordinate in coordinates)
    panels: list[list[int]] = []
    narrowest = np.inf
    for site in sites:
        rows = [row for row, coordinate in enumerate(coordinates) if coordinate.site == site]
        # What has no width can be read on any axis.
        width = float(np.median(high[rows] - low[rows])) or np.inf
        together = [*panels[-1], *rows] if panels else rows
        if panels and np.ptp([low[together], high[together]]) <= LONGEST * min(narrowest, width):
            panels[-1], narrowest = together, min(narrowest, width)
        else:
            panels.append(rows)
            narrowest = width
    return [np.asarray(rows) for rows in panels]
