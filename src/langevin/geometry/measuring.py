"""From the shape of a posterior to what a stochastic-gradient method needs: metric, curvature, gradient noise."""

from __future__ import annotations

import warnings
from typing import TYPE_CHECKING, Any, NamedTuple

import jax
import numpy as np

from langevin.contracts import Position
from langevin.data.batches import Batches
from langevin.errors import LangevinWarning
from langevin.geometry import landscape
from langevin.geometry.finding import MOST_DENSE, Found
from langevin.geometry.starts import flattened, unflattened
from langevin.kernels.metrics import Dense, Diagonal, Metric, Wheel
from langevin.posterior import Posterior
from langevin.run.compilation import Programs
from langevin.run.seeds import Seed
from langevin.tuning import Landscape, Tuning

if TYPE_CHECKING:
    from langevin.methods.stochastic import Stochastic

# At so many draws of q for every chain the gradient noise is measured: that of a few rows is large at few draws only.
NUM_PLACES = 4
# In units of the curvature: less gradient noise than this is not worth a better estimator.
LEAST_NOISE = 0.5
# A coordinate with so many times the median noise gets a smaller metric.
UNUSUAL = 3.0
SLOW = 0.02


class Measured(NamedTuple):
    """What was measured.

    Attributes:
        tuning: But for the step.
        scene: Decides the step.
        typical: Positions around the modes.
        estimator: Of the gradient.
    """

    tuning: Tuning
    scene: Landscape
    typical: Position
    estimator: str


def measured(
    programs: Programs, method: Stochastic, target: Posterior, batches: Batches | None, found: Found, seed: Seed
) -> Measured:
    """Measures curvature and gradient noise around the centre, and chooses the estimator where that is left open.

    Args:
        programs: The compiled programs of the run.
        method: Says what metric it wants.
        target: The posterior, with the centring that was found.
        batches: How minibatches are drawn; None for all rows.
        found: Where the posterior is, and its shape.
        seed: Everything random is a function of it.
    """
    example = jax.tree.map(np.asarray, target.start(np.random.default_rng(0)))
    centre, modes = (unflattened(example, at) for at in (found.centre, found.modes))
    shape = _shape(found, example)
    metric, stiffest, softest = _metric(programs, method, target, found, centre, seed)
    draws = [seed.child("starts"), *(seed.child("spread", number) for number in range(NUM_PLACES))]
    typical, *places = (programs(landscape.spread, None, shape, modes, child.key_words()) for child in draws)

    def noise_in(metric: Metric | None, batches: Batches, estimator: str) -> landscape.Noise:
        seen = []
        for number, around in enumerate(places):
            arguments = (target, metric, centre, around, seed.child("noise", number).key_words())
            seen.append(mean_over_chains(programs(landscape.gradient_noise, (batches, estimator), *arguments)))
        return jax.tree.map(lambda *leaves: np.mean(leaves, axis=0), *seen)

    estimator = "minibatch" if method.estimator == "auto" else method.estimator
    noise = None if batches is None else noise_in(metric, batches, estimator)
    square = programs(landscape.mean_square_gradient, None, target, places[0]) if noise is None else noise.mean_square
    if method.estimator == "auto" and batches is not None and noise is not None and _largest(noise) > LEAST_NOISE:
        # A control variate takes two gradients to a step.
        other = noise_in(metric, batches, "control_variate")
        if LEAST_NOISE + 2 * _largest(other) < _largest(noise):
            estimator, noise = "control_variate", other
    own = method.metric_of_gradients(square, target.num_data)
    if own is not None:
        metric = own
        stiffest, softest = _spectrum_of(programs, target, found, centre, own, seed)
        noise = None if batches is None else noise_in(own, batches, estimator)
    if noise is None:
        tuning = Tuning(metric=metric, centre=centre, stiffest=stiffest)
        return Measured(tuning, Landscape(stiffest, softest, 0.0, len(found.centre)), typical, estimator)
    variance = noise.variance
    if own is None:
        metric, variance, slower = evened(metric, variance)
        softest *= slower
    tuning = Tuning(metric=metric, centre=centre, gradient_noise=variance, stiffest=stiffest)
    scene = Landscape(stiffest, softest, float(flattened(variance).max()), len(found.centre))
    return Measured(tuning, scene, typical, estimator)


