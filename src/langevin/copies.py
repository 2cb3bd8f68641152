"""A fit as plain data, so that it can be copied, and sent to another process: what `save` writes, without a program."""

from __future__ import annotations

from typing import Any

import numpy as np
import xarray as xr

Plain = dict[str, dict[str, Any]]


def as_plain(tree: xr.DataTree) -> Plain:
    """The groups of a tree, by path: NumPy arrays with the names of their dimensions, and attributes.

    Draws that are on disk are read.

    Example:
        >>> tree = xr.DataTree.from_dict({"posterior": xr.Dataset({"m": ("draw", [1.0, 2.0])})})
        >>> as_plain(tree)["/posterior"]["variables"]["m"]
        (('draw',), array([1., 2.]), {})
    """
    plain = {}
    for node in tree.subtree:
        dataset = node.to_dataset(inherit=False)
        plain[node.path] = {
            "variables": {
                name: (variable.dims, np.asarray(variable.values), dict(variable.attrs))
                for name, variable in dataset.variables.items()
            },
            "coordinates": list(dataset.coords),
            "attributes": dict(dataset.attrs),
        }
    return plain


def from_plain(plain: Plain) -> xr.DataTree:
    """The tree that `as_plain` took apart."""
    groups = {}
    for path, group in plain.items():
        variables, coordinates = group["variables"], group["coordinates"]
        groups[path] = xr.Dataset(
            {name: parts for name, parts in variables.items() if name not in coordinates},
            {name: variables[name] for name in coordinates},
            group["attributes"],
        )
    return xr.DataTree.from_dict(groups)
