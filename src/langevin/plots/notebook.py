"""What a notebook shows of a fit: the verdict, the table, and small pictures. One piece of HTML that asks for nothing.

No scripts, no style sheet, no addresses: what has a colour can be read on white and on black.
"""

from __future__ import annotations

import base64
import html
import io
from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np

from langevin.diagnostics.summaries import columns
from langevin.errors import SettingError
from langevin.plots.canvas import BLUE, blank, written
from langevin.plots.choosing import Chosen, Coordinate, choose, draws_of
from langevin.plots.trace import LEAST_DRAWS, lines

if TYPE_CHECKING:
    from langevin.result import Fit

MOST_ROWS, MOST_PICTURES = 20, 6
PROBABILITY = 0.89
BINS = 30
# Of a name above a picture.
LONGEST = 26
COLORS = {"trustworthy": "#2e7d46", "doubtful": "#a86400", "wrong": "#c1121f"}
# As dark on white as it is light on black.
INK = "#808080"
CELL = "padding:1px 8px;text-align:right;border:0;background:transparent"
FRAME = "font-family:sans-serif;font-size:13px;line-height:1.45;max-width:72em"


def page(fit: Fit) -> str:
    """The HTML."""
    parts = [_heading(fit), _findings(fit), _remarks(fit)]
    try:
        worst = choose(fit, "Fit", None, MOST_ROWS)
        chosen = worst if worst.note else choose(fit, "Fit", None, MOST_ROWS, worst_first=False)
        parts += [_table(fit, chosen), _pictures(fit, worst.coordinates[:MOST_PICTURES])]
    except SettingError as error:
        # Nothing to show: what was found says why.
        parts.append(f"<div>{html.escape(str(error))}</div>")
    return f'<div style="{FRAME}">{"".join(parts)}</div>'


def _heading(fit: Fit) -> str:
    sizes, word = fit.posterior.sizes, fit.verdict.word
    badge = f"background:{COLORS[word]};color:#ffffff;border-radius:3px;padding:1px 7px;font-weight:bold"
    method = html.escape(str(fit.settings["method"]["name"]))
    counts = f"{sizes['chain']:,} chain{'s' if sizes['chain'] > 1 else ''} of {sizes['draw']:,} draw"
    return (
        f"<div><b>Fit by {method}</b>, {counts}{'s' if sizes['draw'] > 1 else ''}: "
        f'<span style="{badge}">{html.escape(word)}</span></div>'
    )


def _findings(fit: Fit) -> str:
    if not fit.verdict:
        return "<div>No fault found.</div>"
    items = (
        f"<li><b>{html.escape(finding.finding)}</b> {html.escape(finding.meaning)} "
        f"<i>{html.escape(finding.remedy)}</i></li>"
        for finding in fit.verdict
    )
    return f'<ul style="margin:4px 0;padding-left:20px">{"".join(items)}</ul>'


def _remarks(fit: Fit) -> str:
    """What was left out of the data, and what was approximated, as the text has it."""
    settings = fit.settings
    approximate = settings["approximation"] and f"Approximate: {settings['approximation']}"
    sentences = [settings.get("rows_left_out"), approximate]
    return "".join(f"<div>{html.escape(sentence)}</div>" for sentence in sentences if sentence)


def _table(fit: Fit, chosen: Chosen) -> str:
    """The rows of `fit.summary()`, to the digits that the Monte Carlo error leaves."""
    together = fit.settings["evidence"].get("mixing", {}).get("together", 1)
    with np.errstate(invalid="ignore"):
        # What is not finite stays empty, and the verdict says so.
        table = columns(draws_of(fit, chosen.coordinates), fit.weights.values, PROBABILITY, together)
    head = "".join(f'<th style="{CELL}">{name}</th>' for name in ("", *table))
    rows = []
    for number, coordinate in enumerate(chosen.coordinates):
        values = {name: float(column[number]) for name, column in table.items()}
        cells = "".join(f'<td style="{CELL}">{_written(name, values)}</td>' for name in values)
        label = f'<th style="{CELL};text-align:left">{html.escape(coordinate.label)}</th>'
        rows.append(f"<tr>{label}{cells}</tr>")
    note = f'<div style="color:{INK}">{html.escape(chosen.note)}; fit.summary() has all.</div>' if chosen.note else ""
    style = "border-collapse:collapse;border:0;margin:6px 0"
    return f'<table style="{style}"><thead><tr>{head}</tr></thead><tbody>{"".join(rows)}</tbody></table>{note}'


def _written(name: str, values: dict[str, float]) -> str:
    """A number of the table. What is on the posterior's scale has the decimals that show three digits of the sd."""
    value, sd = values[name], values["sd"]
    if not np.isfinite(value):
        return ""
    if name == "ess":
        return f"{value:,.0f}"
    if name == "r_hat":
        return f"{value:.3f}"
    if name == "mcse":
        return f"{value:.2g}"
    if not 1e-6 < sd < 1e6:
        return f"{value:.4g}"
    return f"{value:.{max(2 - int(np.floor(np.log10(sd))), 0)}f}"


def _pictures(fit: Fit, coordinates: Sequence[Coordinate]) -> str:
    """The distribution and the trace of each; nothing without Matplotlib, or of a single point."""
    if fit.posterior.sizes["draw"] < LEAST_DRAWS:
        return ""
    try:
        figure = blank(1.75 * len(coordinates), 1.9, layout=None)
    except SettingError:
        return ""
    draws, weights = draws_of(fit, coordinates), fit.weights.values
    grid = figure.subplots(2, len(coordinates), squeeze=False)
    # By hand: to find out what fits takes longer than to draw it.
    figure.subplots_adjust(left=0.01, right=0.99, bottom=0.02, top=0.89, wspace=0.08, hspace=0.34)
    for number, coordinate in enumerate(coordinates):
        above, below = grid[:, number]
        values = draws[:, :, number]
        finite = np.isfinite(values) & (weights > 0)
        if finite.any():
            heights, edges = np.histogram(values[finite], BINS, weights=weights[finite], density=True)
            above.stairs(heights, edges, fill=True, color=BLUE, alpha=0.75)
        lines(below, values, weights, width=0.4)
        above.set_title(written(coordinate.label, LONGEST), fontsize=8, color=INK)
        above.tick_params(axis="x", labelsize=6, colors=INK, length=2, pad=1)
        above.locator_params(axis="x", nbins=4)
        above.set_yticks([])
        below.set_xticks([])
        below.set_yticks([])
        for axes in (above, below):
            axes.set_facecolor("none")
            axes.spines[:].set_visible(False)
        above.spines["bottom"].set(visible=True, color=INK)
    file = io.BytesIO()
    figure.savefig(file, format="png", transparent=True)
    content = base64.b64encode(file.getvalue()).decode()
    shown = html.escape(", ".join(coordinate.label for coordinate in coordinates), quote=True)
    return (
        f'<img style="max-width:100%" alt="Distributions and traces of {shown}" src="data:image/png;base64,{content}">'
        f'<div style="color:{INK}">Distributions and traces, the worst mixed first.</div>'
    )
