"""Warm-up of the stochastic-gradient methods: step sizes that nobody has to guess.

1. Every chain climbs to a mode: Adam on minibatches, then, for few coordinates, Newton steps.
2. The curvature at the best mode gives the metric; the variance of the gradient over minibatches, measured at typical
   positions around it, gives the noise. Both in units of the metric.
3. The method turns them into the largest step whose bias is acceptable (`pace`), and how many steps it takes to forget.
4. The chains burn in, from positions spread around their modes. The spread that they then have is measured by Stein's
   identity, E[(x - centre) . grad log p(x)] = -d, and a step that proves too long is halved.
"""

from __future__ import annotations

import math
import warnings
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax.flatten_util import ravel_pytree

from langevin.data.batches import Batches
from langevin.drivers import landscape
from langevin.drivers.chains import Chains
from langevin.drivers.scrutiny import ESTIMATORS, width
from langevin.errors import LangevinWarning, SamplingError, SettingError
from langevin.kernels.metrics import Diagonal, Metric
from langevin.kernels.preconditioners import RMSpropState, rmsprop_metric
from langevin.keys import derive
from langevin.methods import MAP, SGHMC, SGLD, CyclicalSGHMC, RMSprop, Sampler
from langevin.posterior import Key, Position, Posterior
from langevin.progress import OnChunk, Watch
from langevin.tuning import SD_BIAS, Landscape, Tuning

MOST_TRIES = 100
MOST_HALVINGS = 4
MOST_STEPS_TO_FORGET = 1_000_000


class WarmUp(NamedTuple):
    """Where the chains start, with which tuning, and how many steps they take to forget (None: unknown)."""

    positions: Position
    tuning: Tuning
    steps_to_forget: float | None


def warm_up(
    method: Sampler,
    posterior: Posterior,
    batches: Batches | None,
    key: Key,
    num_chains: int,
    num_warmup: int,
    watch: Watch,
) -> WarmUp:
    """Prepares chains of a stochastic-gradient method.

    Raises:
        SettingError: If the method needs a warm-up and gets none.
        SamplingError: If no start with a finite log-density is found, or every climb to a mode fails.
    """
    if num_warmup == 0 and _needs_warmup(method):
        raise SettingError(
            f"`num_warmup=0`: {type(method).__name__} with these settings gets its "
            f"{'step' if method.step_size == 'auto' else 'centre or metric'} from warm-up. Leave `num_warmup` out."
        )
    start_key, climb_key, measure_key, burn_key = derive(key, 4)
    positions = start_positions(posterior, start_key, num_chains)
    epoch = 1 if batches is None else batches.num_slices(posterior.num_data)
    tuning = Tuning(epoch=epoch)
    if method.step_size != "auto" and method.estimator != "control_variate":
        return _plain_burn_in(method, posterior, batches, burn_key, num_warmup, positions, tuning, watch)
    positions, centre, curvature = find_modes(posterior, batches, climb_key, num_warmup, positions, watch)
    tuning = tuning._replace(centre=centre)
    if method.step_size != "auto":
        return _plain_burn_in(method, posterior, batches, burn_key, num_warmup, positions, tuning, watch)
    tuning, scene, shape = _measure(method, posterior, batches, measure_key, positions, tuning, curvature)
    spread_key, burn_key = derive(burn_key, 2)
    positions = landscape.spread(shape, positions, spread_key)
    return _checked_burn_in(method, posterior, batches, burn_key, positions, tuning, scene, watch)


def _needs_warmup(method: Sampler) -> bool:
    preconditioner = method.preconditioner if isinstance(method, SGLD) else None
    adapts = isinstance(preconditioner, RMSprop) and preconditioner.adapt == "warmup"
    return method.step_size == "auto" or method.estimator == "control_variate" or adapts


def start_positions(posterior: Posterior, key: Key, num_chains: int) -> Position:
    """A start for every chain at which the log-density and its gradient are finite.

    Raises:
        SamplingError: If a chain finds none in `MOST_TRIES`, with the site that is to blame.
    """
    generator = np.random.default_rng(np.asarray(jax.random.key_data(key)).ravel().tolist())
    starts = [posterior.start(generator) for _ in range(num_chains)]
    for _ in range(MOST_TRIES):
        good = np.asarray(_finite(posterior, stacked(starts)))
        if good.all():
            return stacked(starts)
        starts = [start if fine else posterior.start(generator) for start, fine in zip(starts, good, strict=True)]
    raise no_start(posterior, starts[int(np.argmin(good))])


def no_start(posterior: Posterior, position: Position) -> SamplingError:
    """Says why no chain can start, by what is wrong at the last position that was tried."""
    values = {name: np.asarray(value) for name, value in posterior.constrain(position).items()}
    shown = ", ".join(f"{name}={np.array2string(v, threshold=6, precision=4)}" for name, v in values.items())
    return SamplingError(
        f"The log-density is not finite at any of {MOST_TRIES} starts: {posterior.explain(position, posterior.rows)}, "
        f"at {shown[:300]}. Check that site's parameters and support, and that the data lies inside it."
    )


