"""Checks of settings: each raises a sentence that names the setting, the value received, and what to try."""

from __future__ import annotations

import math
import os
from typing import Any

import jax
import numpy as np

from langevin.errors import SettingError


def choice(name: str, setting: str, value: Any, choices: tuple[Any, ...]) -> None:
    """The value is one of the choices."""
    if value not in choices:
        raise SettingError(f"`{name}`: `{setting}` must be one of {', '.join(map(repr, choices))}; got {value!r}.")


def positive(name: str, setting: str, value: Any, remedy: str = "1.0") -> None:
    """The value is a finite number above 0."""
    if not (is_number(value) and value > 0 and math.isfinite(value)):
        raise SettingError(f"`{name}`: `{setting}` must be > 0; got {value!r}. Try {remedy}.")


def count(name: str, setting: str, value: Any, least: int = 1) -> int:
    """The value is a whole number, and not too small. Returns it as an int."""
    if isinstance(value, bool) or not isinstance(value, (int, np.integer)) or value < least:
        raise SettingError(f"`{name}`: `{setting}` must be a whole number, at least {least}; got {value!r}.")
    return int(value)


def names(name: str, setting: str, value: Any) -> tuple[str, ...]:
    """Names as a tuple; one alone stands for itself."""
    listed = (value,) if isinstance(value, str) else value
    if not isinstance(listed, list | tuple) or not all(isinstance(one, str) for one in listed):
        raise SettingError(f"`{name}`: `{setting}` must be names of sites; got {value!r}.")
    return tuple(listed)


def instance(name: str, setting: str, value: Any, kind: type[Any]) -> None:
    """The value is one of a kind, or None."""
    if value is not None and not isinstance(value, kind):
        raise SettingError(f"`{name}`: `{setting}` must be an lv.{kind.__name__}; got {value!r:.80}.")


def path(name: str, setting: str, value: Any) -> None:
    """The value is a path, or None."""
    if not isinstance(value, str | os.PathLike | None):
        raise SettingError(f"`{name}`: `{setting}` must be a path; got {value!r}. Try 'run.zarr', or leave it out.")


def is_number(value: Any) -> bool:
    """Whether the value is one real number."""
    return isinstance(value, (int, float, np.number, jax.Array)) and not isinstance(value, bool) and np.ndim(value) == 0
