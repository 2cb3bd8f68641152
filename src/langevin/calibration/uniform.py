r"""Are numbers uniform? By their empirical distribution function, everywhere at once.

At points $z_k = k / K$, the count $C_k$ of numbers up to $z_k$ is binomial where they are uniform. The statistic is the
smallest of all tail probabilities $\min_k \min(P(C \le C_k), P(C \ge C_k))$, and its own distribution is simulated.

Reference:
    Säilynoja, Bürkner & Vehtari (2022), Graphical test for discrete uniformity and its applications in goodness-of-fit
    evaluation and multiple sample comparison.
"""

from __future__ import annotations

import functools
from typing import NamedTuple

import numpy as np

NUM_SIMULATED = 20_000
MOST_POINTS = 100


class Band(NamedTuple):
    """Where the empirical distribution function of uniform numbers stays, everywhere at once.

    Attributes:
        points: Where it is looked at.
        low: Its lower edge.
        high: Its upper edge.
    """

    points: np.ndarray
    low: np.ndarray
    high: np.ndarray


class Test(NamedTuple):
    """How far numbers are from uniform.

    Attributes:
        p_value: How likely numbers that are as far from uniform or further are, if all is right.
        centre: How many standard errors their mean is above one half.
        spread: How many standard errors their variance is above that of a uniform distribution.
    """

    p_value: float
    centre: float
    spread: float


def band(count: int, probability: float) -> Band:
    """The band that holds the whole function with this probability, for so many uniform numbers."""
    from scipy import stats

    points = _points(count)
    level = np.quantile(_simulated(count), 1 - probability)
    # A count at which the tail probability is just the level is inside.
    low = stats.binom.ppf(level, count, points)
    high = stats.binom.isf(level, count, points)
    return Band(points, low / count, high / count)


def uniformity(numbers: np.ndarray) -> Test:
    """Tests numbers from 0 to 1.

    Example:
        >>> import numpy as np
        >>> numbers = (np.arange(200) + 0.5) / 200
        >>> uniformity(numbers).p_value > 0.9, uniformity(numbers**2).p_value < 0.01
        (True, True)
    """
    count = len(numbers)
    counts = np.searchsorted(np.sort(numbers), _points(count), side="right")
    found = _statistic(counts[None], count)[0]
    simulated = _simulated(count)
    p_value = (1 + np.sum(simulated <= found)) / (1 + len(simulated))
    centre = (numbers.mean() - 0.5) * np.sqrt(12 * count)
    spread = (np.mean((numbers - 0.5) ** 2) - 1 / 12) * np.sqrt(180 * count)
    return Test(float(p_value), float(centre), float(spread))


def _points(count: int) -> np.ndarray:
    number = min(count, MOST_POINTS)
    return np.arange(1, number) / number


@functools.lru_cache(maxsize=8)
def _simulated(count: int) -> np.ndarray:
    """The statistic of so many uniform numbers, many times."""
    points = _points(count)
    parts = len(points) + 1
    in_parts = np.random.default_rng(0).multinomial(count, np.full(parts, 1 / parts), size=NUM_SIMULATED)
    return _statistic(np.cumsum(in_parts, axis=1)[:, :-1], count)


def _statistic(counts: np.ndarray, count: int) -> np.ndarray:
    from scipy import stats

    points = _points(count)
    # Tables of the two tails, for each point and each count that there may be.
    possible = np.arange(count + 1)[:, None]
    below, above = stats.binom.cdf(possible, count, points), stats.binom.sf(possible - 1, count, points)
    column = np.arange(len(points))
    return np.minimum(below[counts, column], above[counts, column]).min(axis=1)
