"""Traces and ranks of chains, side by side."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from langevin.diagnostics import weighted
from langevin.errors import SettingError
from langevin.plots.canvas import SMALL, bare, blank, color_of, saved, title, written
from langevin.plots.choosing import choose, draws_of, equal_weights

if TYPE_CHECKING:
    from matplotlib.figure import Figure

    from langevin.result import Fit

MOST_POINTS = 2000
MOST_BINS, DRAWS_A_BIN = 20, 10
LEAST_DRAWS = 4


def trace(
    fit: Fit, names: str | Sequence[str] | None = None, *, most: int = 6, path: str | Path | None = None
) -> Figure:
    """The picture: see `langevin.pictures.Pictures.plot_trace`."""
    need_draws(fit, "plot_trace")
    chosen = choose(fit, "plot_trace", names, most)
    draws, weights = draws_of(fit, chosen.coordinates), fit.weights.values
    diverging = fit.stats["diverging"].values if "diverging" in fit.stats else np.zeros(weights.shape, bool)
    figure = blank(8.0, 1.45 * len(chosen.coordinates) + 0.9)
    grid = figure.subplots(len(chosen.coordinates), 2, squeeze=False, width_ratios=[1.7, 1])
    for number, (coordinate, (left, right)) in enumerate(zip(chosen.coordinates, grid, strict=True)):
        lines(left, draws[:, :, number], weights)
        _rug(left, diverging & (weights > 0))
        left.set_title(written(coordinate.label), fontsize=9, loc="left")
        ranks(right, draws[:, :, number], weights)
        for axes in (left, right):
            bare(axes)
            if number < len(grid) - 1:
                axes.tick_params(labelbottom=False)
    grid[0, 1].set_title("ranks, as a multiple of their share", fontsize=9, loc="left")
    grid[-1, 0].set_xlabel("draw", fontsize=SMALL)
    grid[-1, 1].set_xlabel("rank among all draws", fontsize=SMALL)
    title(figure, "Trace and rank of each chain", "; ".join(_notes(draws, weights, diverging, chosen.note)))
    return saved(figure, path)


def need_draws(fit: Fit, what: str) -> None:
    """Raises a SettingError if there are too few draws to look at."""
    count = fit.posterior.sizes["draw"]
    if count < LEAST_DRAWS:
        raise SettingError(
            f"`{what}` shows how draws are spread, and each chain of this fit has {count}. `plot_forest` shows points."
        )


def lines(axes: Any, draws: np.ndarray, weights: np.ndarray, width: float = 0.6) -> None:
    """The draws of each chain in their order: of very many, every so manieth; none after a chain stopped."""
    every = -(-draws.shape[1] // MOST_POINTS)
    at = np.arange(0, draws.shape[1], every)
    for chain, of_chain in enumerate(draws):
        kept = np.where(weights[chain, at] > 0, of_chain[at], np.nan)
        axes.plot(at, kept, color=color_of(chain), linewidth=width, alpha=0.8)
    axes.set_xlim(0, draws.shape[1] - 1)


def ranks(axes: Any, draws: np.ndarray, weights: np.ndarray) -> None:
    """How the ranks of each chain are spread: 1 where it has its share of a bin, in a band that chance explains.

    Of draws of equal weight. The band is two standard errors of as many independent draws as a chain is worth.
    """
    from scipy.stats import rankdata

    running = weights.sum(axis=1) > 0
    equal = equal_weights(draws, weights)[running]
    num_chains, num_draws = equal.shape
    if not num_chains or not np.isfinite(equal).all():
        axes.text(0.5, 0.5, "not finite", ha="center", va="center", transform=axes.transAxes, fontsize=SMALL)
        return
    bins = int(np.clip(num_draws // DRAWS_A_BIN, 2, MOST_BINS))
    edges = np.linspace(0.5, equal.size + 0.5, bins + 1)
    place = rankdata(equal).reshape(equal.shape)
    worth = float(weighted.sizes(draws[:, :, None], weights).within[0]) / num_chains
    if np.isfinite(worth):
        error = 2 * np.sqrt((bins - 1) * (1 - 1 / num_chains) / worth) if num_chains > 1 else 0.0
        axes.axhspan(1 - error, 1 + error, color="0.92", zorder=0)
    axes.axhline(1.0, color="0.6", linewidth=0.8, linestyle="--")
    for chain, of_chain in zip(np.flatnonzero(running), place, strict=True):
        share = np.histogram(of_chain, edges)[0] / num_draws * bins
        axes.stairs(share, edges, baseline=None, color=color_of(int(chain)), linewidth=1.1)
    axes.set_xlim(edges[0], edges[-1])
    axes.set_ylim(bottom=0)


def _rug(axes: Any, diverging: np.ndarray) -> None:
    """A tick for each divergence, below the traces."""
    at = np.flatnonzero(diverging.any(axis=0))
    if len(at):
        place = axes.get_xaxis_transform()
        axes.plot(at, np.full(len(at), 0.02), "|", color="black", markersize=5, transform=place)


def _notes(draws: np.ndarray, weights: np.ndarray, diverging: np.ndarray, chosen: str) -> list[str]:
    every = -(-draws.shape[1] // MOST_POINTS)
    count = int(diverging.sum())
    return [
        *([chosen] if chosen else []),
        *([f"every {every}th draw" if every > 3 else f"one draw in {every}"] if every > 1 else []),
        *(["ranks of draws resampled to equal weights"] if np.ptp(weights) > 0 else []),
        *([f"black ticks: {count} divergences"] if count else []),
        "grey: what chance explains",
    ]
