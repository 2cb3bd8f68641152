"""What a run must have in common with the one that it continues: settings, rows, constants, versions and the model."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any

from langevin.errors import SettingError
from langevin.methods import describe, from_description
from langevin.methods.base import Method
from langevin.run.keep import Keep


def method_of(record: Mapping[str, Any], given: Any) -> Method:
    """The method that a run was begun with, rebuilt from its description, or given again.

    Raises:
        SettingError: If it cannot be rebuilt and was not given, or another one was given.
    """
    described = record["method"]
    method = from_description(described) if given is None else given
    if method is None:
        raise SettingError(
            f"`resume`: the settings of {described['name']} cannot be made again from what is stored: they hold a "
            "function, or the method is not langevin's own. Give the same method again: lv.resume(path, model, data, "
            "method)."
        )
    if describe(method) != described:
        raise SettingError(f"`resume`: the run was begun with {described}; got {describe(method)}.")
    return method


def keep_of(record: Mapping[str, Any], given: Keep | None) -> Keep:
    """What the run keeps of a draw, from its description, or given again.

    Raises:
        SettingError: If it is a function and was not given, or another one was given.
    """
    described = record["keep"]
    if given is None:
        settings = {name: value for name, value in described.items() if name != "name"}
        given = Keep(**settings | {"function": None})
    if given.unconstrained is None and given.with_position == described["unconstrained"]:
        given = dataclasses.replace(given, unconstrained=described["unconstrained"])
    if describe(given) != described:
        raise SettingError(f"`resume`: the run keeps {described}; got {describe(given)}. Give the same `keep` again.")
    return given


def check_same(record: Mapping[str, Any], now: Mapping[str, Any]) -> None:
    """Raises a SettingError that says what is not as it was when the run was begun."""
    for package, version in record["versions"].items():
        if now["versions"].get(package) != version:
            raise SettingError(
                f"`resume`: the run was begun with {package} {version}, and this is {now['versions'].get(package)}, "
                "which may compute other bits. Install that version, or begin anew."
            )
    if now["double precision"] != record["double precision"]:
        kind = "double" if record["double precision"] else "single"
        raise SettingError(f"`resume`: the run was begun in {kind} precision. Set `jax_enable_x64` as it was.")
    for where in ("data", "constants"):
        for name in sorted({*record[where], *now[where]}):
            before, after = record[where].get(name), now[where].get(name)
            if before != after:
                how = "is new" if before is None else "is missing" if after is None else "has other values"
                raise SettingError(
                    f"`resume`: `{where}[{name!r}]` {how}. A run goes on only with the {where} it was begun with."
                )
    before, after = record.get("levels", {}), now["levels"]
    for name in sorted({*before, *after}):
        if before.get(name) != after.get(name):
            raise SettingError(
                f"`resume`: `data[{name!r}]` has other levels than the run was begun with. Give the data as it was."
            )
    if now["model"] != record["model"]:
        raise SettingError(
            "`resume`: the model has changed: its log-density (or the guide, or what is kept of a draw) is computed in "
            "another way than when the run was begun. Give the model as it was, or begin anew."
        )
