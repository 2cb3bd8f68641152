"""Samplers as steppers that ask for one log-density at a time.

A stepper step takes the log-density at exactly one position and does all the rest of the sampler's work around it:
leapfrog, tree, acceptance, the start of the next trajectory. A draw is there when the report says so. The log-density
is thus traced at one single place in a program, which compiles quickly; and vectorised chains never wait for the one
with the longest trajectory, since each is somewhere in its own at every step (Dance et al. 2025, 'Efficiently
vectorized MCMC on modern accelerators').

Machines work on flat vectors in whitened units: velocities are standard normal, positions move by `eps R velocity`, and
gradients are `R^T gradient` (see `langevin.kernels.metrics`).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax.flatten_util import ravel_pytree

from langevin.kernels import metrics
from langevin.kernels.base import Kernel
from langevin.kernels.metrics import Metric
from langevin.keys import at_step, derive
from langevin.posterior import Batch, Key, Position, Posterior

NUM_UNIFORMS = 3
# An energy that is lost on the way tells that the leapfrog went wrong; the limit is Stan's.
MOST_ENERGY_ERROR = 1000.0
MOST_STEPS = 2**30

Evaluate = Callable[[jax.Array], tuple[jax.Array, jax.Array]]


class Point(NamedTuple):
    """A position that can become a draw.

    Attributes:
        position: A flat vector.
        gradient: The whitened gradient there.
        log_density: The log-density there.
        energy: The Hamiltonian there, `|velocity|^2 / 2 - log_density`.
    """

    position: jax.Array
    gradient: jax.Array
    log_density: jax.Array
    energy: jax.Array


class Inputs(NamedTuple):
    """What a stepper step gets from outside.

    Attributes:
        evaluate: `position -> (log_density, whitened gradient)`; to be called exactly once.
        step_size: The step.
        metric: G, on flat vectors; None for the identity.
        noise: Standard normal numbers for the next trajectory; not used unless one begins.
        uniforms: `NUM_UNIFORMS` uniform numbers, new at each step.
        most_steps: A trajectory is cut off after so many steps, as warm-up does while the metric is still poor.
    """

    evaluate: Evaluate
    step_size: Any
    metric: Metric | None
    noise: jax.Array
    uniforms: jax.Array
    most_steps: Any = MOST_STEPS


class Report(NamedTuple):
    """What a stepper step tells.

    Attributes:
        done: Whether a trajectory ended with this step, so that `draw` is a new draw.
        began: Whether a trajectory begins, so that the noise was used.
        draw: The latest draw.
        acceptance_rate: How likely the proposals of the trajectory are to be accepted, on average so far.
        energy_error: The energy of the draw (or the proposal) minus the energy at the start.
        n_steps: Gradients of the trajectory.
        tree_depth: Doublings of the trajectory.
        diverging: Whether the energy was lost.
    """

    done: jax.Array
    began: jax.Array
    draw: Point
    acceptance_rate: jax.Array
    energy_error: jax.Array
    n_steps: jax.Array
    tree_depth: jax.Array
    diverging: jax.Array


class Stepper(NamedTuple):
    """A sampler, cut at its gradients.

    Attributes:
        idle: `position -> state`: idle, when nothing is known of the position. The first step finds the log-density
            there. If that is finite, a trajectory begins.
        step: `(state, inputs) -> (state, report)`. The state has `draw`, a `Point`, and `ready`, which tells whether
            the log-density is known there.
        needs_gradient: If not, gradients are zeros.
    """

    idle: Callable[[jax.Array], Any]
    step: Callable[[Any, Inputs], tuple[Any, Report]]
    needs_gradient: bool = True


class StepperState(NamedTuple):
    """A stepper between two draws.

    Attributes:
        position: Where the chain is, a pytree.
        stepper: The stepper's own state, which has begun the next trajectory.
    """

    position: Position
    stepper: Any


class StepperInfo(NamedTuple):
    """What a draw tells: see `Report` and `Point`."""

    log_density: jax.Array
    step_size: jax.Array
    acceptance_rate: jax.Array
    energy: jax.Array
    energy_error: jax.Array
    n_steps: jax.Array
    tree_depth: jax.Array
    diverging: jax.Array


def as_kernel(stepper: Stepper, posterior: Posterior, step_size: float | jax.Array, metric: Metric | None) -> Kernel:
    """A stepper as a kernel whose step is a whole draw.

    With minibatches the chain goes on from what the last one said of its position, which nothing corrects: the draws
    are those of the posterior only with `batch=None`.
    """

    def advance(state: Any, key: Key, position: Position, batch: Batch | None) -> Any:
        flat, unravel = ravel_pytree(position)
        noise_key, uniform_key = jax.random.split(key)
        noise = jax.random.normal(noise_key, flat.shape, flat.dtype)
        uniforms = jax.random.uniform(uniform_key, (NUM_UNIFORMS,), flat.dtype)
        flattened = flat_metric(metric)
        evaluate = evaluator(stepper, posterior, unravel, flattened, batch)
        return stepper.step(state, Inputs(evaluate, step_size, flattened, noise, uniforms))

    def init(key: Key, position: Position, batch: Batch | None) -> StepperState:
        state, _ = advance(stepper.idle(ravel_pytree(position)[0]), key, position, batch)
        return StepperState(position, state)

    def step(key: Key, state: StepperState, batch: Batch | None) -> tuple[StepperState, StepperInfo]:
        # Derived first, then counted: users pass keys such as `jax.random.key(3)`, which may not be counted from.
        (stream,) = derive(key, 1)

        def one(carry: Any) -> Any:
            inner, _, number = carry
            inner, report = advance(inner, at_step(stream, number), state.position, batch)
            return inner, report, number + 1

        def goes_on(carry: Any) -> jax.Array:
            inner, report, number = carry
            # Where the log-density is not finite no trajectory begins, and another step would find the same.
            return ~report.done & (inner.ready | (number == 0))

        shape = jax.eval_shape(lambda inner: one((inner, None, jnp.uint32(0)))[1], state.stepper)
        nothing = jax.tree.map(lambda leaf: jnp.zeros(leaf.shape, leaf.dtype), shape)
        inner, report, _ = jax.lax.while_loop(goes_on, one, (state.stepper, nothing, jnp.uint32(0)))
        draw = report.draw
        info = StepperInfo(
            draw.log_density,
            jnp.asarray(step_size, draw.position.dtype),
            report.acceptance_rate,
            draw.energy,
            report.energy_error,
            report.n_steps,
            report.tree_depth,
            report.diverging,
        )
        return StepperState(ravel_pytree(state.position)[1](draw.position), inner), info

    def refresh(key: Key, state: StepperState, batch: Batch | None) -> StepperState:
        """Between two draws a trajectory has only begun: another begins, with a velocity of its own."""
        return init(key, state.position, batch)

    return Kernel(init, step, refresh)


def evaluator(
    stepper: Stepper,
    posterior: Posterior,
    unravel: Callable[[jax.Array], Position],
    metric: Metric | None,
    batch: Batch | None = None,
) -> Evaluate:
    """`position -> (log_density, whitened gradient)`, on flat vectors."""

    def log_density(position: jax.Array) -> jax.Array:
        return posterior.log_density(unravel(position), batch)

    def evaluate(position: jax.Array) -> tuple[jax.Array, jax.Array]:
        if not stepper.needs_gradient:
            return log_density(position), jnp.zeros_like(position)
        value, gradient = jax.value_and_grad(log_density)(position)
        return value, metrics.whiten(metric, gradient)

    return evaluate


def flat_metric(metric: Metric | None) -> Metric | None:
    """The same metric on flat vectors."""
    if isinstance(metric, metrics.Diagonal):
        return metrics.Diagonal(ravel_pytree(metric.variance)[0])
    return metric


def acceptance_of(drop: jax.Array) -> jax.Array:
    """min(1, exp(drop)): how likely a proposal with this drop in energy is to be accepted."""
    return jnp.exp(jnp.minimum(drop, 0.0))


def inner(a: jax.Array, b: jax.Array) -> jax.Array:
    """The inner product of two vectors; of small ones as a sum, which XLA fuses with what comes before and after."""
    return jnp.sum(a * b) if a.size <= metrics.MOST_FUSED else jnp.vdot(a, b)


def pick(flag: jax.Array, this: Any, other: Any) -> Any:
    """`jnp.where` over pytrees."""
    return jax.tree.map(lambda a, b: jnp.where(flag, a, b), this, other)


def barrier(number: jax.Array) -> jax.Array:
    """The same number, computed once.

    XLA copies cheap arithmetic into every kernel that needs its result, and a stepper has dozens that all need to know
    what happens in the step: half the time of compilation went there. It does not copy a reduction.
    """
    least = -jnp.inf if jnp.issubdtype(number.dtype, jnp.floating) else jnp.iinfo(number.dtype).min
    return jnp.max(jnp.where(jnp.arange(2) == 0, number, jnp.asarray(least, number.dtype)))
