"""A network whose output is known at its rows, as a program: what is predicted with where weights were not kept."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpyro
from numpyro import distributions as dist

from langevin.data.table import Table
from langevin.models.networks.network import OUTPUT, Network
from langevin.posterior import Batch


class AtOutputs:
    """The program of a network whose output at its rows is known: a site of each row, with draws.

    Args:
        network: The network.
    """

    def __init__(self, network: Network) -> None:
        self.network = network
        self.__signature__ = network.__signature__

    def check(self, table: Table) -> None:
        """As that of the network."""
        self.network.check(table)

    def __call__(self, **columns: Any) -> None:
        """The program."""
        network = self.network
        shape = self._shape(columns)
        values = {name: numpyro.sample(name, prior) for name, prior in network.likelihood.sites.items()}
        with numpyro.plate("rows", shape[0]):
            # It has a value, and so is never drawn: which distribution it has is all the same.
            output = numpyro.sample(OUTPUT, dist.Normal().expand(shape).to_event(len(shape) - 1))
            network.observe(jnp.asarray(output), values, columns)

    def _shape(self, columns: Batch) -> tuple[int, ...]:
        network = self.network
        weights = {name: network.net.first[name] for name in network.shapes}
        return jax.eval_shape(lambda: network.output(weights, network.rows(columns))).shape
