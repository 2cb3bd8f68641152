"""Draws and settings -> the data tree that a Fit holds."""

from __future__ import annotations

import json
from collections.abc import Mapping
from types import MappingProxyType
from typing import Any

import numpy as np
import xarray as xr

from langevin.contracts import Outcome
from langevin.run.weights import with_weights

Arrays = dict[str, dict[str, np.ndarray]]


def data_tree(
    arrays: Arrays,
    dims: dict[str, tuple[str, ...]],
    outcome: Outcome,
    settings: dict[str, Any],
    labels: Mapping[str, np.ndarray] = MappingProxyType({}),
) -> xr.DataTree:
    """The draws in ArviZ's groups, with the settings as an attribute.

    Args:
        arrays: Group -> name -> array (chains, draws, ...).
        dims: For each reported name, the names of its dimensions, in the order in which a user reads them.
        outcome: What is left of the run besides its draws.
        settings: How the run was made.
        labels: For each dimension that has them, the labels of its elements.
    """
    reported = {listed(name): array for name, array in arrays["posterior"].items()}
    dims = {listed(name): tuple(map(listed, axes)) for name, axes in dims.items()}
    # Compiled code returns dicts sorted by name.
    names = [*(name for name in dims if name in reported), *(name for name in reported if name not in dims)]
    variables = {
        name: (("chain", "draw", *dims.get(name, numbered(name, reported[name].ndim - 2))), reported[name])
        for name in names
    }
    stats: dict[str, Any] = {name: (("chain", "draw"), values) for name, values in arrays["sample_stats"].items()}
    stats["lp"] = stats.pop("log_density")
    num_chains, num_draws = stats["lp"][1].shape
    stats |= {name: (("chain",), values) for name, values in outcome.by_chain.items()}
    coords = {"chain": np.arange(num_chains), "draw": np.arange(num_draws)}
    groups = {
        "posterior": xr.Dataset(variables, {**labels_of(variables, labels), **coords}, {"names": names}),
        "sample_stats": xr.Dataset(stats, coords),
    }
    if "unconstrained_posterior" in arrays:
        leaves = arrays["unconstrained_posterior"]
        unconstrained = {
            name: (("chain", "draw", *numbered(f"{name}_unconstrained", values.ndim - 2)), values)
            for name, values in leaves.items()
        }
        groups["unconstrained_posterior"] = xr.Dataset(unconstrained, coords, {"leaves": list(leaves)})
    for name, group in outcome.groups.items():
        variables = {
            listed(variable): (tuple(map(listed, axes)), array) for variable, (axes, array) in group.variables.items()
        }
        groups[name] = xr.Dataset(variables, attrs=dict(group.attributes))
    tree = xr.DataTree.from_dict(groups)
    tree.attrs["settings"] = json.dumps(settings)
    return with_weights(tree)


def labels_of(
    variables: Mapping[str, tuple[tuple[str, ...], np.ndarray]], labels: Mapping[str, np.ndarray]
) -> dict[str, np.ndarray]:
    """The labels of the dimensions that these variables have, in their size."""
    sizes = {dim: size for dims, values in variables.values() for dim, size in zip(dims, values.shape, strict=True)}
    return {dim: values for dim, values in labels.items() if sizes.get(dim) == len(values)}


def listed(name: str) -> str:
    """The name of a site in a result, where "/" stands between groups: as on disk, it becomes "."."""
    return name.replace("/", ".")


def numbered(name: str, count: int) -> tuple[str, ...]:
    """Names of dimensions that have none."""
    return tuple(f"{name}_dim_{axis}" for axis in range(count))
