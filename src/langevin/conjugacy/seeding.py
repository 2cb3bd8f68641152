"""Labels to begin with: an observation for each value, far from those before, and then all to the nearest of them.

Each value in turn gets one element, drawn with a chance in proportion to how much worse the values before explain it
than they explain the best explained one, in nats:

    d_n = max_m s_m - s_n,      s_n = max over the values j before of  eta_jn

where eta are the natural parameters of the labels once all else has been updated to the elements chosen so far. For
normal components that is the square of a distance, and the draw that of k-means++ (Arthur and Vassilvitskii 2007). At
last every element gets the value with the largest eta; those that several values explain alike, as words that no topic
has seen, get a share of each. Of many values several are chosen in a round.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp

from langevin.conjugacy.ascent import Blocked, swept
from langevin.conjugacy.blocks import Block
from langevin.conjugacy.conditionals import Equations
from langevin.conjugacy.families import CategoricalChain
from langevin.posterior import Key

MOST_ROUNDS = 15
# Values are alike for an element if they differ by fewer nats.
ALIKE = 1e-3


def seeded(blocks: Sequence[Block], equations: Equations, statistics: Blocked, key: Key) -> Blocked:
    """Statistics in which labels are as above.

    Args:
        blocks: All blocks, in the order of their updates.
        equations: At the rows.
        statistics: To begin with; those of labels are not looked at.
        key: Of the choices.
    """
    labels = [block for block in blocks if block.values]
    rounds = min(max(len(block.values) for block in labels) - 1, MOST_ROUNDS)

    def etas(chosen: dict[str, jax.Array], statistics: Blocked) -> tuple[dict[str, jax.Array], Blocked]:
        given = {block.name: _as_statistics(block, chosen[block.name]) for block in labels}
        naturals, moved, _ = swept(blocks, equations, statistics | given)
        return {block.name: _flat(block, naturals) for block in labels}, moved

    def another(number: Any, carried: Any) -> Any:
        chosen, statistics = carried
        found, statistics = etas(chosen, statistics)
        for place, block in enumerate(labels):
            each = -(-(len(block.values) - 1) // rounds)
            own = jax.random.fold_in(jax.random.fold_in(key, 1 + number), place)
            more = _chosen(
                chosen[block.name], _distances(found[block.name], 1 + number * each), own, 1 + number * each, each
            )
            chosen = chosen | {block.name: more}
        return chosen, statistics

    chosen = {}
    for place, block in enumerate(labels):
        nothing = jnp.zeros_like(_flat(block, statistics))
        own = jax.random.fold_in(jax.random.fold_in(key, 0), place)
        chosen[block.name] = _chosen(nothing, jnp.ones_like(nothing[0]), own, 0, 1)
    chosen, statistics = jax.lax.fori_loop(0, rounds, another, (chosen, statistics))
    found, statistics = etas(chosen, statistics)
    return statistics | {block.name: _as_statistics(block, _nearest(found[block.name])) for block in labels}


def _distances(eta: jax.Array, first: Any) -> jax.Array:
    """How much worse elements are explained by the values before the first one to come than the best of them is."""
    before = jnp.arange(len(eta))[:, None] < first
    score = jnp.max(jnp.where(before, eta, -jnp.inf), axis=0)
    away = jnp.max(score) - score
    # What no value can explain is never chosen; where all is explained alike, any element is.
    away = jnp.where(jnp.isfinite(away), away, 0.0)
    return jnp.where(jnp.max(away) > 0, away, 1.0)


def _chosen(onehot: jax.Array, weights: jax.Array, key: Key, first: Any, each: int) -> jax.Array:
    """The choices so far, (values, elements), with one more for each of some values from the first on."""
    noise = jax.random.gumbel(key, weights.shape, weights.dtype) + jnp.log(weights)
    places = jax.lax.top_k(noise, min(each, len(weights)))[1]
    return onehot.at[first + jnp.arange(len(places)), places].set(1.0, mode="drop")


def _nearest(eta: jax.Array) -> jax.Array:
    return jax.nn.softmax(eta / ALIKE, axis=0)


def _flat(block: Block, arrays: Any) -> jax.Array:
    onehot = arrays[block.name]["onehot"]
    return onehot.reshape(len(onehot), -1)


def _as_statistics(block: Block, flat: jax.Array) -> dict[str, jax.Array]:
    onehot = flat.reshape(block.family.like()["onehot"].shape)
    if not isinstance(block.family, CategoricalChain):
        return {"onehot": onehot}
    return {"onehot": onehot, "pair": onehot[:, None, :-1] * onehot[None, :, 1:]}
