"""Summaries of weighted draws, of shape (chains, draws, ...).

With uniform weights they are the usual ones: effective sizes come from arviz-stats, and R-hat is its R-hat, for all
coordinates at once. With weights w the mean is `sum(w x) / sum(w)`, and its Monte Carlo error is that of the series
`w (x - mean) / mean(w)`.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np


def mean(draws: np.ndarray, weights: np.ndarray) -> np.ndarray:
    """The weighted mean over chains and draws."""
    return np.tensordot(_normalised(weights), np.asarray(draws, np.float64), axes=2)


def sd(draws: np.ndarray, weights: np.ndarray) -> np.ndarray:
    """The weighted standard deviation over chains and draws."""
    centred = draws - mean(draws, weights)
    shares = _normalised(weights)
    variance = np.tensordot(shares, centred**2, axes=2)
    correction = 1 - np.sum(shares**2)
    return np.sqrt(variance / correction) if correction > 0 else np.full_like(variance, np.nan)


def quantile(draws: np.ndarray, weights: np.ndarray, probability: float) -> np.ndarray:
    """The weighted quantile over chains and draws: where the cumulative weight passes `probability`."""
    flat = draws.reshape(draws.shape[0] * draws.shape[1], *draws.shape[2:])
    if flat.size == 0:
        return np.zeros(flat.shape[1:])
    order = np.argsort(flat, axis=0)
    values = np.take_along_axis(flat, order, axis=0)
    shares = _normalised(weights).reshape(-1)[order]
    middle = np.cumsum(shares, axis=0) - shares / 2
    columns = int(np.prod(flat.shape[1:]))
    found = [
        np.interp(probability, m, v)
        for m, v in zip(middle.reshape(-1, columns).T, values.reshape(-1, columns).T, strict=True)
    ]
    return np.reshape(found, flat.shape[1:])


def mcse(draws: np.ndarray, weights: np.ndarray) -> np.ndarray:
    """The Monte Carlo standard error of the weighted mean, with autocorrelation."""
    from arviz_stats.base import array_stats

    if draws.shape[1] < 4 or draws.size == 0:
        return np.full(draws.shape[2:], np.nan)
    shape = weights.shape + (1,) * (draws.ndim - 2)
    influence = (weights / weights.mean()).reshape(shape) * (draws - mean(draws, weights))
    spread = influence.std(axis=(0, 1), ddof=1)
    size = array_stats.ess(np.asarray(influence, np.float64), chain_axis=0, draw_axis=1, method="mean")
    return np.where(spread == 0, 0.0, spread / np.sqrt(size))


def effective_size(draws: np.ndarray, weights: np.ndarray) -> np.ndarray:
    """How many independent draws would give the weighted mean the same error."""
    error = mcse(draws, weights)
    with np.errstate(divide="ignore", invalid="ignore"):
        return np.where(error > 0, (sd(draws, weights) / error) ** 2, np.nan)


def rhat(draws: np.ndarray, weights: np.ndarray) -> np.ndarray:
    """Split rank-normalised R-hat, of the draws resampled to uniform weights within each chain.

    The larger of that of the ranks and that of the ranks of the distances to the median (Vehtari et al. 2021).
    """
    uniform = _uniform(draws, weights)
    if uniform is None:
        return np.full(draws.shape[2:], np.nan)
    halves = _halves(uniform)
    folded = np.abs(halves - np.median(halves, axis=(0, 1)))
    moved = np.ptp(uniform, axis=(0, 1)) > 0
    with np.errstate(divide="ignore", invalid="ignore"):
        found = np.fmax(_between_and_within(halves), _between_and_within(folded))
    return np.where(moved, found, np.nan)


class Sizes(NamedTuple):
    """Effective sizes, of the draws resampled to uniform weights within each chain (Vehtari et al. 2021).

    Attributes:
        bulk: That of the mean of the ranks' normal scores.
        tail: The smaller of those of the 5 % and 95 % quantiles.
        within: The bulk's by the autocorrelation within chains alone: it does not know how far apart chains are.
    """

    bulk: np.ndarray
    tail: np.ndarray
    within: np.ndarray


def sizes(draws: np.ndarray, weights: np.ndarray) -> Sizes:
    """Bulk and tail effective sizes of all coordinates at once; not a number where a coordinate never moves."""
    uniform = _uniform(draws, weights)
    if uniform is None:
        nothing = np.full(draws.shape[2:], np.nan)
        return Sizes(nothing, nothing, nothing)
    halves = _halves(uniform)
    scores = _scores(halves)
    # R-hat looks at distances from the median too, which antithetic chains know less well than the median.
    distances = _scores(np.abs(halves - np.median(halves, axis=(0, 1))))
    return Sizes(_size(scores), _tail(halves), np.fmin(_size_within(scores), _size_within(distances)))


def smallest_size(draws: np.ndarray, weights: np.ndarray) -> np.ndarray:
    """The smaller of bulk and tail effective size: what of `sizes` says how well a coordinate mixed."""
    uniform = _uniform(draws, weights)
    if uniform is None:
        return np.full(draws.shape[2:], np.nan)
    halves = _halves(uniform)
    return np.fmin(_size(_scores(halves)), _tail(halves))


def _tail(halves: np.ndarray) -> np.ndarray:
    low, high = np.quantile(halves, [0.05, 0.95], axis=(0, 1))
    return np.fmin(*(_size((halves <= quantile).astype(np.float64)) for quantile in (low, high)))


def _size_within(halves: np.ndarray) -> np.ndarray:
    """The effective size by the autocorrelation within chains alone, each around its own mean."""
    chains = np.concatenate(np.split(halves, 2), axis=1)
    return _size(chains - chains.mean(axis=1, keepdims=True))


def nested_rhat(draws: np.ndarray, together: int) -> np.ndarray:
    """Nested R-hat of unweighted draws, where so many chains in a row started at one place (Margossian et al. 2024).

    It compares groups of chains, and so works for chains that are too short to be compared one by one.
    """
    from arviz_stats.base import array_stats

    if draws.shape[1] < 4 or draws.size == 0:
        return np.full(draws.shape[2:], np.nan)
    groups = np.arange(len(draws)) // together
    moved = np.ptp(draws, axis=(0, 1)) > 0
    with np.errstate(divide="ignore", invalid="ignore"):
        found = array_stats.rhat_nested(np.asarray(draws, np.float64), groups, chain_axis=0, draw_axis=1)
    return np.where(moved, np.asarray(found), np.nan)


def _between_and_within(draws: np.ndarray) -> np.ndarray:
    """R-hat of the normal scores of the ranks."""
    num_draws = draws.shape[1]
    scores = _scores(draws)
    between = num_draws * scores.mean(axis=1).var(axis=0, ddof=1)
    within = scores.var(axis=1, ddof=1).mean(axis=0)
    return np.sqrt((between / within + num_draws - 1) / num_draws)


def _scores(draws: np.ndarray) -> np.ndarray:
    """The normal scores of the ranks over chains and draws."""
    from scipy.special import ndtri

    count = draws.shape[0] * draws.shape[1]
    rows = np.ascontiguousarray(draws.reshape(count, -1).T)
    return ndtri((_ranks(rows) - 0.375) / (count + 0.25)).T.reshape(draws.shape)


def _size(draws: np.ndarray) -> np.ndarray:
    """The effective size of the mean, by Geyer's initial monotone sequence, as Stan computes it."""
    num_chains, num_draws = draws.shape[:2]
    series = np.ascontiguousarray(np.moveaxis(draws.reshape(num_chains, num_draws, -1), 2, 0))
    means = series.mean(axis=2, keepdims=True)
    length = 2 ** int(np.ceil(np.log2(2 * num_draws)))
    spectrum = np.fft.rfft(series - means, length)
    power = (spectrum.real**2 + spectrum.imag**2).mean(axis=1)
    autocovariance = np.fft.irfft(power, length)[:, :num_draws].T / num_draws
    variance = autocovariance[0] * num_draws / (num_draws - 1)
    total = autocovariance[0] + (means[:, :, 0].var(axis=1, ddof=1) if num_chains > 1 else 0.0)
    with np.errstate(divide="ignore", invalid="ignore"):
        correlation = 1 - (variance - autocovariance) / total
    correlation[0] = 1.0
    num_pairs = num_draws // 2
    pairs = correlation[: 2 * num_pairs].reshape(num_pairs, 2, -1).sum(axis=1)
    positive = np.logical_and.accumulate(pairs > 0, axis=0)
    monotone = np.where(positive, np.minimum.accumulate(pairs, axis=0), 0.0).sum(axis=0)
    last = np.minimum(2 * positive.sum(axis=0), num_draws - 1)
    rest = np.maximum(np.take_along_axis(correlation, last[None], axis=0)[0], 0.0)
    count = num_chains * num_draws
    time = np.maximum(-1 + 2 * monotone + rest, 1 / np.log10(count))
    return np.where(total > 0, count / time, np.nan).reshape(draws.shape[2:])


