"""What may stand for a NumPyro program, and what to say of what may not."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any

import jax

from langevin.errors import ModelError


def as_program(model: Any) -> Callable[..., Any]:
    """The function of a model; of one that is compiled already, the function inside, whose sites NumPyro can see.

    Raises:
        ModelError: If it is nothing that can be run as a program; says what it is.
    """
    if not callable(model):
        inside = " Pass the function itself, `model`, and not what it returns, `model(...)`." if model is None else ""
        raise ModelError(f"`model` must be a NumPyro program or an lv.Density; got {_shown(model)}.{inside}")
    if inspect.isclass(model):
        raise ModelError(
            f"`model` is the class {model.__name__!r}, and not a function. Pass an object of it that can be called, or "
            "a method of such an object."
        )
    # Some transformations wrap several times.
    while isinstance(model, jax.stages.Wrapped) and "__wrapped__" in vars(model):
        model = model.__wrapped__
    if inspect.isgeneratorfunction(model) or inspect.iscoroutinefunction(model):
        kind = "a generator (it has a `yield`)" if inspect.isgeneratorfunction(model) else "asynchronous (`async def`)"
        raise ModelError(f"`model` is {kind}, so that calling it runs nothing. Make it a plain function.")
    return model


def _shown(value: Any) -> str:
    shown = repr(value)
    return shown if len(shown) <= 80 else f"{shown[:80]}..."
