"""The compiled part of variational inference: a chunk of steps of every restart."""

from __future__ import annotations

import functools
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from langevin.data.batches import Batches
from langevin.drivers.gist import gist
from langevin.methods import VI
from langevin.posterior import Batch
from langevin.variational.elbo import Estimate, begin_baselines, for_each, surrogate
from langevin.variational.families import Parameters


class Carry(NamedTuple):
    """A fit between two steps; every leaf but `step` has the restarts in front.

    Attributes:
        parameters: Of q.
        optimizer: The state of the optimiser.
        average: The mean of the parameters since `began`.
        baselines: Of the score function.
        skipped: Steps at which the bound or its gradient was not finite.
        step: How many steps were taken.
    """

    parameters: Parameters
    optimizer: Any
    average: Parameters
    baselines: Any
    skipped: jax.Array
    step: jax.Array


def advance(
    static: tuple[VI, Batches | None],
    objective: Any,
    carry: Carry,
    noise: Any,
    rates: jax.Array,
    words: jax.Array,
    numbers: jax.Array,
) -> tuple[Carry, jax.Array]:
    """Takes some steps.

    Args:
        static: The settings, and how minibatches are drawn.
        objective: An `Objective`.
        carry: Where the restarts are.
        noise: Of every step, restart and particle.
        rates: The learning rate at every step; a given optimiser has its own.
        words: Of the key of the minibatches.
        numbers: How many steps to take, the step after which parameters are averaged, and the one after which the
            learning rate of a mean is in scales of q.

    Returns:
        Where the restarts are then, and the bound at every step, (restarts, steps).
    """
    method, batches = static
    optimizer = optimizer_of(method)
    num_restarts = method.num_restarts
    count, average_from, in_scales_from = numbers

    def one_step(number: jax.Array, state: tuple[Carry, jax.Array]) -> tuple[Carry, jax.Array]:
        carry, elbos = state
        batch = None
        if batches is not None:
            key = jax.random.wrap_key_data(words)
            batch = batches.take(objective.data, objective.num_data, key, carry.step)
        noises = jax.tree.map(lambda leaf: leaf[number], noise)
        averaged = jnp.maximum(carry.step - average_from, 0) + 1

        def one_fit(parameters: Any, opt: Any, average: Any, baselines: Any, skipped: Any, noises: Any) -> Any:
            loss = functools.partial(loss_of, method, objective, baselines, noises, batch)
            (_, estimate), slope = jax.value_and_grad(loss, has_aux=True)(parameters)
            updates, new_opt = optimizer.update(slope, opt, parameters)
            rate = rates[number] if method.optimizer is None else -1.0
            if method.optimizer is None:
                updates = _in_scales(parameters, updates, carry.step >= in_scales_from)
            moved = jax.tree.map(lambda p, u: (p - rate * u).astype(p.dtype), parameters, updates)
            fine = jnp.isfinite(estimate.value) & _all_finite(slope)
            new = (moved, new_opt, moved, estimate.baselines)
            parameters, opt, latest, baselines = jax.tree.map(
                lambda a, b: jnp.where(fine, a, b), new, (parameters, opt, parameters, baselines)
            )
            average = jax.tree.map(lambda a, p: a + (p - a) / averaged, average, latest)
            return (parameters, opt, average, baselines, skipped + ~fine), estimate.value

        fits = (carry.parameters, carry.optimizer, carry.average, carry.baselines, carry.skipped)
        fits, elbo = for_each(one_fit, num_restarts, *fits, noises)
        elbos = jax.lax.dynamic_update_index_in_dim(elbos, elbo.astype(elbos.dtype), number, 1)
        return Carry(*fits, carry.step + 1), elbos

    elbos = jnp.zeros((num_restarts, len(rates)), rates.dtype)
    return jax.lax.fori_loop(0, count, one_step, (carry, elbos))


def loss_of(
    method: VI, objective: Any, baselines: Any, noises: Any, batch: Batch | None, parameters: Parameters
) -> tuple[jax.Array, Estimate]:
    """What is minimised, whose gradient is an estimate of that of `-bound / num_data`; and the bound."""
    total, estimate = surrogate(
        lambda noise: objective.sample(parameters, noise, batch),
        objective.wiring,
        noises,
        method.num_particles,
        baselines,
        bound=method.bound,
        baseline=method.baseline_used,
        rao_blackwell=method.rao_blackwell,
    )
    return -total / max(objective.num_data, 1), estimate


def _in_scales(parameters: Parameters, updates: Parameters, on: jax.Array) -> Parameters:
    """Steps of the means of a family in units of its scales: then all coordinates are equally easy, wide or narrow."""
    if "rest" in parameters:
        return updates | {"rest": _in_scales(parameters["rest"], updates["rest"], on)}
    if not {"mean", "log_scale"} <= set(parameters):
        return updates
    if "globals" in parameters:
        updates = updates | {"globals": _in_scales(parameters["globals"], updates["globals"], on)}
    return updates | {"mean": updates["mean"] * jnp.where(on, jnp.exp(parameters["log_scale"]), 1.0)}


def mean_bound(method: VI, objective: Any, parameters: Parameters, noises: Any, batch: Batch) -> jax.Array:
    """The bound on these rows, as the mean over many estimates."""
    baselines = begin_baselines(objective.wiring, jnp.result_type(float))

    def one(noise: Any) -> jax.Array:
        return loss_of(method, objective, baselines, noise, batch, parameters)[1].value

    return jnp.mean(jax.lax.map(one, noises, batch_size=8))


def gist_of(method: VI, objective: Any, carry: Carry, noise: Any, batches: Batches | None) -> str | None:
    """The gist of the gradient, which tells whether the program is already there."""
    if method.optimizer is not None:
        return None
    parameters, baselines = (jax.tree.map(lambda a: a[0], tree) for tree in (carry.parameters, carry.baselines))
    noises = jax.tree.map(lambda leaf: leaf[0, 0], noise)
    batch = None if batches is None else jax.tree.map(lambda leaf: leaf[: batches.size], objective.data)

    def slope(objective: Any, parameters: Any, noises: Any, batch: Any) -> Any:
        return jax.value_and_grad(
            functools.partial(loss_of, method, objective, baselines, noises, batch), has_aux=True
        )(parameters)

    return gist(slope, objective, parameters, noises, batch)


def optimizer_of(method: VI) -> Any:
    """The given optimiser; or Adam, without its learning rate."""
    if method.optimizer is not None:
        return method.optimizer
    import optax  # here, since it takes a tenth of a second that no other method should pay

    return optax.scale_by_adam()


def _all_finite(tree: Any) -> jax.Array:
    return jnp.stack([jnp.all(jnp.isfinite(leaf)) for leaf in jax.tree.leaves(tree)]).all()
