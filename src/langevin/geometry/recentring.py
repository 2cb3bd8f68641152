"""How far to centre sites, and positions that are moved from one centring to another."""

from __future__ import annotations

import jax
import numpy as np

from langevin.geometry.starts import flattened, unflattened
from langevin.posterior import Centring, Position, Posterior
from langevin.run.compilation import Programs

# Below this, an element is left non-centred altogether.
LEAST_CENTRING = 0.4
# The sd of the logarithm of a scale up to which it counts as known, and from which as unknown.
SURE, MOST_UNSURE = 0.2, 0.5
NUM_DRAWS = 128


def chosen(
    programs: Programs, target: Posterior, example: Position, noises: np.ndarray, variance: np.ndarray, most: int
) -> dict[str, np.ndarray]:
    """How far to centre each element: by 1 - v, less where the scale itself may be much smaller than it is on average.

    With a small scale the rows say little, whatever they say with a large one: then the site belongs non-centred.

    Args:
        programs: The compiled programs of the run.
        target: The posterior, non-centred.
        example: A position, for its shape.
        noises: Flat positions (draws, size) from about the posterior.
        variance: v, flat.
        most: Calls with the same number share a program.
    """
    names = target.model.adjustable
    ones = {name: np.ones(like.shape) for name, like in names.items()}
    # The site grows by its scale if its noise grows by 1.
    ahead = noises + adjusted(target, example).astype(noises.dtype)
    here, there = (moved(programs, target, example, at, ones, most) for at in (noises, ahead))
    with np.errstate(divide="ignore"):
        spread = np.std(np.log(np.maximum(np.abs(there - here), 1e-30)), axis=0)
    left, unsure = unflattened(example, variance), unflattened(example, spread)
    centring = {}
    for name in names:
        values = np.clip(1 - np.asarray(left[name], np.float64), 0.0, 1.0)
        values *= np.clip((MOST_UNSURE - unsure[name]) / (MOST_UNSURE - SURE), 0.0, 1.0)
        centring[name] = np.where(values < LEAST_CENTRING, 0.0, values)
    return centring


def adjusted(target: Posterior, example: Position) -> np.ndarray:
    """Which coordinates belong to sites whose centring can be chosen."""
    names = target.model.adjustable
    if not names:
        return np.zeros(flattened(example).size, bool)
    return flattened({name: np.full(np.shape(leaf), name in names) for name, leaf in example.items()})


def moved(
    programs: Programs, target: Posterior, example: Position, points: np.ndarray, centring: Centring, most: int
) -> np.ndarray:
    """Flat positions (points, size) under another centring.

    Args:
        programs: The compiled programs of the run.
        target: The posterior, with the centring that they have.
        example: A position, for its shape.
        points: At most `most`.
        centring: The other.
        most: Calls with the same number share a program.
    """
    filled = np.concatenate([points, np.repeat(points[:1], most - len(points), axis=0)])
    position = unflattened(example, filled)
    out = programs(_recentred, most, target, position, dict(centring))
    leaves = [np.asarray(leaf).reshape(most, -1) for leaf in jax.tree.leaves(out)]
    return np.concatenate(leaves, axis=1)[: len(points)].astype(points.dtype)


def _recentred(_: int, target: Posterior, positions: Position, centring: Centring) -> Position:
    return jax.vmap(lambda position: target.recentred(position, centring))(positions)
