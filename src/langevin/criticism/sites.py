"""The observed sites of a model, and the log-likelihood of each at a draw."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from numpyro import handlers
from numpyro.primitives import Messenger

from langevin.models import outline
from langevin.models.joint import Called
from langevin.models.structure import dims_of
from langevin.posterior import Batch, Posterior

ROWS = "rows"
DENSITY = "log_likelihood"
Draw = Any
"""One draw: the values of the latent sites of a program, or a position of a density."""


class Site(NamedTuple):
    """An observed site on all rows.

    Attributes:
        dims: The dimensions of its log-likelihood.
        shape: The shape of that.
        row_axis: Which axis of both are the rows; None if none is.
        value_dims: The dimensions of its value; None if it has none, as a factor.
        value_shape: The shape of its value.
    """

    dims: tuple[str, ...]
    shape: tuple[int, ...]
    row_axis: int | None
    value_dims: tuple[str, ...] | None
    value_shape: tuple[int, ...]


class Sites(NamedTuple):
    """What a model has, as criticism sees it.

    Attributes:
        latent: The names of the latent sites; empty for a density.
        params: The names of the `numpyro.param` sites.
        observed: The sites with a log-likelihood.
        columns: The columns of the data that are an observed site's value, and so no constants.
        by_position: Whether a draw is a position: of a density, or of a program whose discrete sites are summed out.
    """

    latent: tuple[str, ...]
    params: tuple[str, ...]
    observed: dict[str, Site]
    columns: frozenset[str]
    by_position: bool = False

    @property
    def row_dim(self) -> str:
        """The name of the dimension of the rows."""
        named = [site.dims[site.row_axis] for site in self.observed.values() if site.row_axis is not None]
        return named[0] if named else ROWS


def find(target: Posterior) -> Sites:
    """Runs the program abstractly on all rows."""
    program, count = target.model.program, target.num_data
    if program is None:
        return Sites((), (), {DENSITY: Site((ROWS,), (count,), 0, None, ())} if count else {}, frozenset(), True)
    columns = target.rows if count else target.data
    seen: dict[str, str] = {}

    def call(batch: Batch) -> Any:
        with Watched(batch, seen):
            return program.function(**batch, **program.constants)

    outlined = outline.outline_of(call, columns, count)
    observed = {}
    for name, site in outlined.sites.items():
        if site["type"] != "sample" or not site["is_observed"]:
            continue
        row_dim = outline.row_dim(site, target.model.row_plates)
        is_factor = site["is_factor"]
        if is_factor and row_dim is None and target.model.row_plates:
            continue
        observed[name] = _site(name, outlined, row_dim, is_factor)
    if any(outlined.sites[name]["discrete"] for name in outlined.shapes):
        return Sites(tuple(outlined.shapes), outlined.params, _summed(observed), frozenset(seen.values()), True)
    return Sites(tuple(outlined.shapes), outlined.params, observed, frozenset(seen.values()))


def log_likelihoods(
    target: Posterior, draw: Draw, batch: Batch, names: tuple[str, ...], by_position: bool
) -> dict[str, jax.Array]:
    """The log-likelihood of these observed sites on some rows."""
    if by_position:
        return {name: target.log_likelihood(draw, batch) for name in names}
    trace = traced(target.model.program, draw, batch)
    # A temperature is of the posterior, and not of what is observed.
    log_prob = outline.log_prob if target.model.network is None else outline.unscaled_log_prob
    return {name: log_prob(trace[name]) for name in names}


def log_priors(
    target: Posterior, draw: Draw, batch: Batch, names: tuple[str, ...], by_position: bool
) -> dict[str, jax.Array]:
    """The log-prior of these latent sites, in the space of their values: without the Jacobians of the position.

    Of a density it is the log-prior as it was given, which is over positions.
    """
    if by_position:
        return {name: target.terms(draw, batch)[0] for name in names}
    trace = traced(target.model.program, draw, batch)
    return {name: jnp.sum(outline.log_prob(trace[name])) for name in names}


def observed_values(target: Posterior, batch: Batch, names: tuple[str, ...]) -> dict[str, jax.Array]:
    """The values of these observed sites, which are the same whatever the latent ones are."""
    program = target.model.program
    trace, _ = outline.trace_of(lambda rows: program.function(**rows, **program.constants), batch)
    return {name: jnp.asarray(trace[name]["value"]) for name in names}


def simulated(program: Called, values: Mapping[str, Any], batch: Batch, key: Any, names: tuple[str, ...]) -> Any:
    """The values of these sites in a run in which nothing is observed, and the latent sites have these values.

    Latent sites without a value are drawn from their prior.
    """
    run = handlers.uncondition(handlers.substitute(program.function, data=dict(values)))
    with outline.HANDLERS:
        trace = handlers.trace(handlers.seed(run, key)).get_trace(**batch, **program.constants)
    return {name: jnp.asarray(trace[name]["value"]) for name in names if name in trace}


def traced(program: Called, values: Mapping[str, Any], batch: Batch) -> dict[str, Any]:
    """The sites of a run with these values of the latent sites."""
    run = handlers.seed(handlers.substitute(program.function, data=dict(values)), jax.random.key(0))
    with outline.HANDLERS:
        return handlers.trace(run).get_trace(**batch, **program.constants)


def _summed(observed: dict[str, Site]) -> dict[str, Site]:
    """One site with a value a row, in place of all in the plate over the rows: their terms cannot be told apart."""
    by_row = {name: site for name, site in observed.items() if site.row_axis is not None}
    if not by_row:
        return {}
    name, site = next(iter(by_row.items()))
    axis = site.row_axis or 0
    alone = len(by_row) == 1
    value = site.value_dims if alone and len(site.shape) == 1 else None
    return {
        name if alone else DENSITY: Site((site.dims[axis],), (site.shape[axis],), 0, value, site.value_shape),
    }


def _site(name: str, outlined: outline.Outline, row_dim: int | None, is_factor: bool) -> Site:
    site = outlined.sites[name]
    dims, independent = dims_of(name, outlined), len(site["shape"]) - site["event_dim"]
    shape = np.broadcast_shapes(site["shape"][:independent], site["batch_shape"])
    terms = dims[:independent]
    if len(shape) != independent or shape != site["shape"][:independent]:
        terms = tuple(f"{name}_term_{axis}" for axis in range(len(shape)))
    row_axis = None if row_dim is None else len(shape) + row_dim
    return Site(terms, tuple(shape), row_axis, None if is_factor else dims, site["shape"])


class Watched(Messenger):
    """Notes for each observed site the column that its value is, as it is."""

    def __init__(self, columns: Batch, found: dict[str, str]) -> None:
        super().__init__()
        self._columns, self._found = columns, found

    def process_message(self, msg: dict[str, Any]) -> None:
        """Looks at a site before it has its value."""
        if msg["type"] == "sample" and msg["is_observed"]:
            for name, column in self._columns.items():
                if msg["value"] is column:
                    self._found[msg["name"]] = name
