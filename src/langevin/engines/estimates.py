"""Many estimates of the gradient of the bound at one point, to compare estimators."""

from __future__ import annotations

import functools
from typing import TYPE_CHECKING, Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from langevin.data.batches import Batches
from langevin.engines.bound import loss_of
from langevin.run.seeds import Seed, key_of
from langevin.variational.elbo import begin_baselines
from langevin.variational.families import Parameters

if TYPE_CHECKING:
    from langevin.methods.variational import VI


class Gradients(NamedTuple):
    """Estimates of the gradient of the bound at one point.

    Attributes:
        parameters: The point.
        samples: A pytree like it, with the estimates in front.
        mean: Over the estimates.
        variance: Of one estimate.
        elbo: The bound, as each estimated it.
    """

    parameters: Parameters
    samples: Parameters
    mean: Parameters
    variance: Parameters
    elbo: np.ndarray


def gradients_of(
    method: VI,
    objective: Any,
    batches: Batches | None,
    parameters: Parameters | None,
    num_samples: int,
    seed: Seed,
) -> Gradients:
    """Many estimates of the gradient of the bound, each from noise (and a minibatch) of its own."""
    if parameters is None:
        parameters = objective.init(seed.child("starts").generator())
    dtype = jnp.result_type(*jax.tree.leaves(parameters))
    noises = objective.noise(seed.child("noise").generator(), (num_samples, method.num_particles), dtype)
    baselines = begin_baselines(objective.wiring, dtype)
    number_of = max(objective.num_data, 1)

    @jax.jit
    def estimates(objective: Any, parameters: Any, noises: Any, words: jax.Array) -> Any:
        def one(given: tuple[Any, jax.Array]) -> Any:
            noise, step = given
            key = key_of(words)
            batch = None if batches is None else batches.take(objective.data, objective.num_data, key, step)
            loss = functools.partial(loss_of, method, objective, baselines, noise, batch)
            (_, estimate), slope = jax.value_and_grad(loss, has_aux=True)(parameters)
            return jax.tree.map(lambda leaf: -number_of * leaf, slope), estimate.value

        return jax.lax.map(one, (noises, jnp.arange(num_samples)), batch_size=min(num_samples, 64))

    samples, elbo = estimates(objective, parameters, noises, seed.child("minibatches").key_words())
    samples = jax.tree.map(np.asarray, samples)
    mean, variance = (jax.tree.map(lambda leaf, f=f: f(leaf, axis=0), samples) for f in (np.mean, np.var))
    return Gradients(parameters, samples, mean, variance, np.asarray(elbo))
