"""What can be measured of chains without knowing the answer: how wide they are, and how noisy their gradients."""

from __future__ import annotations

import math
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax.flatten_util import ravel_pytree

from langevin.data.batches import Batches
from langevin.drivers import landscape
from langevin.drivers.chains import Draws
from langevin.kernels import gradients
from langevin.kernels.gradients import Estimator
from langevin.keys import derive
from langevin.methods import Sampler
from langevin.posterior import Key, Position, Posterior
from langevin.tuning import Tuning

NUM_NOISE_DRAWS = 16
NUM_WIDTH_DRAWS = 40


class Scrutiny(NamedTuple):
    """What the draws of a run say of its step.

    Attributes:
        noise_ratio: Curvature and gradient noise at the draws, as a multiple of what the step was chosen for, in the
            chain that is worst. None if nothing was expected.
        width: How wide the draws are by Stein's identity, squared: 1 if right. None for few draws.
        width_error: The standard error of that.
    """

    noise_ratio: float | None = None
    width: float | None = None
    width_error: float | None = None


def scrutinise(
    method: Sampler, posterior: Posterior, batches: Batches | None, tuning: Tuning, draws: Draws, key: Key
) -> Scrutiny:
    """Measures the running chains of a finished run."""
    running = draws.stopped < 0
    num_draws = draws.valid.shape[1]
    if not running.any():
        return Scrutiny()
    positions = jax.tree.map(lambda leaf: leaf[running], draws.position)
    noise_key, width_key = derive(key, 2)
    noise_ratio = found = error = None
    if batches is not None and tuning.gradient_noise is not None:
        by_chain = noise_at_draws(method, posterior, batches, tuning, positions, noise_key).mean(axis=1)
        noise_ratio = float(by_chain[np.argmax(np.abs(np.log(by_chain)))])
    if num_draws >= NUM_WIDTH_DRAWS:
        chosen = np.linspace(0, num_draws - 1, NUM_WIDTH_DRAWS).astype(int)
        weights = np.asarray(draws.info["step_size"], np.float64)[running]
        middle = jax.tree.map(lambda leaf: np.tensordot(weights / weights.sum(), leaf, axes=2), positions)
        centre = jax.tree.map(lambda m, leaf: jnp.asarray(m, leaf.dtype), middle, positions)
        found, error = width(posterior, batches, jax.tree.map(lambda x: x[:, chosen], positions), centre, width_key)
    return Scrutiny(noise_ratio, found, error)


def width(
    posterior: Posterior, batches: Batches | None, positions: Position, centre: Position, key: Key
) -> tuple[float, float]:
    """How wide draws are, by Stein's identity.

    -E[(x - centre) . grad log p(x)] / d is 1 under the posterior, for any centre, and the square of the relative width
    under a wider Gaussian. Stochastic gradients leave it unbiased.

    Args:
        posterior: The target.
        batches: How minibatches are drawn; None for all rows.
        positions: The draws, of shape (chains, draws, ...), with a multiple of 4 draws a chain.
        centre: Any point, best the middle.
        key: For the minibatches.

    Returns:
        That number, and its standard error from four blocks a chain.
    """
    num_chains = len(jax.tree.leaves(positions)[0])
    values = np.asarray(_products(batches, posterior, positions, centre, key), np.float64).reshape(num_chains, -1)
    if not np.isfinite(values).all():
        return math.inf, 0.0
    blocks = values.reshape(num_chains, 4, -1).mean(axis=2)
    return float(blocks.mean()), float(blocks.std(ddof=1) / math.sqrt(blocks.size))


@jax.jit(static_argnames="batches")
def _products(
    batches: Batches | None, posterior: Posterior, positions: Position, centre: Position, key: Key
) -> jax.Array:
    def one(inputs: Any) -> jax.Array:
        position, step = inputs
        batch = None
        if batches is not None:
            batch = batches.take(posterior.data, posterior.num_data, jax.random.fold_in(key, step), step)
        gradient, _ = ravel_pytree(jax.grad(posterior.log_density)(position, batch))
        gap = ravel_pytree(position)[0] - ravel_pytree(centre)[0]
        return -jnp.vdot(gap, gradient) / gap.size

    flat = jax.tree.map(lambda leaf: leaf.reshape(-1, *leaf.shape[2:]), positions)
    return jax.lax.map(one, (flat, jnp.arange(len(jax.tree.leaves(flat)[0]))))


def noise_at_draws(
    method: Sampler, posterior: Posterior, batches: Batches, tuning: Tuning, positions: Position, key: Key
) -> np.ndarray:
    """Curvature and gradient noise at some draws of each chain, as a multiple of what warm-up expected of the two.

    The step, and what SGHMC takes off its noise, rest on that expectation. The draws are of shape (chains, draws, ...).
    """
    num_draws = jax.tree.leaves(positions)[0].shape[1]
    expected = max(float(leaf.max()) for leaf in jax.tree.leaves(tuning.gradient_noise))
    ratios = []
    chosen = np.linspace(0, num_draws - 1, NUM_NOISE_DRAWS).astype(int)
    for index, draw_key in zip(chosen, derive(key, NUM_NOISE_DRAWS), strict=True):
        here = jax.tree.map(lambda leaf, i=index: jnp.asarray(leaf[:, i]), positions)
        args = (posterior, batches, ESTIMATORS[method.estimator], tuning.centre, here, draw_key)
        found = jax.tree.leaves(landscape.gradient_noise(tuning.metric, *args).variance)
        largest = np.max([np.max(np.reshape(leaf, (len(leaf), -1)), axis=1) for leaf in found], axis=0)
        ratios.append((tuning.stiffest + largest) / (tuning.stiffest + expected))
    return np.stack(ratios, axis=1)


def _plain_estimator(posterior: Posterior, centre: Position) -> Estimator:
    del centre
    return gradients.minibatch(posterior)


# An anchored estimator is measured with its anchor at the mode and the position at a typical distance from it.
ESTIMATORS = {
    "minibatch": _plain_estimator,
    "control_variate": gradients.control_variate,
    "svrg": gradients.control_variate,
}
