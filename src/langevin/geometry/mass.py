"""Metrics from draws and the gradients at them, in NumPy.

For a Gaussian of covariance S, draws have the covariance S and gradients the covariance S^-1. The metric that agrees
with both is their geometric mean, the G with G cov(gradients) G = cov(draws): it is S exactly for a Gaussian with more
draws than coordinates, it makes both equally round otherwise, and it needs far fewer draws than cov(draws) alone
(Seyboldt, Carlson & Carpenter 2026, 'Preconditioning Hamiltonian Monte Carlo by minimizing Fisher divergence'; nutpie).
"""

from __future__ import annotations

from typing import Any

import numpy as np

from langevin.kernels.metrics import Dense, Diagonal, Learned, LowRank, Metric

# What is known before any draw, in units of one draw: that the scaled posterior is round.
PRIOR_DRAWS = 5.0
# Directions that are stretched by less than this (either way) are left to the scale; and with fewer draws than
# coordinates those that could be noise. Draws have more of it than gradients, which forget sooner.
LEAST_STRETCH = 1.5
NOISE_OF_DRAWS = 1.5
# With many coordinates, correlations are looked for in the span of so many draws and their gradients.
MOST_SUBSPACE_DRAWS = 256
# On its way to the bulk a chain sees gradients that are larger by orders of magnitude. Next to one of 3000 times the
# median norm, the squares of all others are lost in single precision: such draws say nothing of the shape of the bulk.
MOST_STEEP = 3e3
DRAWS_OF_A_MEDIAN = 64
# Scales that single precision can square.
WIDEST = 1e15


def round_metric(kind: str, size: int, rank: int, dtype: Any) -> Metric | None:
    """The identity, as a metric of this kind: "unit", "diagonal", "dense" or "lowrank"."""
    return _as_metric(kind, np.ones(size), np.zeros((size, 0)), np.ones(0), rank, dtype)


def first_metric(kind: str, gradients: np.ndarray, rank: int) -> Metric | None:
    """A metric from the gradients (chains, size) at the starts alone: a coordinate with a steep gradient is narrow."""
    steepness = np.mean(np.abs(np.asarray(gradients, np.float64)), axis=0)
    variance = 1 / np.clip(steepness, 1e-3, 1e6)
    return _as_metric(kind, np.sqrt(variance), np.zeros((len(variance), 0)), np.ones(0), rank, gradients.dtype)


def metric_from(
    kind: str,
    draws: list[np.ndarray],
    gradients: list[np.ndarray] | None,
    rank: int,
    dtype: Any,
    previous: Metric | None = None,
) -> Metric | None:
    """The metric of this kind that fits best.

    Args:
        kind: As in `round_metric`.
        draws: For each chain (draws, size).
        gradients: The gradients at them; None for the covariance of the draws alone.
        rank: Of a metric of low rank.
        dtype: Of its arrays.
        previous: The metric before. Of one of low rank, the scale is taken from what its directions leave over: else a
            few stiff directions that run through every coordinate would set the scale of all.
    """
    if gradients is not None:
        draws, gradients = _in_the_bulk(draws, gradients)
    x = _centred(draws)
    g = None if gradients is None else _centred(gradients)
    count = max(len(x) - len(draws), 1)
    if isinstance(previous, LowRank) and g is not None:
        scale, vectors = (np.asarray(array, np.float64) for array in (previous.scale, previous.vectors))
        rest_x, rest_g = (rest - (rest @ vectors) @ vectors.T for rest in (x / scale, g * scale))
        scale = scale * _scale(rest_x, rest_g, count)
    else:
        scale = _scale(x, g, count)
    if not np.isfinite(scale).all():
        return previous if previous is not None else round_metric(kind, len(scale), rank, dtype)
    if kind in ("unit", "diagonal") or (count > 2 * MOST_SUBSPACE_DRAWS and _found_none(previous)):
        return _as_metric(kind, scale, np.zeros((len(scale), 0)), np.ones(0), rank, dtype)
    try:
        vectors, values = _round(x / scale, None if g is None else g * scale, count)
    except np.linalg.LinAlgError:
        vectors, values = np.zeros((len(scale), 0)), np.ones(0)
    return _as_metric(kind, scale, vectors, np.sqrt(values), rank, dtype, min(count, MOST_SUBSPACE_DRAWS))


def _found_none(metric: Metric | None) -> bool:
    """Whether a metric of low rank has no directions: more draws than fit into the subspace would find none either."""
    return isinstance(metric, LowRank) and bool(np.all(np.asarray(metric.stretches) == 1))


