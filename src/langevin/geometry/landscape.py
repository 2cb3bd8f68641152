"""What the target looks like around its mode: where the mode is, the curvature there, and the gradient noise.

Curvature comes from a sample of the rows; only the last steps to the mode read all of them. Up to
`MOST_DENSE` coordinates the whole Hessian is used; above, its diagonal is taken from the rows' squared gradients (the
empirical Fisher information) and the prior's curvature.
"""

from __future__ import annotations

import dataclasses
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax.flatten_util import ravel_pytree

from langevin.data.batches import Batches
from langevin.kernels import metrics
from langevin.kernels.base import standard_normal
from langevin.kernels.gradients import control_variate, minibatch
from langevin.kernels.metrics import Dense, Diagonal, Metric
from langevin.kernels.preconditioners import hessian_diagonal
from langevin.posterior import Batch, Key, Position, Posterior
from langevin.run.seeds import key_of

MOST_DENSE = 128
MOST_ROWS = 16_384
NUM_NOISE_BATCHES = 256
NUM_FISHER_ROWS = 1024
NUM_PROBES = 64


class Curvature(NamedTuple):
    """The negative Hessian at a mode, as `diag(scale)^-1 matrix diag(scale)^-1`, over the flattened position.

    Scaling to a unit diagonal first keeps it exact in single precision, whatever the units of the coordinates.
    """

    scale: jax.Array
    matrix: jax.Array


def row_sample(posterior: Posterior) -> Batch | None:
    """Evenly spread rows, at most `MOST_ROWS`; None for all, where there are no more or the model needs all."""
    if not posterior.by_rows or posterior.num_data <= MOST_ROWS:
        return None
    return jax.tree.map(lambda array: array[_evenly(posterior.num_data, MOST_ROWS)], posterior.data)


