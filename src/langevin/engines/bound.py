"""Steps of variational inference: one compiled loop over a chunk of steps of every restart."""

from __future__ import annotations

import functools
import math
from typing import TYPE_CHECKING, Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from langevin.data.batches import Batches
from langevin.posterior import Batch
from langevin.run.gist import gist
from langevin.run.seeds import key_of
from langevin.variational.elbo import Estimate, begin_baselines, surrogate
from langevin.variational.families import Parameters

if TYPE_CHECKING:
    import optax

    from langevin.methods.variational import VI


class Fits(NamedTuple):
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
    static: tuple[Any, Batches | None, bool],
    objective: Any,
    carry: Fits,
    noise: Any,
    rates: jax.Array,
    words: jax.Array,
    numbers: jax.Array,
) -> tuple[Fits, jax.Array]:
    """Takes some steps.

    Args:
        static: The settings of `lv.VI`, how minibatches are drawn, and whether parameters are averaged, which costs a
            pass over them.
        objective: An `Objective`.
        carry: Where the restarts are.
        noise: Of every step, restart and particle.
        rates: The learning rate at every step, for Adam; a given optimiser has its own.
        words: Of the key of the minibatches.
        numbers: How many steps to take, the step from which parameters are averaged, and the one from which the
            learning rate of a family's parameter is in its units.

    Returns:
        Where the restarts are then, and the bound at every step, (restarts, steps).
    """
    method, batches, averaged = static
    count, average_from, in_units_from = numbers

    def one_step(number: jax.Array, state: tuple[Any, jax.Array, jax.Array]) -> tuple[Any, jax.Array, jax.Array]:
        fits, step, elbos = state
        batch = None
        if batches is not None:
            key = key_of(words)
            batch = batches.take(objective.data, objective.num_data, key, step)

        def one_fit(fit: Any, noises: Any) -> tuple[Any, jax.Array]:
            parameters, opt, average, baselines, skipped = fit
            loss = functools.partial(loss_of, method, objective, baselines, noises, batch)
            (_, estimate), slope = jax.value_and_grad(loss, has_aux=True)(parameters)
            # A step at which something is not finite is left out: no gradient, and no move.
            fine = jnp.isfinite(estimate.value) & _all_finite(slope)
            slope = jax.tree.map(lambda g: jnp.where(fine, g, 0.0), slope)
            if method.optimizer is None:
                towards, opt = adam().update(slope, opt)
                units = jax.tree.map(
                    lambda u: jnp.where(step >= in_units_from, u, 1.0), objective.rate_units(parameters)
                )
                updates = jax.tree.map(lambda t, u: -rates[number] * u * t, towards, units)
            else:
                updates, opt = method.optimizer.update(slope, opt, parameters)
            moved = jax.tree.map(lambda p, u: (p + jnp.where(fine, u, 0.0)).astype(p.dtype), parameters, updates)
            baselines = jax.tree.map(lambda new, old: jnp.where(fine, new, old), estimate.baselines, baselines)
            skipped = skipped + ~fine
            if averaged:
                share = jnp.where(step >= average_from, 1 / (jnp.maximum(step - average_from, 0) + 1), 0.0)
                average = jax.tree.map(lambda a, p: a + share.astype(a.dtype) * (p - a), average, moved)
            return (moved, opt, average, baselines, skipped), estimate.value

        noises = jax.tree.map(lambda leaf: leaf[number], noise)
        if method.num_restarts == 1:
            fits, elbo = one_fit(fits, jax.tree.map(lambda leaf: leaf[0], noises))
        else:
            fits, elbo = jax.vmap(one_fit)(fits, noises)
        elbo = jnp.broadcast_to(elbo, (method.num_restarts,)).astype(elbos.dtype)
        return fits, step + 1, jax.lax.dynamic_update_index_in_dim(elbos, elbo, number, 1)

    *fits, step = carry
    # A single restart is not batched, which XLA would be slower at.
    alone = method.num_restarts == 1
    fits = jax.tree.map(lambda leaf: leaf[0], tuple(fits)) if alone else tuple(fits)
    elbos = jnp.zeros((method.num_restarts, len(rates)), rates.dtype)
    fits, step, elbos = jax.lax.fori_loop(0, count, one_step, (fits, step, elbos))
    fits = jax.tree.map(lambda leaf: leaf[None], fits) if alone else fits
    return Fits(*fits, step), elbos


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


def mean_bound(method: VI, objective: Any, parameters: Parameters, noises: Any, batch: Batch | None) -> jax.Array:
    """The bound on these rows (None: all), as the mean over many estimates."""
    baselines = begin_baselines(objective.wiring, jnp.result_type(float))

    def one(noise: Any) -> jax.Array:
        return loss_of(method, objective, baselines, noise, batch, parameters)[1].value

    return jnp.mean(jax.lax.map(one, noises, batch_size=8))


def largest_of(method: VI, objective: Any, batches: Batches | None) -> int:
    """About how many numbers the largest array in a step has."""
    width = sum(math.prod(leaf.shape[1:]) for leaf in jax.tree.leaves(objective.data))
    rows = objective.num_data if batches is None else batches.size
    return width * max(rows, 1) * method.num_restarts * method.num_particles


def gist_of(method: VI, objective: Any, carry: Fits, noise: Any, batches: Batches | None) -> str | None:
    """The gist of the gradient, which tells whether the program is already there."""
    parameters, baselines = (jax.tree.map(lambda a: a[0], tree) for tree in (carry.parameters, carry.baselines))
    noises = jax.tree.map(lambda leaf: leaf[0, 0], noise)
    batch = None if batches is None else jax.tree.map(lambda leaf: leaf[: batches.size], objective.data)

    def slope(objective: Any, parameters: Any, noises: Any, batch: Any) -> Any:
        return jax.value_and_grad(
            functools.partial(loss_of, method, objective, baselines, noises, batch), has_aux=True
        )(parameters)

    return gist(slope, objective, parameters, noises, batch)


def begin_optimizer(method: VI, stacked: Parameters) -> Any:
    """The state of the optimiser of each restart before the first step."""
    optimizer = adam() if method.optimizer is None else method.optimizer
    return jax.tree.map(np.asarray, jax.vmap(optimizer.init)(stacked))


def adam() -> optax.GradientTransformation:
    """Adam's direction, to be multiplied by minus the learning rate."""
    import optax  # here, since it takes a tenth of a second that no other method should pay

    return optax.scale_by_adam()


def _all_finite(tree: Any) -> jax.Array:
    """Whether there is no infinity or NaN: one would make the sum one too."""
    return jnp.isfinite(jnp.stack([jnp.sum(leaf) for leaf in jax.tree.leaves(tree)])).all()
