"""What the target looks like around its centre: the metric that makes it round, its curvature, the gradient noise."""

from __future__ import annotations

import dataclasses
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax.flatten_util import ravel_pytree

from langevin.data.batches import Batches
from langevin.geometry.evaluating import row_sample
from langevin.kernels import metrics
from langevin.kernels.base import standard_normal
from langevin.kernels.gradients import control_variate, minibatch
from langevin.kernels.metrics import Dense, Diagonal, Metric
from langevin.posterior import Key, Position, Posterior
from langevin.run.seeds import key_of

# Of large models fewer: what is wanted there is the noise of many coordinates together.
NUM_NOISE_BATCHES, FEW_NOISE_BATCHES, LARGE = 256, 64, 50_000
# In units of the metric, how far apart the gradients are whose difference is the curvature.
SHIFT = 0.1


class Curvature(NamedTuple):
    """The inverse of a covariance, as `diag(scale)^-1 matrix diag(scale)^-1`, over the flattened position.

    The matrix has a unit diagonal, whatever the units of the coordinates.
    """

    scale: np.ndarray
    matrix: np.ndarray


def curvature_of(factor: np.ndarray) -> Curvature:
    """Of the covariance R R^T."""
    inverse = np.linalg.inv(factor)
    precision = inverse.T @ inverse
    scale = 1 / np.sqrt(np.diagonal(precision))
    return Curvature(scale, scale[:, None] * precision * scale)


def heights(_: None, posterior: Posterior, positions: Position) -> jax.Array:
    """The log-density of each chain's position, on all rows."""
    return jax.lax.map(posterior.log_density, positions)


def mean_square_gradient(_: None, posterior: Posterior, positions: Position) -> Position:
    """The square of the gradient on all rows, averaged over the chains."""
    squares = jax.lax.map(lambda x: jax.tree.map(jnp.square, jax.grad(posterior.log_density)(x)), positions)
    return jax.tree.map(lambda leaf: jnp.mean(leaf, axis=0), squares)


def dense_metric(curvature: Curvature) -> Dense:
    """The inverse of the curvature: the covariance of the posterior, if it is Gaussian."""
    scale, values, vectors = _decomposed(curvature)
    factor = scale[:, None] * np.linalg.cholesky((vectors / values) @ vectors.T)
    return Dense(np.asarray(factor, jnp.result_type(float)))


def metric_and_spectrum(kind: str, curvature: Curvature, position: Position) -> tuple[Metric | None, float, float]:
    """The metric of this kind, and the largest and smallest curvature in its units."""
    if kind == "dense":
        return dense_metric(curvature), 1.0, 1.0
    scale, values, vectors = _decomposed(curvature)
    if kind == "diagonal":
        _, unravel = ravel_pytree(position)
        variance = unravel(jnp.asarray(scale**2, jnp.result_type(float)))
        return Diagonal(variance), float(values[-1]), float(values[0])
    spectrum = np.linalg.eigvalsh((vectors * values) @ vectors.T / np.outer(scale, scale))
    return None, float(spectrum[-1]), float(max(spectrum[0], 1e-6 * spectrum[-1]))


def _decomposed(curvature: Curvature) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """The scale, and the eigenvalues (made positive) and eigenvectors of the scaled matrix, in double precision."""
    values, vectors = np.linalg.eigh(np.asarray(curvature.matrix, np.float64))
    order = np.argsort(np.abs(values))
    return np.asarray(curvature.scale, np.float64), np.maximum(np.abs(values[order]), 1e-6), vectors[:, order]


def spectrum_in(metric: Diagonal, curvature: Curvature) -> tuple[float, float]:
    """The largest and smallest curvature in the units of a given diagonal metric."""
    flat = np.sqrt(np.asarray(ravel_pytree(metric.variance)[0], np.float64)) / np.asarray(curvature.scale, np.float64)
    spectrum = np.abs(np.linalg.eigvalsh(np.asarray(curvature.matrix, np.float64) * np.outer(flat, flat)))
    return float(spectrum.max()), float(max(spectrum.min(), 1e-6 * spectrum.max()))


