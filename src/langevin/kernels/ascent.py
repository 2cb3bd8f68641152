"""Climbing to a mode with an Optax optimiser, in the shape of a kernel.

    x <- x + update(grad(x))

Targets no density: its positions converge to a local maximum of the (unconstrained) log-density.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

import jax
import jax.numpy as jnp

from langevin.kernels.base import Kernel
from langevin.posterior import Batch, Key, Position, Posterior

if TYPE_CHECKING:
    import optax

OptimizerName = Literal["adam", "rmsprop", "sgd"]
MOMENTUM = 0.9


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


def optimizer_of(
    name: OptimizerName, learning_rate: float, num_steps: int, decay: Literal["exponential", "cosine"]
) -> optax.GradientTransformation:
    """An optimiser by its name, with a rate that falls to a thousandth exponentially, or to zero along half a cosine.

    Args:
        name: "sgd" has momentum 0.9.
        learning_rate: At the start.
        num_steps: When it has fallen.
        decay: How it falls.
    """
    import optax  # here, since it takes a tenth of a second that no other method should pay

    rate = optax.exponential_decay(learning_rate, num_steps, 1e-3)
    if decay == "cosine":
        rate = optax.cosine_decay_schedule(learning_rate, num_steps)
    makers: dict[str, Callable[..., Any]] = {
        "adam": optax.adam,
        "rmsprop": optax.rmsprop,
        "sgd": lambda rate: optax.sgd(rate, momentum=MOMENTUM),
    }
    return makers[name](rate)
