"""A NumPyro program as the joint distribution of its sites: what an engine sees that brings a guide.

Unlike in a `Posterior`, sites have the values that a guide gives them, not unconstrained ones: they may be discrete,
each row may have its own, and the program (as the guide) may have parameters, `numpyro.param`.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping
from typing import Any

import jax
import jax.numpy as jnp
from numpyro import handlers
from numpyro.primitives import Messenger

from langevin.models import outline
from langevin.models.placing import place_site
from langevin.models.structure import Structure
from langevin.posterior import Batch, Key, Position, num_rows

Trace = dict[str, dict[str, Any]]


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class Joint:
    """A program that knows its rows. A pytree whose only leaves are the data.

    Attributes:
        data: As in `Posterior`.
        function: The program.
        constants: Its arguments that are passed whole; a guide gets them too.
        structure: Its sites.
        num_data: How many rows there are.
    """

    data: Batch
    function: Callable[..., Any] = dataclasses.field(metadata={"static": True})
    constants: Mapping[str, Any] = dataclasses.field(metadata={"static": True})
    structure: Structure = dataclasses.field(metadata={"static": True})
    num_data: int = dataclasses.field(metadata={"static": True})

    @property
    def rows(self) -> Batch:
        """All rows, and nothing but the rows."""
        return jax.tree.map(lambda array: array[: self.num_data], self.data)

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
        """The sites of a run of the program or of a guide.

        Args:
            function: The program or the guide.
            batch: Rows.
            values: Of sites and parameters.
            key: For the sites that have none.
            position: Unconstrained values of other sites; the log-determinants of their maps become factors.
            stopped: Sites through whose values no gradient goes.
        """
        run = handlers.substitute(function, data=dict(values))
        if position:
            run = handlers.substitute(run, substitute_fn=lambda site: place_site(position, site))
        # Outside the trace: what is outside sees a drawn value first.
        with outline.HANDLERS, _Stopped(stopped):
            return handlers.trace(handlers.seed(run, key)).get_trace(**batch, **self.constants)

    def scale(self, site: Mapping[str, Any], batch: Batch) -> Any:
        """What the log-probability of a site is multiplied by: num_data / rows inside the plate over the rows."""
        scale = 1.0 if site["scale"] is None else site["scale"]
        if outline.row_dim(dict(site), self.structure.row_plates) is None:
            return scale
        return scale * (self.num_data / num_rows(batch))


class _Stopped(Messenger):
    """Stops the gradient at the values of some sites, for the trace and for what comes after them in the function."""

    def __init__(self, names: tuple[str, ...]) -> None:
        super().__init__()
        self._names = names

    def postprocess_message(self, msg: dict[str, Any]) -> None:
        if msg["type"] == "sample" and msg["name"] in self._names and not msg["is_observed"]:
            msg["value"] = jax.lax.stop_gradient(jnp.asarray(msg["value"]))
