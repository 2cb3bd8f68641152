"""The layout of a hierarchy: a hub of global coordinates, and spokes, the coordinates of groups.

Given the hub, the coordinates of one group are independent of those of the others, as in varying intercepts and slopes.
"""

from __future__ import annotations

import math
from typing import NamedTuple

import numpy as np

from langevin.posterior import Position, Posterior

# A hub has a full covariance: with more coordinates in it there is no such layout.
MOST_IN_HUB = 128
# So many numbers may say how spokes depend on the hub.
MOST_NUMBERS = 5_000_000


class Spokes(NamedTuple):
    """The groups of one plate.

    Attributes:
        num_groups: How many there are.
        width: How many coordinates each of them has.
        places: Where these are in a flat position, group by group.
    """

    num_groups: int
    width: int
    places: tuple[int, ...]

    @property
    def grid(self) -> np.ndarray:
        """The places, (groups, width)."""
        return np.asarray(self.places).reshape(self.num_groups, self.width)


class Layout(NamedTuple):
    """Which coordinate of a flat position is where.

    Attributes:
        size: How many coordinates there are.
        hub: Where the global ones are.
        spokes: Those of groups, by plate.
    """

    size: int
    hub: tuple[int, ...]
    spokes: tuple[Spokes, ...]

    @property
    def num_vectors(self) -> int:
        """How many products with the Hessian tell all of it that is not zero."""
        return len(self.hub) + sum(spokes.width for spokes in self.spokes)


class _Site(NamedTuple):
    num_groups: int
    places: np.ndarray


def layout_of(target: Posterior, example: Position) -> Layout | None:
    """The layout of a program with groups; None for other models.

    Group effects are the sites whose scale is unknown itself, and what is in the same plates, or in plates of the same
    size. Of several groupings the largest makes the spokes; the others, and sites in other plates, are in the hub as
    long as there is room.
    """
    if not isinstance(example, dict):
        return None
    plates = {name: len(_plates(name, dims)) for name, dims in target.dims}
    sites, first = {}, 0
    for name in sorted(example):
        shape = np.shape(example[name])
        places = first + np.arange(math.prod(shape))
        first += places.size
        is_effect = name in target.adjustable
        num_groups = math.prod(shape[: plates[name]]) if plates.get(name) else places.size if is_effect else 1
        sites[name] = _Site(num_groups, places)
    effects = {sites[name].num_groups for name in target.adjustable} - {1}
    groups: dict[int, list[_Site]] = {}
    others = []
    for site in sites.values():
        if site.num_groups in effects:
            groups.setdefault(site.num_groups, []).append(site)
        else:
            others.append(site)
    # One grouping at least is of spokes; others are in the hub if there is room, where nothing is left out.
    largest = max(groups, key=lambda count: sum(site.places.size for site in groups[count]), default=None)
    smaller = [site for count, members in groups.items() if count != largest for site in members]
    groups = {largest: groups[largest]} if largest is not None else {}
    hub, room = [], MOST_IN_HUB
    for site in sorted(others + smaller, key=lambda site: site.places.size):
        if site.places.size <= room or site.num_groups == 1:
            hub.extend(site.places.tolist())
            room -= site.places.size
        else:
            groups.setdefault(site.num_groups, []).append(site)
    if not groups or not hub or room < 0:
        return None
    layout = Layout(first, tuple(hub), tuple(_spokes(num_groups, members) for num_groups, members in groups.items()))
    return layout if layout.num_vectors * first <= MOST_NUMBERS else None


def _plates(name: str, dims: tuple[str, ...]) -> tuple[str, ...]:
    return tuple(dim for dim in dims if not dim.startswith(f"{name}_dim_"))


def _spokes(num_groups: int, members: list[_Site]) -> Spokes:
    places = np.concatenate([site.places.reshape(num_groups, -1) for site in members], axis=1)
    return Spokes(num_groups, places.shape[1], tuple(places.ravel().tolist()))
