"""Parameters from the prior of a program, and rows from the program with these."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import jax
import numpy as np

from langevin.criticism.sites import Watched, simulated
from langevin.data.table import Table
from langevin.errors import ModelError, SettingError
from langevin.models.density import Density
from langevin.models.joint import Called
from langevin.models.outline import outline_of
from langevin.posterior import Batch
from langevin.run import compilation
from langevin.run.seeds import Seed, key_of

Simulation = tuple[dict[str, np.ndarray], dict[str, np.ndarray]]


def simulator_of(model: Any, table: Table, constants: Mapping[str, Any]) -> Callable[[Seed], Simulation]:
    """A function from a seed to values of the latent sites, and to data in which what is observed was drawn with them.

    Args:
        model: A NumPyro program.
        table: Rows like those of a fit; the values of observed columns are replaced.
        constants: Arguments of the program that are passed whole.

    Raises:
        SettingError: If the program cannot simulate itself; says what to give.
        ModelError: If the prior of a site cannot be drawn from.
    """
    if isinstance(model, Density) or not table.num_rows:
        what = "an lv.Density has no prior to draw from" if isinstance(model, Density) else "there is no `data`"
        raise SettingError(
            f"`calibrate`: {what}. Give `simulate`, a function of a NumPy generator that returns the parameters and "
            "the data."
            + ("" if isinstance(model, Density) else " Or give `data` like that of a fit: observed columns are drawn.")
        )
    program = Called(model, constants)
    columns: dict[str, str] = {}

    def call(batch: Batch) -> Any:
        with Watched(batch, columns):
            return model(**batch, **constants)

    outlined = outline_of(call, table.columns, table.num_rows)
    latent = tuple(outlined.shapes)
    for name, site in outlined.sites.items():
        if site["type"] == "sample" and site["is_observed"] and not site["is_factor"] and name not in columns:
            raise SettingError(
                f"`calibrate`: the value of the observed site {name!r} is not a column of the data as it is, so the "
                "program cannot simulate the data. Give `simulate`, a function of a NumPy generator that returns the "
                "parameters and the data."
            )
    if not columns:
        raise SettingError(
            "`calibrate`: nothing is observed with these columns. Give `data` as to a fit, with the observed columns "
            "too (their values are replaced)."
        )
    names = (*latent, *columns)

    def run(batch: Batch, words: Any) -> Any:
        return simulated(program, {}, batch, key_of(words), names)

    try:
        compiled = compilation.prepared(run, table.columns, Seed((0,)).key_words())
    except NotImplementedError as error:
        raise ModelError(
            "`calibrate`: the prior of a site cannot be drawn from (it may be improper). Give `simulate`, a function "
            "of a NumPy generator that returns the parameters and the data."
        ) from error

    def simulate(seed: Seed) -> Simulation:
        values = jax.tree.map(np.asarray, compiled(table.columns, seed.key_words()))
        drawn = {column: values[site] for site, column in columns.items()}
        return {name: values[name] for name in latent}, {**table.columns, **drawn}

    return simulate
