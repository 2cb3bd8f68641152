"""Where chains start: at random, until every one has a finite log-density."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import numpy as np

from langevin.contracts import Plan, Position
from langevin.errors import SamplingError
from langevin.posterior import Posterior

MOST_TRIES = 100


def proposed(target: Posterior, plan: Plan, attempt: int, together: int = 1) -> np.ndarray:
    """Flat starts (chains, size).

    Args:
        target: The posterior.
        plan: Says how many chains there are.
        attempt: Another one has other starts.
        together: How many chains in a row start at one place.
    """
    generator = plan.seed.child("starts").generator(attempt)
    count = -(-plan.num_chains // together)
    starts = np.stack([flattened(target.start(generator)) for _ in range(count)])
    return np.repeat(starts, together, axis=0)[: plan.num_chains]


def starting_at(target: Posterior, flat: np.ndarray) -> Posterior:
    """The posterior with rows of these flat positions (draws, size) as its starts, drawn at random."""
    example = target.start(np.random.default_rng(0))

    def start(generator: np.random.Generator) -> Position:
        return unflattened(example, flat[generator.integers(len(flat))])

    return target.with_start(start)


def retried(
    starts: Any, good: np.ndarray, propose: Callable[[int], Any], attempt: int, failure: Callable[[int], Exception]
) -> Any:
    """The good starts, with others for the rest.

    Args:
        starts: A pytree with the chains in front.
        good: For each chain, whether its start is good.
        propose: `attempt -> starts`.
        attempt: How many there were; after `MOST_TRIES` it fails.
        failure: `chain -> the error`.
    """
    if attempt >= MOST_TRIES:
        raise failure(int(np.argmin(good)))
    keep = lambda old, new: np.where(good.reshape(-1, *[1] * (np.ndim(old) - 1)), old, new)  # noqa: E731
    return jax.tree.map(keep, starts, propose(attempt))


def no_start(target: Posterior, position: Position) -> SamplingError:
    """Says why no chain can start, by what is wrong at the last position that was tried."""
    # Compiled: on numbers, NumPyro would raise an error at a bad parameter.
    values = {name: np.asarray(value) for name, value in jax.jit(target.constrain)(position).items()}
    shown = ", ".join(f"{name}={np.array2string(v, threshold=6, precision=4)}" for name, v in values.items())
    return SamplingError(
        f"The log-density is not finite at any of {MOST_TRIES} starts: {target.explain(position, target.rows)}, "
        f"at {shown[:300]}. Check that site's parameters and support, and that the data lies inside it."
    )


def flattened(position: Position) -> np.ndarray:
    """A position as one vector, in the order of `ravel_pytree`, which would compile a program for it."""
    return np.concatenate([np.ravel(leaf) for leaf in jax.tree.leaves(position)])


def unflattened(example: Position, flat: np.ndarray) -> Position:
    """Vectors (..., size) as positions like the example."""
    leaves, structure = jax.tree.flatten(example)
    parts = np.split(flat, np.cumsum([np.size(leaf) for leaf in leaves])[:-1], axis=-1)
    front = flat.shape[:-1]
    shaped = [
        part.reshape((*front, *np.shape(x))).astype(np.asarray(x).dtype) for part, x in zip(parts, leaves, strict=True)
    ]
    return jax.tree.unflatten(structure, shaped)
