"""Hamiltonian Monte Carlo, as a stepper of one gradient a step.

With velocity ~ N(0, I) in whitened units, L leapfrog steps of length eps,

    velocity <- velocity + eps/2 R^T grad log p(position)
    position <- position + eps R velocity
    velocity <- velocity + eps/2 R^T grad log p(position),

and the end is accepted with probability min(1, exp(H_start - H_end)), H = |velocity|^2 / 2 - log p(position). The
targeted density is the posterior, exactly. The length may be jittered, so that no period of the target resonates with
it (Neal 2011, 'MCMC using Hamiltonian dynamics', section 3.2).
"""

from __future__ import annotations

from typing import NamedTuple

import jax
import jax.numpy as jnp

from langevin.kernels import metrics
from langevin.kernels.base import Kernel
from langevin.kernels.metrics import Metric
from langevin.kernels.steppers import (
    MOST_ENERGY_ERROR,
    Inputs,
    Point,
    Report,
    Stepper,
    acceptance_of,
    as_kernel,
    barrier,
    inner,
    pick,
)
from langevin.posterior import Posterior


class Trajectory(NamedTuple):
    """A trajectory on its way.

    Attributes:
        draw: Where it began.
        position, gradient, velocity: Where it is.
        ready: False while the log-density at the position is not known.
        steps: Steps so far.
        num_steps: Steps to take.
    """

    draw: Point
    position: jax.Array
    gradient: jax.Array
    velocity: jax.Array
    ready: jax.Array
    steps: jax.Array
    num_steps: jax.Array


def hmc(
    posterior: Posterior,
    step_size: float,
    metric: Metric | None = None,
    *,
    num_steps: int | None = None,
    length: float = 1.5,
    jitter: float = 0.3,
) -> Kernel:
    """Hamiltonian Monte Carlo as a bare kernel, whose step is a whole draw.

    Args:
        posterior: The target.
        step_size: Of the leapfrog, in units of the metric.
        metric: G; None for the identity.
        num_steps: Leapfrog steps of a trajectory; None for as many as `length` takes.
        length: The time that a trajectory takes, `num_steps * step_size`.
        jitter: The number of steps is multiplied with a number evenly between `1 - jitter` and `1 + jitter`.
    """
    return as_kernel(hmc_stepper(num_steps, length, jitter), posterior, step_size, metric)


def hmc_stepper(num_steps: int | None, length: float, jitter: float) -> Stepper:
    """The stepper: see the top of this module."""

    def idle(position: jax.Array) -> Trajectory:
        zeros, zero, count = jnp.zeros_like(position), jnp.zeros((), position.dtype), jnp.zeros((), jnp.int32)
        place = Point(position, zeros, zero, zero)
        return Trajectory(place, position, zeros, zeros, jnp.zeros((), bool), count, count)

    def step(state: Trajectory, inputs: Inputs) -> tuple[Trajectory, Report]:
        eps = jnp.where(state.ready, inputs.step_size, 0.0)
        midway = state.velocity + eps / 2 * state.gradient
        position = state.position + eps * metrics.unwhiten(inputs.metric, midway)
        log_density, gradient = inputs.evaluate(position)
        velocity = midway + eps / 2 * gradient
        place = Point(position, gradient, log_density, inner(velocity, velocity) / 2 - log_density)
        drop = barrier(state.draw.energy - place.energy)
        drop = jnp.where(jnp.isnan(drop), -jnp.inf, drop)
        steps = state.steps + 1
        diverging = state.ready & (drop < -MOST_ENERGY_ERROR)
        done = state.ready & (diverging | (steps >= jnp.minimum(state.num_steps, inputs.most_steps)))
        began = done | (~state.ready & jnp.isfinite(log_density) & jnp.isfinite(jnp.sum(gradient)))
        take = ~state.ready | (done & (inputs.uniforms[0] < jnp.exp(drop)))
        draw = pick(take, place, state.draw)
        wanted = length / inputs.step_size if num_steps is None else jnp.asarray(float(num_steps))
        jittered = jnp.round(wanted * (1 + jitter * (2 * inputs.uniforms[1] - 1)))
        start_energy = inner(inputs.noise, inputs.noise) / 2 - draw.log_density
        following = Trajectory(
            draw=draw._replace(energy=jnp.where(began, start_energy, draw.energy)),
            position=pick(began, draw.position, position),
            gradient=pick(began, draw.gradient, gradient),
            velocity=pick(began, inputs.noise, velocity),
            ready=state.ready | began,
            steps=jnp.where(began, 0, steps),
            num_steps=jnp.where(began, jnp.clip(jittered, 1, 1e6).astype(jnp.int32), state.num_steps),
        )
        depth = jnp.zeros((), jnp.int32)
        return following, Report(done, began, draw, acceptance_of(drop), -drop, steps, depth, diverging)

    return Stepper(idle, step)
