"""Preconditioners: metrics that may change as the chain moves (Girolami & Calderhead 2011; Li et al. 2016)."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from langevin.kernels.metrics import Diagonal, Metric
from langevin.posterior import Batch, Key, Position, Posterior


class Preconditioner(NamedTuple):
    """A metric with a memory.

    Attributes:
        init: `position -> state`.
        update: `(key, position, gradient, batch, state) -> (state, metric, gamma)`. `gamma` is the drift
            `sum_j dG_ij / dx_j` that a metric which depends on the position calls for, or None for zero.
        uses_key: Whether `update` draws random numbers.
    """

    init: Callable[[Position], Any]
    update: Callable[[Key, Position, Position, Batch | None, Any], tuple[Any, Metric | None, Position | None]]
    uses_key: bool = False


class RMSpropState(NamedTuple):
    """The running mean of squared gradients."""

    mean_square: Position


def fixed(metric: Metric | None = None) -> Preconditioner:
    """A constant metric, for which gamma is zero. None is the identity."""
    return Preconditioner(
        init=lambda position: (),
        update=lambda key, position, gradient, batch, state: (state, metric, None),
    )


def rmsprop(posterior: Posterior, decay: float = 0.99, damping: float = 1e-5, gamma: bool = True) -> Preconditioner:
    """RMSprop as a metric that adapts throughout.

        v <- decay * v + (1 - decay) * (gradient / num_data)^2
        G  = 1 / (damping + sqrt(v))
        gamma_i = dG_ii/dx_i = -(1 - decay) G_ii^2 (gradient_i / num_data) H_ii / sqrt(v_i)

    where H is the Hessian of the minibatch log-density over num_data. Its diagonal is estimated without bias from one
    product with a random sign vector (Hutchinson). Biased: v remembers earlier positions, which the formula for gamma
    ignores; without gamma (`gamma=False`, as Li et al. propose) the bias is of order (1 - decay)^2 / decay^3. For a
    correct chain, adapt in warm-up and then use `fixed(metric(state))`.

    Args:
        posterior: The target.
        decay: How slowly squared gradients are forgotten.
        damping: Keeps G finite; lambda in Li et al.
        gamma: Whether to compute the gamma term or to drop it.
    """
    count = max(posterior.num_data, 1)

    def init(position: Position) -> RMSpropState:
        return RMSpropState(jax.tree.map(jnp.ones_like, position))

    def update(
        key: Key, position: Position, gradient: Position, batch: Batch | None, state: RMSpropState
    ) -> tuple[RMSpropState, Metric, Position | None]:
        mean = jax.tree.map(lambda g: g / count, gradient)
        square = jax.tree.map(lambda v, g: decay * v + (1 - decay) * g**2, state.mean_square, mean)
        metric = rmsprop_metric(RMSpropState(square), damping)
        if not gamma:
            return RMSpropState(square), metric, None
        curvature = hessian_diagonal(lambda x: posterior.log_density(x, batch), key, position)

        def correction(scale: jax.Array, g: jax.Array, hessian: jax.Array, v: jax.Array) -> jax.Array:
            return -(1 - decay) * scale**2 * g * (hessian / count) / jnp.sqrt(jnp.maximum(v, 1e-30))

        drift = jax.tree.map(correction, metric.variance, mean, curvature, square)
        return RMSpropState(square), metric, drift

    return Preconditioner(init, update, uses_key=gamma)


def rmsprop_metric(state: RMSpropState, damping: float) -> Diagonal:
    """The metric that a state of `rmsprop` stands for."""
    return Diagonal(jax.tree.map(lambda v: 1.0 / (damping + jnp.sqrt(v)), state.mean_square))


def hessian_diagonal(function: Callable[[Position], jax.Array], key: Key, position: Position) -> Position:
    """An unbiased estimate of the Hessian's diagonal, from one product with a random sign vector (Hutchinson)."""
    leaves, structure = jax.tree.flatten(position)
    keys = jax.random.split(key, len(leaves))
    signs = [jax.random.rademacher(k, jnp.shape(leaf), leaf.dtype) for k, leaf in zip(keys, leaves, strict=True)]
    probe = jax.tree.unflatten(structure, signs)
    _, product = jax.jvp(jax.grad(function), (position,), (probe,))
    return jax.tree.map(jnp.multiply, probe, product)
