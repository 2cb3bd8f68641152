"""How good predictions are: see `Fit.evaluate`.

Each is an average over the rows; lower is better for all but accuracy, and coverage should be what it is named.

    RMSE        sqrt mean (y - mean)**2
    NLL         -mean log p(y), p the predictive density: the mean, over draws, of the density given the draw
    CRPS        E|Y - y| - E|Y - Y'| / 2, Y and Y' independent draws of the prediction. With the draws x in order, their
                shares w and the cumulative sums W of these: sum w |x - y| - sum w x (2 W - w - 1)
                (Gneiting & Raftery 2007, eq. 21)
    accuracy    how often the most probable class is the one observed
    Brier       mean sum_k (p_k - [y = k])**2; of two classes mean (p_1 - y)**2
    ECE         over bins of the confidence max_k p_k: sum of the share of rows * |accuracy - mean confidence|
                (Guo et al. 2017)

Gneiting & Raftery (2007), Strictly proper scoring rules, prediction, and estimation. JASA 102. Guo, Pleiss, Sun &
Weinberger (2017), On calibration of modern neural networks. ICML.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import pandas as pd

from langevin.predicting import quantiles
from langevin.predicting.blocks import Piece, blocks_of
from langevin.predicting.observed import observed_values
from langevin.predicting.predictor import predictor_of
from langevin.predicting.reduction import What
from langevin.predicting.sites import Site

if TYPE_CHECKING:
    from langevin.result import Fit

NUM_BINS = 15
INTERVALS = (0.5, 0.9)


def evaluated(fit: Fit, data: Any, batch_size: int | None, options: dict[str, Any]) -> pd.Series | pd.DataFrame:
    """See `Fit.evaluate`."""
    predictor = predictor_of(fit, data, who="evaluate", **options)
    observed = observed_values(predictor, "evaluate")
    rows: dict[str, list[dict[str, np.ndarray]]] = {site.name: [] for site in predictor.asked}
    for block in blocks_of(predictor, What(True, "by row", True), batch_size):
        for site in predictor.asked:
            values = observed[site.name]
            values = values[block.start : block.stop] if site.row_axis is not None else values
            score = _of_classes if site.classes else _of_numbers
            rows[site.name].append(score(site, block.pieces[site.name], values, predictor.chosen.shares))
    tables = {}
    for site in predictor.asked:
        parts = rows[site.name]
        joined = {key: np.concatenate([np.ravel(part[key]) for part in parts]) for key in parts[0]}
        tables[site.name] = _classes(joined) if site.classes else _numbers(joined)
    if len(tables) == 1:
        ((name, scores),) = tables.items()
        return pd.Series(scores, name=name)
    return pd.DataFrame.from_dict(tables, orient="index")


def crps(values: np.ndarray, shares: np.ndarray | None, observed: np.ndarray) -> np.ndarray:
    """The continuous ranked probability score of draws.

    Args:
        values: Draws in order, as the last axis.
        shares: Their shares in that order; None if all are the same.
        observed: What was observed.
    """
    count = values.shape[-1]
    w = np.full(count, 1 / count) if shares is None else shares
    x = values.astype(np.float64) - observed[..., None]  # around what was observed, so that nothing is lost
    return np.sum(w * np.abs(x), axis=-1) - np.sum(w * x * (2 * np.cumsum(w, axis=-1) - w - 1), axis=-1)


def expected_calibration_error(confidence: np.ndarray, correct: np.ndarray, num_bins: int = NUM_BINS) -> float:
    """The mean distance between confidence and accuracy, over bins of equal width."""
    edges = np.linspace(0.0, 1.0, num_bins + 1)
    bins = np.clip(np.searchsorted(edges, confidence, side="left") - 1, 0, num_bins - 1)
    counts = np.bincount(bins, minlength=num_bins)
    gaps = np.bincount(bins, weights=correct.astype(np.float64) - confidence, minlength=num_bins)
    return float(np.sum(np.abs(gaps)) / np.sum(counts))


def _of_numbers(site: Site, piece: Piece, observed: np.ndarray, shares: np.ndarray) -> dict[str, np.ndarray]:
    """What each row adds to the scores of a number."""
    found: dict[str, np.ndarray] = {}
    observed = np.asarray(observed, np.float64)
    if piece.mean is not None:
        found["square"] = (observed - piece.mean) ** 2
    if piece.log_density is not None:
        found["log_density"] = np.asarray(piece.log_density, np.float64)
    if piece.draws is not None:
        values, ordered_shares = quantiles.ordered(piece.draws, shares)
        found["crps"] = crps(values, ordered_shares, observed)
        for width in INTERVALS:
            tails = ((1 - width) / 2, (1 + width) / 2)
            low, high = quantiles.at(values, ordered_shares, tails, discrete=site.discrete)
            found[f"coverage_{100 * width:g}"] = (low <= observed) & (observed <= high)
    return found


def _of_classes(site: Site, piece: Piece, observed: np.ndarray, shares: np.ndarray) -> dict[str, np.ndarray]:
    """What each row adds to the scores of a class."""
    del shares
    probabilities = np.asarray(piece.probabilities, np.float64)
    labels = np.asarray(observed).astype(int)
    hits = np.arange(site.classes) == labels[..., None]
    squares = np.sum((probabilities - hits) ** 2, axis=-1)
    return {
        "correct": probabilities.argmax(axis=-1) == labels,
        "confidence": probabilities.max(axis=-1),
        "brier": squares / 2 if site.classes == 2 else squares,
        "log_density": np.asarray(piece.log_density, np.float64),
    }


def _numbers(rows: dict[str, np.ndarray]) -> dict[str, float]:
    scores = {"RMSE": float(np.sqrt(rows["square"].mean())), "NLL": -float(rows["log_density"].mean())}
    scores["CRPS"] = float(rows["crps"].mean())
    return scores | {key: float(value.mean()) for key, value in rows.items() if key.startswith("coverage")}


def _classes(rows: dict[str, np.ndarray]) -> dict[str, float]:
    return {
        "accuracy": float(rows["correct"].mean()),
        "NLL": -float(rows["log_density"].mean()),
        "Brier": float(rows["brier"].mean()),
        "ECE": expected_calibration_error(rows["confidence"], rows["correct"]),
    }