def stacked(positions: list[Position]) -> Position:
    """Positions as one, with the chains in front."""
    return jax.tree.map(lambda *leaves: jnp.asarray(np.stack(leaves)), *positions)


@jax.jit
def _finite(posterior: Posterior, positions: Position) -> jax.Array:
    def one(position: Position) -> jax.Array:
        value, gradient = jax.value_and_grad(posterior.log_density)(position)
        return jnp.isfinite(value) & jnp.isfinite(ravel_pytree(gradient)[0]).all()

    return jax.lax.map(one, positions)


def find_modes(
    posterior: Posterior,
    batches: Batches | None,
    key: Key,
    num_steps: int,
    positions: Position,
    watch: Watch,
) -> tuple[Position, Position, landscape.Curvature | None]:
    """Climbs from every start. Returns the modes, the best of them, and for few coordinates the curvature there."""
    climbers = Chains(MAP(num_steps=max(num_steps, 1)), posterior, batches, Tuning(), key, positions)
    climbers.run(*_tenths(num_steps, "mode", watch))
    size = _size(climbers.positions)
    if size <= landscape.MOST_DENSE:
        modes, heights, best, curvature = landscape.refine(posterior, climbers.positions)
    else:
        modes, curvature = climbers.positions, None
        heights = np.asarray(landscape.heights(posterior, modes))
        highest = int(np.argmax(np.where(np.isfinite(heights), heights, -np.inf)))
        best = jax.tree.map(lambda leaf: leaf[highest], modes)
    if not np.isfinite(heights).any():
        raise SamplingError(
            "Every climb to a mode left the numbers that a computer can hold. Standardise the columns of the data, or "
            "give the model priors that keep its parameters in range."
        )
    return modes, best, curvature


def _size(positions: Position) -> int:
    """How many coordinates a chain has."""
    return sum(leaf[0].size for leaf in jax.tree.leaves(positions))


def _measure(
    method: Sampler,
    posterior: Posterior,
    batches: Batches | None,
    key: Key,
    positions: Position,
    tuning: Tuning,
    curvature: landscape.Curvature | None,
) -> tuple[Tuning, Landscape, Metric]:
    """The tuning but for the step; the scene that decides the step; and the metric of the posterior's own shape."""
    noise_key, fisher_key, power_key, spread_key = derive(key, 4)
    size = _size(positions)
    diagonal: Position = None
    if curvature is not None:
        kind = "dense" if method.metric == "auto" else method.metric
        metric, stiffest, softest = landscape.metric_and_spectrum(kind, curvature, tuning.centre)
        shape: Metric = landscape.dense_metric(curvature)
    else:
        if method.metric == "dense":
            warnings.warn(
                f"`metric='dense'` is for up to {landscape.MOST_DENSE} coordinates; this model has {size}, and gets a "
                "diagonal one.",
                LangevinWarning,
                stacklevel=2,
            )
        diagonal = landscape.diagonal_curvature(posterior, tuning.centre, fisher_key)
        shape = Diagonal(jax.tree.map(lambda d: 1 / d, diagonal))
        metric = None if method.metric == "unit" else shape
        stiffest = float(landscape.stiffest_curvature(posterior, tuning.centre, metric, power_key))
        # The smallest curvature of a large model is not known: with a diagonal metric the average one is 1.
        softest = stiffest / 100 if metric is None else min(1.0, stiffest)
    typical = landscape.spread(shape, positions, spread_key)
    args = (posterior, batches, ESTIMATORS[method.estimator], tuning.centre, typical, noise_key)
    if isinstance(method, SGLD) and isinstance(method.preconditioner, RMSprop):
        if batches is None:
            square = landscape.mean_square_gradient(posterior, typical)
        else:
            square = _mean_over_chains(landscape.gradient_noise(metric, *args)).mean_square
        count = max(posterior.num_data, 1)
        memory = RMSpropState(jax.tree.map(lambda s: s / count**2, square))
        metric = rmsprop_metric(memory, method.preconditioner.damping)
        if curvature is not None:
            stiffest, softest = landscape.spectrum_in(metric, curvature)
        else:
            stiffest = float(landscape.stiffest_curvature(posterior, tuning.centre, metric, power_key))
            scaled = jax.tree.map(jnp.multiply, metric.variance, diagonal)
            softest = min(float(ravel_pytree(scaled)[0].mean()), stiffest)
    noise = None if batches is None else _mean_over_chains(landscape.gradient_noise(metric, *args))
    largest = 0.0 if noise is None else float(max(leaf.max() for leaf in jax.tree.leaves(noise.variance)))
    variance = None if noise is None else noise.variance
    tuning = tuning._replace(metric=metric, gradient_noise=variance, stiffest=stiffest)
    return tuning, Landscape(stiffest, softest, largest, size), shape


