"""Draws of pairs of coordinates, with the places where trajectories diverged."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from langevin.errors import SettingError
from langevin.plots.canvas import BLUE, RED, bare, blank, saved, title, written
from langevin.plots.choosing import choose, draws_of, equal_weights
from langevin.plots.trace import need_draws

if TYPE_CHECKING:
    from matplotlib.figure import Figure

    from langevin.result import Fit

MOST_POINTS = 3000
BINS = 40
# Of a name below a panel.
LONGEST = 24


def pairs(
    fit: Fit, names: str | Sequence[str] | None = None, *, most: int = 4, path: str | Path | None = None
) -> Figure:
    """The picture: see `langevin.pictures.Pictures.plot_pairs`."""
    need_draws(fit, "plot_pairs")
    chosen = choose(fit, "plot_pairs", names, most)
    size = len(chosen.coordinates)
    if size < 2:
        raise SettingError(f"`plot_pairs` needs two coordinates; got {chosen.coordinates[0].label!r} alone.")
    weights = fit.weights.values
    running = weights.sum(axis=1) > 0
    draws = equal_weights(draws_of(fit, chosen.coordinates), weights)[running].reshape(-1, size)
    diverging = np.zeros(len(draws), bool)
    if "diverging" in fit.stats:
        diverging = equal_weights(fit.stats["diverging"].values, weights)[running].ravel()
    few = draws[:: -(-len(draws) // MOST_POINTS)]
    figure = blank(1.9 * size + 0.6, 1.8 * size + 0.8)
    grid = figure.subplots(size, size, squeeze=False, sharex="col")
    for row, column in np.ndindex(size, size):
        axes = grid[row, column]
        if column > row:
            axes.set_axis_off()
            continue
        if column == row:
            finite = draws[np.isfinite(draws[:, row]), row]
            if len(finite):
                axes.hist(finite, bins=BINS, density=True, color=BLUE, alpha=0.6)
            axes.set_yticks([])
        else:
            axes.plot(few[:, column], few[:, row], ".", color=BLUE, markersize=2, alpha=0.35, label="draws")
            if diverging.any():
                at = draws[diverging]
                axes.plot(at[:, column], at[:, row], ".", color=RED, markersize=4, label="diverging")
        bare(axes)
        axes.tick_params(labelleft=column == 0)
        if row == size - 1:
            axes.set_xlabel(written(chosen.coordinates[column].label, LONGEST), fontsize=9)
        if column == 0 and row > 0:
            axes.set_ylabel(written(chosen.coordinates[row].label, LONGEST), fontsize=9)
    figure.align_labels()
    notes = [chosen.note] if chosen.note else []
    notes += ["draws resampled to equal weights"] if np.ptp(weights) > 0 else []
    notes += [f"in red: {diverging.sum():,} divergences"] if diverging.any() else []
    title(figure, "Pairs of coordinates, the worst mixed first" if names is None else "Pairs", "; ".join(notes))
    return saved(figure, path)
