"""A fit on disk: Zarr arrays and JSON attributes, nothing that executes."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

from langevin.errors import DataError, SettingError

if TYPE_CHECKING:
    from langevin.result import Fit

FORMAT = "langevin fit 1"


def save(fit: Fit, path: str | Path) -> None:
    """Writes a fit to a new Zarr folder.

    Raises:
        SettingError: If something is there already.
    """
    path = Path(path)
    if path.exists():
        raise SettingError(f"`save`: {path} exists already. Choose another path, or remove it first.")
    tree = fit.data_tree.copy()
    tree.attrs["format"] = FORMAT
    tree.to_zarr(path, zarr_format=2, consolidated=True)


def load(path: str | Path) -> Fit:
    """Reads a fit that `Fit.save` wrote.

    Raises:
        DataError: If there is none at the path, or it was written by something else.
    """
    import xarray as xr

    from langevin.result import Fit

    path = Path(path)
    if not path.exists():
        raise DataError(f"`load`: there is nothing at {path}.")
    try:
        tree = xr.open_datatree(path, engine="zarr", chunks=None).load()
        found = tree.attrs.get("format")
        json.loads(tree.attrs.get("settings", ""))
    except (ValueError, KeyError, OSError) as error:
        raise DataError(f"`load`: {path} is not a fit that can be read: {error}.") from error
    if found != FORMAT:
        raise DataError(f"`load`: {path} has the format {found!r}; this version reads {FORMAT!r}.")
    tree.close()
    draws = tree["posterior"].to_dataset()
    in_order: Any = draws[draws.attrs["names"]]  # Zarr lists variables by name.
    tree["posterior"] = xr.DataTree(in_order)
    return Fit(tree)
