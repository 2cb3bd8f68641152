"""Whether probabilities are what they say: how often what was given 30 % came true."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from langevin import checks
from langevin.errors import SettingError
from langevin.plots.canvas import SMALL, bare, blank, color_of, saved, title, written
from langevin.plots.outcomes import outcome_of
from langevin.predicting.summary import summarised

if TYPE_CHECKING:
    from matplotlib.figure import Figure

    from langevin.result import Fit

INTERVAL = 0.9
MOST_CLASSES = 6


class Bins(NamedTuple):
    """Rows by the probability that they were given: the bins that have any, and the share of every bin.

    Attributes:
        predicted: The mean probability.
        observed: How often it came true.
        low: The lower end of a 90 % interval for how often it comes true.
        high: The upper end.
        share: How many of all rows are in each bin, also in those that have none.
    """

    predicted: np.ndarray
    observed: np.ndarray
    low: np.ndarray
    high: np.ndarray
    share: np.ndarray


def reliability(
    fit: Fit,
    data: Any = None,
    *,
    name: str | None = None,
    bins: int = 10,
    num_draws: int | None = None,
    path: str | Path | None = None,
) -> Figure:
    """The picture: see `langevin.pictures.Pictures.plot_reliability`."""
    checks.count("plot_reliability", "bins", bins, least=2)
    outcome = outcome_of(fit, "plot_reliability", data, name, num_draws)
    site, observed = outcome.site, outcome.observed
    if not site.classes:
        raise SettingError(f"`plot_reliability` is for classes, and {site.name!r} is a number. See `plot_bands`.")
    if observed is None:
        raise SettingError(f"`plot_reliability`: the rows must have what was observed of {site.name!r}.")
    predicted = summarised(outcome.predictor, (), None)
    counts = np.bincount(observed.astype(int), minlength=site.classes)
    classes = [1] if site.classes == 2 else sorted(np.argsort(-counts, kind="stable")[:MOST_CLASSES].tolist())
    figure = blank(4.6, 5.2)
    above, below = figure.subplots(2, 1, sharex=True, height_ratios=[3, 1])
    above.plot([0, 1], [0, 1], color="0.6", linewidth=0.8, linestyle="--")
    edges = np.linspace(0, 1, bins + 1)
    for number, k in enumerate(classes):
        found = binned(predicted[f"probability_{k}"].values, observed == k, bins)
        ends = np.stack([found.observed - found.low, found.high - found.observed])
        style = {"color": color_of(number), "markersize": 4, "linewidth": 1.2, "elinewidth": 0.9, "clip_on": False}
        above.errorbar(found.predicted, found.observed, ends, fmt="o-", label=str(k), **style)
        alone = len(classes) == 1
        below.stairs(
            found.share, edges, baseline=0 if alone else None, fill=alone, color=color_of(number), linewidth=1.2
        )
    above.set_ylabel("how often it came true", fontsize=9)
    above.set(xlim=(0, 1), ylim=(0, 1))
    below.set_ylabel("share of rows", fontsize=9)
    below.set_ylim(bottom=0)
    of_what = f"that {written(site.name)} = 1" if site.classes == 2 else "of the class"
    below.set_xlabel(f"predicted probability {of_what}", fontsize=9)
    if len(classes) > 1:
        above.legend(title="class", fontsize=SMALL, title_fontsize=SMALL, frameon=False)
    for axes in (above, below):
        bare(axes)
    shown = f"{len(classes)} of {site.classes} classes, the most frequent" if 2 < len(classes) < site.classes else ""
    title(figure, f"Reliability, {len(observed):,} rows", shown, f"bars: {100 * INTERVAL:g} % binomial intervals")
    return saved(figure, path)


def binned(probability: np.ndarray, came_true: np.ndarray, bins: int) -> Bins:
    """Rows in bins of equal width by their probability, with intervals of Jeffreys.

    Example:
        >>> import numpy as np
        >>> found = binned(np.array([0.1, 0.2, 0.9, 0.9]), np.array([False, True, True, True]), 2)
        >>> found.predicted.round(2).tolist(), found.observed.tolist(), found.share.tolist()
        ([0.15, 0.9], [0.5, 1.0], [0.5, 0.5])
    """
    from scipy.special import betaincinv

    number = np.minimum((probability * bins).astype(int), bins - 1)
    count = np.bincount(number, minlength=bins)
    kept = count > 0
    n = count[kept]
    true = np.bincount(number, came_true, minlength=bins)[kept]
    predicted = np.bincount(number, probability, minlength=bins)[kept] / n
    tail = (1 - INTERVAL) / 2
    low, high = (betaincinv(true + 0.5, n - true + 0.5, p) for p in (tail, 1 - tail))
    # All or none: the interval goes to the end, as Jeffreys' is usually taken (Brown, Cai & DasGupta 2001).
    low, high = np.where(true == 0, 0.0, low), np.where(true == n, 1.0, high)
    return Bins(predicted, true / n, low, high, count / len(probability))
