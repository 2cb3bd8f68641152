"""Where a fit is called, and whether it can be made there."""

from __future__ import annotations

import threading
from collections.abc import Mapping
from typing import Any

import jax
from jax.core import Tracer
from jax.extend.core import get_opaque_trace_state

from langevin.errors import SettingError
from langevin.forks import check_not_forked
from langevin.models.stack import stack


def check_surroundings(name: str, constants: Any) -> None:
    """Raises a SettingError where a fit cannot be made, or with constants that are none.

    Args:
        name: Of the function.
        constants: As a user gave them.
    """
    check_not_forked()
    if not isinstance(constants, Mapping | None):
        raise SettingError(f"`constants` must be a dict of arguments by name; got {constants!r:.80}.")
    for key, value in (constants or {}).items():
        if any(isinstance(leaf, Tracer) for leaf in jax.tree.leaves(value)):
            raise SettingError(
                f"`constants[{key!r}]` has no value yet: `{name}` cannot be called inside jax.jit, jax.vmap or "
                "jax.grad. Call it outside."
            )
    if _is_traced():
        raise SettingError(
            f"`{name}` is called inside jax.jit, jax.vmap or jax.grad, or another function that JAX traces, where "
            "nothing has a value. Call it outside, in a plain Python loop."
        )
    handlers = stack()
    if len(handlers):
        kinds = ", ".join(sorted({type(handler).__name__ for handler in handlers}))
        raise SettingError(
            f"`{name}` is called inside a NumPyro program, or inside `with` a handler of NumPyro's ({kinds}). Call it "
            "outside, and put the handler around the program: numpyro.handlers.condition(model, data)."
        )


def _is_traced() -> bool:
    """Whether JAX is tracing: a thread of its own is where it is not."""
    states: list[Any] = []
    thread = threading.Thread(target=lambda: states.append(get_opaque_trace_state()))
    thread.start()
    thread.join()
    return get_opaque_trace_state() != states[0]
