"""What a stochastic-gradient method needs to know around the weights of a network, from minibatches alone.

    precision_i = |d^2 log prior / dw_i^2| + num_data Var_rows(d log p(y | x, w) / dw_i)
    metric_i    = 1 / precision_i

The second term is the diagonal of the empirical Fisher matrix, which stands for the curvature of the likelihood. The
same variance over rows is the gradient noise of minibatches of B rows: `num_data^2 / B Var_rows`, in units of the
metric at most `num_data / B` where the prior says little. Priors of weights factorise, so that one product of their
Hessian with a vector of ones is its diagonal.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax.flatten_util import ravel_pytree

from langevin.contracts import Position
from langevin.data.batches import Batches
from langevin.geometry import landscape
from langevin.geometry.evaluating import evenly
from langevin.geometry.measuring import mean_over_chains
from langevin.geometry.scrutiny import over_draws
from langevin.kernels import metrics
from langevin.kernels.base import dot, standard_normal
from langevin.kernels.metrics import Diagonal
from langevin.posterior import Batch, Posterior
from langevin.run.compilation import Programs
from langevin.run.seeds import Seed, key_of

# Of a weight that neither prior nor data say anything of.
LEAST_PRECISION = 1e-2
# Rows times weights of a product with the Hessian, and how many rows at least and at most.
WORK, FEWEST_ROWS, MOST_ROWS = 5e8, 256, 16_384
NUM_PRODUCTS = 20
# Rows that say how high a chain is: to a nat a row, few will do.
ROWS_OF_HEIGHT = 1024
# Where every step takes all rows there is no minibatch: rows are then seen in batches of this size.
SEEN_TOGETHER = 32


class Around(NamedTuple):
    """What was measured around the chains, averaged over them.

    Attributes:
        precision: By weight.
        noise: The variance of the gradient of a minibatch, in plain units; zeros where every step takes all rows.
        mean_square: The mean of its square.
    """

    precision: Position
    noise: Position
    mean_square: Position


def around(programs: Programs, target: Posterior, batches: Batches | None, positions: Position, seed: Seed) -> Around:
    """Measures precision and gradient noise.

    Args:
        programs: The compiled programs of the run.
        target: The posterior.
        batches: How minibatches are drawn; None for all rows in every step.
        positions: Where the chains are, with the chains in front.
        seed: For the minibatches.
    """
    seen = Batches(min(SEEN_TOGETHER, target.num_data), "rows") if batches is None else batches
    arguments = (target, None, None, positions, seed.child("noise").key_words())
    noise = mean_over_chains(programs(landscape.gradient_noise, (seen, "minibatch"), *arguments))
    prior = mean_over_chains(programs(_curvature_of_prior, None, target, positions))
    # Without replacement a minibatch has less noise than as many rows have.
    population = max(target.num_data - 1, 1)
    shrink = 1.0 if seen.order == "rows" else max((target.num_data - seen.size) / population, 1 / population)
    share = seen.size / target.num_data / shrink

    def precision(of_prior: np.ndarray, variance: np.ndarray) -> np.ndarray:
        return np.maximum(of_prior + share * variance, LEAST_PRECISION).astype(variance.dtype)

    known = noise.variance if batches is not None else jax.tree.map(np.zeros_like, noise.variance)
    return Around(jax.tree.map(precision, prior, noise.variance), known, noise.mean_square)


def stiffest(programs: Programs, target: Posterior, positions: Position, metric: Diagonal | None, seed: Seed) -> float:
    """The largest curvature in the units of a metric at any of the positions, by power iteration on some rows."""
    size = sum(np.size(leaf[0]) for leaf in jax.tree.leaves(positions))
    count = int(min(np.clip(WORK / size, FEWEST_ROWS, MOST_ROWS), target.num_data))
    words = seed.child("power").key_words()
    found = np.asarray(programs(_largest_curvature, count, target, positions, metric, words))
    return float(np.max(found[np.isfinite(found)], initial=1.0))


def heights(programs: Programs, target: Posterior, positions: Position) -> np.ndarray:
    """The log-density of each chain's position, estimated from evenly spread rows."""
    index = evenly(target.num_data, min(ROWS_OF_HEIGHT, target.num_data))
    rows: Batch = jax.tree.map(lambda array: array[index], target.data)
    return np.asarray(programs(_heights, None, target.with_data(rows), positions, rows), np.float64)


def _heights(_: None, target: Posterior, positions: Position, rows: Batch) -> jax.Array:
    return jax.lax.map(lambda position: target.log_density(position, rows), positions)


def _curvature_of_prior(_: None, target: Posterior, positions: Position) -> Position:
    def one(position: Position) -> Position:
        product = _product(target.log_prior, position, jax.tree.map(jnp.ones_like, position))
        return jax.tree.map(jnp.abs, product)

    return jax.vmap(one)(positions)


def _largest_curvature(
    count: int, target: Posterior, positions: Position, metric: Diagonal | None, words: jax.Array
) -> jax.Array:
    index = evenly(target.num_data, count)
    rows: Batch = jax.tree.map(lambda array: array[index], target.data)

    def one(position: Position) -> jax.Array:
        def body(_: jax.Array, carry: Any) -> Any:
            vector, _ = carry
            ahead = metrics.unwhiten(metric, vector)
            product = _product(lambda x: target.log_density(x, rows), position, ahead)
            flat, unravel = ravel_pytree(metrics.whiten(metric, product))
            norm = jnp.linalg.norm(flat)
            return unravel(flat / jnp.maximum(norm, 1e-30)), norm

        flat, unravel = ravel_pytree(standard_normal(key_of(words), position))
        start = (unravel(flat / jnp.linalg.norm(flat)), jnp.zeros((), flat.dtype))
        return jax.lax.fori_loop(0, NUM_PRODUCTS, body, start)[1]

    return jax.vmap(one)(positions)


def _product(function: Any, position: Position, vector: Position) -> Position:
    """The Hessian of a function times a vector, backwards twice: not every function can be differentiated forwards."""
    return jax.grad(lambda x: dot(jax.grad(function)(x), vector))(position)


def temperatures(
    programs: Programs, target: Posterior, batches: Batches | None, positions: Position, seed: Seed
) -> np.ndarray:
    """The temperature that draws have by Stein's identity, -x . grad log p(x) / size: 1 on average, (chains, draws).

    Args:
        programs: The compiled programs of the run.
        target: The posterior.
        batches: How minibatches are drawn; None for all rows. A minibatch leaves it unbiased.
        positions: Draws (chains, draws, ...).
        seed: For the minibatches.
    """
    num_chains, num_draws = jax.tree.leaves(positions)[0].shape[:2]
    static = (batches, num_chains * num_draws)
    found = programs(_temperatures, static, target, positions, seed.key_words())
    return np.asarray(found, np.float64).reshape(num_chains, num_draws)


def _temperatures(
    static: tuple[Batches | None, int], target: Posterior, positions: Position, words: jax.Array
) -> jax.Array:
    def temperature(position: Position, gradient: Position) -> jax.Array:
        return -dot(position, gradient) / sum(jnp.size(leaf) for leaf in jax.tree.leaves(position))

    return over_draws(static, target, positions, words, temperature)