def stiffest_curvature(
    _: str, posterior: Posterior, position: Position, metric: Metric | None, words: jax.Array
) -> jax.Array:
    """The largest curvature in the units of a metric, by power iteration on differences of gradients."""
    sample = row_sample(posterior)
    gradient = jax.grad(posterior.log_density)

    def product(vector: Position) -> Position:
        ahead = jax.tree.map(lambda v: SHIFT * v, metrics.unwhiten(metric, vector))
        there, back = (
            gradient(jax.tree.map(lambda x, a, s=sign: x + s * a, position, ahead), sample) for sign in (1.0, -1.0)
        )
        return metrics.whiten(metric, jax.tree.map(lambda a, b: (a - b) / (2 * SHIFT), there, back))

    def body(_: jax.Array, carry: Any) -> Any:
        vector, _ = carry
        flat, unravel = ravel_pytree(product(vector))
        norm = jnp.linalg.norm(flat)
        return unravel(flat / jnp.maximum(norm, 1e-30)), norm

    flat, unravel = ravel_pytree(standard_normal(key_of(words), position))
    start = (unravel(flat / jnp.linalg.norm(flat)), jnp.zeros((), flat.dtype))
    return jax.lax.fori_loop(0, 30, body, start)[1]


def spread(_: None, shape: Metric, modes: Position, words: jax.Array) -> Position:
    """Positions around the modes, with the covariance `shape`."""
    return jax.tree.map(jnp.add, modes, jax.vmap(shape.unwhiten)(standard_normal(key_of(words), modes)))


class Noise(NamedTuple):
    """Moments of the gradient estimate over minibatches, in whitened units, and the plain mean square of it."""

    variance: Position
    mean_square: Position


def gradient_noise(
    static: tuple[Batches, str],
    posterior: Posterior,
    metric: Metric | None,
    centre: Position,
    positions: Position,
    words: jax.Array,
) -> Noise:
    """Measures, in units of `metric`, how much the gradient estimate varies over minibatches at each position.

    Args:
        static: How minibatches are drawn, and the name of the estimator. One with an anchor is measured with its anchor
            at the centre and the position at a typical distance from it.
        posterior: The target.
        metric: G; None for the identity.
        centre: The anchor; None for the positions themselves.
        positions: Where to measure, with the chains in front.
        words: Of a key.
    """
    batches, name = static
    # Scattered rows, whatever the run will use: one order of the rows has its own noise, and the run goes through many.
    rows = dataclasses.replace(batches, order="rows")
    population = posterior.num_data
    shrink = 1.0 if batches.order == "rows" else (population - batches.size) / max(population - 1, 1)
    estimator = minibatch(posterior) if name == "minibatch" else control_variate(posterior, centre)

    def at(position: Position, key: Key) -> Noise:
        memory = estimator.init(position if centre is None else centre)

        def one(moments: Any, step: jax.Array) -> tuple[Any, None]:
            """Welford's recursion, which does not cancel in single precision as sums of squares would."""
            mean, deviation, square = moments
            batch = rows.take(posterior.data, posterior.num_data, key, step)
            gradient = estimator.estimate(position, memory, batch)[1]
            white = metrics.whiten(metric, gradient)
            moved = jax.tree.map(lambda m, w: m + (w - m) / (step + 1), mean, white)
            deviation = jax.tree.map(lambda d, w, a, b: d + (w - a) * (w - b), deviation, white, mean, moved)
            return (moved, deviation, jax.tree.map(lambda s, g: s + g**2, square, gradient)), None

        zeros = jax.tree.map(jnp.zeros_like, (position, position, position))
        _, deviation, square = jax.lax.scan(one, zeros, jnp.arange(count))[0]
        variance = jax.tree.map(lambda d: shrink * jnp.maximum(d, 0.0) / (count - 1), deviation)
        return Noise(variance, jax.tree.map(lambda s: s / count, square))

    num_points = len(jax.tree.leaves(positions)[0])
    size = sum(jnp.size(leaf) for leaf in jax.tree.leaves(positions)) // num_points
    count = NUM_NOISE_BATCHES if size <= LARGE else FEW_NOISE_BATCHES
    return jax.vmap(at)(positions, jax.random.split(key_of(words), num_points))
