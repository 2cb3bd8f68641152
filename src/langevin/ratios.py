"""Importance ratios p / q of draws from q: how heavy their tail is, and weights in which it is smoothed.

Vehtari et al. (2024), 'Pareto smoothed importance sampling'.
"""

from __future__ import annotations

import math

import numpy as np

LEAST = 25
# exp(-500) can still be told from 0, so that a generalised Pareto distribution can be fitted to the tail.
MOST_SPREAD = 500.0
# Ratios that are the same but for rounding have no tail.
LEAST_SPREAD = 1e-4


def smoothed(log_ratios: np.ndarray) -> tuple[np.ndarray, float | None]:
    """Logarithms of smoothed weights, and the shape k of the ratios' tail: above 0.7 they are not to be trusted.

    Fewer than 25 ratios have no tail to be seen: they are left as they are, and k is None. Where the ratios of the tail
    are so far apart that their quotients underflow, k is Hill's estimate, the mean of `log(ratio / cut-off)` over the
    tail, to which the fit of a generalised Pareto distribution tends for large k.

    Args:
        log_ratios: Finite ones.
    """
    from arviz_stats.base import array_stats

    as_they_are = log_ratios - log_ratios.max()
    count = len(log_ratios)
    if count < LEAST:
        return as_they_are, None
    tail = np.sort(as_they_are)[-math.ceil(min(0.2 * count, 3 * math.sqrt(count))) - 1 :]
    if -tail[0] < LEAST_SPREAD:
        return as_they_are, 0.0
    if -tail[0] > MOST_SPREAD:
        return as_they_are, float(np.mean(tail[1:] - tail[0]))
    try:
        with np.errstate(all="ignore"):
            # It takes log-likelihoods, whose inverse are the ratios of cross-validation.
            log_weights, khat = array_stats.psislw(-as_they_are)
    except ValueError:
        # The largest ratios are all the same, as they are where every site is discrete: there is no tail.
        return as_they_are, 0.0
    return log_weights, float(khat) if math.isfinite(khat) else math.inf


def efficiency(log_ratios: np.ndarray) -> float:
    """How many draws of p a draw of q is worth, at most 1."""
    weights = np.exp(log_ratios - log_ratios.max())
    return float(weights.mean() ** 2 / np.mean(weights**2))