def _evenly(num_data: int, count: int) -> np.ndarray:
    return (np.arange(count) * num_data // count).astype(np.int32)


class Modes(NamedTuple):
    """Where climbs ended: each chain's mode, how high each is, the best one, and the curvature there."""

    modes: Position
    heights: jax.Array
    best: Position
    curvature: Curvature


def refine(_: None, posterior: Posterior, positions: Position) -> Modes:
    """Takes every chain from near a mode to it by Newton's method, and the best one to the mode on all rows."""
    sample = row_sample(posterior)
    modes = jax.vmap(lambda x: _climb(posterior, sample, x))(positions)
    heights = jax.vmap(lambda x: posterior.log_density(x, sample))(modes)
    highest = jnp.argmax(jnp.where(jnp.isfinite(heights), heights, -jnp.inf))
    top = jax.tree.map(lambda leaf: leaf[highest], modes)
    best, curvature = _finish(posterior, sample, top)

    def settle(mode: Position) -> Position:
        """A chain that climbed to the same mode goes on from the refined one."""
        gap = (ravel_pytree(mode)[0] - ravel_pytree(top)[0]) / curvature.scale
        near = jnp.vdot(gap, curvature.matrix @ gap) < 1.0 + gap.size
        return jax.tree.map(lambda a, b: jnp.where(near, a, b), best, mode)

    return Modes(jax.vmap(settle)(modes), heights, best, curvature)


def heights(_: None, posterior: Posterior, positions: Position) -> jax.Array:
    """The log-density of each chain's position, on all rows."""
    return jax.lax.map(posterior.log_density, positions)


def mean_square_gradient(_: None, posterior: Posterior, positions: Position) -> Position:
    """The square of the gradient on all rows, averaged over the chains."""
    squares = jax.lax.map(lambda x: jax.tree.map(jnp.square, jax.grad(posterior.log_density)(x)), positions)
    return jax.tree.map(lambda leaf: jnp.mean(leaf, axis=0), squares)


def _climb(posterior: Posterior, sample: Batch | None, position: Position, num_iterations: int = 30) -> Position:
    """Damped Newton steps (Levenberg-Marquardt) to the mode on a sample of the rows."""
    flat, unravel = ravel_pytree(position)

    def log_density(x: jax.Array) -> jax.Array:
        return posterior.log_density(unravel(x), sample)

    def body(carry: Any) -> Any:
        x, damping, count, _ = carry
        value, gradient = jax.value_and_grad(log_density)(x)
        step = _solve(_curvature(log_density, x), gradient, damping)
        candidate = log_density(x + step)
        # In single precision a sum over many rows is known to about this much.
        better = candidate >= value - 1e-6 * jnp.abs(value)
        x = jnp.where(better, x + step, x)
        damping = jnp.clip(jnp.where(better, damping / 10, damping * 10), 1e-7, 1e7)
        return x, damping, count + 1, jnp.vdot(gradient, step) > 1e-4

    def going(carry: Any) -> jax.Array:
        return (carry[2] < num_iterations) & carry[3]

    start = (flat, jnp.asarray(1e-2, flat.dtype), 0, jnp.asarray(True))
    return unravel(jax.lax.while_loop(going, body, start)[0])


def _finish(posterior: Posterior, sample: Batch | None, position: Position) -> tuple[Position, Curvature]:
    """Three more steps, with the sample's curvature and the gradient of all rows; and that curvature."""
    flat, unravel = ravel_pytree(position)
    curvature = _curvature(lambda x: posterior.log_density(unravel(x), sample), flat)
    full_gradient = jax.grad(lambda x: posterior.log_density(unravel(x)))
    limit = 10.0 * jnp.sqrt(flat.size * max(posterior.num_data / MOST_ROWS, 1.0))

    def body(_: jax.Array, x: jax.Array) -> jax.Array:
        step = _solve(curvature, full_gradient(x), 0.0)
        length = jnp.sqrt(jnp.vdot(step / curvature.scale, curvature.matrix @ (step / curvature.scale)))
        step = step * jnp.minimum(1.0, limit / jnp.maximum(length, 1e-12))
        return jnp.where(jnp.isfinite(step).all(), x + step, x)

    return unravel(jax.lax.fori_loop(0, 3, body, flat)), curvature


def dense_metric(curvature: Curvature) -> Dense:
    """The inverse of the curvature: the covariance of the posterior, if it is Gaussian."""
    scale, values, vectors = _decomposed(curvature)
    factor = scale[:, None] * np.linalg.cholesky((vectors / values) @ vectors.T)
    return Dense(jnp.asarray(factor, curvature.scale.dtype))


def metric_and_spectrum(kind: str, curvature: Curvature, position: Position) -> tuple[Metric | None, float, float]:
    """The metric of this kind, and the largest and smallest curvature in its units."""
    if kind == "dense":
        return dense_metric(curvature), 1.0, 1.0
    scale, values, vectors = _decomposed(curvature)
    if kind == "diagonal":
        _, unravel = ravel_pytree(position)
        variance = unravel(jnp.asarray(scale**2, curvature.scale.dtype))
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


def diagonal_curvature(_: None, posterior: Posterior, position: Position, words: jax.Array) -> Position:
    """The empirical Fisher information's diagonal plus the prior's curvature, for many coordinates."""
    fisher = jax.tree.map(jnp.zeros_like, position)
    if posterior.by_rows:
        index = _evenly(posterior.num_data, min(NUM_FISHER_ROWS, posterior.num_data))

        def row_gradient(row: Batch) -> Position:
            one = jax.tree.map(lambda array: array[None], row)
            return jax.grad(lambda x: jnp.sum(posterior.log_likelihood(x, one)))(position)

        rows = jax.tree.map(lambda array: array[index], posterior.data)
        squares = jax.lax.map(lambda row: jax.tree.map(jnp.square, row_gradient(row)), rows)
        fisher = jax.tree.map(lambda square: posterior.num_data * jnp.mean(square, axis=0), squares)
    prior = posterior.log_prior if posterior.by_rows else posterior.log_density
    products = jax.lax.map(lambda k: hessian_diagonal(prior, k, position), jax.random.split(key_of(words), NUM_PROBES))
    total = jax.tree.map(lambda f, p: f - jnp.mean(p, axis=0), fisher, products)
    # An estimate may be too small, or negative: not below half of what the rows alone say, or a part of what is usual.
    usual = jnp.median(jnp.abs(ravel_pytree(total)[0]))
    least = 1e-6 * usual if posterior.by_rows else 0.05 * usual
    return jax.tree.map(lambda t, f: jnp.maximum(jnp.maximum(t, 0.5 * f), least), total, fisher)


def stiffest_curvature(
    _: None, posterior: Posterior, position: Position, metric: Metric | None, words: jax.Array
) -> jax.Array:
    """The largest curvature in the units of a metric, by power iteration."""
    sample = row_sample(posterior)
    gradient = jax.grad(posterior.log_density)

    def product(vector: Position) -> Position:
        _, out = jax.jvp(lambda x: gradient(x, sample), (position,), (metrics.unwhiten(metric, vector),))
        return metrics.whiten(metric, out)

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
        _, deviation, square = jax.lax.scan(one, zeros, jnp.arange(NUM_NOISE_BATCHES))[0]
        variance = jax.tree.map(lambda d: shrink * jnp.maximum(d, 0.0) / (NUM_NOISE_BATCHES - 1), deviation)
        return Noise(variance, jax.tree.map(lambda s: s / NUM_NOISE_BATCHES, square))

    num_points = len(jax.tree.leaves(positions)[0])
    return jax.vmap(at)(positions, jax.random.split(key_of(words), num_points))


def _curvature(log_density: Any, x: jax.Array) -> Curvature:
    hessian = -jax.hessian(log_density)(x)
    hessian = jnp.where(jnp.isfinite(hessian), hessian, 0.0)
    diagonal = jnp.abs(jnp.diagonal(hessian))
    scale = 1 / jnp.sqrt(jnp.maximum(diagonal, 1e-30))
    scale = jnp.where(diagonal > 1e-30, scale, 1.0)
    return Curvature(scale, scale[:, None] * hessian * scale[None, :])


def _solve(curvature: Curvature, gradient: jax.Array, damping: Any) -> jax.Array:
    values, vectors = jnp.linalg.eigh(curvature.matrix)
    values = jnp.maximum(jnp.abs(values), 1e-6) + damping
    scaled = vectors.T @ (curvature.scale * gradient)
    return curvature.scale * (vectors @ (scaled / values))
