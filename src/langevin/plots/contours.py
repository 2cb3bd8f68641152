"""Contours of a distribution in the plane: of one on a grid, and of weighted draws."""

from __future__ import annotations

from typing import Any

import numpy as np

from langevin.plots.canvas import BLUE, RED

LEVELS = (0.95, 0.8, 0.5, 0.2)


def contours_of_grid(axes: Any, x: np.ndarray, y: np.ndarray, cells: np.ndarray, color: str = BLUE) -> None:
    """Contours around the smallest regions that hold 20, 50, 80 and 95 % of a distribution on a grid.

    Args:
        axes: Where to draw.
        x: The first axis of the grid.
        y: The second.
        cells: The probability of each cell, of shape (len(x), len(y)).
        color: Of the lines.
    """
    density = np.sort(cells.reshape(-1))[::-1]
    held = np.cumsum(density) / density.sum()
    levels = [density[min(np.searchsorted(held, level), len(density) - 1)] for level in LEVELS]
    axes.contour(x, y, cells.T, levels=sorted(set(levels)), colors=color, linewidths=1.2)


def contours_of_draws(axes: Any, x: np.ndarray, y: np.ndarray, weights: np.ndarray, color: str = RED) -> None:
    """The same contours for weighted draws, of a histogram that is smoothed by about a bandwidth of Scott's rule."""
    bins = 120
    edges = [np.linspace(values.min() - 0.5, values.max() + 0.5, bins + 1) for values in (x, y)]
    cells, _, _ = np.histogram2d(x, y, bins=edges, weights=weights)
    size = np.sum(weights) ** 2 / np.sum(weights**2)
    for axis, values in enumerate((x, y)):
        spread = np.sqrt(np.cov(values, aweights=weights)) * size ** (-1 / 6)
        width = max(spread / (edges[axis][1] - edges[axis][0]) / 2, 1.0)
        offsets = np.arange(-int(4 * width), int(4 * width) + 1)
        kernel = np.exp(-0.5 * (offsets / width) ** 2)
        kernel /= kernel.sum()
        cells = np.apply_along_axis(lambda line, k=kernel: np.convolve(line, k, mode="same"), axis, cells)
    middles = [(edge[1:] + edge[:-1]) / 2 for edge in edges]
    contours_of_grid(axes, *middles, cells, color=color)
