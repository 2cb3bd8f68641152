"""Figures that belong to whoever asked for them: no pyplot, no backend, no global settings are touched."""

from __future__ import annotations

import functools
import io
from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from langevin.errors import SettingError

if TYPE_CHECKING:
    from matplotlib.figure import Figure

BLUE, RED, GREY = "#2a6f97", "#c1121f", "#9aa5b1"
# Of chains; a reader who cannot tell red from green can tell these apart.
CHAINS = (BLUE, "#e08e1b", "#4d9f71", "#9d5fa5", "#6b6b6b", "#56b4e9")
SMALL, LARGE = 8, 11
DPI = 120


def check() -> None:
    """Raises a SettingError that says how to install Matplotlib, if it is not there."""
    try:
        import matplotlib.figure  # noqa: F401
    except ImportError as error:
        raise SettingError("Pictures need Matplotlib: pip install 'langevin[plots]'.") from error


def blank(width: float, height: float, layout: Literal["constrained"] | None = "constrained") -> Figure:
    """An empty figure, in inches, which a notebook shows and `savefig` writes."""
    check()
    return _kind()(figsize=(width, height), dpi=DPI, layout=layout)


def saved(figure: Figure, path: str | Path | None) -> Figure:
    """The figure, written to `path` if there is one."""
    if path is not None:
        figure.savefig(path)
    return figure


@contextmanager
def figure(path: Path, columns: int = 1, rows: int = 1) -> Generator[Any]:
    """Axes to draw on (an array of them for several), which are written to `path` in the end."""
    canvas = blank(5.2 * columns, 4.2 * rows)
    yield canvas.subplots(rows, columns)
    canvas.savefig(path)


def color_of(chain: int) -> str:
    """The colour of a chain."""
    return CHAINS[chain % len(CHAINS)]


def written(text: str, most: int = 60) -> str:
    """A name as Matplotlib is to write it: nothing in it is a formula, and of a long one the middle is left out."""
    if len(text) > most:
        text = f"{text[: most // 2]}…{text[-(most - most // 2 - 1) :]}"
    return text.replace("$", r"\$")


def title(figure: Figure, text: str, *notes: str) -> None:
    """A title above all panels, and below it smaller lines that say what was chosen, and how."""
    kept = [note for note in notes if note]
    # A title has one size: the notes stand in lines that it leaves empty.
    figure.suptitle(text + "\n" * len(kept), fontsize=LARGE)
    for number, note in enumerate(kept):
        below = 0.06 + (number + 1) * LARGE * 1.25 / 72
        figure.text(0.5, 1 - below / figure.get_figheight(), note, ha="center", va="top", fontsize=SMALL, color="0.35")


def bare(axes: Any) -> None:
    """Takes the lines off the top and the right, and makes the numbers small."""
    axes.spines[["top", "right"]].set_visible(False)
    axes.tick_params(labelsize=SMALL)


@functools.cache
def _kind() -> type[Figure]:
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    class Picture(Figure):
        """A figure that a notebook shows even where pyplot was never imported."""

        def __init__(self, *args: Any, **keywords: Any) -> None:
            super().__init__(*args, **keywords)
            FigureCanvasAgg(self)

        def _repr_png_(self) -> bytes:
            file = io.BytesIO()
            self.savefig(file, format="png")
            return file.getvalue()

    return Picture
