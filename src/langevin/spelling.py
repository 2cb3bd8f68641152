"""Names of arguments that were misspelt, or that other libraries have: what to say of them."""

from __future__ import annotations

import difflib
import functools
import inspect
from collections.abc import Callable, Iterable
from typing import Any, ParamSpec, TypeVar

import numpy as np

from langevin.errors import UnknownSettingError

Arguments = ParamSpec("Arguments")
Result = TypeVar("Result")

OF_FIT = (
    *("model", "data", "method", "constants", "rows", "missing", "dims", "coords", "noncentred", "collapse"),
    *(
        "num_chains",
        "num_warmup",
        "num_draws",
        "thin",
        "batch_size",
        "seed",
        "init",
        "progress",
        "cache",
        "store",
        "keep",
    ),
    "max_seconds",
)
# What PyMC, Stan, NumPyro, Bambi and PyTorch call it.
ELSEWHERE = {
    "batchsize": "batch_size",
    "burn_in": "num_warmup",
    "burnin": "num_warmup",
    "chains": "num_chains",
    "draws": "num_draws",
    "iter_sampling": "num_draws",
    "iter_warmup": "num_warmup",
    "key": "seed",
    "learning_rate": "step_size",
    "lr": "step_size",
    "max_tree_depth": "max_depth",
    "max_treedepth": "max_depth",
    "n_chains": "num_chains",
    "n_draws": "num_draws",
    "n_samples": "num_draws",
    "num_samples": "num_draws",
    "progress_bar": "progress",
    "progressbar": "progress",
    "random_seed": "seed",
    "rng_key": "seed",
    "samples": "num_draws",
    "subsample_size": "batch_size",
    "target_accept_prob": "target_accept",
    "thinning": "thin",
    "tune": "num_warmup",
    "warmup": "num_warmup",
}


def nearest(name: str, known: Iterable[str]) -> str | None:
    """The known name that was probably meant.

    Example:
        >>> nearest("num_sample", OF_FIT), nearest("tune", OF_FIT), nearest("banana", OF_FIT)
        ('num_draws', 'num_warmup', None)
    """
    known = list(known)
    meant = {**{other: here for other, here in ELSEWHERE.items() if here in known}, **{here: here for here in known}}
    near = difflib.get_close_matches(name.lower(), meant, 1)
    return meant[near[0]] if near else None


def checked(
    function: Callable[Arguments, Result], name: str, homes: Callable[[str], str] = lambda _: ""
) -> Callable[Arguments, Result]:
    """A function that says of an argument it does not have what was probably meant.

    Args:
        function: The function, or the `__init__` of a class.
        name: Its name.
        homes: Of a name, a sentence that says where it belongs; empty if it does not know.
    """
    signature = inspect.signature(function)
    known = [parameter for parameter in signature.parameters if parameter != "self"]

    @functools.wraps(function)
    def call(*args: Arguments.args, **kwargs: Arguments.kwargs) -> Result:
        unknown = [keyword for keyword in kwargs if keyword not in known]
        if unknown:
            raise _unknown(name, unknown[0], kwargs[unknown[0]], known, homes)
        try:
            signature.bind(*args, **kwargs)
        except TypeError as error:
            raise UnknownSettingError(
                f"`{name}`: {error}. Its arguments are {', '.join(known)}; those after the first few go by name."
            ) from None
        return function(*args, **kwargs)

    return call


def check_keywords(kind: type[Any], homes: Callable[[str], str] = lambda _: "") -> None:
    """Lets a class say of an argument it does not have what was probably meant: see `checked`."""
    if "__wrapped__" not in vars(kind.__init__):
        kind.__init__ = checked(kind.__init__, kind.__name__, homes)


def _unknown(
    function: str, name: str, value: Any, known: list[str], homes: Callable[[str], str]
) -> UnknownSettingError:
    meant = nearest(name, known)
    remedy = homes(name) or (f"Did you mean `{meant}`?" if meant else "")
    if not remedy and "data" in known and np.ndim(value):
        remedy = f"Data goes in one dict, by the names of the program's arguments: {{{name!r}: {name}}}."
    return UnknownSettingError(
        f"`{function}` has no argument `{name}`. {remedy or 'Its arguments are ' + ', '.join(known) + '.'}"
    )
