"""How a run went: the bound over steps, the step size and the log-density over draws, and the energy."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from langevin.errors import SettingError
from langevin.plots.canvas import BLUE, GREY, RED, SMALL, bare, blank, saved, title
from langevin.plots.trace import LEAST_DRAWS, MOST_POINTS, lines

if TYPE_CHECKING:
    from matplotlib.figure import Figure

    from langevin.result import Fit

# Bounds of single steps are noisy: a line through the medians of so many stretches shows where they go.
STRETCHES = 50
LEAST_STEPS = 2 * STRETCHES
BINS = 50


class Panel(NamedTuple):
    """A panel: its title, what draws it, and what its axes are called."""

    title: str
    draw: Callable[[Any], None]
    x: str
    y: str


def run(fit: Fit, path: str | Path | None = None) -> Figure:
    """The picture: see `langevin.pictures.Pictures.plot_run`."""
    panels = _of_bound(fit) or [*_of_draws(fit), *_of_energy(fit)]
    name = fit.settings["method"]["name"]
    if not panels:
        raise SettingError(f"`plot_run`: a fit by {name} keeps nothing of how it went; see `fit.settings`.")
    figure = blank(3.9 * len(panels) + 0.3, 3.2)
    for panel, axes in zip(panels, figure.subplots(1, len(panels), squeeze=False)[0], strict=True):
        panel.draw(axes)
        axes.set_title(panel.title, fontsize=9, loc="left")
        axes.set_xlabel(panel.x, fontsize=SMALL)
        axes.set_ylabel(panel.y, fontsize=SMALL)
        bare(axes)
    title(figure, f"The run of {name}")
    return saved(figure, path)


def _of_bound(fit: Fit) -> list[Panel]:
    """The bound of variational inference: over all steps; and over the last half, since the first steps hide it."""
    if "optimisation" not in fit.tree:
        return []
    group = fit.tree["optimisation"].to_dataset()
    bounds, best = np.atleast_2d(group["elbo"].values), int(group.attrs["best"])
    num_steps = bounds.shape[1]
    if not np.isfinite(bounds).any():
        return []

    def all_steps(axes: Any) -> None:
        for restart in range(len(bounds)):
            if restart != best:
                _bound(axes, bounds[restart], 0, GREY)
        _bound(axes, bounds[best], 0, BLUE)

    def last_half(axes: Any) -> None:
        _bound(axes, bounds[best][num_steps // 2 :], num_steps // 2, BLUE)

    restarts = f", of {len(bounds)} restarts the best in blue" if len(bounds) > 1 else ""
    panels = [Panel(f"the bound{restarts}", all_steps, "step", "nats")]
    return [*panels, Panel("its last half", last_half, "step", "nats")] if num_steps >= LEAST_STEPS else panels


def _bound(axes: Any, bounds: np.ndarray, first: int, color: str) -> None:
    """The bounds of steps, and the medians of stretches of them."""
    steps = first + np.arange(len(bounds))
    if len(bounds) < LEAST_STEPS:
        axes.plot(steps, bounds, "o-", color=color, markersize=3, linewidth=1.2)
        axes.locator_params(axis="x", integer=True)
        axes.ticklabel_format(useOffset=False)
        return
    every = -(-len(bounds) // MOST_POINTS)
    axes.plot(steps[::every], bounds[::every], color=color, linewidth=0.5, alpha=0.35)
    stretches = list(zip(np.array_split(steps, STRETCHES), np.array_split(bounds, STRETCHES), strict=True))
    axes.plot([s.mean() for s, _ in stretches], [np.nanmedian(b) for _, b in stretches], color=color, linewidth=1.6)


def _of_draws(fit: Fit) -> list[Panel]:
    """The log-density, and the step size, at the draws of each chain."""
    stats, weights = fit.stats, fit.weights.values
    if stats.sizes["draw"] < LEAST_DRAWS:
        return []
    panels = []
    if np.isfinite(stats["lp"].values).any():
        panels.append(Panel("log-density", lambda axes: lines(axes, stats["lp"].values, weights), "draw", "nats"))
    if "step_size" in stats:
        panels.append(Panel("step size", lambda axes: _steps(axes, stats["step_size"].values, weights), "draw", ""))
    return panels


def _steps(axes: Any, steps: np.ndarray, weights: np.ndarray) -> None:
    lines(axes, steps, weights, width=1.2)
    axes.set_ylim(0, 1.2 * steps[weights > 0].max(initial=0.0) or 1.0)
    axes.ticklabel_format(axis="y", scilimits=(-2, 4))


def _of_energy(fit: Fit) -> list[Panel]:
    """The energies that chains saw, and how far one draw moves among them: the second must not be much narrower."""
    stats = fit.stats
    # A trajectory of one step has no energy to lose.
    if "energy" not in stats or stats.sizes["draw"] < LEAST_DRAWS or stats["n_steps"].values.max() <= 1:
        return []
    energy = stats["energy"].values
    spread = np.var(energy, axis=1)
    fraction = np.mean(np.diff(energy, axis=1) ** 2, axis=1) / np.where(spread > 0, spread, np.nan)

    def draw(axes: Any) -> None:
        seen, changes = (energy - energy.mean(axis=1, keepdims=True)).ravel(), np.diff(energy, axis=1).ravel()
        reach = np.quantile(np.abs(np.concatenate([seen, changes])), 0.999)
        bins = np.linspace(-reach, reach, BINS + 1)
        axes.hist(seen, bins, density=True, color=BLUE, alpha=0.5, label="energy")
        axes.hist(changes, bins, density=True, histtype="step", color=RED, linewidth=1.4, label="its changes")
        axes.legend(fontsize=SMALL, frameon=False)
        axes.set_yticks([])

    return [Panel(f"energy (smallest BFMI {np.nanmin(fraction):.2f})", draw, "nats, from the mean", "")]
