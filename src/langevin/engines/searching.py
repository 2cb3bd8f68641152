"""Ascents from many starts side by side, on all rows or on a sample of them.

Of many rows an ascent from each of many starts takes too long, and from a few starts labels often end at a poor
maximum. A sample of the rows has nearly the same maxima: there all starts are affordable, and where the best of them
ends, all rows begin.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import jax
import numpy as np

from langevin.conjugacy import ascent
from langevin.conjugacy.ascent import Climb
from langevin.conjugacy.conditionals import Conditionals
from langevin.engines.double import as_double

MOST_SIDE_BY_SIDE = 4_000_000
MOST_SAMPLED, LEAST_SAMPLED = 5000, 500


class Restarts(NamedTuple):
    """What is static of ascents from many starts.

    Attributes:
        conditionals: Of the program.
        side_by_side: Whether they are computed at once.
        most: How many sweeps each makes at most.
    """

    conditionals: Conditionals
    side_by_side: bool
    most: int


def restarts(conditionals: Conditionals, number: int, most: int) -> Restarts:
    """So many ascents, side by side if their statistics are not too large."""
    return Restarts(conditionals, number * num_elements(conditionals) <= MOST_SIDE_BY_SIDE, most)


def searched(static: Restarts, rows: Any, climbs: Climb, count: Any, tolerance: Any) -> Any:
    """At most `count` sweeps of each ascent, with the rows as if they were all."""
    equations = static.conditionals.at(as_double(rows), as_all=True)

    def one(climb: Climb) -> Any:
        return ascent.climbed(static.conditionals, climb, equations, count, static.most, tolerance)

    return jax.vmap(one)(climbs) if static.side_by_side else jax.lax.map(one, climbs)


def best(climbs: Climb) -> Climb:
    """The ascent with the highest bound."""
    number = int(np.argmax(np.where(climbs.proper, climbs.last[:, -1], -np.inf)))
    return jax.tree.map(lambda leaf: leaf[number], climbs)


def placed(conditionals: Conditionals, rows: Any, naturals: Any) -> Any:
    """Statistics of all blocks, those of the rows at their optimum given the others."""
    statistics = {
        block.name: ascent.neutral(block) if block.local else block.family.expected(naturals[block.name])
        for block in conditionals.blocks
    }
    return ascent.local_optimum(conditionals, conditionals.at(as_double(rows)), statistics, 1.0)[1]


def sample_size(conditionals: Conditionals, affordable: int) -> int:
    """How many rows are sampled, so that the statistics of a start have at most so many elements; 0 if none are."""
    num_data = conditionals.joint.num_data
    if not any(block.values and block.local for block in conditionals.blocks):
        return 0
    of_rows = num_elements(conditionals, local=True)
    size = (affordable - num_elements(conditionals) + of_rows) * num_data // of_rows
    return 0 if size < LEAST_SAMPLED or num_data < 2 * size else min(size, MOST_SAMPLED)


def num_elements(conditionals: Conditionals, local: bool = False) -> int:
    """How many numbers the statistics are, of all blocks or of those of the rows."""
    likes = [block.family.like() for block in conditionals.blocks if block.local or not local]
    return max(sum(int(np.prod(leaf.shape)) for like in likes for leaf in like.values()), 1)
