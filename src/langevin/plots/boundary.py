"""What a classifier says over the plane of two columns: probabilities as colours, and the rows on top."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from langevin.errors import SettingError
from langevin.plots.canvas import BLUE, RED, SMALL, bare, blank, color_of, saved, title, written
from langevin.plots.grids import checked_range, column_of, rows_at, single_columns, spread
from langevin.plots.outcomes import outcome_of
from langevin.predicting.blocks import What, blocks_of

if TYPE_CHECKING:
    from matplotlib.figure import Figure

    from langevin.result import Fit

WHO = "plot_boundary"
PLACES = 100
MOST_ROWS = 2000
MOST_CLASSES = 6
LEVELS = (0.1, 0.25, 0.5, 0.75, 0.9)

Ends = tuple[float, float]


class Surface(NamedTuple):
    """Probabilities on a grid, and the rows.

    Attributes:
        columns: The names of the two columns.
        x: Places along the first.
        y: Places along the second.
        probabilities: (places of y, places of x, classes).
        epistemic: The sd, over draws, of the probability of the most probable class; None if it is not known.
        rows: The two columns of the rows, (rows, 2).
        labels: What was observed; None if that is not known.
        site: The name of what is predicted.
        notes: What was chosen.
    """

    columns: tuple[str, str]
    x: np.ndarray
    y: np.ndarray
    probabilities: np.ndarray
    epistemic: np.ndarray | None
    rows: np.ndarray
    labels: np.ndarray | None
    site: str
    notes: str


def boundary(
    fit: Fit,
    columns: tuple[str, str] | None = None,
    data: Any = None,
    *,
    over: tuple[Ends, Ends] | None = None,
    epistemic: bool = False,
    name: str | None = None,
    num_draws: int | None = None,
    path: str | Path | None = None,
) -> Figure:
    """The picture: see `langevin.pictures.Pictures.plot_boundary`."""
    surface = surface_of(fit, columns, data, over=over, name=name, num_draws=num_draws)
    if epistemic and surface.epistemic is None:
        raise SettingError(f"`{WHO}`: the uncertainty of {surface.site!r} has no parts. Leave out `epistemic`.")
    figure = blank(9.6 if epistemic else 5.4, 4.4)
    panels = figure.subplots(1, 2 if epistemic else 1, squeeze=False)[0]
    draw_boundary(panels[0], surface)
    if epistemic:
        draw_epistemic(panels[1], surface)
        panels[1].set_title("sd of the probability over draws", fontsize=9)
    for axes in panels:
        axes.set_xlabel(written(surface.columns[0]), fontsize=9)
        axes.set_ylabel(written(surface.columns[1]), fontsize=9)
    two = surface.probabilities.shape[-1] == 2
    what = f"Probability that {written(surface.site)} = 1" if two else f"Most probable {written(surface.site)}"
    title(figure, what, written(surface.notes, 200))
    return saved(figure, path)


def surface_of(
    fit: Fit,
    columns: tuple[str, str] | None = None,
    data: Any = None,
    *,
    over: tuple[Ends, Ends] | None = None,
    name: str | None = None,
    num_draws: int | None = None,
) -> Surface:
    """What the picture shows: see `langevin.pictures.Pictures.plot_boundary`."""
    outcome = outcome_of(fit, WHO, data, name, num_draws)
    site = outcome.site
    if not site.classes:
        raise SettingError(f"`{WHO}` is for classes, and {site.name!r} is a number. See `plot_bands`.")
    if site.classes > MOST_CLASSES:
        raise SettingError(
            f"`{WHO}` shows up to {MOST_CLASSES} classes, and {site.name!r} has {site.classes}. See `plot_reliability`."
        )
    inputs = outcome.predictor.columns.inputs
    first, second = _columns(single_columns(inputs), columns)
    rows = np.stack([column_of(inputs, column, WHO) for column in (first, second)], axis=1)
    if over is None:
        ends = [spread(float(low), float(high)) for low, high in zip(rows.min(axis=0), rows.max(axis=0), strict=True)]
    else:
        ends = [checked_range(WHO, "over", one) for one in _pair(over)]
    x, y = (np.linspace(*pair, PLACES) for pair in ends)
    across, up = (part.ravel() for part in np.meshgrid(x, y))
    grid = outcome_of(fit, WHO, rows_at(inputs, {first: across, second: up}), name, num_draws)
    blocks = [block.pieces[site.name] for block in blocks_of(grid.predictor, What(True, None, spread=True))]
    probabilities = np.concatenate([np.asarray(piece.probabilities, np.float64) for piece in blocks])
    epistemic = None
    if blocks[0].spread is not None:
        variances = np.concatenate([np.asarray(piece.spread, np.float64) for piece in blocks])
        best = probabilities.argmax(axis=-1)[:, None]
        epistemic = np.sqrt(np.take_along_axis(variances, best, axis=-1)[:, 0]).reshape(PLACES, PLACES)
    chosen = np.linspace(0, len(rows) - 1, min(len(rows), MOST_ROWS)).astype(int)
    notes = [f"{len(chosen):,} of {len(rows):,} rows"] if len(chosen) < len(rows) else []
    notes += [] if len(single_columns(inputs)) == 2 else ["other columns at their median or most frequent value"]
    return Surface(
        columns=(first, second),
        x=x,
        y=y,
        probabilities=probabilities.reshape(PLACES, PLACES, site.classes),
        epistemic=epistemic,
        rows=rows[chosen],
        labels=None if outcome.observed is None else outcome.observed[chosen].astype(int),
        site=site.name,
        notes="; ".join(notes),
    )


def draw_boundary(axes: Any, surface: Surface, bar: bool = True) -> None:
    """Draws the probabilities on some axes: of two classes that of the second, of more that of the most probable.

    Args:
        axes: Where to draw.
        surface: What is drawn.
        bar: Whether colours are explained beside the axes.
    """
    from matplotlib.colors import LinearSegmentedColormap, to_rgb

    probabilities, count = surface.probabilities, surface.probabilities.shape[-1]
    if count == 2:
        colours = LinearSegmentedColormap.from_list("two", [BLUE, "white", RED])
        mesh = axes.pcolormesh(
            surface.x, surface.y, probabilities[..., 1], cmap=colours, vmin=0, vmax=1, alpha=0.75, rasterized=True
        )
        lines = axes.contour(surface.x, surface.y, probabilities[..., 1], levels=LEVELS, colors="0.2", linewidths=0.6)
        lines.set_linewidth([1.6 if level == 0.5 else 0.5 for level in LEVELS])
        if bar:
            axes.figure.colorbar(mesh, ax=axes).ax.tick_params(labelsize=SMALL)
    else:
        # White where the most probable class is no more probable than the others.
        sure = (probabilities.max(axis=-1) - 1 / count) / (1 - 1 / count)
        full = np.array([to_rgb(color_of(k)) for k in range(count)])[probabilities.argmax(axis=-1)]
        shades = 1 - 0.75 * sure[..., None] * (1 - full)
        extent = (surface.x[0], surface.x[-1], surface.y[0], surface.y[-1])
        axes.imshow(shades, origin="lower", extent=extent, aspect="auto", interpolation="bilinear")
    _scatter(axes, surface, legend=bar and count > 2)


def draw_epistemic(axes: Any, surface: Surface, most: float | None = None) -> None:
    """Draws the sd, over draws, of the probability of the most probable class.

    Args:
        axes: Where to draw.
        surface: What is drawn.
        most: What the darkest colour stands for; by default the largest value.
    """
    mesh = axes.pcolormesh(
        surface.x, surface.y, surface.epistemic, cmap="Greys", vmin=0, vmax=most, alpha=0.85, rasterized=True
    )
    axes.figure.colorbar(mesh, ax=axes).ax.tick_params(labelsize=SMALL)
    _scatter(axes, surface, legend=False)


def _scatter(axes: Any, surface: Surface, *, legend: bool) -> None:
    """The rows, in the colours of their classes."""
    x, y = surface.rows.T
    style: dict[str, Any] = {"s": 12 if len(x) < 500 else 5, "linewidths": 0.3, "edgecolors": "white", "zorder": 3}
    if surface.labels is None:
        axes.scatter(x, y, color="0.25", **style)
    else:
        count = surface.probabilities.shape[-1]
        for k in range(count):
            mine = surface.labels == k
            colour = (BLUE, RED)[k] if count == 2 else color_of(k)
            axes.scatter(x[mine], y[mine], color=colour, label=str(k), **style)
        if legend:
            axes.legend(title=surface.site, fontsize=SMALL, title_fontsize=SMALL)
    axes.set(xlim=(surface.x[0], surface.x[-1]), ylim=(surface.y[0], surface.y[-1]))
    bare(axes)


def _columns(there: list[str], asked: tuple[str, str] | None) -> tuple[str, str]:
    if asked is None:
        if len(there) != 2:
            some = ", ".join(there[:6]) + (", ..." if len(there) > 6 else "")
            raise SettingError(
                f"`{WHO}` shows two columns, and the model is called with {len(there)}: {some}. Say which two: "
                "fit.plot_boundary(('x[0]', 'x[1]'))."
            )
        return there[0], there[1]
    if isinstance(asked, str) or len(asked) != 2 or asked[0] == asked[1]:
        raise SettingError(f"`{WHO}`: `columns` must be two different names, as ('x[0]', 'x[1]'); got {asked!r}.")
    return asked[0], asked[1]


def _pair(over: Any) -> Any:
    if np.shape(over) != (2, 2):
        raise SettingError(f"`{WHO}`: `over` must be two ranges, as ((-1, 1), (0, 5)); got {over!r}.")
    return over