def _halves(draws: np.ndarray) -> np.ndarray:
    half = draws.shape[1] // 2
    return np.concatenate([draws[:, :half], draws[:, -half:]])


def _uniform(draws: np.ndarray, weights: np.ndarray) -> np.ndarray | None:
    """The chains that have weight, resampled to uniform ones; None if there are too few draws to say anything."""
    running = weights.sum(axis=1) > 0
    if draws.shape[1] < 4 or draws.size == 0 or not running.any():
        return None
    chains = zip(np.asarray(draws, np.float64)[running], weights[running], strict=True)
    return np.stack([x[resampled(w)] for x, w in chains])


def _ranks(rows: np.ndarray) -> np.ndarray:
    """The ranks in each row, from 1; equal values share theirs."""
    from scipy.stats import rankdata

    order = np.argsort(rows, axis=1)
    ordered = np.take_along_axis(rows, order, axis=1)
    if (ordered[:, 1:] == ordered[:, :-1]).any():
        return rankdata(rows, axis=1)
    ranks = np.empty(rows.shape)
    np.put_along_axis(ranks, order, np.arange(1.0, rows.shape[1] + 1)[None], axis=1)
    return ranks


def resampled(weights: np.ndarray) -> np.ndarray:
    """The draws of one chain that systematic resampling takes: in their order, so many times as their weights ask."""
    if np.ptp(weights) == 0:
        return np.arange(len(weights))
    edges = np.cumsum(weights) / weights.sum()
    points = (np.arange(len(weights)) + 0.5) / len(weights)
    return np.minimum(np.searchsorted(edges, points), len(weights) - 1)


def _normalised(weights: np.ndarray) -> np.ndarray:
    return weights / weights.sum()
