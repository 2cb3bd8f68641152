"""A look beyond q: is there mass where its draws never come?

Points from q widened by factors of up to 100, all together, are weighted by importance ratios

    w = p(z) / mean_s N(z | 0, s^2 I),    z in units of q

which gives the posterior's second moments, of each coordinate of z, with their errors. For a q that is right they are
1. A narrow spike on a wide bump, and a second mode not too far away, make them large. In many dimensions such points
find nothing, right or wrong: then the errors are as large.
"""

from __future__ import annotations

import numpy as np
from scipy.special import logsumexp

SCALES = (1.0, 3.0, 10.0, 30.0, 100.0)
POINTS_A_SCALE = 200
MOST_SIZE = 20
# Log-densities of a row that the look may take.
MOST_LOOKED_AT = 50_000_000
NUM_ERRORS = 3.0


def is_affordable(size: int, num_data: int) -> bool:
    """Whether it is worth its price."""
    return size <= MOST_SIZE and len(SCALES) * POINTS_A_SCALE * num_data <= MOST_LOOKED_AT


def directions(generator: np.random.Generator, size: int, multiple: int) -> np.ndarray:
    """Points z, at least `POINTS_A_SCALE` of each scale and a multiple of this number."""
    count = -(-len(SCALES) * POINTS_A_SCALE // multiple) * multiple
    scales = np.resize(SCALES, count)
    return scales[:, None] * generator.standard_normal((count, size))


def second_moments(z: np.ndarray, heights: np.ndarray) -> np.ndarray:
    """The second moment of each coordinate, and its standard error: (2, size).

    Args:
        z: The points, in units of q.
        heights: The log-density at each, in these units, up to a constant.
    """
    size = z.shape[1]
    scales = np.asarray(SCALES)
    squares = np.sum(z**2, axis=1)[:, None]
    proposal = logsumexp(-size * np.log(scales) - squares / (2 * scales**2), axis=1)
    log_weights = np.where(np.isfinite(heights), heights, -np.inf) - proposal
    if not np.isfinite(log_weights.max()):
        return np.full((2, size), np.inf)
    weights = np.exp(log_weights - logsumexp(log_weights))[:, None]
    moments = np.sum(weights * z**2, axis=0)
    errors = np.sqrt(np.sum((weights * (z**2 - moments)) ** 2, axis=0))
    return np.stack([moments, errors])


def missed(seen: np.ndarray, own: np.ndarray | float = 1.0) -> float:
    """How much wider the posterior is, at least, than draws with these second moments, as a ratio of sds."""
    with np.errstate(invalid="ignore"):
        least = seen[0] - NUM_ERRORS * seen[1]
        return float(np.sqrt(np.nanmax(np.maximum(least, 0.0) / own))) if np.isfinite(least).any() else 0.0
