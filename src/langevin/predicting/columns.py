"""Which columns a program is called with, and which are held out because observed sites are made of them."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Hashable, Mapping
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from numpyro import handlers
from numpyro.ops.provenance import eval_provenance

from langevin.data.levels import listed
from langevin.data.table import Table
from langevin.errors import ModelError
from langevin.models.outline import HANDLERS, is_observed

Once = Callable[[Hashable, Callable[[], Any]], Any]


def now(key: Hashable, make: Callable[[], Any]) -> Any:
    """Keeps nothing."""
    del key
    return make()


class Columns(NamedTuple):
    """Rows to predict.

    Attributes:
        inputs: The columns that the program is called with.
        held: The columns of what is observed, which it is not called with.
        num_rows: How many rows.
        index: Names of the rows, from a pandas frame; None for their numbers.
    """

    inputs: dict[str, np.ndarray]
    held: dict[str, np.ndarray]
    num_rows: int
    index: Any = None


def columns_of(
    function: Callable[..., Any], constants: Mapping[str, Any], table: Table, who: str, once: Once = now
) -> Columns:
    """Sorts the columns of new rows.

    Args:
        function: The program.
        constants: Its arguments that are no rows.
        table: The rows, as the program asks for them.
        who: The function that asks, for messages.
        once: `(key, make) -> made`: keeps what was found out about such columns.

    Raises:
        ModelError: Names the argument without which the program cannot be called.
    """
    try:
        inspect.signature(function).bind(**table.columns, **constants)
    except TypeError as error:
        also = f" `data` also has {listed(table.left)}, which no argument asks for." if table.left else ""
        raise ModelError(
            f"`{who}`: the program cannot be called with the columns {sorted(table.columns)}"
            f"{f' and the constants {sorted(constants)}' if constants else ''}: {error}.{also} Add that column; or, if "
            "it is what is to be predicted, let the argument have the default None."
        ) from error
    except ValueError:
        pass
    shapes = tuple((name, column.shape, str(column.dtype)) for name, column in table.columns.items())
    held = once(("held", function, shapes), lambda: _held(function, constants, table))
    for name, sites in held.items():
        if not _may_be_left_out(function, name):
            raise ModelError(
                f"`{who}`: the program must be called without {name!r}, of which its observed site {sites[0]!r} is "
                f"made, and has no default for that argument. Write `{name}=None` in its signature."
            )
    inputs = {name: column for name, column in table.columns.items() if name not in held}
    return Columns(inputs, {name: table.columns[name] for name in held}, table.num_rows)


def left_out(function: Callable[..., Any], given: Mapping[str, Any], constants: Mapping[str, Any]) -> list[str]:
    """The arguments that a program is called without."""
    return [name for name in _parameters(function) if name not in given and name not in constants]


def _parameters(function: Callable[..., Any]) -> Mapping[str, inspect.Parameter]:
    try:
        return inspect.signature(function).parameters
    except ValueError:
        return {}


def _may_be_left_out(function: Callable[..., Any], name: str) -> bool:
    parameter = _parameters(function).get(name)
    return parameter is None or parameter.default is not parameter.empty


def _held(function: Callable[..., Any], constants: Mapping[str, Any], table: Table) -> dict[str, list[str]]:
    """For each column that the value of an observed site is computed from, these sites."""
    keys = {f"column {number}": name for number, name in enumerate(table.columns)}

    def values(**columns: Any) -> dict[str, Any]:
        rows = {keys[key]: column for key, column in columns.items()}
        with HANDLERS:
            trace = handlers.trace(handlers.seed(function, jax.random.key(0))).get_trace(**rows, **constants)
        return {
            name: jnp.asarray(site["value"])
            for name, site in trace.items()
            if site["type"] == "sample" and is_observed(site)
        }

    shapes = {key: jax.ShapeDtypeStruct(table.columns[n].shape, table.columns[n].dtype) for key, n in keys.items()}
    found = eval_provenance(values, **shapes)
    return {
        name: sites
        for key, name in keys.items()
        if (sites := [site for site, made_of in found.items() if key in made_of])
    }


def may_lack(function: Callable[..., Any]) -> frozenset[str]:
    """The arguments that a program can do without: those of what it observes."""
    return frozenset(name for name, parameter in _parameters(function).items() if parameter.default is None)


def index_of(data: Any) -> Any:
    """The row names of a pandas frame, if they are one to a row."""
    if not type(data).__module__.startswith("pandas"):
        return None
    return data.index if data.index.nlevels == 1 and data.index.is_unique else None
