"""The independent Gaussians that are nearest to a target with many coordinates, by stochastic gradients on minibatches.

    x+- = m +- s e,    grad_m = mean(g(x+-)),    grad_log_s = s e (g(x+) - g(x-)) / 2 + 1

Pairs +-e take the noise of a linear gradient off the mean. Adam moves `m` in units of `s`, with, at first, a plain
climb added to it. In later rounds g has a control variate at the mean of the round before, c:

    g(x) = g_batch(x) - g_batch(c) + g_all(c)

so that the noise of minibatches, which is large where rows are many, vanishes with the distance from it.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax.flatten_util import ravel_pytree

from langevin.data.batches import Batches
from langevin.posterior import Position, Posterior
from langevin.run.seeds import key_of

FIRST_SCALE = 0.1
B1, B2, EPS = 0.9, 0.999, 1e-12
RATE, LAST_RATE = 0.05, 1e-2
CLIMB, LAST_CLIMB = 0.1, 1e-4
# The last part of a round, of which the mean is taken.
AVERAGED = 0.25


class Fits(NamedTuple):
    """Fits between two steps; all leaves have the fits in front.

    Attributes:
        mean: m, (fits, size).
        log_scale: log s.
        moments: Adam's: of the gradients of both, and of their squares.
        sums: Of m and log s over the steps that are averaged, relative to where the averaging began.
        origin: Where it began.
        bound: The sum of the bounds of the steps since it was last taken: (fits,).
    """

    mean: Any
    log_scale: Any
    moments: Any
    sums: Any
    origin: Any
    bound: Any


class Round(NamedTuple):
    """What does not change in a round.

    Attributes:
        anchor: c, (fits, size).
        slope: The gradient on all rows there.
        words: Of the keys.
    """

    anchor: Any
    slope: Any
    words: Any


def begin(positions: np.ndarray, scale: Any = FIRST_SCALE) -> Fits:
    """Fits around flat positions (fits, size)."""
    zeros = np.zeros_like(positions)
    log_scale = np.broadcast_to(np.log(np.asarray(scale, positions.dtype)), positions.shape).astype(positions.dtype)
    nothing = np.zeros(len(positions), positions.dtype)
    return Fits(positions, log_scale, (zeros,) * 4, (zeros,) * 2, (positions, log_scale), nothing)


def steps(
    static: tuple[Batches | None, bool],
    target: Posterior,
    example: Position,
    fits: Fits,
    round_: Round,
    schedule: jax.Array,
    numbers: jax.Array,
) -> Fits:
    """Takes some steps of every fit.

    Args:
        static: How minibatches are drawn (None: all rows), and whether gradients have a control variate.
        target: The posterior.
        example: A position, for its shape.
        fits: Where the fits are.
        round_: See `Round`.
        schedule: (steps, 3): the rate in units of s, the plain rate, and whether to average.
        numbers: How many steps to take, and how many steps of the round were taken before.
    """
    batches, anchored = static
    _, unravel = ravel_pytree(example)
    count, before = numbers
    num_fits, size = fits.mean.shape
    value_and_grad = jax.value_and_grad(lambda x, rows: target.log_density(unravel(x), rows))

    def step(number: jax.Array, fits: Fits) -> Fits:
        at = before + number
        batch = None
        if batches is not None:
            batch = batches.take(target.data, target.num_data, key_of(round_.words[0]), at)
        noise = jax.random.normal(jax.random.fold_in(key_of(round_.words[1]), at), (num_fits, size), fits.mean.dtype)
        rate, plain, averaged = schedule[number]
        made = jax.vmap(lambda *one: _step(value_and_grad, batch, anchored, *one), in_axes=(0, 0, 0, 0, None, None))
        moved, bound = made(fits, noise, round_.anchor, round_.slope, jnp.stack([rate, plain]), at + 1)
        sums = jax.tree.map(
            lambda total, x, origin: total + averaged * (x - origin),
            moved.sums,
            (moved.mean, moved.log_scale),
            moved.origin,
        )
        return moved._replace(sums=sums, bound=fits.bound + bound)

    return jax.lax.fori_loop(0, count, step, fits)


def _step(
    value_and_grad: Any,
    batch: Any,
    anchored: bool,
    fit: Fits,
    noise: jax.Array,
    anchor: jax.Array,
    slope: jax.Array,
    rates: jax.Array,
    number: jax.Array,
) -> tuple[Fits, jax.Array]:
    scale = jnp.exp(fit.log_scale)
    points = jnp.stack([fit.mean + scale * noise, fit.mean - scale * noise, *([anchor] if anchored else [])])
    values, gradients = jax.vmap(value_and_grad, in_axes=(0, None))(points, batch)
    mean = (gradients[0] + gradients[1]) / 2
    if anchored:
        mean = mean - gradients[2] + slope
    spread = scale * noise * (gradients[0] - gradients[1]) / 2 + 1
    bound = (values[0] + values[1]) / 2 + jnp.sum(fit.log_scale)
    fine = jnp.isfinite(bound) & jnp.isfinite(jnp.sum(mean)) & jnp.isfinite(jnp.sum(spread))
    mean, spread = (jnp.where(fine, g, 0.0) for g in (mean, spread))
    m1, m2, v1, v2 = fit.moments
    moments = (
        m1 + (1 - B1) * (mean - m1),
        m2 + (1 - B1) * (spread - m2),
        v1 + (1 - B2) * (mean**2 - v1),
        v2 + (1 - B2) * (spread**2 - v2),
    )
    lacking = jnp.sqrt(1 - B2 ** number.astype(mean.dtype)) / (1 - B1 ** number.astype(mean.dtype))
    towards, wider = (lacking * m / (jnp.sqrt(v) + EPS) for m, v in zip(moments[:2], moments[2:], strict=True))
    rate, plain = rates
    moved = fit.mean + (rate * scale + plain) * towards
    log_scale = fit.log_scale + (rate + plain) * wider
    pick = lambda new, old: jnp.where(fine, new, old)  # noqa: E731
    return fit._replace(mean=pick(moved, fit.mean), log_scale=pick(log_scale, fit.log_scale), moments=moments), bound


def schedule(number: int, part: np.ndarray) -> np.ndarray:
    """At parts of a round: the rate in scales of q, the plain rate of a climb, and whether to average."""
    rate = RATE * (LAST_RATE + (1 - LAST_RATE) * (1 + np.cos(np.pi * part)) / 2)
    climb = CLIMB * (LAST_CLIMB / CLIMB) ** (2 * part)
    climb = np.where((part < 0.5) & (number == 0), climb, 0.0)
    return np.stack([rate, climb, part >= 1 - AVERAGED], axis=1)
