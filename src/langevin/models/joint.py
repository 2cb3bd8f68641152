"""A NumPyro program as the joint distribution of its sites: for guides, and for engines that update sites in blocks.

Unlike in a `Posterior`, sites may be discrete, each row may have its own, and the program (as the guide) may have
parameters, `numpyro.param`. A guide gives sites their values; a position has unconstrained values of the continuous
sites, and the values themselves of discrete sites and parameters.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping
from typing import Any

import jax
import jax.numpy as jnp
from numpyro import handlers
from numpyro.primitives import Messenger

from langevin.errors import ModelError
from langevin.models import outline
from langevin.models.placing import place_site
from langevin.models.structure import Structure
from langevin.posterior import Batch, Dims, Key, Position, check_fixed, check_names, num_rows

Trace = dict[str, dict[str, Any]]


@dataclasses.dataclass(frozen=True, eq=False)
class Called:
    """A program and the arguments that are passed to it whole; a guide gets them too."""

    function: Callable[..., Any]
    constants: Mapping[str, Any]


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class Joint:
    """A program that knows its rows; a `langevin.contracts.Target`.

    A pytree whose only leaves are the data and the values of fixed sites.

    Attributes:
        data: As in `Posterior`.
        program: The program and its constants.
        sites: All sites of the program; those that are not fixed are in `structure`.
        num_data: How many rows there are.
        fixed: The values of the sites that are no longer part of the position: see `given`.
    """

    data: Batch
    program: Called = dataclasses.field(metadata={"static": True})
    sites: Structure = dataclasses.field(metadata={"static": True})
    num_data: int = dataclasses.field(metadata={"static": True})
    fixed: dict[str, Any] = dataclasses.field(default_factory=dict)

    @property
    def function(self) -> Callable[..., Any]:
        """The program."""
        return self.program.function

    @property
    def structure(self) -> Structure:
        """The sites that are not fixed."""
        return self.sites.without(self.fixed) if self.fixed else self.sites

    @property
    def rows(self) -> Batch:
        """All rows, and nothing but the rows."""
        return jax.tree.map(lambda array: array[: self.num_data], self.data)

    @property
    def dims(self) -> Dims:
        """For each reported name, the names of its dimensions."""
        structure = self.structure
        return tuple((name, structure.dims[name]) for name in structure.reported)

    @property
    def observed(self) -> tuple[str, ...]:
        """The sites that have a given value."""
        return self.sites.observed

    def log_density(self, position: Position, batch: Batch | None = None) -> jax.Array:
        """The log joint density of the sites, with the log-determinants of the maps of continuous ones.

        Sites inside the plate over the rows are scaled by num_data / rows in the batch.

        Args:
            position: For each latent site its unconstrained value, or, if it is discrete, its value; with minibatches,
                for the rows of the batch. Parameters by their value; those that it does not hold have the value that
                the program begins with.
            batch: Rows; None for all.

        Raises:
            ModelError: If the position lacks a site, has one that the model does not know, or one of another shape.
        """
        batch = self.rows if batch is None else batch
        structure = self.structure
        check_names(position, structure.shapes, optional=structure.params, fixed=self.fixed)
        whole = {**self.fixed, **position}
        for name in self.sites.shapes:
            _check_shape(self.sites, name, whole[name], num_rows(batch) if self.num_data else 0)
        values, unconstrained = self._parted(position)
        trace = self.trace(self.function, batch, values, jax.random.key(0), position=unconstrained)
        terms = (
            jnp.sum(self.scale(site, batch) * outline.unscaled_log_prob(site))
            for site in trace.values()
            if site["type"] == "sample"
        )
        return sum(terms, jnp.zeros((), jnp.result_type(float)))

    def given(self, fixed: Mapping[str, Any]) -> Joint:
        """The same with some sites or parameters fixed, at values as in a position: they are no longer part of it.

        Raises:
            ModelError: If there is no such site, or its value has another shape.
        """
        check_fixed(fixed, [*self.sites.shapes, *self.sites.params])
        discrete = self.sites.discrete
        values = {
            name: jnp.asarray(value)
            if name in discrete
            else jax.tree.map(lambda leaf: jnp.asarray(leaf, jnp.result_type(float, leaf)), value)
            for name, value in fixed.items()
        }
        for name in values:
            # A value of every row may be that of the rows of a batch: it is checked when the batch is there.
            if name in self.sites.shapes and name not in self.sites.local:
                _check_shape(self.sites, name, values[name], self.num_data)
        return dataclasses.replace(self, fixed=self.fixed | values)

    def with_data(self, data: Batch) -> Joint:
        """The same on other rows, or on the same in another order."""
        return dataclasses.replace(self, data=data)

    def trace(
        self,
        function: Callable[..., Any],
        batch: Batch,
        values: Mapping[str, Any],
        key: Key,
        *,
        position: Position | None = None,
        stopped: tuple[str, ...] = (),
    ) -> Trace:
        """The sites of a run of the program or of a guide. In the program, fixed sites have their values.

        Args:
            function: The program or the guide.
            batch: Rows.
            values: Of sites and parameters.
            key: For the sites that have none.
            position: Unconstrained values of other sites; the log-determinants of their maps become factors.
            stopped: Sites through whose values no gradient goes.
        """
        if self.fixed and function is self.function:
            held, unconstrained = self._parted(self.fixed)
            values, position = {**held, **values}, {**unconstrained, **(position or {})}
        run = handlers.substitute(function, data=dict(values))
        if position:
            run = handlers.substitute(run, substitute_fn=lambda site: place_site(position, site))
        # Outside the trace: what is outside sees a drawn value first.
        with outline.HANDLERS, _Stopped(stopped):
            return handlers.trace(handlers.seed(run, key)).get_trace(**batch, **self.program.constants)

    def scale(self, site: Mapping[str, Any], batch: Batch) -> Any:
        """What the log-probability of a site is multiplied by: num_data / rows inside the plate over the rows."""
        scale = 1.0 if site["scale"] is None else site["scale"]
        if outline.row_dim(dict(site), self.sites.row_plates) is None:
            return scale
        return scale * (self.num_data / num_rows(batch))

    def _parted(self, position: Mapping[str, Any]) -> tuple[dict[str, Any], dict[str, Any]]:
        """The parts of a position that are values, and those that are unconstrained."""
        by_value = {*self.sites.discrete, *self.sites.params}
        values = {name: value for name, value in position.items() if name in by_value}
        return values, {name: value for name, value in position.items() if name not in by_value}


def _check_shape(sites: Structure, name: str, value: Any, rows: int) -> None:
    """Checks the shape of a site's part of a position, where the program is called with so many rows."""
    expected, site = list(sites.shapes[name]), sites.values[name]
    for plate, _, dim in site.plates:
        axis = len(site.shape) - site.event_dim + dim
        if plate in sites.row_plates and axis >= 0:
            expected[axis] = rows
    if jnp.shape(value) != tuple(expected):
        raise ModelError(f"Site {name!r} of the position must have shape {tuple(expected)}; got {jnp.shape(value)}.")


class _Stopped(Messenger):
    """Stops the gradient at the values of some sites, for the trace and for what comes after them in the function."""

    def __init__(self, names: tuple[str, ...]) -> None:
        super().__init__()
        self._names = names

    def postprocess_message(self, msg: dict[str, Any]) -> None:
        if msg["type"] == "sample" and msg["name"] in self._names and not msg["is_observed"]:
            msg["value"] = jax.lax.stop_gradient(jnp.asarray(msg["value"]))