def evened(metric: Metric | None, noise: Position) -> tuple[Metric | None, Position, float]:
    """A metric that is smaller where the gradient noise is far above the usual, and the noise in its units.

    Of diagonal metrics, and of those of a hierarchy; others stay as they are.

    One step serves all coordinates: without this, the noise of a few (the effects of groups with few rows) would make
    it short for all. These few are as slow as before. Returned is also by how much slow coordinates are slower: not the
    slowest one, whose noise is poorly known.
    """
    if not isinstance(metric, Diagonal | Wheel):
        return metric, noise, 1.0
    level = max(UNUSUAL * float(np.median(flattened(noise))), LEAST_NOISE)
    share = jax.tree.map(lambda leaf: np.minimum(1, level / np.maximum(leaf, 1e-30)).astype(leaf.dtype), noise)
    times = lambda tree: jax.tree.map(lambda leaf, part: np.asarray(leaf) * part, tree, share)  # noqa: E731
    slower = float(np.quantile(flattened(share), SLOW))
    if isinstance(metric, Wheel):
        return metric.narrowed(np.sqrt(flattened(share))), times(noise), slower
    return Diagonal(times(metric.variance)), times(noise), slower


def _largest(noise: landscape.Noise) -> float:
    return float(max(leaf.max() for leaf in jax.tree.leaves(noise.variance)))


def _shape(found: Found, example: Position) -> Metric:
    """The covariance of q as a metric."""
    dtype = np.result_type(*jax.tree.leaves(example))
    if found.factor.ndim == 2:
        return Dense(found.factor.astype(dtype))
    if found.groups is not None:
        cast = lambda leaf: leaf if leaf.dtype.kind == "i" else leaf.astype(dtype)  # noqa: E731
        return Wheel(**jax.tree.map(cast, found.groups))
    return Diagonal(unflattened(example, found.factor**2))


def _metric(
    programs: Programs, method: Stochastic, target: Posterior, found: Found, centre: Position, seed: Seed
) -> tuple[Metric | None, float, float]:
    """The metric, and the largest and smallest curvature in its units."""
    if found.factor.ndim == 2:
        kind = "dense" if method.metric == "auto" else method.metric
        return landscape.metric_and_spectrum(kind, landscape.curvature_of(found.factor), centre)
    if method.metric == "dense":
        warnings.warn(
            f"`metric='dense'` is for up to {MOST_DENSE} coordinates; this model has {len(found.centre)}, and gets a "
            "diagonal one.",
            LangevinWarning,
            stacklevel=2,
        )
    if method.metric == "diagonal":
        found = found._replace(groups=None)
    metric = None if method.metric == "unit" else _shape(found, centre)
    stiffest = _stiffest(programs, target, centre, metric, seed)
    # The smallest curvature of a large model is not known: with a diagonal metric the average one is 1.
    return metric, stiffest, stiffest / 100 if metric is None else min(1.0, stiffest)


def _spectrum_of(
    programs: Programs, target: Posterior, found: Found, centre: Position, metric: Any, seed: Seed
) -> tuple[float, float]:
    """The largest and smallest curvature in the units of a diagonal metric."""
    if found.factor.ndim == 2:
        return landscape.spectrum_in(metric, landscape.curvature_of(found.factor))
    stiffest = _stiffest(programs, target, centre, metric, seed)
    scaled = flattened(metric.variance) / found.factor**2
    return stiffest, min(float(scaled.mean()), stiffest)


def _stiffest(programs: Programs, target: Posterior, centre: Position, metric: Metric | None, seed: Seed) -> float:
    words = seed.child("power").key_words()
    kind = type(metric).__name__
    return float(programs(landscape.stiffest_curvature, kind, target, centre, metric, words))


def mean_over_chains(tree: Any) -> Any:
    """The mean over the leading axis."""
    return jax.tree.map(lambda leaf: np.mean(np.asarray(leaf), axis=0), tree)
