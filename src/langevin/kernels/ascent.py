"""Climbing to a mode with an Optax optimiser, in the shape of a kernel.

    x <- x + update(grad(x))

Targets no density: its positions converge to a local maximum of the (unconstrained) log-density.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

import jax
import jax.numpy as jnp

from langevin.kernels.base import Kernel
from langevin.posterior import Batch, Key, Position, Posterior

if TYPE_CHECKING:
    import optax


class AscentState(NamedTuple):
    """Where the climb is, and what the optimiser remembers."""

    position: Position
    optimizer: Any


class AscentInfo(NamedTuple):
    """What a step tells: the log-density at its start. A draw stands for one step."""

    log_density: jax.Array
    step_size: jax.Array


def ascent(posterior: Posterior, optimizer: optax.GradientTransformation) -> Kernel:
    """Builds a kernel that maximises the log-density.

    The optimiser sees the gradient of `-log_density / num_data`, the scale for which learning rates are usually quoted.

    Args:
        posterior: The target.
        optimizer: Any Optax optimiser.

    Returns:
        A kernel with `AscentState` and `AscentInfo`.
    """
    count = max(posterior.num_data, 1)

    def init(key: Key, position: Position, batch: Batch | None) -> AscentState:
        del key, batch
        return AscentState(position, optimizer.init(position))

    def step(key: Key, state: AscentState, batch: Batch | None) -> tuple[AscentState, AscentInfo]:
        del key
        log_density, gradient = jax.value_and_grad(posterior.log_density)(state.position, batch)
        loss_gradient = jax.tree.map(lambda g: -g / count, gradient)
        updates, memory = optimizer.update(loss_gradient, state.optimizer, state.position)
        position: Any = jax.tree.map(lambda x, u: (x + u).astype(x.dtype), state.position, updates)
        return AscentState(position, memory), AscentInfo(log_density, jnp.ones(()))

    return Kernel(init, step)
