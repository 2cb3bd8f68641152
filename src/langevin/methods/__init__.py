"""The methods a user can ask for: small frozen settings, each of which makes its engine.

A name in lower case stands for a method with its defaults: `"sgld"` is `SGLD()`.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from langevin import checks, spelling
from langevin.errors import SettingError
from langevin.kernels.schedules import Constant, CosineCycles, Polynomial
from langevin.methods.base import Method
from langevin.methods.conjugate import CAVI, Gibbs
from langevin.methods.cyclical import CyclicalSGHMC, CyclicalSGLD
from langevin.methods.ensemble import Ensemble
from langevin.methods.exact import HMC, MALA, NUTS, RWM
from langevin.methods.hybrid import FUNCTION, Enumerate, Hybrid
from langevin.methods.laplace import Laplace
from langevin.methods.point import MAP
from langevin.methods.stochastic import SGLD, RMSprop
from langevin.methods.swag import SWAG
from langevin.methods.underdamped import SGHMC, SGNHT
from langevin.methods.variational import VI
from langevin.variational.subsequences import Subsequences

__all__ = [
    "BY_NAME",
    "CAVI",
    "HMC",
    "MALA",
    "MAP",
    "NUTS",
    "RWM",
    "SGHMC",
    "SGLD",
    "SGNHT",
    "SWAG",
    "VI",
    "CyclicalSGHMC",
    "CyclicalSGLD",
    "Ensemble",
    "Enumerate",
    "Gibbs",
    "Hybrid",
    "Laplace",
    "Method",
    "RMSprop",
    "Subsequences",
    "as_method",
    "describe",
    "from_description",
]

BY_NAME: dict[str, Callable[[], Method]] = {
    "nuts": NUTS,
    "hmc": HMC,
    "mala": MALA,
    "rwm": RWM,
    "sgld": SGLD,
    "psgld": lambda: SGLD(preconditioner="rmsprop"),
    "sghmc": SGHMC,
    "sgnht": SGNHT,
    "cyclicalsgld": CyclicalSGLD,
    "cyclicalsghmc": CyclicalSGHMC,
    "map": MAP,
    "laplace": Laplace,
    "vi": VI,
    "cavi": CAVI,
    "gibbs": Gibbs,
    "ensemble": Ensemble,
    "swag": SWAG,
    "hybrid": Hybrid,
}


def as_method(method: str | Method) -> Method:
    """A name as the method with its defaults; a method as it is.

    Raises:
        SettingError: For an unknown name, with the names there are.
    """
    if isinstance(method, Method):
        return method
    if isinstance(method, str):
        if method.lower() in BY_NAME:
            return BY_NAME[method.lower()]()
        meant = spelling.nearest(method, BY_NAME)
        remedy = f" Did you mean {meant!r}?" if meant else ""
        raise SettingError(f"`method`: {method!r} is not known.{remedy} Known are {', '.join(map(repr, BY_NAME))}.")
    if isinstance(method, type) and issubclass(method, Method):
        return method()
    if np.ndim(method):
        raise SettingError(
            "`method` must be a name or a method such as lv.SGLD(); got an array. Data goes in one dict: "
            "lv.fit(model, {'x': x, 'y': y}, 'nuts')."
        )
    module = type(method).__module__.split(".")[0]
    other = f" A method of {module} is not one of langevin's." if module in ("numpyro", "blackjax", "pymc") else ""
    raise SettingError(f"`method` must be a name or a method such as lv.SGLD(); got {method!r:.80}.{other}")


def _belongs_to_fit(name: str) -> str:
    meant = name if name in spelling.OF_FIT else spelling.ELSEWHERE.get(name)
    return f"It goes to lv.fit: lv.fit(model, data, method, {meant}=...)." if meant in spelling.OF_FIT else ""


for _make in BY_NAME.values():
    spelling.check_keywords(type(_make()), _belongs_to_fit)


# What settings may consist of, by name: a run on disk is rebuilt from these, and from nothing else.
_KINDS: dict[str, Any] = {
    kind.__name__: kind
    for kind in (
        *(type(make()) for make in BY_NAME.values()),
        *(RMSprop, Constant, Polynomial, CosineCycles, Enumerate, Subsequences),
    )
}


def describe(settings: Any) -> dict[str, Any]:
    """A method or other frozen settings as JSON can hold them."""

    def plain(value: Any) -> Any:
        if dataclasses.is_dataclass(value):
            return describe(value)
        if isinstance(value, str | int | bool | None):
            return value
        if checks.is_number(value):
            return float(value)
        if isinstance(value, Mapping):
            return {_as_key(name): plain(part) for name, part in value.items()}
        return [plain(part) for part in value] if isinstance(value, tuple) else _as_text(value)

    fields = {field.name: plain(getattr(settings, field.name)) for field in dataclasses.fields(settings)}
    return {"name": type(settings).__name__, **fields}


def from_description(description: Mapping[str, Any]) -> Method | None:
    """The method that `describe` described; None if it holds what cannot be told from a description."""

    def made(value: Any) -> Any:
        if not isinstance(value, Mapping):
            return value
        if not isinstance(value.get("name"), str) or value["name"] not in _KINDS:
            return {name: made(part) for name, part in value.items()}
        return _KINDS[value["name"]](**{name: made(part) for name, part in value.items() if name != "name"})

    try:
        method = made(description)
    except SettingError:
        return None
    return method if isinstance(method, Method) and describe(method) == description else None


def _as_text(value: Any) -> str:
    """A value that is neither a number nor made of parts, as JSON can hold it."""
    # An address in a representation would differ from run to run.
    return getattr(value, "__qualname__", type(value).__qualname__) if " at 0x" in repr(value) else repr(value)


def _as_key(key: Any) -> str:
    """A key of settings: one that is a function is no name, and nothing is made of it again."""
    return f"{FUNCTION}{_as_text(key)}" if callable(key) else str(key)
