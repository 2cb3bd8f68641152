"""What the arguments of a program ask for: columns of the data, numbers of levels, and rows that lack a value.

A program says by its arguments what it needs. An argument that `constants` does not give is a column of that name.
`num_carrier`, where no column has that name, is the number of levels of the column `carrier`: of names, how many there
are; of whole numbers, which are taken for codes, one more than the largest. `x_missing` are the rows that lack a value
of the column `x`, for a program that has a latent site for each of them.
"""

from __future__ import annotations

import inspect
from collections.abc import Mapping, Sequence
from typing import Any, Literal, NamedTuple

import numpy as np

from langevin.data.again import table_again
from langevin.data.levels import listed
from langevin.data.table import GAPS, Missing, Table, as_table
from langevin.errors import ModelError, SettingError
from langevin.models.density import Density
from langevin.models.networks.known import AtOutputs
from langevin.models.networks.network import Network

COUNT = "num_"


class Wants(NamedTuple):
    """What a model asks for.

    Attributes:
        columns: Names of columns; None for all, where it does not say.
        may_lack: Columns that may lack values.
    """

    columns: frozenset[str] | None = None
    may_lack: frozenset[str] = frozenset()


def wants_of(model: Any, constants: Mapping[str, Any]) -> Wants:
    """What a model asks for besides its constants. A density does not say, and gets everything."""
    parameters = _parameters(model)
    if parameters is None:
        return Wants()
    names = {name for name, parameter in parameters.items() if parameter.kind is not parameter.VAR_POSITIONAL} - set(
        constants
    )
    may_lack = frozenset(name for name in names if f"{name}{GAPS}" in names)
    if any(parameter.kind is parameter.VAR_KEYWORD for parameter in parameters.values()):
        return Wants(None, may_lack)
    return Wants(frozenset(names), may_lack)


def brought(
    model: Any, data: Any, constants: Mapping[str, Any], missing: Missing = "error", *, minibatch: bool = False
) -> tuple[Table, dict[str, Any]]:
    """The rows as a model asks for them, and its constants with those that follow from the rows.

    Args:
        model: A NumPyro program, or an `lv.Density`.
        data: As a user brings it.
        constants: Arguments of the program that are passed whole.
        missing: What to do where values are missing.
        minibatch: Whether the model will see minibatches.

    Raises:
        DataError: What is wrong, in which column, and at which row.
        SettingError: If the program asks for row numbers, which minibatches do not have.
    """
    wants = wants_of(model, constants)
    table = as_table(data, wanted=wants.columns, missing=missing, may_lack=wants.may_lack)
    if isinstance(model, Network | AtOutputs):
        model.check(table)
    found = filled(model, table, constants)
    counts = {name: value for name, value in found.items() if name.startswith(COUNT)}
    gaps = [name for name in found if name not in counts]
    if gaps and minibatch:
        raise SettingError(
            f"The program has the argument {gaps[0]!r}, numbers of rows, which minibatches do not have. Leave "
            "`batch_size` out, or leave rows out with missing='drop'."
        )
    return table._replace(counts=counts), {**constants, **found}


def brought_again(
    model: Any,
    data: Any,
    constants: Mapping[str, Any],
    levels: Mapping[str, Sequence[Any]],
    counts: Mapping[str, int],
    *,
    missing: Missing = "error",
    may_lack: frozenset[str] = frozenset(),
    unseen: Literal["error", "draw"] = "error",
) -> tuple[Table, dict[str, Any]]:
    """New rows as the model of an earlier fit asks for them, and its constants.

    Args:
        model: The model of the fit.
        data: The new rows, as a user brings them.
        constants: Those of the fit, with or without those that followed from its rows.
        levels: Of the fit: `fit.levels`.
        counts: Numbers of levels of the fit: `fit.settings["counts"]`.
        missing: What to do where values are missing.
        may_lack: Columns of numbers that may lack values whatever `missing` is: what is to be predicted.
        unseen: What to do with groups that the fit did not see: "error", or "draw" for further levels.

    Returns:
        The rows, and the constants, in which numbers of levels count the further ones.

    Raises:
        DataError: What is wrong, in which column; names the groups that the fit did not see.
    """
    given = {name: value for name, value in constants.items() if name not in counts}
    wants = wants_of(model, given)
    names = {"wanted": wants.columns, "may_lack": wants.may_lack | may_lack}
    table, new = table_again(data, levels, counts=counts, missing=missing, unseen=unseen, **names)
    if isinstance(model, Network | AtOutputs):
        model.check(table)
    grown = {name: count + new.get(name.removeprefix(COUNT), 0) for name, count in counts.items()}
    return table._replace(counts=grown), {**given, **filled(model, table, given, grown), **grown}


def filled(
    model: Any, table: Table, constants: Mapping[str, Any], counts: Mapping[str, int] | None = None
) -> dict[str, Any]:
    """The arguments of a program that follow from its rows: numbers of levels, and rows that lack a value.

    Args:
        model: The program.
        table: Its rows.
        constants: The arguments that are given.
        counts: Numbers of levels that are known from an earlier fit, by the name of the argument.
    """
    arguments: dict[str, Any] = {}
    for name, parameter in (_parameters(model) or {}).items():
        # A default other than None is a choice.
        chosen = parameter.default is not parameter.empty and parameter.default is not None
        if chosen or name in table.columns or name in constants:
            continue
        if name.startswith(COUNT) and name.removeprefix(COUNT) in table.columns:
            number = (counts or {}).get(name, _number_of_levels(table, name.removeprefix(COUNT)))
            arguments |= {} if number is None else {name: number}
        elif name.endswith(GAPS) and name.removesuffix(GAPS) in table.columns:
            arguments[name] = np.asarray(table.lacking.get(name.removesuffix(GAPS), ()), np.int32)
    return arguments


def check_used(table: Table, observes: bool) -> None:
    """Raises a ModelError if a program leaves columns alone and observes nothing: one may have another name."""
    if table.left and not observes:
        raise ModelError(
            f"The program observes nothing, and leaves {listed(table.left)} of `data` alone. Give it what it observes: "
            "a column goes to the argument of the same name."
        )


def _number_of_levels(table: Table, column: str) -> int | None:
    """How many levels a column has; None if it is not one of codes."""
    if column in table.levels:
        return len(table.levels[column])
    values = table.columns[column]
    if values.dtype.kind == "b":
        return 2
    if values.dtype.kind not in "iu" or values.min() < 0:
        return None
    return int(values.max()) + 1


def _parameters(model: Any) -> Mapping[str, inspect.Parameter] | None:
    if isinstance(model, Density) or not callable(model):
        return None
    try:
        return inspect.signature(model).parameters
    except (ValueError, TypeError):
        return None
