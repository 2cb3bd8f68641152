"""The Metropolis-adjusted Langevin algorithm, as a stepper of one gradient a step.

    proposal = position + eps^2/2 G grad log p(position) + eps R noise,    noise ~ N(0, I)

is accepted with probability min(1, p(proposal) q(position | proposal) / (p(position) q(proposal | position))), where q
is the density of the proposal. In whitened units, with the noise that would lead back,

    log q(proposal | position) = -|noise|^2 / 2 + const,    back = -(noise + eps/2 R^T (gradient + gradient')).

The targeted density is the posterior, exactly (Roberts & Tweedie 1996).
"""

from __future__ import annotations

from typing import NamedTuple

import jax
import jax.numpy as jnp

from langevin.kernels import metrics
from langevin.kernels.base import Kernel
from langevin.kernels.metrics import Metric
from langevin.kernels.steppers import Inputs, Point, Report, Stepper, acceptance_of, as_kernel, barrier, inner, pick
from langevin.posterior import Posterior


class Walk(NamedTuple):
    """A chain, and the noise of its next proposal.

    Attributes:
        draw: Where it is.
        noise: Of the next proposal.
        ready: False while the log-density at the position is not known.
    """

    draw: Point
    noise: jax.Array
    ready: jax.Array


def mala(posterior: Posterior, step_size: float | jax.Array, metric: Metric | None = None) -> Kernel:
    """The Metropolis-adjusted Langevin algorithm as a bare kernel.

    Args:
        posterior: The target.
        step_size: The sd of a proposal's noise, in units of the metric: the square root of SGLD's step.
        metric: G; None for the identity.
    """
    return as_kernel(mala_stepper(), posterior, step_size, metric)


def mala_stepper() -> Stepper:
    """The stepper: see the top of this module."""

    def step(state: Walk, inputs: Inputs) -> tuple[Walk, Report]:
        eps, here = inputs.step_size, state.draw
        move = jnp.where(state.ready, eps, 0.0) * (state.noise + eps / 2 * here.gradient)
        position = here.position + metrics.unwhiten(inputs.metric, move)
        log_density, gradient = inputs.evaluate(position)
        back = state.noise + eps / 2 * (here.gradient + gradient)
        change = log_density - here.log_density
        return metropolis(state, inputs, position, gradient, log_density, change + _gain(state.noise, back))

    return Stepper(idle_walk, step)


def idle_walk(position: jax.Array) -> Walk:
    """A chain idle."""
    zeros, zero = jnp.zeros_like(position), jnp.zeros((), position.dtype)
    return Walk(Point(position, zeros, zero, zero), zeros, jnp.zeros((), bool))


def metropolis(
    state: Walk,
    inputs: Inputs,
    position: jax.Array,
    gradient: jax.Array,
    log_density: jax.Array,
    log_ratio: jax.Array,
) -> tuple[Walk, Report]:
    """Accepts the proposal with probability min(1, exp(log_ratio)), and begins the next."""
    log_ratio = barrier(jnp.where(jnp.isnan(log_ratio), -jnp.inf, log_ratio))
    finite = jnp.isfinite(log_density) & jnp.isfinite(jnp.sum(gradient))
    take = jnp.where(state.ready, finite & (inputs.uniforms[0] < jnp.exp(log_ratio)), True)
    draw = pick(take, Point(position, gradient, log_density, -log_density), state.draw)
    began = state.ready | finite
    following = Walk(draw, inputs.noise, began)
    one, none = jnp.ones((), jnp.int32), jnp.zeros((), bool)
    return following, Report(state.ready, began, draw, acceptance_of(log_ratio), -log_ratio, one, 0 * one, none)


def _gain(noise: jax.Array, back: jax.Array) -> jax.Array:
    """Log q(position | proposal) - log q(proposal | position)."""
    return (inner(noise, noise) - inner(back, back)) / 2
