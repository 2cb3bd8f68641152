"""Exact draws of Pólya-gamma variables.

    PG(1, c) = X / 4        p(x) ~ exp(-z^2 x / 2) sum_n (-1)^n a_n(x)        z = c / 2

    a_n(x) / a_0(x) = (2 n + 1) exp(-n (n + 1) e(x))        e(x) = 2 / x up to t = 0.64, pi^2 x / 2 beyond

A candidate comes from exp(-z^2 x / 2) a_0(x): an inverse Gaussian variable up to t, an exponential one beyond. It is
kept with probability sum_n (-1)^n a_n / a_0, which is at least 0.994. As e(x) > 3, the terms from n = 4 on are below
1e-25, and Devroye's alternating series needs no loop. PG(n, c) is the sum of n draws of PG(1, c).

All elements take part in one loop, each at its own pace, until all have their number of draws.

Polson, Scott and Windle (2013), section 4; Devroye (2009), On exact simulation algorithms for some distributions
related to Jacobi theta functions.
"""

from __future__ import annotations

import math
from typing import NamedTuple

import jax
import jax.numpy as jnp
from jax.scipy.special import log_ndtr, ndtri

SWITCH = 0.64
ROOT = math.sqrt(SWITCH)
NORMAL_TAIL = 0.5 * math.erfc(1 / math.sqrt(2 * SWITCH))


class State(NamedTuple):
    """Where every element is.

    Attributes:
        key: For the next round.
        total: The sum of the draws so far.
        remaining: How many draws are still to be made.
        fresh: Whether the next candidate may come from either piece. It may not after an inverse Gaussian one that was
            beyond the switch, or was turned down: that has to be drawn again.
    """

    key: jax.Array
    total: jax.Array
    remaining: jax.Array
    fresh: jax.Array


def polya_gamma_draw(key: jax.Array, count: jax.Array, tilt: jax.Array) -> jax.Array:
    """One draw of PG(count, tilt) for each element.

    Args:
        key: A random key.
        count: Whole numbers, of the shape of `tilt`.
        tilt: c, at least 0.

    Returns:
        The draws, of the shape of `tilt`.
    """
    z = tilt / 2
    tail_rate = math.pi**2 / 8 + z**2 / 2
    tail_probability = _tail_probability(z, tail_rate)

    def round_of(state: State) -> State:
        key, now = jax.random.split(state.key)
        limits = jnp.finfo(z.dtype)
        which, u, v, last = jax.random.uniform(now, (4, *z.shape), z.dtype, minval=limits.tiny)
        in_tail = state.fresh & (which < tail_probability)
        body, in_body = _inverse_gaussian(z, u, v)
        x = jnp.where(in_tail, SWITCH - jnp.log(u) / tail_rate, body)
        usable = in_tail | in_body
        kept = usable & (last < kept_probability(x)) & (state.remaining > 0)
        return State(key, state.total + jnp.where(kept, x / 4, 0), state.remaining - kept, usable)

    start = State(key, jnp.zeros_like(z), count, jnp.ones(z.shape, bool))
    return jax.lax.while_loop(lambda state: jnp.any(state.remaining > 0), round_of, start).total


def _tail_probability(z: jax.Array, tail_rate: jax.Array) -> jax.Array:
    """How much of exp(-z^2 x / 2) a_0(x) is beyond the switch."""
    log_tail = math.log(math.pi / 2) - jnp.log(tail_rate) - tail_rate * SWITCH
    below = jnp.logaddexp(log_ndtr(ROOT * z - 1 / ROOT) - z, log_ndtr(-ROOT * z - 1 / ROOT) + z)
    return jax.nn.sigmoid(log_tail - math.log(2) - below)


def _inverse_gaussian(z: jax.Array, u: jax.Array, v: jax.Array) -> tuple[jax.Array, jax.Array]:
    """A candidate of the inverse Gaussian of mean 1/z and shape 1 up to the switch, and whether it is one.

    Where the mean is beyond the switch: 1 / N^2, of a normal variable N in its tail, kept with exp(-z^2 x / 2). Else by
    the roots of Michael, Schucany and Haas (1976), kept where it is below the switch.
    """
    narrow = 1 / ndtri(u * NORMAL_TAIL) ** 2
    mean = 1 / jnp.maximum(z, 1 / SWITCH)
    half = mean * ndtri(u) ** 2 / 2
    ratio = 1 + half + jnp.sqrt(half * (2 + half))
    wide = mean * jnp.where(v * (1 + 1 / ratio) <= 1, 1 / ratio, ratio)
    is_narrow = z < 1 / SWITCH
    x = jnp.where(is_narrow, narrow, wide)
    return x, jnp.where(is_narrow, v < jnp.exp(-(z**2) * x / 2), x < SWITCH)


def kept_probability(x: jax.Array) -> jax.Array:
    """The alternating series over its first term."""
    e = jnp.where(x <= SWITCH, 2 / x, math.pi**2 / 2 * x)
    return 1 - 3 * jnp.exp(-2 * e) + 5 * jnp.exp(-6 * e) - 7 * jnp.exp(-12 * e)
