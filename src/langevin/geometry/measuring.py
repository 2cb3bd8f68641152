"""From a mode to what a stochastic-gradient method needs to know: metric, curvature and gradient noise in its units."""

from __future__ import annotations

import warnings
from typing import TYPE_CHECKING, Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax.flatten_util import ravel_pytree

from langevin.contracts import Position
from langevin.data.batches import Batches
from langevin.errors import LangevinWarning, SamplingError
from langevin.geometry import landscape
from langevin.kernels.metrics import Diagonal, Metric
from langevin.posterior import Posterior
from langevin.run.compilation import Programs
from langevin.run.seeds import Seed
from langevin.tuning import Landscape, Tuning

if TYPE_CHECKING:
    from langevin.methods.stochastic import Stochastic


class Modes(NamedTuple):
    """Where climbs ended: each chain's mode, the best of them, and for few coordinates the curvature there."""

    modes: Position
    best: Position
    curvature: landscape.Curvature | None


def modes_from(programs: Programs, target: Posterior, positions: Position) -> Modes:
    """The modes near where climbs ended.

    Raises:
        SamplingError: If every climb failed.
    """
    if size_of(positions) <= landscape.MOST_DENSE:
        modes, heights, best, curvature = programs(landscape.refine, None, target, positions)
    else:
        modes, curvature = positions, None
        heights = np.asarray(programs(landscape.heights, None, target, modes))
        highest = int(np.argmax(np.where(np.isfinite(heights), heights, -np.inf)))
        best = jax.tree.map(lambda leaf: np.asarray(leaf)[highest], modes)
    if not np.isfinite(heights).any():
        raise SamplingError(
            "Every climb to a mode left the numbers that a computer can hold. Standardise the columns of the data, or "
            "give the model priors that keep its parameters in range."
        )
    return Modes(modes, best, curvature)


class Measured(NamedTuple):
    """The tuning but for the step; the scene that decides the step; and typical positions around the modes."""

    tuning: Tuning
    scene: Landscape
    typical: Position


def measured(
    programs: Programs, method: Stochastic, target: Posterior, batches: Batches | None, found: Modes, seed: Seed
) -> Measured:
    """Measures curvature and gradient noise around modes.

    Args:
        programs: The compiled programs of the run.
        method: Says what metric it wants.
        target: The posterior.
        batches: How minibatches are drawn; None for all rows.
        found: The modes.
        seed: Everything random is a function of it.
    """
    metric, shape, stiffest, softest, diagonal = _metric(programs, method, target, found, seed)
    spread = (seed.child("spread").key_words(), seed.child("starts").key_words())
    around, typical = (programs(landscape.spread, None, shape, found.modes, words) for words in spread)
    noise_words = seed.child("noise").key_words()

    def noise_in(metric: Metric | None, batches: Batches) -> landscape.Noise:
        arguments = (target, metric, found.best, around, noise_words)
        return mean_over_chains(programs(landscape.gradient_noise, (batches, method.estimator), *arguments))

    noise = None if batches is None else noise_in(metric, batches)
    square = programs(landscape.mean_square_gradient, None, target, around) if noise is None else noise.mean_square
    own = method.metric_of_gradients(square, target.num_data)
    if own is not None:
        metric = own
        stiffest, softest = _spectrum_of(programs, target, found, own, diagonal, seed)
        noise = None if batches is None else noise_in(own, batches)
    variance = None if noise is None else noise.variance
    largest = 0.0 if variance is None else float(max(leaf.max() for leaf in jax.tree.leaves(variance)))
    tuning = Tuning(metric=metric, centre=found.best, gradient_noise=variance, stiffest=stiffest)
    return Measured(tuning, Landscape(stiffest, softest, largest, size_of(found.modes)), typical)


def _metric(
    programs: Programs, method: Stochastic, target: Posterior, found: Modes, seed: Seed
) -> tuple[Metric | None, Metric, float, float, Position]:
    """The metric, that of the posterior's own shape, the largest and smallest curvature, and for many its diagonal."""
    if found.curvature is not None:
        kind = "dense" if method.metric == "auto" else method.metric
        metric, stiffest, softest = landscape.metric_and_spectrum(kind, found.curvature, found.best)
        return metric, landscape.dense_metric(found.curvature), stiffest, softest, None
    if method.metric == "dense":
        warnings.warn(
            f"`metric='dense'` is for up to {landscape.MOST_DENSE} coordinates; this model has "
            f"{size_of(found.modes)}, and gets a diagonal one.",
            LangevinWarning,
            stacklevel=2,
        )
    diagonal = programs(landscape.diagonal_curvature, None, target, found.best, seed.child("fisher").key_words())
    shape = Diagonal(jax.tree.map(lambda d: 1 / d, diagonal))
    metric = None if method.metric == "unit" else shape
    stiffest = _stiffest(programs, target, found.best, metric, seed)
    # The smallest curvature of a large model is not known: with a diagonal metric the average one is 1.
    return metric, shape, stiffest, stiffest / 100 if metric is None else min(1.0, stiffest), diagonal


def _spectrum_of(
    programs: Programs, target: Posterior, found: Modes, metric: Any, diagonal: Position, seed: Seed
) -> tuple[float, float]:
    """The largest and smallest curvature in the units of a diagonal metric."""
    if found.curvature is not None:
        return landscape.spectrum_in(metric, found.curvature)
    stiffest = _stiffest(programs, target, found.best, metric, seed)
    scaled = jax.tree.map(jnp.multiply, metric.variance, diagonal)
    return stiffest, min(float(ravel_pytree(scaled)[0].mean()), stiffest)


def _stiffest(programs: Programs, target: Posterior, centre: Position, metric: Metric | None, seed: Seed) -> float:
    words = seed.child("power").key_words()
    kind = type(metric).__name__
    return float(programs(landscape.stiffest_curvature, kind, target, centre, metric, words))


def mean_over_chains(tree: Any) -> Any:
    """The mean over the leading axis."""
    return jax.tree.map(lambda leaf: np.mean(np.asarray(leaf), axis=0), tree)


def size_of(positions: Position) -> int:
    """How many coordinates a chain has."""
    return sum(int(np.prod(np.shape(leaf)[1:])) for leaf in jax.tree.leaves(positions))
