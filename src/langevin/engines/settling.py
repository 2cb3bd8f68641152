"""Whether a stochastic ascent has settled: whether its bound still rises, and how well its parameters are known.

A gradient with noise leaves the parameters wandering around their optimum. Their mean over time comes near it (Polyak &
Juditsky 1992), and its error can be told from the means of successive blocks, as that of a chain's mean can (Dhaka et
al. 2020, 'Robust, accurate stochastic optimization for variational inference').
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import jax
import numpy as np

from langevin.contracts import State

NUM_PARTS = 8
MOST_BLOCKS = 64
MOST_CORRELATION = 0.9
LOOKS = 4


def is_rising(elbo: np.ndarray, errors: float = 1.0) -> bool:
    """Whether the bound of any restart still rises: the last quarter is above the one before by so many errors."""
    length = elbo.shape[1] // 4
    for one in elbo:
        before, last = (_means(part) for part in (one[-2 * length : -length], one[-length:]))
        if before is None or last is None:
            continue
        noise = math.sqrt((before.var(ddof=1) + last.var(ddof=1)) / NUM_PARTS)
        if last.mean() - before.mean() > errors * noise:
            return True
    return False


def flat_of(parameters: Any) -> np.ndarray:
    """The parameters as one vector."""
    return np.concatenate([np.ravel(np.asarray(leaf, np.float64)) for leaf in jax.tree.leaves(parameters)])


def unflat(flat: np.ndarray, like: Any) -> Any:
    """A vector as parameters."""
    leaves, structure = jax.tree.flatten(like)
    parts = np.split(flat, np.cumsum([np.size(leaf) for leaf in leaves])[:-1])
    shaped = [part.reshape(np.shape(x)).astype(np.asarray(x).dtype) for part, x in zip(parts, leaves, strict=True)]
    return jax.tree.unflatten(structure, shaped)


def wander_of(places: Sequence[np.ndarray], units: np.ndarray) -> float:
    """How far the parameters wander, at most, in their units."""
    return float((np.std(places, axis=0) / units).max())


def begin_blocks(length: int, size: int) -> State:
    """No blocks yet, of so many steps each."""
    return {"length": length, "means": np.zeros((0, size)), "seen": math.inf, "error": math.inf}


def add_block(blocks: State, mean: np.ndarray, units: np.ndarray | None) -> State:
    """Adds the mean of the next block, and tells the largest error of the mean of all, in these units.

    When there are many blocks, pairs are merged. Whoever stops at the first small estimate of the error stops too
    early, since estimates go up and down. So one is made only four times while the number of steps doubles, and of the
    last two the larger is taken. It is infinite for few blocks.
    """
    means, length = np.concatenate([blocks["means"], mean[None]]), blocks["length"]
    if len(means) == MOST_BLOCKS:
        means, length = (means[::2] + means[1::2]) / 2, 2 * length
    seen, error = blocks["seen"], blocks["error"]
    if units is not None and len(means) % (MOST_BLOCKS // (2 * LOOKS)) == 0:
        seen, before = _error_of(means / units), seen
        error = max(seen, before)
    return {"length": length, "means": means, "seen": seen, "error": error}


def _error_of(means: np.ndarray) -> float:
    """The standard error, or half of what lies between the earlier and the later half, which tells of a drift."""
    if len(means) < MOST_BLOCKS // 2:
        return math.inf
    centred = means - means.mean(axis=0)
    variance = np.mean(centred**2, axis=0)
    with np.errstate(divide="ignore", invalid="ignore"):
        correlation = np.nan_to_num(np.mean(centred[1:] * centred[:-1], axis=0) / variance)
    # By so much an estimated correlation is too small, on average (Kendall 1954).
    correlation += (1 + 4 * correlation) / len(means)
    correlation = np.clip(correlation, 0.0, MOST_CORRELATION)
    inflation = (1 + correlation) / (1 - correlation)
    standard = np.sqrt((variance * inflation / len(means)).max())
    half = len(means) // 2
    drift = np.abs(means[:half].mean(axis=0) - means[half:].mean(axis=0)).max() / 2
    return float(max(standard, drift - 2 * standard))


def _means(values: np.ndarray) -> np.ndarray | None:
    """The means of successive parts, which are nearly independent where single values are not."""
    values = values[np.isfinite(values)]
    size = len(values) // NUM_PARTS
    if size == 0:
        return None
    return values[-size * NUM_PARTS :].reshape(NUM_PARTS, size).mean(axis=1)
