"""Stochastic gradient Langevin dynamics (Welling & Teh 2011; with a metric, Patterson & Teh 2013).

    x <- x + step_size / 2 * (G grad(x) + gamma) + G^(1/2) noise,   noise ~ N(0, step_size)

The variance of the noise is `step_size`.
"""

from __future__ import annotations

from typing import Any, Literal, NamedTuple

import jax
import jax.numpy as jnp

from langevin.errors import SettingError
from langevin.kernels import gradients, metrics, preconditioners
from langevin.kernels.base import Kernel, dot, standard_normal
from langevin.kernels.gradients import Estimator
from langevin.kernels.preconditioners import Preconditioner
from langevin.kernels.schedules import Schedule, as_schedule
from langevin.posterior import Batch, Key, Position, Posterior


class SGLDState(NamedTuple):
    """Where the chain is, and what its parts remember.

    `log_density` is the exact one, kept only by `accept="full"`.
    """

    position: Position
    step: jax.Array
    estimator: Any
    preconditioner: Any
    log_density: jax.Array


class SGLDInfo(NamedTuple):
    """What a step tells: the log-density at its start, its size, and the probability with which it was accepted."""

    log_density: jax.Array
    step_size: jax.Array
    acceptance_rate: jax.Array


def sgld(
    posterior: Posterior,
    step_size: float | jax.Array | Schedule,
    *,
    estimator: Estimator | None = None,
    preconditioner: Preconditioner | None = None,
    accept: Literal["minibatch", "full"] | None = None,
    noise_free_steps: Any = None,
) -> Kernel:
    """Builds an SGLD kernel.

    Targets the posterior as the step size goes to zero. At a constant step the sds of a Gaussian posterior are too
    wide by about `step_size * (curvature + gradient noise) / 8`, both measured in units where G is the identity.
    Drawing minibatches with `accept="full"` is exact, because proposal and reverse proposal use the same minibatch,
    which is independent of the position; it reads all rows. `accept="minibatch"` is approximate.

    Args:
        posterior: The target.
        step_size: A number, or a function of the step.
        estimator: Of the gradient; by default the minibatch's own.
        preconditioner: The metric G; by default the identity. `accept` is exact only with a fixed one.
        accept: A Metropolis-Hastings correction: on all rows, or on the minibatch alone. None for no correction.
        noise_free_steps: `step -> bool`: steps that go without noise, as in the exploration of a cycle.

    Returns:
        A kernel with `SGLDState` and `SGLDInfo`.

    Example:
        >>> import jax, langevin as lv
        >>> density = lv.Density(lambda x: -x**2 / 2, init=0.0)
        >>> kernel = lv.kernels.sgld(density.posterior(), 0.1)
        >>> state = kernel.init(jax.random.key(0), jax.numpy.array(1.0), None)
        >>> state, info = kernel.step(jax.random.key(1), state, None)
        >>> round(float(info.log_density), 3)
        -0.5
    """
    if accept not in (None, "minibatch", "full"):
        raise SettingError(f"`sgld`: `accept` must be None, 'minibatch' or 'full'; got {accept!r}.")
    estimator = gradients.minibatch(posterior) if estimator is None else estimator
    preconditioner = preconditioners.fixed() if preconditioner is None else preconditioner
    schedule = as_schedule(step_size)

    def init(key: Key, position: Position, batch: Batch | None) -> SGLDState:
        del key, batch
        log_density = posterior.log_density(position) if accept == "full" else jnp.zeros(())
        step = jnp.zeros((), jnp.int32)
        return SGLDState(position, step, estimator.init(position), preconditioner.init(position), log_density)

    def step(key: Key, state: SGLDState, batch: Batch | None) -> tuple[SGLDState, SGLDInfo]:
        size = jnp.asarray(schedule(state.step), jnp.result_type(float))
        needs_keys = accept is not None or preconditioner.uses_key
        noise_key, gamma_key, accept_key = jax.random.split(key, 3) if needs_keys else (key, key, key)
        memory = estimator.advance(state.position, state.estimator)
        log_density, gradient = estimator.estimate(state.position, memory, batch)
        adapted, metric, gamma = preconditioner.update(gamma_key, state.position, gradient, batch, state.preconditioner)
        spread = jnp.sqrt(size)
        if noise_free_steps is not None:
            spread = jnp.where(noise_free_steps(state.step), 0.0, spread)
        noise = jax.tree.map(lambda n: spread * n, standard_normal(noise_key, state.position))
        drift = jax.tree.map(lambda g: size / 2 * g, metrics.whiten(metric, gradient))
        change = metrics.unwhiten(metric, jax.tree.map(jnp.add, drift, noise))
        if gamma is not None:
            change = jax.tree.map(lambda c, g: c + size / 2 * g, change, gamma)
        proposal = jax.tree.map(lambda x, c: (x + c).astype(x.dtype), state.position, change)
        moved = SGLDState(proposal, state.step + 1, memory, adapted, state.log_density)
        if accept is None:
            return moved, SGLDInfo(log_density, size, jnp.ones(()))

        proposed, reverse = estimator.estimate(proposal, memory, batch)
        if accept == "full":
            log_density, proposed = state.log_density, posterior.log_density(proposal)
            moved = moved._replace(log_density=proposed)
        reverse_drift = jax.tree.map(lambda g: size / 2 * g, metrics.whiten(metric, reverse))
        log_ratio = proposed - log_density + _log_reversal(drift, reverse_drift, noise, size)
        probability = jnp.exp(jnp.minimum(jnp.nan_to_num(log_ratio, nan=-jnp.inf), 0.0))
        stayed = moved._replace(position=state.position, log_density=state.log_density)
        accepted = jax.random.uniform(accept_key) < probability
        chosen = jax.tree.map(lambda a, b: jnp.where(accepted, a, b), moved, stayed)
        return chosen, SGLDInfo(log_density, size, probability)

    def refresh(key: Key, state: SGLDState, batch: Batch | None) -> SGLDState:
        del key, batch
        log_density = posterior.log_density(state.position) if accept == "full" else state.log_density
        return state._replace(estimator=estimator.refresh(state.estimator), log_density=log_density)

    return Kernel(init, step, refresh)


def _log_reversal(drift: Position, reverse_drift: Position, noise: Position, size: jax.Array) -> jax.Array:
    """The log-ratio of the proposals, log q(start | end) - log q(end | start), in whitened units.

    The way there was `drift + noise`; the noise that leads back is `-(drift + noise) - reverse_drift`.
    """
    back = jax.tree.map(lambda d, n, r: d + n + r, drift, noise, reverse_drift)
    return (dot(noise, noise) - dot(back, back)) / (2 * size)
