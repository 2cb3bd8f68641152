"""What can be measured of chains without knowing the answer: how wide they are, and how noisy their gradients."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.flatten_util import ravel_pytree

from langevin.contracts import State
from langevin.data.batches import Batches
from langevin.geometry import landscape
from langevin.posterior import Position, Posterior
from langevin.run.compilation import Programs
from langevin.run.seeds import Seed, key_of
from langevin.tuning import Tuning

NUM_NOISE_DRAWS = 4
NUM_WIDTH_DRAWS = 40
MOST_BYTES, FEW_BYTES = 100_000_000, 4_000_000
MOST_SAMPLED = 400
CHANCE = 0.01


def width(
    programs: Programs, batches: Batches | None, posterior: Posterior, positions: Position, centre: Position, seed: Seed
) -> np.ndarray:
    """How wide draws are, by Stein's identity.

    -E[(x - centre)_i grad_i log p(x)] is 1 under the posterior, for each coordinate i and any centre, and the square of
    the relative width under a wider Gaussian. Stochastic gradients leave it unbiased.

    Args:
        programs: The compiled programs of the run.
        batches: How minibatches are drawn; None for all rows.
        posterior: The target.
        positions: The draws, of shape (chains, draws, ...), a multiple of 4.
        centre: Any point, best the middle.
        seed: For the minibatches.

    Returns:
        Its mean over four blocks of each chain, (chains, 4, coordinates); see `mean_and_error` and `widest`.
    """
    num_chains, num_draws = jax.tree.leaves(positions)[0].shape[:2]
    static = (batches, num_chains * num_draws)
    products = programs(_products, static, posterior, positions, centre, seed.key_words())
    with np.errstate(invalid="ignore", over="ignore"):
        return np.asarray(products, np.float64).reshape(num_chains, 4, -1, products.shape[-1]).mean(axis=2)


def mean_and_error(blocks: np.ndarray) -> tuple[float, float]:
    """The mean over blocks and coordinates and its standard error; infinite where they are not finite."""
    if not np.isfinite(blocks).all():
        return math.inf, 0.0
    blocks = blocks.mean(axis=-1)
    return float(blocks.mean()), float(blocks.std(ddof=1) / math.sqrt(blocks.size))


def widest(blocks: np.ndarray) -> float:
    """The largest mean of a coordinate, less what may be chance; infinite where they are not finite."""
    from scipy.special import stdtrit

    if not np.isfinite(blocks).all():
        return math.inf
    by_block = blocks.reshape(-1, blocks.shape[-1])
    count, size = by_block.shape
    most = float(-stdtrit(count - 1, CHANCE / max(size, 1)))
    return float(np.max(by_block.mean(axis=0) - most * by_block.std(axis=0, ddof=1) / math.sqrt(count), initial=0.0))


def over_draws(
    static: tuple[Batches | None, int],
    posterior: Posterior,
    positions: Position,
    words: jax.Array,
    function: Callable[[Position, Position], jax.Array],
) -> jax.Array:
    """A function of each draw and the gradient there, each with a minibatch of its own. For compiled code.

    Args:
        static: How minibatches are drawn, and how many draws there are in all.
        posterior: The target.
        positions: Draws (chains, draws, ...).
        words: Of the key of the minibatches.
        function: `(position, gradient) -> array`.
    """
    batches, count = static

    def one(inputs: Any) -> jax.Array:
        position, step = inputs
        batch = None
        if batches is not None:
            key = jax.random.fold_in(key_of(words), step)
            batch = batches.take(posterior.data, posterior.num_data, key, step)
        return function(position, jax.grad(posterior.log_density)(position, batch))

    flat = jax.tree.map(lambda leaf: leaf.reshape(-1, *leaf.shape[2:]), positions)
    return jax.lax.map(one, (flat, jnp.arange(count)))


def _products(
    static: tuple[Batches | None, int], posterior: Posterior, positions: Position, centre: Position, words: jax.Array
) -> jax.Array:
    def product(position: Position, gradient: Position) -> jax.Array:
        gap = ravel_pytree(position)[0] - ravel_pytree(centre)[0]
        return -gap * ravel_pytree(gradient)[0]

    return over_draws(static, posterior, positions, words, product)


def noise_at_draws(
    programs: Programs,
    static: tuple[Batches, str],
    posterior: Posterior,
    tuning: Tuning,
    positions: Position,
    running: np.ndarray,
    seed: Seed,
) -> np.ndarray:
    """The variance of the whitened gradient estimate, flat: its mean over some draws.

    Noise that a few rows make is large at few draws, so that only a mean over many is worth something.

    Args:
        programs: The compiled programs of the run.
        static: How minibatches are drawn, and the name of the estimator.
        posterior: The target.
        tuning: Metric and centre.
        positions: Draws, of shape (chains, draws, ...).
        running: For each chain, whether it counts.
        seed: For the minibatches.
    """
    num_draws = jax.tree.leaves(positions)[0].shape[1]
    seen = []
    for index in np.linspace(0, num_draws - 1, NUM_NOISE_DRAWS).astype(int):
        here = jax.tree.map(lambda leaf, i=index: np.asarray(leaf[:, i]), positions)
        arguments = (posterior, tuning.metric, tuning.centre, here, seed.child(int(index)).key_words())
        noise = jax.tree.leaves(programs(landscape.gradient_noise, static, *arguments).variance)
        seen.append(np.concatenate([np.reshape(leaf, (len(leaf), -1)) for leaf in noise], axis=1))
    return np.mean(seen, axis=0)[running].mean(axis=0)


def noise_ratio(noise: np.ndarray, tuning: Tuning) -> float:
    """Curvature and gradient noise, as a multiple of what the step, and what SGHMC takes off its noise, rest on."""
    expected = max(float(leaf.max()) for leaf in jax.tree.leaves(tuning.gradient_noise))
    return float((tuning.stiffest + noise.max()) / (tuning.stiffest + expected))


def autocorrelation_time(draws: np.ndarray) -> float:
    """The largest of any coordinate, in draws: pooled over chains, each around its own mean (Geyer 1992).

    Args:
        draws: (draws, chains, coordinates).
    """
    count = len(draws)
    centred = draws - draws.mean(axis=0)
    variance = np.maximum(np.mean(centred**2, axis=(0, 1)), 1e-300)
    time, going = np.ones(draws.shape[2]), np.ones(draws.shape[2], bool)
    for lag in range(1, count - 2, 2):
        pair = sum(np.mean(centred[k:] * centred[:-k], axis=(0, 1)) for k in (lag, lag + 1)) / variance
        going &= pair > 0
        time += np.where(going, 2 * pair, 0.0)
    return float(time.max())


def begin_sample() -> State:
    """No draws, of a sample that grows with a run."""
    return {"every": 1, "seen": 0, "positions": (), "weights": ()}


def add_to_sample(sample: State, leaves: list[np.ndarray], weights: np.ndarray) -> State:
    """Evenly spread draws of a run, 40 to 80 of each chain once there are as many: every draw, every other, ...

    Of small models up to 400.

    Args:
        sample: What there is.
        leaves: The next positions: arrays (draws, chains, ...).
        weights: Theirs: (draws, chains).
    """
    every, seen = sample["every"], sample["seen"]
    count = len(weights)
    chosen = [index for index in range(count) if (seen + index) % every == 0]
    if not chosen and sample["positions"]:
        # What there is may be large: it is not copied for nothing.
        return sample | {"seen": seen + count}
    new = (*(leaf[chosen] for leaf in leaves), weights[chosen])
    old = (*sample["positions"], sample["weights"]) if sample["positions"] else tuple(part[:0] for part in new)
    parts = tuple(np.concatenate(pair) for pair in zip(old, new, strict=True))
    bytes_a_draw = max(sum(part[0].nbytes for part in parts) if len(parts[0]) else 1, 1)
    enough = max(2 * NUM_WIDTH_DRAWS, min(FEW_BYTES // bytes_a_draw, MOST_SAMPLED))
    most = int(np.clip(MOST_BYTES // bytes_a_draw, 4, enough))
    while len(parts[0]) > most:
        every, parts = 2 * every, tuple(part[::2] for part in parts)
    return {"every": every, "seen": seen + count, "positions": parts[:-1], "weights": parts[-1]}
