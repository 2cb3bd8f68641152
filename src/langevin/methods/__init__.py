"""The methods a user can ask for: small frozen settings, each of which makes its engine.

A name in lower case stands for a method with its defaults: `"sgld"` is `SGLD()`.
"""

from __future__ import annotations

from collections.abc import Callable

from langevin.errors import SettingError
from langevin.methods.base import Method
from langevin.methods.cyclical import CyclicalSGHMC, CyclicalSGLD
from langevin.methods.exact import HMC, MALA, NUTS, RWM
from langevin.methods.point import MAP
from langevin.methods.stochastic import SGHMC, SGLD, SGNHT, RMSprop
from langevin.methods.variational import VI

__all__ = [
    "BY_NAME",
    "HMC",
    "MALA",
    "MAP",
    "NUTS",
    "RWM",
    "SGHMC",
    "SGLD",
    "SGNHT",
    "VI",
    "CyclicalSGHMC",
    "CyclicalSGLD",
    "Method",
    "RMSprop",
    "as_method",
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
    "vi": VI,
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
        raise SettingError(f"`method`: {method!r} is not known. Known are {', '.join(map(repr, BY_NAME))}.")
    if isinstance(method, type) and issubclass(method, Method):
        return method()
    raise SettingError(f"`method` must be a name or a method such as lv.SGLD(); got {method!r}.")
