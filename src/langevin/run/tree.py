"""A result on disk, opened without reading its draws."""

from __future__ import annotations

import json
import os
import re
from pathlib import Path
from typing import Any

import xarray as xr

from langevin.errors import DataError
from langevin.run.layout import POSTERIOR, UNCONSTRAINED
from langevin.run.weights import with_weights

MOST_IN_MEMORY = 64_000_000
_PLAIN_TYPE = re.compile(r"[<>|][biufcUSmM]\d+(\[\w+\])?")
_COMPRESSORS = ("blosc", "zstd", "lz4", "zlib", "gzip", "bz2", "lzma")


def open_tree(path: str | Path, load_below: int = 0) -> xr.DataTree:
    """Opens a result; its draws are read when they are used, and not kept.

    Args:
        path: The folder.
        load_below: A result of at most so many bytes is read into memory at once.

    Raises:
        DataError: If it has arrays of objects, which could execute something, or is not whole.
    """
    path = Path(path)
    _refuse_objects(path)
    tree = xr.open_datatree(path, engine="zarr", chunks=None, cache=False, consolidated=True, zarr_format=2)
    for group, key in ((POSTERIOR, "names"), (UNCONSTRAINED, "leaves")):
        if group in tree.children:
            _sort(tree, group, key, path)
    for group in (POSTERIOR, "sample_stats"):
        if group not in tree.children:
            raise DataError(f"{path} has no group {group!r}, which every fit has.")
    tree = with_weights(tree)
    if sum(node.dataset.nbytes for node in tree.subtree) <= load_below:
        return tree.load()
    return tree


def _sort(tree: xr.DataTree, group: str, key: str, path: Path) -> None:
    """Puts variables in the order in which they were reported: Zarr lists them by name."""
    draws = tree[group].to_dataset()
    names = draws.attrs.get(key)
    if not isinstance(names, list) or not all(isinstance(name, str) for name in names):
        raise DataError(
            f"{path}/{group} must have an attribute {key!r} with the names of its variables; got {names!r}."
        )
    missing = [name for name in names if name not in draws.data_vars]
    if missing:
        raise DataError(f"{path}/{group} has no variable {missing[0]!r}, which its attribute {key!r} names.")
    in_order: Any = draws[names]
    tree[group] = xr.DataTree(in_order)


def _refuse_objects(path: Path) -> None:
    """Looks at the type of every array before any reader does: codecs for objects may execute what they read."""
    for folder, _, files in os.walk(path):
        for name in {".zarray", ".zmetadata"} & set(files):
            file = Path(folder) / name
            content = json.loads(file.read_bytes())
            listed = content["metadata"] if name == ".zmetadata" else {name: content}
            # Attributes may have a "dtype" too, which is what xarray makes of the array.
            for about in (about for key, about in listed.items() if key.endswith(".zarray")):
                if not _is_plain(about):
                    raise DataError(f"{file} has an array of the type {about['dtype']!r}, which is not plain numbers.")


def _is_plain(about: dict[str, Any]) -> bool:
    dtype, filters, coding = about["dtype"], about.get("filters"), about.get("compressor")
    if coding is not None and coding.get("id") not in _COMPRESSORS:
        return False
    if dtype == "|O":  # Strings, as xarray writes them.
        return [part.get("id") for part in filters or ()] == ["vlen-utf8"]
    return not filters and isinstance(dtype, str) and _PLAIN_TYPE.fullmatch(dtype) is not None
