"""Where coordinate ascent and Gibbs sampling begin: at random values, with precisions that fit the rows.

Real sites are updated before the others, so that what they are updated to hangs on the precisions alone. A precision
among effects that begins far above 1 / variance of the rows draws all effects to their mean, is then found to be large
since they are so close, and stays there: a maximum of the bound, though a low one, wherever rows are counted in
thousands. So all precisions begin near 1 / variance of what is observed, of one size, at which effects are hardly drawn
together.
"""

from __future__ import annotations

from typing import Any

import jax
import numpy as np

from langevin.conjugacy.augmentation import random_value
from langevin.conjugacy.blocks import Block
from langevin.conjugacy.conditionals import Conditionals
from langevin.conjugacy.families import CategoricalChain

Blocked = dict[str, dict[str, jax.Array]]


def statistics(conditionals: Conditionals, spread: float, generator: np.random.Generator) -> Blocked:
    """Statistics of random values; of labels, random probabilities.

    Args:
        conditionals: Of the program.
        spread: The variance of what is observed.
        generator: Of random numbers.
    """
    found: Blocked = {}
    for block in conditionals.blocks:
        if block.values:
            found[block.name] = labels(block, generator)
            continue
        own = {name: value(conditionals, name, spread, generator) for name in block.sites}
        found[block.name] = block.family.statistics(block.to_value(own))
    return jax.tree.map(np.asarray, found)


def value(conditionals: Conditionals, name: str, spread: float, generator: np.random.Generator) -> np.ndarray:
    """A random value of a site; of a precision, or a power of one, near the reciprocal of the spread."""
    found = random_value(conditionals.latents[name], generator)
    power = conditionals.precisions.get(name)
    return found if power is None else found * spread ** (-1 / power)


def labels(block: Block, generator: np.random.Generator) -> dict[str, Any]:
    """Statistics of labels to begin with: every element has random probabilities."""
    raw = generator.standard_exponential(block.family.like()["onehot"].shape)
    onehot = raw / raw.sum(axis=0)
    if not isinstance(block.family, CategoricalChain):
        return {"onehot": onehot}
    return {"onehot": onehot, "pair": onehot[:, None, :-1] * onehot[None, :, 1:]}
