"""Quantiles of weighted draws, row by row: the draws are the last axis."""

from __future__ import annotations

import os
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor

import numpy as np

# Below so many numbers, threads cost more than they save.
LEAST_TO_SHARE = 200_000


def ordered(draws: np.ndarray, shares: np.ndarray) -> tuple[np.ndarray, np.ndarray | None]:
    """The draws of each row in order, and their shares in that order; None where all are the same."""
    if np.ptp(shares) > 1e-9 * shares.max():
        order = np.argsort(draws, axis=-1)
        return np.take_along_axis(draws, order, axis=-1), shares[order]
    workers = os.cpu_count() or 1
    if draws.ndim < 2 or draws.size < LEAST_TO_SHARE or workers < 2:
        return np.sort(draws, axis=-1), None
    # NumPy sorts without holding the lock of the interpreter.
    edges = np.linspace(0, len(draws), workers + 1).astype(int)
    out = np.empty_like(draws)

    def sort(start: int, stop: int) -> None:
        part = out[start:stop]
        part[...] = draws[start:stop]
        part.sort(axis=-1)

    with ThreadPoolExecutor(workers) as threads:
        list(threads.map(sort, edges[:-1], edges[1:]))
    return out, None


def at(
    values: np.ndarray, shares: np.ndarray | None, probabilities: Sequence[float], *, discrete: bool = False
) -> list[np.ndarray]:
    """Quantiles of ordered draws: where the cumulative share passes each probability.

    Between two draws it is interpolated, each draw in the middle of its share. A discrete quantity takes the least
    value that has at least this probability below or at it.
    """
    floating = values.dtype if values.dtype.kind == "f" else np.float64
    found = [_one(values, shares, p, discrete) for p in probabilities]
    return found if discrete else [value.astype(floating, copy=False) for value in found]


def _one(values: np.ndarray, shares: np.ndarray | None, probability: float, discrete: bool) -> np.ndarray:
    count = values.shape[-1]
    if shares is None:
        if discrete:
            return values[..., int(np.clip(np.ceil(probability * count - 1e-9) - 1, 0, count - 1))]
        place = np.clip(probability * count - 0.5, 0, count - 1)
        low = min(int(place), count - 2) if count > 1 else 0
        part = place - low
        return values[..., low] * (1 - part) + values[..., min(low + 1, count - 1)] * part
    cumulative = np.cumsum(shares, axis=-1)
    if discrete:
        index = np.minimum(np.sum(cumulative < probability - 1e-9, axis=-1), count - 1)
        return np.take_along_axis(values, index[..., None], axis=-1)[..., 0]
    middle = cumulative - shares / 2
    high = np.clip(np.sum(middle < probability, axis=-1), 1, count - 1)[..., None]
    (x0, m0), (x1, m1) = (
        tuple(np.take_along_axis(array, high + step, axis=-1)[..., 0] for array in (values, middle)) for step in (-1, 0)
    )
    part = np.clip((probability - m0) / np.where(m1 > m0, m1 - m0, 1.0), 0.0, 1.0)
    return x0 * (1 - part) + x1 * part
