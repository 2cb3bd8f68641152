"""Which columns a program is called with, and which are held out because observed sites are made of them."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from numpyro import handlers
from numpyro.ops.provenance import eval_provenance

from langevin.data.table import Table, as_table
from langevin.errors import DataError, ModelError
from langevin.models.outline import HANDLERS, is_observed


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


def columns_of(function: Callable[..., Any], constants: Mapping[str, Any], data: Any, who: str) -> Columns:
    """Sorts the columns of new rows.

    Args:
        function: The program.
        constants: Its arguments that are no rows.
        data: A dict of arrays, a frame, or a `Table`. Columns that the program has no argument for are left alone.
        who: The function that asks, for messages.

    Raises:
        ModelError: Names the argument without which the program cannot be called.
    """
    table = data if isinstance(data, Table) else as_table(_wanted(function, data))
    try:
        inspect.signature(function).bind(**table.columns, **constants)
    except TypeError as error:
        raise ModelError(
            f"`{who}`: the program cannot be called with the columns {sorted(table.columns)}"
            f"{f' and the constants {sorted(constants)}' if constants else ''}: {error}. Add that column; or, if it is "
            "what is to be predicted, let the argument have the default None."
        ) from error
    except ValueError:
        pass
    held = _held(function, constants, table)
    for name, sites in held.items():
        if not _may_be_left_out(function, name):
            raise ModelError(
                f"`{who}`: the program must be called without {name!r}, of which its observed site {sites[0]!r} is "
                f"made, and has no default for that argument. Write `{name}=None` in its signature."
            )
    inputs = {name: column for name, column in table.columns.items() if name not in held}
    return Columns(inputs, {name: table.columns[name] for name in held}, table.num_rows, _index(data))


def left_out(function: Callable[..., Any], given: Mapping[str, Any], constants: Mapping[str, Any]) -> list[str]:
    """The arguments that a program is called without."""
    return [name for name in _parameters(function) if name not in given and name not in constants]


def _wanted(function: Callable[..., Any], data: Any) -> Any:
    """The columns that the program has arguments for; all if it takes any."""
    parameters = _parameters(function)
    takes_any = not parameters or any(p.kind is p.VAR_KEYWORD for p in parameters.values())
    if takes_any:
        return data
    if isinstance(data, Mapping):
        kept = {name: values for name, values in data.items() if str(name) in parameters}
        there = list(data)
    else:
        there = list(getattr(data, "column_names", getattr(data, "columns", ())))
        names = [name for name in there if str(name) in parameters]
        kept = {name: data[name] for name in names} if type(data).__name__ != "LazyFrame" else data
    if not kept and there:
        raise DataError(
            f"`data` has no column that the program asks for: it has {sorted(map(str, there))}, and the program has "
            f"the arguments {', '.join(parameters)}."
        )
    return kept


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


def _index(data: Any) -> Any:
    """The row names of a pandas frame, if they are one to a row."""
    if not type(data).__module__.startswith("pandas"):
        return None
    return data.index if data.index.nlevels == 1 and data.index.is_unique else None
