"""Which draws of a fit are predicted with, and how much each counts."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from langevin import checks
from langevin.errors import SettingError

MOST_DRAWS = 1000
# With fewer draws than these, each is used several times: quantiles of a point estimate are of draws too.
LEAST_DRAWS = 100


class Chosen(NamedTuple):
    """Draws, in their order.

    Attributes:
        index: Their numbers among the draws of all chains, one chain after the other.
        shares: The weight of each; they add up to 1.
        correction: 1 - sum(shares of different draws**2), by which a variance over the draws is divided.
        times: How often each is there, in a row.
    """

    index: np.ndarray
    shares: np.ndarray
    correction: float
    times: int = 1

    def once(self) -> Chosen:
        """The same, with each draw once."""
        return Chosen(self.index[:: self.times], self.shares[:: self.times] * self.times, self.correction)


def choose(weights: np.ndarray, num_draws: int | None, who: str) -> Chosen:
    """All draws with their weights, or so many evenly spread ones.

    Fewer than there are come by systematic resampling: a draw of twice the weight is taken twice as often, and all
    that are taken count the same.

    Args:
        weights: Of all draws, (chains, draws).
        num_draws: How many; None for all, but at most `MOST_DRAWS`.
        who: The function that asks, for messages.
    """
    wanted = MOST_DRAWS if num_draws is None else checks.count(who, "num_draws", num_draws)
    flat = np.asarray(weights, np.float64).ravel()
    total = flat.sum()
    if not total > 0:
        raise SettingError(f"`{who}`: no draw of this fit has any weight, so there is nothing to predict with.")
    there = np.flatnonzero(flat > 0)
    if len(there) <= wanted:
        shares = flat[there] / total
        correction = 1 - float(np.sum(shares**2))
        if num_draws is None and len(there) < LEAST_DRAWS:
            times = -(-MOST_DRAWS // len(there))
            return Chosen(np.repeat(there, times), np.repeat(shares / times, times), correction, times)
        return Chosen(there, shares, correction)
    edges = np.cumsum(flat) / total
    points = (np.arange(wanted) + 0.5) / wanted
    index = np.minimum(np.searchsorted(edges, points), len(flat) - 1)
    _, times = np.unique(index, return_counts=True)
    return Chosen(index, np.full(wanted, 1 / wanted), 1 - float(np.sum((times / wanted) ** 2)))