def _mean_over_chains(tree: Any) -> Any:
    return jax.tree.map(lambda leaf: jnp.mean(leaf, axis=0), tree)


def _tenths(num_steps: int, phase: str, watch: Watch) -> tuple[np.ndarray, OnChunk]:
    strides = np.diff(np.linspace(0, num_steps, 11).astype(int))
    return strides, watch(phase, num_steps)


def _plain_burn_in(
    method: Sampler,
    posterior: Posterior,
    batches: Batches | None,
    key: Key,
    num_warmup: int,
    positions: Position,
    tuning: Tuning,
    watch: Watch,
) -> WarmUp:
    if num_warmup == 0:
        return WarmUp(positions, tuning, None)
    settings = method.preconditioner if isinstance(method, SGLD) else None
    adapting = method
    if isinstance(settings, RMSprop) and settings.adapt == "warmup":
        adapting = SGLD(
            step_size=method.step_size,
            estimator=method.estimator,
            preconditioner=RMSprop(settings.decay, settings.damping, "throughout", gamma=False),
        )
    chains = Chains(adapting, posterior, batches, tuning, key, positions)
    chains.run(*_tenths(num_warmup, "burn-in", watch))
    if isinstance(settings, RMSprop) and settings.adapt == "warmup":
        memory = _mean_over_chains(chains.carry.state.preconditioner)
        tuning = tuning._replace(metric=rmsprop_metric(memory, settings.damping))
    if isinstance(method, SGHMC | CyclicalSGHMC) and batches is not None and method.estimator == "minibatch":
        noise_key = derive(key, 4)[3]
        args = (posterior, batches, ESTIMATORS["minibatch"], None, chains.positions, noise_key)
        tuning = tuning._replace(gradient_noise=_mean_over_chains(landscape.gradient_noise(None, *args)).variance)
    return WarmUp(chains.positions, tuning, None)


def _checked_burn_in(
    method: Sampler,
    posterior: Posterior,
    batches: Batches | None,
    key: Key,
    positions: Position,
    tuning: Tuning,
    scene: Landscape,
    watch: Watch,
) -> WarmUp:
    """Burns in at the method's pace; halves the step while the chains are measurably wider than they may be."""
    step_size, steps_to_forget = method.pace(scene)
    if steps_to_forget > MOST_STEPS_TO_FORGET:
        warnings.warn(
            f"A chain would take {steps_to_forget:.0g} steps to forget: the largest curvature is "
            f"{scene.stiffest / scene.softest:.0g} times the smallest, and the gradient noise {scene.noise:.0g}, in "
            f"units of the metric. It gets {MOST_STEPS_TO_FORGET}. Take metric='auto', larger minibatches, or "
            "estimator='control_variate'.",
            LangevinWarning,
            stacklevel=2,
        )
        steps_to_forget = float(MOST_STEPS_TO_FORGET)
    dtype = jax.tree.leaves(positions)[0].dtype
    for attempt_key in derive(key, MOST_HALVINGS + 1):
        tuning = tuning._replace(step_size=jnp.asarray(step_size, dtype))
        chain_key, check_key = derive(attempt_key, 2)
        # A cyclical method burns in at what is the mean step of its cycles.
        steady = tuning._replace(cycle=(1 << 30, 0), step_size=tuning.step_size / getattr(method, "peak", 1.0))
        chains = Chains(method, posterior, batches, steady, chain_key, positions)
        strides = np.full(60, max(math.ceil(steps_to_forget / 6), 1))
        draws = chains.run(strides, watch("burn-in", int(strides.sum())))
        lost = bool((draws.stopped >= 0).any())
        half = jax.tree.map(lambda leaf: leaf[:, 20:], draws.position)
        found, error = (np.inf, 0.0) if lost else width(posterior, batches, half, tuning.centre, check_key)
        if found < (1 + SD_BIAS) ** 2 + 0.1 + 3 * error:
            return WarmUp(chains.positions, tuning, steps_to_forget)
        step_size, steps_to_forget = step_size / 2, steps_to_forget * 2
        if not lost:
            positions = chains.positions
    symptom = "blow up" if lost else f"are {math.sqrt(found):.2f} times too wide by Stein's identity"
    warnings.warn(
        f"`{type(method).__name__}`: after {MOST_HALVINGS} halvings of the automatic step the chains still "
        f"{symptom}. The curvature at the mode may not describe this posterior: compare with a smaller step_size, or "
        "reparameterise.",
        LangevinWarning,
        stacklevel=2,
    )
    return WarmUp(positions, tuning, steps_to_forget / 2)
