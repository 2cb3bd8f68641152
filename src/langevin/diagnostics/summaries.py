"""The table of a posterior: what is said of each coordinate."""

from __future__ import annotations

import numpy as np

from langevin.diagnostics import weighted
from langevin.diagnostics.mixing import rhat


def columns(draws: np.ndarray, weights: np.ndarray, probability: float, together: int) -> dict[str, np.ndarray]:
    """Weighted mean, sd, equal-tailed interval, effective size, Monte Carlo error and R-hat, by name.

    Args:
        draws: Of shape (chains, draws, ...).
        weights: Of shape (chains, draws).
        probability: Of the interval.
        together: How many chains in a row started at one place.
    """
    low, high = (1 - probability) / 2, (1 + probability) / 2
    return {
        "mean": weighted.mean(draws, weights),
        "sd": weighted.sd(draws, weights),
        f"eti{100 * probability:g}_lb": weighted.quantile(draws, weights, low),
        f"eti{100 * probability:g}_ub": weighted.quantile(draws, weights, high),
        "ess": weighted.effective_size(draws, weights),
        "mcse": weighted.mcse(draws, weights),
        "r_hat": rhat(draws, weights, together),
    }
