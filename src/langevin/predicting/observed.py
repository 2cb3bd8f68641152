"""What was observed on the rows to predict, site by site."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import jax.numpy as jnp
import numpy as np

from langevin.errors import DataError
from langevin.posterior import Batch
from langevin.predicting.predictor import Predictor
from langevin.predicting.sites import keys_of
from langevin.run import compilation


def observed_values(predictor: Predictor, who: str) -> dict[str, np.ndarray]:
    """The observed values of the sites that are predicted, rows in front.

    Args:
        predictor: The fit and the rows.
        who: The function that asks, for messages.

    Raises:
        DataError: If the rows do not have what is observed.
    """
    columns = predictor.columns
    asked = [site for site in predictor.asked if not site.deterministic]

    def values(rows: Batch, fixed: Mapping[str, Any]) -> dict[str, Any]:
        zeros = np.zeros(2, np.uint32)
        trace = predictor.caller.trace(rows, fixed, keys_of(zeros, zeros))
        return {s.name: jnp.asarray(trace[s.name]["value"]) for s in asked if trace[s.name]["is_observed"]}

    first = {name: value[0] for name, value in {**predictor.values, **predictor.own}.items()}
    found = compilation.run(values, {**columns.inputs, **columns.held}, {**predictor.params, **first})
    for site in asked:
        if site.name not in found:
            raise DataError(
                f"`{who}`: the data has no values of the observed site {site.name!r}; it has the columns "
                f"{sorted([*columns.inputs, *columns.held])}. Add the column that the program observes there."
            )
    rows_first = lambda site, a: a if site.row_axis is None else np.moveaxis(a, site.row_axis, 0)  # noqa: E731
    return {site.name: rows_first(site, np.asarray(found[site.name])) for site in asked}
