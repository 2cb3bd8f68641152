"""Whether a fit is less sure of rows that are not like its own: how sure it is of both, as histograms.

    entropy       -sum_k p_k log p_k of the predicted probabilities p, in nats
    confidence    max_k p_k                                             (Hendrycks & Gimpel 2017)
    epistemic     the sd, over draws, of the mean of a number

AUROC is the probability that a row of the others is taken for less certain than one of its own; 0.5 is chance.

Hendrycks & Gimpel (2017), A baseline for detecting misclassified and out-of-distribution examples in neural networks.
ICLR.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

import numpy as np

from langevin import checks
from langevin.errors import SettingError
from langevin.plots.canvas import BLUE, RED, SMALL, bare, blank, saved, title, written
from langevin.plots.outcomes import outcome_of
from langevin.predicting.blocks import What, blocks_of

if TYPE_CHECKING:
    from matplotlib.figure import Figure

    from langevin.result import Fit

WHO = "plot_out_of_distribution"
Measure = Literal["entropy", "confidence", "epistemic"]
NAMES = {
    "entropy": "entropy of the prediction, nats",
    "confidence": "probability of the most probable class",
    "epistemic": "epistemic sd",
}


class Measured(NamedTuple):
    """How sure a fit is of rows: a value for each, by which measure, and of which site."""

    values: np.ndarray
    measure: Measure
    site: str


def out_of_distribution(
    fit: Fit,
    others: Any,
    data: Any = None,
    *,
    measure: Measure | None = None,
    name: str | None = None,
    bins: int = 30,
    num_draws: int | None = None,
    path: str | Path | None = None,
) -> Figure:
    """The picture: see `langevin.pictures.Pictures.plot_out_of_distribution`."""
    checks.count(WHO, "bins", bins, least=2)
    own = measured(fit, data, measure, name, num_draws)
    other = measured(fit, others, own.measure, name, num_draws)
    figure = blank(5.6, 3.8)
    axes = figure.subplots()
    area = draw_measured(axes, own, other, bins)
    axes.legend(fontsize=SMALL, frameon=False)
    title(figure, f"How sure of {written(own.site)}", f"AUROC {area:.3f}")
    return saved(figure, path)


def draw_measured(axes: Any, own: Measured, others: Measured, bins: int = 30) -> float:
    """Draws two histograms on some axes; returns the AUROC."""
    values = np.concatenate([own.values, others.values])
    low, high = values.min(), values.max()
    edges = np.linspace(low, high if high > low else low + 1.0, bins + 1)
    for rows, colour, label in ((own.values, BLUE, "in distribution"), (others.values, RED, "others")):
        shares = np.histogram(rows, edges)[0] / len(rows)
        axes.stairs(shares, edges, fill=True, color=colour, alpha=0.35)
        axes.stairs(shares, edges, color=colour, linewidth=1.2, label=f"{label}, {len(rows):,} rows")
    axes.set_xlabel(NAMES[own.measure], fontsize=9)
    axes.set_ylabel("share of rows", fontsize=9)
    axes.set_ylim(bottom=0)
    bare(axes)
    sign = -1 if own.measure == "confidence" else 1
    return auroc(sign * own.values, sign * others.values)


def measured(
    fit: Fit,
    data: Any = None,
    measure: Measure | None = None,
    name: str | None = None,
    num_draws: int | None = None,
) -> Measured:
    """How sure the fit is of each row.

    Raises:
        SettingError: If the measure is not for what is predicted.
    """
    outcome = outcome_of(fit, WHO, data, name, num_draws)
    site = outcome.site
    chosen: Measure = measure or ("entropy" if site.classes else "epistemic")
    checks.choice(WHO, "measure", chosen, tuple(NAMES))
    if bool(site.classes) == (chosen == "epistemic"):
        kind = "classes" if site.classes else "a number"
        fitting = "'entropy' or 'confidence'" if site.classes else "'epistemic'"
        raise SettingError(f"`{WHO}`: {site.name!r} is {kind}, for which `measure` is {fitting}; got {chosen!r}.")
    pieces = [block.pieces[site.name] for block in blocks_of(outcome.predictor, What(True))]
    if chosen == "epistemic":
        if pieces[0].aleatoric is None:
            raise SettingError(f"`{WHO}`: the uncertainty of {site.name!r} has no parts.")
        return Measured(
            np.sqrt(np.concatenate([np.asarray(piece.epistemic, np.float64) for piece in pieces])), chosen, site.name
        )
    probabilities = np.concatenate([np.asarray(piece.probabilities, np.float64) for piece in pieces])
    values = probabilities.max(axis=-1) if chosen == "confidence" else entropy(probabilities)
    return Measured(values, chosen, site.name)


def entropy(probabilities: np.ndarray) -> np.ndarray:
    """In nats, over the last axis.

    Example:
        >>> import numpy as np
        >>> entropy(np.array([[0.5, 0.5], [1.0, 0.0]])).round(3).tolist()
        [0.693, 0.0]
    """
    safe = np.where(probabilities > 0, probabilities, 1.0)
    return np.maximum(-np.sum(safe * np.log(safe), axis=-1), 0.0)


def auroc(own: np.ndarray, others: np.ndarray) -> float:
    """The probability that one of the others is larger than one's own, ties counting half (Mann & Whitney).

    Example:
        >>> import numpy as np
        >>> auroc(np.array([0.0, 1.0]), np.array([1.0, 2.0]))
        0.875
    """
    order = np.sort(own)
    below, upto = (np.searchsorted(order, others, side=side) for side in ("left", "right"))
    return float(np.mean(below + upto) / (2 * len(own)))
