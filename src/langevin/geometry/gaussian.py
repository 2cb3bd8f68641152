"""The Gaussian q that is nearest to a target with few coordinates, by natural gradients in its own units.

    x = m + R e,    e ~ N(0, I),    g = R^T grad log p(x)

    A = E[-R^T (grad grad log p) R],    m <- m + R A^-1 E[g],    R <- R A^(-1/2)

At the q that maximises the bound E[g] = 0 and A = I (Opper & Archambeau 2009; Khan & Lin 2017): how far they are from
it tells the error of q's means and scales, in posterior sds. With independent coordinates R is diagonal, and only the
diagonal of A must be 1. The curvature comes from gradients alone: with pairs +-e along orthogonal directions

    A = -mean((g(x+) - g(x-)) / 2  e^T),    mean(e e^T) = I

which is exact where the target is Gaussian, as the mean of g is. A step is kept only if the bound does not fall.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from langevin.contracts import State

LEAST_PAIRS = 32
# Steps are whole until so many turned back, then shorter, but not shorter than this.
FULL_TURNS = 3
LEAST_SHARE = 0.1
# How much of its caution a step that was kept takes away.
RECOVERY = 0.25
LEAST_LOOKS = 4
MOST_LOOKS = 200
# The largest change of a scale in one step, as a ratio, and of a mean, in scales.
MOST_STRETCH = 2.0
MOST_MOVE = 2.0
# Ends when the error of means (in scales) and scales (as a ratio) is below this.
TOLERANCE = 0.02
# By so many nats a bound may seem lower for the noise of its estimate.
NOISE = 3.0
LEAST_GAIN = 0.05
MOST_CAUTION = 6


def begin(centre: np.ndarray, factor: Any) -> State:
    """A q around a centre, with R = factor, (size, size) or (size,); or as in `langevin.geometry.wheel`."""
    return {
        "centre": centre,
        "factor": factor,
        "before": (centre, factor),
        "bound": -np.inf,
        "number": 0,
        "turns": 0,
        "caution": 0.0,
        "moves": np.zeros((0, len(centre))),
        "stretches": np.zeros((0, len(centre))),
        "bounds": np.zeros(0),
    }


def num_directions(size: int) -> int:
    """How many directions there are: whole blocks of `size`, and at least `LEAST_PAIRS`."""
    return max(-(-LEAST_PAIRS // size), 1) * size


def directions(generator: np.random.Generator, size: int) -> np.ndarray:
    """Rows e: blocks of orthogonal directions, their lengths spread over those of noise; the mean of e e^T is I."""
    from scipy.stats import chi2

    blocks = num_directions(size) // size
    squares = chi2.ppf((np.arange(blocks) + generator.random()) / blocks, size)
    lengths = np.sqrt(squares * size / squares.mean())
    return np.concatenate([np.linalg.qr(generator.standard_normal((size, size)))[0] * length for length in lengths])


def points(q: State, rows: np.ndarray) -> np.ndarray:
    """Where to look: x+ of every direction, then x-."""
    ahead = rows @ q["factor"].T if q["factor"].ndim == 2 else rows * q["factor"]
    return np.concatenate([q["centre"] + ahead, q["centre"] - ahead])


def improved(q: State, rows: np.ndarray, found: Any) -> State:
    """The q after a look at log-densities and gradients at its points."""
    heights, gradients = (np.asarray(part, np.float64) for part in found)
    count, size = rows.shape
    full = q["factor"].ndim == 2
    log_det = np.linalg.slogdet(q["factor"])[1] if full else np.sum(np.log(q["factor"]))
    bound = heights.mean() + log_det
    q = q | {"number": q["number"] + 1, "bounds": np.append(q["bounds"], bound)}
    lost = not np.isfinite(bound) or not np.isfinite(gradients).all()
    if lost or bound < q["bound"] - NOISE - 0.02 * size:
        # Back, and half as far.
        centre, factor = q["before"]
        back = q | {"centre": (q["centre"] + centre) / 2, "caution": q["caution"] + 1}
        return back | {"factor": (q["factor"] + factor) / 2 if full else np.sqrt(q["factor"] * factor)}
    white = gradients @ q["factor"] if full else gradients * q["factor"]
    mean = white.mean(axis=0)
    curvature = -((white[:count] - white[count:]) / 2).T @ rows / count
    curvature = (curvature + curvature.T) / 2
    values, vectors = np.linalg.eigh(curvature)
    if q["turns"] >= FULL_TURNS:
        # Here A is nearly I: to first order, noise has no bias.
        steep = np.ones(size)
        widths = np.exp(np.clip(1 - (values if full else np.diagonal(curvature)), -1, 1) / 2)
    else:
        # Where the target curves the other way the step is as long as where it curves as q does.
        steep = np.where(values > 0, np.clip(values, LEAST_GAIN, None), 1.0)
        widths = np.clip(values if full else np.diagonal(curvature), MOST_STRETCH**-2, MOST_STRETCH**2) ** -0.5
    move = vectors @ ((vectors.T @ mean) / steep)
    log_widths = (vectors**2) @ np.log(widths) if full else np.log(widths)
    turns = q["turns"] + turns_back(q, move, log_widths)
    share = share_of(q, turns)
    length = np.abs(move).max()
    step = share * move * min(1.0, MOST_MOVE / max(length, 1e-12))
    stretch = widths**share
    moved = q["centre"] + (q["factor"] @ step if full else q["factor"] * step)
    factor = q["factor"] @ (vectors * stretch) @ vectors.T if full else q["factor"] * stretch
    return kept(q, bound, turns, (moved, factor), (move, log_widths))


def kept(q: State, bound: float, turns: int, there: tuple[Any, Any], seen: tuple[np.ndarray, np.ndarray]) -> State:
    """The q at another centre and factor, after a step whose whole move and stretch these are."""
    centre, factor = there
    move, stretch = seen
    return q | {
        "before": (q["centre"], q["factor"]),
        "centre": centre,
        "factor": factor,
        "bound": bound,
        "turns": turns,
        "caution": max(q["caution"] - RECOVERY, 0.0),
        "moves": np.concatenate([q["moves"], move[None]]),
        "stretches": np.concatenate([q["stretches"], stretch[None]]),
    }


def share_of(q: State, turns: int, least: float = LEAST_SHARE) -> float:
    """Which part of a step to take, after so many turns."""
    return max(1 / max(turns - FULL_TURNS + 1, 1), least) * 0.5 ** q["caution"]


def turns_back(q: State, move: np.ndarray, stretch: np.ndarray) -> bool:
    """Whether a step leads back where the one before came from: as half of them do once there is only noise.

    Steps get shorter with the number of such turns (Kesten 1958), so that the way to a far q is not cut short.
    """
    if not len(q["moves"]):
        return False
    return bool(move @ q["moves"][-1] + stretch @ q["stretches"][-1] <= 0)


def error(q: State, least: int = LEAST_LOOKS) -> float:
    """The largest error of a mean, in scales, or of a scale, as a ratio: what the later half of the looks would change.

    What is left after averaging over them: their mean, and its standard error.
    """
    recent = max(len(q["moves"]) // 2, 2)
    if len(q["moves"]) < least:
        return np.inf
    errors = []
    for seen in (q["moves"][-recent:], q["stretches"][-recent:]):
        last = max(len(seen) // 2, 1)
        errors.append(np.abs(seen[-last:].mean(axis=0)) + seen.std(axis=0, ddof=1) / np.sqrt(len(seen)))
    return float(np.max(errors))


def is_found(q: State, most: int = MOST_LOOKS, least: int = LEAST_LOOKS, tolerance: float = TOLERANCE) -> bool:
    """Whether q is known well enough, or there were enough looks."""
    return error(q, least) < tolerance or q["number"] >= most


def mean_bound(q: State) -> float:
    """The bound of late: a mean over looks, in which its noise is small."""
    recent = q["bounds"][-min(max(len(q["moves"]) // 2, 1), 20) :]
    return float(np.mean(recent))