def _in_the_bulk(draws: list[np.ndarray], gradients: list[np.ndarray]) -> tuple[list[np.ndarray], list[np.ndarray]]:
    """The draws and gradients without those of a chain on its way from a far start; see `MOST_STEEP`."""
    every = -(-sum(map(len, gradients)) // DRAWS_OF_A_MEDIAN)
    unit = np.median(np.abs(np.concatenate(gradients)[::every]), axis=0)
    unit = np.where(unit > 0, unit, 1.0).astype(np.float64)
    norms = [np.linalg.norm(one / unit, axis=1) for one in gradients]
    most = MOST_STEEP * np.median(np.concatenate(norms))
    if max(np.max(norm, initial=0.0) for norm in norms) <= most:
        return draws, gradients
    chosen = [(x[norm <= most], g[norm <= most]) for x, g, norm in zip(draws, gradients, norms, strict=True)]
    chosen = [pair for pair in chosen if len(pair[0])]
    return [x for x, _ in chosen], [g for _, g in chosen]


def _scale(x: np.ndarray, g: np.ndarray | None, count: int) -> np.ndarray:
    """The scale of each coordinate: G = scale^2 is the geometric mean of var(x) and 1 / var(g)."""
    spread = np.maximum(np.sum(x**2, axis=0) / count, 1 / WIDEST**2)
    if g is None:
        return np.clip(np.sqrt(spread), 1 / WIDEST, WIDEST)
    steepness = np.maximum(np.sum(g**2, axis=0) / count, 1 / WIDEST**2)
    return np.clip((spread / steepness) ** 0.25, 1 / WIDEST, WIDEST)


def _centred(chains: list[np.ndarray]) -> np.ndarray:
    """Each chain around its own mean: where chains are in different places, that says nothing of their shape."""
    return np.concatenate([one - one.mean(axis=0) for one in chains]).astype(np.float64)


def _round(x: np.ndarray, g: np.ndarray | None, count: int) -> tuple[np.ndarray, np.ndarray]:
    """Eigenvectors and eigenvalues, other than 1, of the geometric mean of cov(x) and cov(g)^-1; or of cov(x)."""
    size = x.shape[1]
    if len(x) > MOST_SUBSPACE_DRAWS and size > 2 * MOST_SUBSPACE_DRAWS:
        chosen = np.linspace(0, len(x) - 1, MOST_SUBSPACE_DRAWS).astype(int)
        x, g, count = x[chosen], None if g is None else g[chosen], MOST_SUBSPACE_DRAWS
    known = x if g is None else np.concatenate([x, g])
    basis = np.eye(size) if len(known) >= size else np.linalg.qr(known.T)[0]
    spread = _shrunk(x @ basis, count)
    if g is None:
        values, vectors = _eigen(spread)
        return basis @ vectors, values
    values, vectors = _eigen(_shrunk(g @ basis, count))
    root = np.sqrt(values)
    half, inverse = (vectors * root) @ vectors.T, (vectors / root) @ vectors.T
    values, vectors = _eigen(half @ spread @ half)
    middle = (vectors * np.sqrt(values)) @ vectors.T
    values, vectors = _eigen(inverse @ middle @ inverse)
    return basis @ vectors, values


def _shrunk(x: np.ndarray, count: int) -> np.ndarray:
    """The covariance, a little towards the identity."""
    return (x.T @ x + PRIOR_DRAWS * np.eye(x.shape[1])) / (count + PRIOR_DRAWS)


def _eigen(matrix: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Eigenvalues and eigenvectors of a positive matrix, whose smallest may be negative by rounding.

    Raises:
        LinAlgError: If the matrix is not finite, or zero.
    """
    values, vectors = np.linalg.eigh((matrix + matrix.T) / 2)
    if not (np.isfinite(values).all() and values[-1] > 0):
        raise np.linalg.LinAlgError("The matrix is not finite, or zero.")
    return np.maximum(values, len(values) * np.finfo(np.float64).eps * values[-1]), vectors


def _as_metric(
    kind: str,
    scale: np.ndarray,
    vectors: np.ndarray,
    stretches: np.ndarray,
    rank: int,
    dtype: Any,
    count: int = 1,
) -> Metric | None:
    if kind == "unit":
        return None
    if kind == "diagonal":
        return Diagonal(np.asarray(scale**2, dtype))
    # Directions that differ by more than the precision can tell would make the metric singular.
    stretches = np.maximum(stretches, 8 * np.finfo(dtype).eps * np.max(stretches, initial=1.0))
    if kind == "dense":
        factor = np.eye(len(scale)) + (vectors * (stretches - 1)) @ vectors.T
        return Dense(np.asarray(scale[:, None] * factor, dtype))
    strength = np.log(stretches)
    strength = np.where(strength > 0, strength / NOISE_OF_DRAWS, -strength)
    # The edge of the eigenvalues of pure noise (Marchenko & Pastur 1967), in the geometric mean of two.
    noise = np.sqrt(1 + np.sqrt(len(scale) / count))
    chosen = np.argsort(-strength)[:rank]
    chosen = chosen[strength[chosen] > np.log(max(LEAST_STRETCH, noise))]
    padded = np.zeros((len(scale), rank))
    padded[:, : len(chosen)] = vectors[:, chosen]
    widths = np.ones(rank)
    widths[: len(chosen)] = stretches[chosen]
    return LowRank(*(np.asarray(array, dtype) for array in (scale, padded, widths)))


def plain_gradient(metric: Learned | None, whitened: np.ndarray) -> np.ndarray:
    """R^-T whitened: the gradients (one a row) that were whitened by this metric."""
    whitened = np.asarray(whitened, np.float64)
    if metric is None:
        return whitened
    if isinstance(metric, Diagonal):
        return whitened / np.sqrt(np.asarray(metric.variance, np.float64))
    if isinstance(metric, Dense):
        factor = np.asarray(metric.factor, np.float64)
        scale = np.linalg.norm(factor, axis=1)
        return np.linalg.solve((factor / scale[:, None]).T, whitened.T).T / scale
    vectors, stretches = np.asarray(metric.vectors, np.float64), np.asarray(metric.stretches, np.float64)
    return (whitened + ((1 / stretches - 1) * (whitened @ vectors)) @ vectors.T) / metric.scale
