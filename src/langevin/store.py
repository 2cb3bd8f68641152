"""A fit on disk: Zarr arrays and JSON attributes, with checksums, and nothing that executes."""

from __future__ import annotations

import json
import os
import re
import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from langevin import checks
from langevin.errors import DataError, SettingError, StoreError
from langevin.run.integrity import MANIFEST, damage, read_manifest, reason, seal
from langevin.run.layout import FIT_FORMAT

if TYPE_CHECKING:
    from langevin.result import Fit

_NEEDED = {"method": dict, "approximation": str}


def save(fit: Fit, path: str | Path) -> None:
    """Writes a fit to a new Zarr folder. It is there when it is whole: a program that is killed leaves none.

    Raises:
        SettingError: If something is there already.
        StoreError: If the folder cannot be written.
    """
    checks.path("save", "path", path)
    path = Path(path)
    if os.path.lexists(path):
        raise SettingError(f"`save`: {path} exists already. Choose another path, or remove it first.")
    partial = path.with_name(f".{path.name}.{os.getpid()}.partial")
    tree = fit.tree.map_over_datasets(lambda dataset: dataset.drop_encoding())
    tree.attrs["format"] = FIT_FORMAT
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        tree.to_zarr(partial, zarr_format=2, consolidated=True)
        seal(partial)
        os.rename(partial, path)
    except OSError as error:
        raise StoreError(
            f"`save`: {path} cannot be written ({reason(error)}). Choose another path, or free some space there."
        ) from error
    finally:
        shutil.rmtree(partial, ignore_errors=True)


def load(path: str | Path, model: Any = None, *, constants: Mapping[str, Any] | None = None) -> Fit:
    """Reads a fit that `Fit.save` wrote, or a finished run. Every file is checked first.

    The draws of a large one stay on disk, and are read when they are used.

    Args:
        path: The folder.
        model: The model that was fitted, which is not stored, for `predict` and its kin.
        constants: Arguments of the program that are passed whole, as in `fit`.

    Raises:
        DataError: If there is none at the path, it is damaged or not finished, or it was written by something else.
    """
    from langevin.models.networks.keeping import source_of_network
    from langevin.result import Fit
    from langevin.run.tree import MOST_IN_MEMORY, open_tree

    checks.path("load", "path", path)
    path = Path(path)
    _check_kind(path)
    try:
        wrong = damage(path, read_manifest(path))
    except StoreError as error:
        wrong = str(error)
    if wrong:
        raise DataError(f"`load`: {wrong}. Restore it from a copy, or run the fit again.")
    try:
        tree = open_tree(path, MOST_IN_MEMORY)
    except DataError as error:
        raise DataError(f"`load`: {error}") from error
    except (ValueError, KeyError, TypeError, AttributeError, OSError, RuntimeError) as error:
        raise DataError(f"`load`: {path} is not a fit that can be read: {error}.") from error
    _check_settings(path, tree.attrs.get("settings"))
    fit = Fit(tree)
    if model is not None:
        from langevin.models.networks.network import Network

        # A fit may predict with a network that is linear in its weights.
        model = model.as_fitted(fit) if isinstance(model, Network) else model
        fit.source = source_of_network(model, constants or {}, fit.settings.get("keep", {}), None)
    return fit


def _check_kind(path: Path) -> None:
    """Raises a DataError if this is not a fit of this version."""
    if not os.path.lexists(path):
        raise DataError(f"`load`: there is nothing at {path}.")
    written = _format(path)
    version = re.fullmatch(r"langevin fit (\d+)", written)
    if version and int(version[1]) > int(FIT_FORMAT.split()[-1]):
        raise DataError(
            f"`load`: {path} has the format {written!r}, of a later version of langevin; this one reads "
            f"{FIT_FORMAT!r}. Install the later one."
        )
    if (path / MANIFEST).exists():
        return
    if (path / "run.json").exists():
        raise DataError(
            f"`load`: {path} is a run that is not finished. Continue it with lv.resume({str(path)!r}, model, data)."
        )
    if version and written != FIT_FORMAT:
        raise DataError(
            f"`load`: {path} has the format {written!r}, which has no checksums: draws that are missing would not be "
            f"noticed. This version reads {FIT_FORMAT!r}. Run the fit again, or load it with the version that wrote it."
        )
    if version:
        raise DataError(f"`load`: {path / MANIFEST} is missing. Restore it from a copy, or run the fit again.")
    raise DataError(f"`load`: {path} is not a fit that langevin saved.")


def _format(path: Path) -> str:
    """What a folder says of its format; empty if nothing that can be read."""
    try:
        return str(json.loads((path / ".zattrs").read_bytes())["format"])
    except (OSError, ValueError, KeyError, TypeError):
        return ""


def _check_settings(path: Path, text: Any) -> None:
    """Raises a DataError if a Fit could not work with these settings."""
    try:
        settings = json.loads(text)
    except (ValueError, TypeError) as error:
        raise DataError(f"`load`: the attribute 'settings' of {path} is not JSON: {text!r:.80}.") from error
    if not isinstance(settings, dict):
        raise DataError(f"`load`: the attribute 'settings' of {path} must be a dict; got {text:.80}.")
    for name, kind in _NEEDED.items():
        if not isinstance(settings.get(name), kind):
            raise DataError(f"`load`: the settings of {path} must have {name!r}, a {kind.__name__}.")
    if "name" not in settings["method"]:
        raise DataError(f"`load`: the settings of {path} do not name their method.")
    evidence = settings.get("evidence", {})
    if not isinstance(evidence, dict) or not all(isinstance(numbers, dict) for numbers in evidence.values()):
        raise DataError(f"`load`: the evidence in the settings of {path} must be a dict of dicts.")
    if evidence:
        from langevin.diagnostics.evidence import FINDERS

        unknown = [name for name in evidence if name not in FINDERS]
        if unknown:
            raise DataError(
                f"`load`: {path} has evidence of the kind {unknown[0]!r}, which this version does not know. "
                f"It knows {', '.join(FINDERS)}. Install the version that wrote it."
            )
