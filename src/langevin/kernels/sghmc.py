"""Stochastic gradient Hamiltonian Monte Carlo (Chen, Fox & Guestrin 2014), by a symmetric splitting.

    dx = R p dt,   dp = R^T grad(x) dt - friction p dt + (2 friction)^(1/2) dW,   G = R R^T,   p ~ N(0, I)

One step of length h, with c = exp(-friction h):

    p' = c p + noise,   noise ~ N(0, 1 - c^2 - h^2 V (1 + c)^2 / 4)
    x <- x + h/2 R (p + p')
    p <- p' + h R^T grad(x)

V is an estimate of the variance of R^T grad(x): the minibatches already inject that noise, so that much less is added
(Chen et al., eq. 13-15). A kick of the gradient's noise h z moves the position by h/2 (1 + c) h z before and after
the next friction, as noise (1 + c)/2 h z in p' would: hence the factor. The order of the parts is that of BAOAB
(Leimkuhler & Matthews 2013), whose positions are exact for a Gaussian at any stable h; Euler's scheme has a bias of
order h.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from langevin.kernels import gradients, metrics
from langevin.kernels.base import Kernel, standard_normal
from langevin.kernels.gradients import Estimator
from langevin.kernels.metrics import Metric
from langevin.kernels.schedules import Schedule, as_schedule
from langevin.posterior import Batch, Key, Position, Posterior


class SGHMCState(NamedTuple):
    """Position, momentum in whitened units, and what the estimator remembers."""

    position: Position
    momentum: Position
    step: jax.Array
    estimator: Any


class SGHMCInfo(NamedTuple):
    """What a step tells: the log-density at its end, and its size."""

    log_density: jax.Array
    step_size: jax.Array


def sghmc(
    posterior: Posterior,
    step_size: float | jax.Array | Schedule,
    *,
    friction: float | jax.Array = 1.0,
    gradient_noise: Position | float = 0.0,
    estimator: Estimator | None = None,
    metric: Metric | None = None,
    noise_free_steps: Any = None,
) -> Kernel:
    """Builds an SGHMC kernel.

    Targets the posterior as the step goes to zero. On a Gaussian the only bias, to order `step_size^2`, is
    that of gradient noise beyond `gradient_noise`: the variances are too wide by about `step_size * excess / (2 *
    friction)`.

    Args:
        posterior: The target.
        step_size: h, the time that a step takes: a number, or a function of the step.
        friction: How fast the momentum forgets, per unit of time. Chen et al.'s alpha is `friction * step_size`.
        gradient_noise: V, a number or a pytree like the position. The noise added is never negative.
        estimator: Of the gradient; by default the minibatch's own.
        metric: G; by default the identity.
        noise_free_steps: `step -> bool`: steps that add no noise, as in the exploration of a cycle.

    Returns:
        A kernel with `SGHMCState` and `SGHMCInfo`.
    """
    estimator = gradients.minibatch(posterior) if estimator is None else estimator
    schedule = as_schedule(step_size)

    def init(key: Key, position: Position, batch: Batch | None) -> SGHMCState:
        del batch
        return SGHMCState(position, standard_normal(key, position), jnp.zeros((), jnp.int32), estimator.init(position))

    def step(key: Key, state: SGHMCState, batch: Batch | None) -> tuple[SGHMCState, SGHMCInfo]:
        h = jnp.asarray(schedule(state.step), jnp.result_type(float))
        keep = jnp.exp(-friction * h)
        silent = False if noise_free_steps is None else noise_free_steps(state.step)

        def scale(noise: jax.Array, known: Any) -> jax.Array:
            variance = jnp.maximum(1 - keep**2 - h**2 * known * (1 + keep) ** 2 / 4, 0.0)
            return jnp.where(silent, 0.0, jnp.sqrt(variance)) * noise

        white = standard_normal(key, state.position)
        by_coordinate = jax.tree.structure(gradient_noise) == jax.tree.structure(white)
        known = gradient_noise if by_coordinate else jax.tree.map(lambda _: gradient_noise, white)
        momentum = jax.tree.map(lambda p, n, v: keep * p + scale(n, v), state.momentum, white, known)
        path = metrics.unwhiten(metric, jax.tree.map(lambda p, q: h / 2 * (p + q), state.momentum, momentum))
        position = jax.tree.map(lambda x, d: (x + d).astype(x.dtype), state.position, path)
        memory = estimator.advance(position, state.estimator)
        log_density, gradient = estimator.estimate(position, memory, batch)
        force = metrics.whiten(metric, gradient)
        momentum = jax.tree.map(lambda p, f, x: (p + h * f).astype(x.dtype), momentum, force, position)
        return SGHMCState(position, momentum, state.step + 1, memory), SGHMCInfo(log_density, h)

    def refresh(key: Key, state: SGHMCState, batch: Batch | None) -> SGHMCState:
        del key, batch
        return state._replace(estimator=estimator.refresh(state.estimator))

    return Kernel(init, step, refresh)
