"""The metadata by which the blocks of a run become a result."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from langevin.run.hierarchy import Hierarchy
from langevin.run.integrity import Entry
from langevin.run.layout import (
    FIT_FORMAT,
    POSTERIOR,
    STATS,
    UNCONSTRAINED,
    Layout,
    Variable,
    dimensions,
    file_name,
    storable,
)

if TYPE_CHECKING:
    from langevin.contracts import Group


def write_result(
    folder: Path,
    layout: Layout,
    num_chains: int,
    num_draws: int,
    dims: Mapping[str, tuple[str, ...]],
    attributes: Mapping[str, Any],
    groups: Mapping[str, Group],
    by_chain: Mapping[str, np.ndarray],
    labels: Mapping[str, np.ndarray],
) -> list[Entry]:
    """Writes all of a result but its blocks; see `Store.finish`.

    Returns:
        The files that were written.
    """
    hierarchy = Hierarchy(folder)
    hierarchy.group("", {**attributes, "format": FIT_FORMAT})
    for group in dict.fromkeys([POSTERIOR, STATS, *(variable.group for variable in layout.variables)]):
        variables = _in_order([variable for variable in layout.variables if variable.group == group], dims)
        named = dimensions(variables, dims)
        _write_group(hierarchy, group, variables, named, (num_chains, num_draws), layout.block)
        sizes = {dim: size for part in variables for dim, size in zip(named[part.name], part.shape, strict=True)}
        for dim, values in labels.items() if group == POSTERIOR else ():
            if sizes.get(dim) == len(values):
                hierarchy.whole(f"{group}/{dim}", (dim,), storable(values, f"the labels of {dim!r}"))
    for name, values in by_chain.items():
        values = storable(values, f"{STATS} {name!r}")
        more = tuple(f"{name}_dim_{axis}" for axis in range(values.ndim - 1))
        hierarchy.whole(f"{STATS}/{file_name(name)}", ("chain", *more), values)
    for name, (variables, about) in groups.items():
        path = file_name(name)
        hierarchy.group(path, about)
        for variable, (axes, values) in variables.items():
            values = storable(values, f"{name} {variable!r}")
            # A further group may have chains and draws of its own.
            part = variable if variable in ("chain", "draw") else file_name(variable)
            hierarchy.whole(f"{path}/{part}", tuple(axes), values)
    hierarchy.consolidate()
    return hierarchy.entries


def _write_group(
    hierarchy: Hierarchy,
    group: str,
    variables: list[Variable],
    dims: dict[str, tuple[str, ...]],
    sizes: tuple[int, int],
    block: int,
) -> None:
    keys = {POSTERIOR: "names", UNCONSTRAINED: "leaves"}
    names = [variable.name for variable in variables]
    hierarchy.group(group, {keys[group]: names} if group in keys else {})
    for dim, size in zip(("chain", "draw"), sizes, strict=True):
        hierarchy.whole(f"{group}/{dim}", (dim,), np.arange(size))
    for _, _, name, dtype, shape in variables:
        axes = ("chain", "draw", *dims[name])
        hierarchy.array(f"{group}/{name}", axes, (*sizes, *shape), (1, block, *shape), dtype)


def _in_order(variables: list[Variable], dims: Mapping[str, tuple[str, ...]]) -> list[Variable]:
    """Reported sites in the order of `dims`: compiled code returns dicts sorted by name."""
    places = {name: place for place, name in enumerate(dims)}
    return sorted(variables, key=lambda part: places.get(part.source, len(places)) if part.group == POSTERIOR else 0)
