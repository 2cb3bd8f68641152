"""Stochastic gradient Nose-Hoover thermostat (Ding et al. 2014), by a symmetric splitting.

    dx = R p dt,   dp = R^T grad(x) dt - xi p dt + (2 A)^(1/2) dW,   dxi = (|p|^2 / d - 1) dt,   G = R R^T

The friction xi is a variable of its own: it grows while the momenta are too hot and shrinks while they are too cold,
and so absorbs gradient noise of unknown size. Its stationary mean is A + h V / 2 for gradient noise R^T grad(x) of
variance V. One step of length h:

    xi <- xi + h/2 (|p|^2 / d - 1)
    p' = c p + noise,   noise ~ N(0, A (1 - c^2) / xi),   c = exp(-xi h)
    xi <- xi + h/2 (|p'|^2 / d - 1)
    x <- x + h/2 R (p + p')
    p <- p' + h R^T grad(x)
"""

from __future__ import annotations

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from langevin.kernels import gradients, metrics
from langevin.kernels.base import Kernel, dot, standard_normal
from langevin.kernels.gradients import Estimator
from langevin.kernels.metrics import Metric
from langevin.kernels.schedules import Schedule, as_schedule
from langevin.posterior import Batch, Key, Position, Posterior


class SGNHTState(NamedTuple):
    """Position, momentum in whitened units, thermostat, and what the estimator remembers."""

    position: Position
    momentum: Position
    thermostat: jax.Array
    step: jax.Array
    estimator: Any


class SGNHTInfo(NamedTuple):
    """What a step tells: the log-density at its end, its size, and the friction that the thermostat settled on."""

    log_density: jax.Array
    step_size: jax.Array
    thermostat: jax.Array


def sgnht(
    posterior: Posterior,
    step_size: float | jax.Array | Schedule,
    *,
    friction: float | jax.Array = 1.0,
    estimator: Estimator | None = None,
    metric: Metric | None = None,
) -> Kernel:
    """Builds an SGNHT kernel.

    Targets the posterior as the step goes to zero, for gradient noise of constant variance that is the same in all
    directions of the metric; where it is not, hot and cold directions are balanced only on average.

    Args:
        posterior: The target.
        step_size: h, the time that a step takes: a number, or a function of the step.
        friction: A, the diffusion that is added on purpose, and where the thermostat starts.
        estimator: Of the gradient; by default the minibatch's own.
        metric: G; by default the identity.

    Returns:
        A kernel with `SGNHTState` and `SGNHTInfo`.
    """
    estimator = gradients.minibatch(posterior) if estimator is None else estimator
    schedule = as_schedule(step_size)

    def init(key: Key, position: Position, batch: Batch | None) -> SGNHTState:
        del batch
        momentum = standard_normal(key, position)
        thermostat = jnp.asarray(friction, jnp.result_type(float))
        return SGNHTState(position, momentum, thermostat, jnp.zeros((), jnp.int32), estimator.init(position))

    def step(key: Key, state: SGNHTState, batch: Batch | None) -> tuple[SGNHTState, SGNHTInfo]:
        h = jnp.asarray(schedule(state.step), jnp.result_type(float))
        thermostat = state.thermostat + h / 2 * _excess_heat(state.momentum)
        keep = jnp.exp(-thermostat * h)
        spread = jnp.sqrt(2 * friction * h * _decay_integral(2 * thermostat * h))
        noise = standard_normal(key, state.position)
        momentum = jax.tree.map(lambda p, n: keep * p + spread * n, state.momentum, noise)
        thermostat = thermostat + h / 2 * _excess_heat(momentum)
        path = metrics.unwhiten(metric, jax.tree.map(lambda p, q: h / 2 * (p + q), state.momentum, momentum))
        position = jax.tree.map(lambda x, d: (x + d).astype(x.dtype), state.position, path)
        memory = estimator.advance(position, state.estimator)
        log_density, gradient = estimator.estimate(position, memory, batch)
        force = metrics.whiten(metric, gradient)
        momentum = jax.tree.map(lambda p, f, x: (p + h * f).astype(x.dtype), momentum, force, position)
        moved = SGNHTState(position, momentum, thermostat, state.step + 1, memory)
        return moved, SGNHTInfo(log_density, h, thermostat)

    def refresh(key: Key, state: SGNHTState, batch: Batch | None) -> SGNHTState:
        del key, batch
        return state._replace(estimator=estimator.refresh(state.estimator))

    return Kernel(init, step, refresh)


def _excess_heat(momentum: Position) -> jax.Array:
    size = sum(jnp.size(leaf) for leaf in jax.tree.leaves(momentum))
    return dot(momentum, momentum) / size - 1


def _decay_integral(rate: jax.Array) -> jax.Array:
    """(1 - exp(-rate)) / rate, also at 0 and for a negative rate."""
    small = jnp.abs(rate) < 1e-4
    safe = jnp.where(small, 1.0, rate)
    return jnp.where(small, 1 - rate / 2, -jnp.expm1(-safe) / safe)
