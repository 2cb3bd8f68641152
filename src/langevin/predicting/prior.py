"""lv.prior_predictive: what a model expects before it has seen anything."""

from __future__ import annotations

import dataclasses
import inspect
from collections.abc import Callable, Mapping
from typing import Any

import jax
import numpy as np
import xarray as xr
from numpyro import handlers

from langevin import checks
from langevin.errors import LangevinError, ModelError
from langevin.models.arguments import brought
from langevin.models.density import Density
from langevin.models.networks.network import Network
from langevin.models.outline import HANDLERS, is_observed
from langevin.models.source import Source
from langevin.predicting.calling import Caller
from langevin.predicting.chosen import Chosen
from langevin.predicting.columns import Columns, columns_of, index_of, left_out
from langevin.predicting.draws import dataset_of
from langevin.predicting.observed import observed_values
from langevin.predicting.predictor import Predictor, finished
from langevin.predicting.sites import look
from langevin.run.seeds import Seed


def prior_predictive(
    model: Callable[..., Any],
    data: Any,
    *,
    num_draws: int = 1000,
    seed: int = 0,
    constants: Mapping[str, Any] | None = None,
) -> xr.DataTree:
    """Draws from the prior of a program, and of what it would observe on rows.

    Args:
        model: A NumPyro program. What it observes is left out, so `y=None` must be the default of that argument.
        data: A dict of arrays or a frame. Observed columns may be there or not.
        num_draws: How many draws.
        seed: The same seed gives the same bits.
        constants: Arguments of the program that are passed whole.

    Returns:
        The groups `prior` and `prior_predictive`, with dimensions chain (one), draw and the site's own; and
        `observed_data`, if the data has what is observed.

    Raises:
        ModelError: If the program does not run without what it observes, or the model is an `lv.Density`.

    Example:
        >>> import langevin as lv, numpyro, numpyro.distributions as dist
        >>> def model(x, y=None):
        ...     slope = numpyro.sample("slope", dist.Normal(0, 1))
        ...     with numpyro.plate("rows", len(x)):
        ...         numpyro.sample("y", dist.Normal(slope * x, 0.1), obs=y)
        >>> tree = lv.prior_predictive(model, {"x": [0.0, 1.0, 2.0]})
        >>> dict(tree["prior_predictive"].sizes), bool(tree["prior_predictive"]["y"].std() > 1)
        ({'chain': 1, 'draw': 1000, 'rows': 3}, True)
    """
    if isinstance(model, Density):
        raise ModelError("`prior_predictive` is for NumPyro programs: an lv.Density has no prior to draw from.")
    checks.count("prior_predictive", "num_draws", num_draws)
    table, constants = brought(model, data, constants or {}, "keep")
    columns = columns_of(model, constants, table, "prior_predictive")._replace(index=index_of(data))
    caller = Caller(model, constants)
    missing = left_out(model, columns.inputs, constants)
    observed = _observed(model, columns, constants, missing)
    sites = look(caller, columns.inputs, columns.num_rows, observed, (), ", ".join(f"`{name}`" for name in missing))
    caller = dataclasses.replace(caller, by_rows=frozenset({*sites.plated, *sites.observed}))
    chosen = Chosen(np.arange(num_draws), np.full(num_draws, 1 / num_draws), 1 - 1 / num_draws)
    # Parameters have the values that the program begins with.
    seeds = Seed.of(seed).child("prior_predictive")
    source, asked = Source(model, constants), tuple(sites.all.values())
    begun = Predictor(caller, columns, chosen, {}, {}, {}, sites, asked, False, seeds, source, "prior")
    predictor = finished(begun)
    drawn = dataset_of(predictor, None, np.ones((1, num_draws))).drop_vars(["chain", "draw", "weight"])
    drawn = drawn.rename(sample="draw").expand_dims("chain").assign_coords(chain=[0], draw=np.arange(num_draws))
    predicted = list(sites.observed)
    groups = {"prior": drawn.drop_vars(predicted), "prior_predictive": drawn[predicted]}
    if columns.held:
        groups["observed_data"] = _observed_data(predictor, sites.observed, drawn)
    return xr.DataTree.from_dict(groups)


def _observed(
    model: Callable[..., Any], columns: Columns, constants: Mapping[str, Any], missing: list[str]
) -> tuple[str, ...]:
    """The sites that are observed: with the columns that were held out; else with columns of zeros in their place."""
    held = {name: jax.ShapeDtypeStruct(column.shape, column.dtype) for name, column in columns.held.items()}
    if isinstance(model, Network):
        return (model.outcome,)
    if held:
        return _observed_with(model, columns, constants, held)
    parameters = inspect.signature(model).parameters
    absent = [name for name in missing if parameters[name].default is None]
    for dtype in (np.float32, np.int32):
        shape = jax.ShapeDtypeStruct((columns.num_rows,), dtype)
        try:
            found = _observed_with(model, columns, constants, dict.fromkeys(absent, shape))
        except LangevinError:
            raise
        except Exception:  # a column of another shape than the program observes: it may raise anything
            continue
        if found:
            return found
    raise ModelError(
        "`prior_predictive`: there is no telling which sites of the program are observed. Give the observed columns "
        "too."
    )


def _observed_with(
    model: Callable[..., Any], columns: Columns, constants: Mapping[str, Any], held: Mapping[str, Any]
) -> tuple[str, ...]:
    names: list[str] = []

    def run(rows: Any) -> int:
        with HANDLERS:
            trace = handlers.trace(handlers.seed(model, jax.random.key(0))).get_trace(**rows, **constants)
        names.extend(name for name, site in trace.items() if site["type"] == "sample" and is_observed(site))
        return 0

    inputs = {name: jax.ShapeDtypeStruct(column.shape, column.dtype) for name, column in columns.inputs.items()}
    jax.eval_shape(run, {**inputs, **held})
    return tuple(names)


def _observed_data(predictor: Predictor, observed: tuple[str, ...], drawn: xr.Dataset) -> xr.Dataset:
    asked = tuple(site for site in predictor.asked if site.name in observed)
    values = observed_values(predictor._replace(asked=asked), "prior_predictive")
    coords = {dim: drawn[dim] for site in asked for dim in site.front if dim in drawn.coords}
    return xr.Dataset({site.name: (site.front, values[site.name]) for site in asked}, coords)
