"""How far to centre sites, and positions that are moved from one centring to another."""

from __future__ import annotations

from typing import NamedTuple

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
MOST_DRAWS = 512
# A smaller change of a centring is not worth beginning anew.
LEAST_CHANGE = 0.2


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


class Moved(NamedTuple):
    """What has another centring now.

    Attributes:
        centring: The centring.
        draws: For each chain (draws, size).
        here: Where the chains are, (chains, size).
    """

    centring: dict[str, np.ndarray]
    draws: list[np.ndarray]
    here: np.ndarray


def by_draws(
    programs: Programs, target: Posterior, example: Position, recent: list[np.ndarray], here: np.ndarray
) -> Moved | None:
    """The centring that the draws of chains speak for, and draws and chains under it; None if it is about the same.

    Args:
        programs: The compiled programs of the run.
        target: The posterior, with the centring that the draws have.
        example: A position, for its shape.
        recent: For each chain its latest draws, (draws, size).
        here: Where the chains are.
    """
    some = [one[np.linspace(0, len(one) - 1, min(len(one), MOST_DRAWS // len(recent))).astype(int)] for one in recent]
    draws = np.concatenate(some)
    nothing = {name: np.zeros(like.shape) for name, like in target.model.adjustable.items()}
    noises = moved(programs, target, example, draws, nothing, MOST_DRAWS)
    plain = target.with_centring(nothing)
    centring = chosen(programs, plain, example, noises, noises.var(axis=0), MOST_DRAWS)
    if max(np.abs(centring[name] - np.asarray(target.centring[name])).max() for name in centring) < LEAST_CHANGE:
        return None
    there = moved(programs, target, example, np.concatenate([draws, here]), centring, MOST_DRAWS + len(here))
    parts = np.split(there[: len(draws)], np.cumsum([len(one) for one in some])[:-1])
    return Moved(centring, parts, there[len(draws) :])


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
