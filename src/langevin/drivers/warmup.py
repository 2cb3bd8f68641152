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
from langevin.errors import LangevinWarning, SamplingError
from langevin.kernels import gradients
from langevin.kernels.gradients import Estimator
from langevin.kernels.metrics import Diagonal, Metric
from langevin.kernels.preconditioners import RMSpropState, rmsprop_metric
from langevin.keys import derive
from langevin.methods import MAP, SGLD, RMSprop, Sampler
from langevin.posterior import Key, Position, Posterior
from langevin.progress import OnChunk, Watch
from langevin.tuning import SD_BIAS, Landscape, Tuning

MOST_TRIES = 100
MOST_HALVINGS = 4
NUM_NOISE_DRAWS = 16


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
        SamplingError: If no start with a finite log-density is found, or every chain blows up.
    """
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


def start_positions(posterior: Posterior, key: Key, num_chains: int) -> Position:
    """A start for every chain at which the log-density and its gradient are finite.

    Raises:
        SamplingError: If a chain finds none in `MOST_TRIES`, with the site that is to blame.
    """
    positions, good = _try_starts(posterior, jax.random.split(key, num_chains))
    if not np.all(good):
        bad = jax.tree.map(lambda leaf: leaf[int(np.argmin(good))], positions)
        values = {name: np.asarray(value) for name, value in posterior.constrain(bad).items()}
        shown = ", ".join(f"{name}={np.array2string(v, threshold=6, precision=4)}" for name, v in values.items())
        raise SamplingError(
            f"The log-density is not finite at any of {MOST_TRIES} starts: {posterior.explain(bad, posterior.rows)}, "
            f"at {shown[:300]}. Check that site's parameters and support, and that the data lies inside it."
        )
    return positions


@jax.jit
def _try_starts(posterior: Posterior, keys: Key) -> tuple[Position, jax.Array]:
    def attempt(carry: Any) -> Any:
        key, count, _, _ = carry
        position = posterior.init(jax.random.fold_in(key, count))
        value, gradient = jax.value_and_grad(posterior.log_density)(position)
        good = jnp.isfinite(value) & jnp.isfinite(ravel_pytree(gradient)[0]).all()
        return key, count + 1, position, good

    def one_chain(key: Key) -> tuple[Position, jax.Array]:
        start = (key, 0, jax.tree.map(jnp.zeros_like, posterior.init(key)), jnp.asarray(False))
        going = lambda carry: (carry[1] < MOST_TRIES) & ~carry[3]  # noqa: E731
        return jax.lax.while_loop(going, attempt, start)[2:]

    return jax.lax.map(one_chain, keys)


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
        heights = landscape.heights(posterior, modes)
        best = jax.tree.map(lambda leaf: leaf[int(np.nanargmax(heights))], modes)
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
    noise = None
    if batches is not None:
        typical = landscape.spread(shape, positions, spread_key)
        args = (posterior, batches, _MAKERS[method.estimator], tuning.centre, typical, noise_key)
        noise = _mean_over_chains(landscape.gradient_noise(metric, *args))
        if isinstance(method, SGLD) and isinstance(method.preconditioner, RMSprop):
            count = max(posterior.num_data, 1)
            square = jax.tree.map(lambda s: s / count**2, noise.mean_square)
            metric = rmsprop_metric(RMSpropState(square), method.preconditioner.damping)
            if curvature is not None:
                stiffest, softest = landscape.spectrum_in(metric, curvature)
            noise = _mean_over_chains(landscape.gradient_noise(metric, *args))
    largest = 0.0 if noise is None else float(max(leaf.max() for leaf in jax.tree.leaves(noise.variance)))
    tuning = tuning._replace(metric=metric, gradient_noise=None if noise is None else noise.variance)
    return tuning, Landscape(stiffest, softest, largest, size), shape


def noise_at_draws(
    method: Sampler, posterior: Posterior, batches: Batches, tuning: Tuning, positions: Position, key: Key
) -> np.ndarray:
    """The gradient noise at some draws of each chain, as a multiple of what warm-up expected.

    The draws are at the shape (chains, draws, ...). The step, and what SGHMC takes off its noise, rest on that
    expectation.
    """
    num_draws = jax.tree.leaves(positions)[0].shape[1]
    ratios = []
    for index, draw_key in zip(
        np.linspace(0, num_draws - 1, NUM_NOISE_DRAWS).astype(int), derive(key, NUM_NOISE_DRAWS), strict=True
    ):
        here = jax.tree.map(lambda leaf, i=index: jnp.asarray(leaf[:, i]), positions)
        args = (posterior, batches, _MAKERS[method.estimator], tuning.centre, here, draw_key)
        found = jax.tree.leaves(landscape.gradient_noise(tuning.metric, *args).variance)
        expected = jax.tree.leaves(tuning.gradient_noise)
        largest = np.max([np.max(np.reshape(leaf, (len(leaf), -1)), axis=1) for leaf in found], axis=0)
        ratios.append(largest / max(float(leaf.max()) for leaf in expected))
    return np.stack(ratios, axis=1)


def _mean_over_chains(tree: Any) -> Any:
    return jax.tree.map(lambda leaf: jnp.mean(leaf, axis=0), tree)


def _plain_estimator(posterior: Posterior, centre: Position) -> Estimator:
    del centre
    return gradients.minibatch(posterior)


# An anchored estimator is measured with its anchor at the mode and the position at a typical distance from it.
_MAKERS = {
    "minibatch": _plain_estimator,
    "control_variate": gradients.control_variate,
    "svrg": gradients.control_variate,
}


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
    dtype = jax.tree.leaves(positions)[0].dtype
    for attempt_key in derive(key, MOST_HALVINGS + 1):
        tuning = tuning._replace(step_size=jnp.asarray(step_size, dtype))
        chain_key, check_key = derive(attempt_key, 2)
        chains = Chains(method, posterior, batches, tuning._replace(cycle=(1 << 30, 0)), chain_key, positions)
        strides = np.full(60, max(math.ceil(steps_to_forget / 6), 1))
        draws = chains.run(strides, watch("burn-in", int(strides.sum())))
        lost = bool((draws.stopped >= 0).any())
        half = jax.tree.map(lambda leaf: leaf[:, 20:], draws.position)
        width, error = (np.inf, 0.0) if lost else _width(posterior, batches, half, tuning.centre, check_key)
        if width < (1 + SD_BIAS) ** 2 + 0.1 + 3 * error:
            return WarmUp(chains.positions, tuning, steps_to_forget)
        step_size, steps_to_forget = step_size / 2, steps_to_forget * 2
        if not lost:
            positions = chains.positions
    warnings.warn(
        f"`{type(method).__name__}`: after {MOST_HALVINGS} halvings of the automatic step the chains are still "
        f"{math.sqrt(width):.2f} times too wide by Stein's identity. The curvature at the mode may not describe this "
        "posterior: compare with a smaller step_size, or reparameterise.",
        LangevinWarning,
        stacklevel=2,
    )
    return WarmUp(positions, tuning, steps_to_forget)


def _width(
    posterior: Posterior, batches: Batches | None, positions: Position, centre: Position, key: Key
) -> tuple[float, float]:
    """-E[(x - centre) . grad log p(x)] / d, which is 1 under the posterior, and its standard error."""

    @jax.jit
    def evaluate(posterior: Posterior, positions: Position, key: Key) -> jax.Array:
        def one(inputs: Any) -> jax.Array:
            position, step = inputs
            batch = None
            if batches is not None:
                row_key = jax.random.fold_in(key, step)
                batch = batches.take(posterior.data, posterior.num_data, row_key, step)
            gradient, _ = ravel_pytree(jax.grad(posterior.log_density)(position, batch))
            gap = ravel_pytree(position)[0] - ravel_pytree(centre)[0]
            return -jnp.vdot(gap, gradient) / gap.size

        flat = jax.tree.map(lambda leaf: leaf.reshape(-1, *leaf.shape[2:]), positions)
        return jax.lax.map(one, (flat, jnp.arange(len(jax.tree.leaves(flat)[0]))))

    num_chains = len(jax.tree.leaves(positions)[0])
    values = np.asarray(evaluate(posterior, positions, key), np.float64).reshape(num_chains, -1)
    if not np.isfinite(values).all():
        return math.inf, 0.0
    blocks = values.reshape(num_chains, 4, -1).mean(axis=2)
    return float(blocks.mean()), float(blocks.std() / math.sqrt(blocks.size))
