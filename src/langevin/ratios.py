"""Importance ratios p / q of draws from q: how heavy their tail is, and weights in which it is smoothed.

Vehtari et al. (2024), 'Pareto smoothed importance sampling'.
"""

from __future__ import annotations

import math

import numpy as np


def smoothed(log_ratios: np.ndarray) -> tuple[np.ndarray, float]:
    """Logarithms of smoothed weights, and the shape k of the ratios' tail: above 0.7 they are not to be trusted.

    Args:
        log_ratios: Finite ones.
    """
    from arviz_stats.base import array_stats

    try:
        with np.errstate(all="ignore"):
            # It takes log-likelihoods, whose inverse are the ratios of cross-validation.
            log_weights, khat = array_stats.psislw(-log_ratios)
    except ValueError:
        # The largest ratios are all the same, as they are where every site is discrete: there is no tail.
        return log_ratios - log_ratios.max(), 0.0
    return log_weights, float(khat) if math.isfinite(khat) else 0.0


def efficiency(log_ratios: np.ndarray) -> float:
    """How many draws of p a draw of q is worth, at most 1."""
    weights = np.exp(log_ratios - log_ratios.max())
    return float(weights.mean() ** 2 / np.mean(weights**2))
