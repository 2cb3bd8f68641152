"""What is kept of a draw of a network: its weights once, or in place of them what it puts out for some rows.

The output of the network at the rows to predict, with the further unknowns of the likelihood, is all that a prediction
needs of a draw: its distribution follows from them. A million weights are then as many numbers as there are outputs.
"""

from __future__ import annotations

import dataclasses
import hashlib
from collections.abc import Mapping
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from langevin.data.table import Table
from langevin.errors import SettingError
from langevin.models.arguments import brought_again
from langevin.models.networks.known import AtOutputs
from langevin.models.networks.nets import matched
from langevin.models.networks.network import OUTPUT, PREDICTION, Network
from langevin.models.source import Source
from langevin.run.keep import Keep

ROWS_A_BLOCK = 512


@dataclasses.dataclass(frozen=True)
class Rows:
    """The rows whose outputs a run keeps, as its settings tell them.

    Attributes:
        num_rows: How many.
        digests: Of the columns that the network is called with, in their order.
    """

    num_rows: int
    digests: tuple[str, ...]

    @staticmethod
    def of(network: Network, columns: Mapping[str, Any], num_rows: int) -> Rows:
        """Of these columns."""
        return Rows(num_rows, tuple(_digest(columns[name]) for name in network.inputs))


def settled(keep: Keep, model: Any, table: Table, constants: Mapping[str, Any]) -> Keep:
    """What is kept of a draw, once the model is known.

    Args:
        keep: As a user asked for it.
        model: The model.
        table: The rows of the fit.
        constants: Arguments that are passed whole.

    Raises:
        SettingError: If predictions are to be kept of something else than a network.
    """
    if not isinstance(model, Network):
        if keep.predict is not None:
            raise SettingError("`Keep`: `predict` is for an lv.Network. Of a program, keep a function of its sites.")
        return keep
    if keep.predict is None:
        return dataclasses.replace(keep, unconstrained=bool(keep.unconstrained))
    rows, _ = brought_again(
        model, keep.predict, constants, table.levels, table.counts, may_lack=frozenset({model.outcome})
    )
    outputs = Outputs(model, rows, matched(keep.sites or (), list(model.shapes), "sites"))
    unconstrained = bool(keep.unconstrained)
    return Keep(None, outputs, unconstrained, keep.precision, outputs.rows)


class Outputs:
    """`sites -> what is kept of them`: the network's output at given rows, and what else is no weight. Compiled.

    Args:
        network: The network.
        table: The rows.
        weights: The names of weights to keep too.
    """

    def __init__(self, network: Network, table: Table, weights: tuple[str, ...] = ()) -> None:
        self.table, self.rows = table, Rows.of(network, table.columns, table.num_rows)
        self._network, self._weights = network, weights
        self._inputs = np.asarray(network.rows({name: table.columns[name] for name in network.inputs}))

    def __call__(self, sites: dict[str, Any]) -> dict[str, Any]:
        """What is kept of a draw."""
        network = self._network
        weights = {name: sites[name] for name in network.shapes}
        others = [*self._weights, *network.likelihood.sites, PREDICTION]
        kept = {name: sites[name] for name in others if name in sites}
        return {**kept, OUTPUT: self._outputs(weights)}

    def _outputs(self, weights: dict[str, Any]) -> jax.Array:
        """A block of rows after the other, so that what is in between takes little memory."""
        count = len(self._inputs)
        if count <= ROWS_A_BLOCK:
            return self._network.output(weights, self._inputs)
        whole = count - count % ROWS_A_BLOCK
        blocks = self._inputs[:whole].reshape(-1, ROWS_A_BLOCK, *self._inputs.shape[1:])
        outputs = jax.lax.map(lambda rows: self._network.output(weights, rows), blocks)
        parts = [outputs.reshape(whole, *outputs.shape[2:])]
        if count > whole:
            parts.append(self._network.output(weights, self._inputs[whole:]))
        return jnp.concatenate(parts)

    def __repr__(self) -> str:
        # What it computes besides follows from the network, which is in every program that it is in.
        return f"Outputs({self.rows}, {self._weights})"


def source_of_network(model: Any, constants: Mapping[str, Any], keep: Mapping[str, Any], table: Table | None) -> Source:
    """What a fit predicts with: the network, or its program at the outputs that were kept.

    Args:
        model: The model of the fit.
        constants: Arguments that are passed whole.
        keep: The description of what was kept.
        table: The rows of the fit, or those whose outputs were kept; None if it was loaded.
    """
    kept = keep.get("predict")
    if not isinstance(model, Network) or not kept:
        return Source(model, constants, table)
    network = model

    def is_own(columns: Mapping[str, Any], num_rows: int) -> bool:
        return Rows.of(network, columns, num_rows) == Rows(kept["num_rows"], tuple(kept["digests"]))

    why = (
        f"this fit kept what the network puts out for {kept['num_rows']:,} rows, and not its weights, so that it can "
        "predict these rows only. Give them as they were given to lv.Keep(predict=...), or fit again and keep weights."
    )
    return Source(AtOutputs(network), constants, table, is_own=is_own, why_own=why)


def _digest(column: Any) -> str:
    array = np.ascontiguousarray(column)
    return hashlib.sha256(f"{array.dtype} {array.shape}".encode() + array.tobytes()).hexdigest()
