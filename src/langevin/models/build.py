"""From what a user brings to the target that a method needs."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

import jax.numpy as jnp
import numpy as np

from langevin.data.table import Table
from langevin.errors import SettingError
from langevin.models.callables import as_program
from langevin.models.density import Density
from langevin.models.joint import Joint
from langevin.models.networks.network import Network
from langevin.models.program import Noncentred, Program
from langevin.posterior import Posterior

if TYPE_CHECKING:
    from langevin.contracts import Needs


def target_of(
    model: Callable[..., Any] | Density,
    table: Table,
    *,
    constants: Mapping[str, Any],
    rows: str | tuple[str, ...] | None,
    noncentred: Noncentred,
    needs: Needs,
    minibatch: bool,
) -> Posterior | Joint:
    """The target of a run.

    Args:
        model: A NumPyro program, or an `lv.Density`.
        table: The rows.
        constants: Arguments of the program that are passed whole.
        rows: The name of the program's plate over the rows, where it cannot be told by its size.
        noncentred: Sites of the program whose noise is inferred, in place of the site itself; "auto" for what is best.
        needs: What the method needs. "either" is the log-density, unless the program has something that stands in its
            way: a discrete latent site, a `numpyro.param`, or, with minibatches, a latent site of every row.
        minibatch: Whether the target will see minibatches.

    Raises:
        ModelError: If the model does not have what is needed; names the site, and says what to do.
        SettingError: If settings are for programs, and the model is a density.
    """
    if isinstance(model, Density):
        if constants or rows or noncentred not in (False, "auto"):
            raise SettingError(
                "`constants`, `rows` and `noncentred` are for NumPyro programs; a `Density` closes over what it needs."
            )
        if needs.target == "joint":
            raise SettingError(
                "`VI`: guides and distributions by site are for NumPyro programs, not for an lv.Density."
            )
        return model.posterior(table, minibatch=minibatch)
    if isinstance(model, Network):
        model.check_fitted(table)
        if noncentred not in (False, "auto"):
            raise SettingError(
                "`noncentred` is for sites whose scale is unknown; those of a network are given. Leave it out."
            )
    program = Program(as_program(model), shortened(constants), rows, noncentred)
    target = program.target(table, needs.target, minibatch=minibatch)
    return model.target(target, table) if isinstance(model, Network) else target


def shortened(constants: Mapping[str, Any]) -> dict[str, Any]:
    """Arrays of whole numbers in the type that JAX takes them in where the program runs.

    Engines that compute in double precision call the program elsewhere, where it would take them in another one: one
    array in two types in one process is more than JAX can tell apart.
    """
    whole = jnp.result_type(int)

    def short(value: Any) -> Any:
        is_whole = isinstance(value, np.ndarray) and value.dtype == np.int64
        return value.astype(whole) if is_whole and np.array_equal(value, value.astype(whole)) else value

    return {name: short(value) for name, value in constants.items()}
