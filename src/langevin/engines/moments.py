"""The Gaussian of an average of iterates: their mean, the variance of each coordinate, and their latest deviations.

    q = N(mean, (diag(variance) + D D^T / (K - 1)) / 2),    D = [x_i - mean_i for the latest K iterates x_i]

where `mean_i` is the mean of the first i iterates. Maddox et al. (2019), 'A simple baseline for Bayesian uncertainty in
deep learning'. Sums are made in double precision.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

# In place of a variance of 0, of a coordinate that never moved.
LEAST_VARIANCE = 1e-30


class Moments(NamedTuple):
    """What is known of the iterates of several chains.

    Attributes:
        count: How many iterates each has had.
        mean: (chains, size).
        squares: The sum of squared distances from the mean, (chains, size).
        deviations: The latest deviations from the mean at their time, (chains, at most K, size).
    """

    count: int
    mean: np.ndarray
    squares: np.ndarray
    deviations: np.ndarray

    @property
    def variance(self) -> np.ndarray:
        """Of each coordinate: the mean squared distance from the mean."""
        return self.squares / max(self.count, 1)

    @property
    def factor(self) -> np.ndarray:
        """U of the covariance diag(variance / 2) + U^T U, (chains, K, size)."""
        return self.deviations / np.sqrt(2.0 * max(self.deviations.shape[1] - 1, 1)).astype(self.deviations.dtype)


def begin(num_chains: int, size: int, dtype: Any) -> Moments:
    """Of no iterates."""
    nothing = np.zeros((num_chains, size))
    return Moments(0, nothing, nothing, np.zeros((num_chains, 0, size), dtype))


def added(moments: Moments, iterates: np.ndarray, rank: int) -> Moments:
    """With one more iterate of each chain, (chains, size): Welford's recursion, and of the deviations the latest."""
    count = moments.count + 1
    before = iterates - moments.mean
    mean = moments.mean + before / count
    deviation = iterates - mean
    latest = np.concatenate([moments.deviations, deviation[:, None].astype(moments.deviations.dtype)], axis=1)
    return Moments(count, mean, moments.squares + before * deviation, latest[:, -rank:])


def drawn(moments: Moments, generator: np.random.Generator, count: int) -> np.ndarray:
    """So many draws of the Gaussian of each chain, (count, chains, size)."""
    dtype = moments.deviations.dtype
    num_chains, rank, size = moments.deviations.shape
    draws = generator.standard_normal((count, num_chains, size), dtype)
    draws *= np.sqrt(moments.variance / 2).astype(dtype)
    draws += moments.mean.astype(dtype)
    along = generator.standard_normal((count, num_chains, rank), dtype)
    for chain, factor in enumerate(moments.factor):
        draws[:, chain] += along[:, chain] @ factor
    return draws


def log_density(moments: Moments, positions: np.ndarray) -> np.ndarray:
    """The log-density at positions (draws, size) of the mixture of the chains' Gaussians, by Woodbury's identity."""
    gaussians = []
    for mean, variance, factor in zip(moments.mean, moments.variance, moments.factor.astype(np.float64), strict=True):
        diagonal = np.maximum(variance / 2, LEAST_VARIANCE)
        gap = positions.astype(np.float64) - mean
        scaled = factor / diagonal
        inner = np.linalg.cholesky(np.eye(len(factor)) + scaled @ factor.T)
        along = np.linalg.solve(inner, scaled @ gap.T)
        squares = np.sum(gap**2 / diagonal, axis=1) - np.sum(along**2, axis=0)
        log_volume = np.sum(np.log(diagonal)) / 2 + np.sum(np.log(np.diagonal(inner)))
        gaussians.append(-squares / 2 - log_volume - mean.size * np.log(2 * np.pi) / 2)
    return np.logaddexp.reduce(gaussians, axis=0) - np.log(len(gaussians))
