"""Gaussians whose covariance is made of blocks, around a mode (or any other centre).

    dense         x = m + R e                        covariance R R^T, R lower triangular
    independent   x = m + s * e                      covariance diag(s)^2
    kronecker     X = M + U (s * E) V^T              covariance of the matrix X: (V (x) U) diag(s)^2 (V (x) U)^T

Coordinates that are in no block stay at the centre.
"""

from __future__ import annotations

import dataclasses
from typing import Any, Literal, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax.scipy.linalg import solve_triangular

from langevin.models.networks.likelihoods import predicted
from langevin.models.networks.linear import linear_outputs
from langevin.models.networks.network import PREDICTION
from langevin.posterior import Batch, Position
from langevin.variational.families import Parameters, Scaled, entropy_of, standard
from langevin.variational.objective import OfPositions


class Block(NamedTuple):
    """Coordinates that belong together.

    Attributes:
        kind: How their covariance is made.
        ranges: Where they are in the flat position, from and to.
        shape: Of a matrix, its rows and columns: those of a layer's weights, and a last one for its bias.
    """

    kind: Literal["dense", "independent", "kronecker"]
    ranges: tuple[tuple[int, int], ...]
    shape: tuple[int, int] = (0, 0)

    @property
    def size(self) -> int:
        """How many coordinates there are."""
        return sum(stop - start for start, stop in self.ranges)

    @property
    def columns(self) -> tuple[int, ...]:
        """How many columns of the matrix each range has."""
        return tuple((stop - start) // self.shape[0] for start, stop in self.ranges)

    def taken(self, flat: Any, xp: Any = np) -> Any:
        """These coordinates of a flat vector: a vector, or a matrix."""
        parts = [flat[start:stop] for start, stop in self.ranges]
        if self.kind != "kronecker":
            return xp.concatenate(parts)
        return xp.concatenate([part.reshape(self.shape[0], -1) for part in parts], axis=1)

    def put(self, flat: jax.Array, values: jax.Array) -> jax.Array:
        """A flat vector with these coordinates added to."""
        axis = 1 if self.kind == "kronecker" else 0
        lengths = self.columns if self.kind == "kronecker" else [stop - start for start, stop in self.ranges]
        parts = jnp.split(values, np.cumsum(lengths)[:-1].tolist(), axis=axis)
        for (start, stop), part in zip(self.ranges, parts, strict=True):
            flat = flat.at[start:stop].add(jnp.ravel(part))
        return flat


@dataclasses.dataclass(frozen=True)
class BlockGaussian(Scaled):
    """A Gaussian of blocks. Its parameters are "mean", and for each block what its kind says, with "log_det"."""

    size: int
    blocks: tuple[Block, ...]

    @property
    def noise_size(self) -> int:
        """One number a coordinate of the blocks."""
        return sum(block.size for block in self.blocks)

    def init(self, generator: np.random.Generator, centre: np.ndarray, scale: float) -> Parameters:
        """Parameters of independent coordinates around `centre`."""
        del generator
        dtype = centre.dtype
        made = []
        for block in self.blocks:
            log_det = np.asarray(block.size * np.log(scale), dtype)
            if block.kind == "dense":
                made.append({"factor": scale * np.eye(block.size, dtype=dtype), "log_det": log_det})
            elif block.kind == "independent":
                made.append({"scale": np.full(block.size, scale, dtype), "log_det": log_det})
            else:
                rows, columns = block.shape
                both = {"left": np.eye(rows, dtype=dtype), "right": np.eye(columns, dtype=dtype)}
                made.append({**both, "scale": np.full(block.shape, scale, dtype), "log_det": log_det})
        return {"mean": centre, "blocks": made}

    def draw(self, parameters: Parameters, noise: jax.Array) -> tuple[jax.Array, jax.Array]:
        """A draw and its log-probability."""
        x, first = jnp.asarray(parameters["mean"]), 0
        for block, of_block in zip(self.blocks, parameters["blocks"], strict=True):
            x = block.put(x, _stretched(block, of_block, noise[first : first + block.size]))
            first += block.size
        return x, standard(noise) - self._log_det(parameters)

    def log_parts(self, parameters: Parameters, x: jax.Array) -> jax.Array:
        """One part a block."""
        gap, parts = x - parameters["mean"], []
        for block, of_block in zip(self.blocks, parameters["blocks"], strict=True):
            parts.append(standard(_white(block, of_block, block.taken(gap, jnp))) - of_block["log_det"])
        return jnp.stack(parts)

    def entropy(self, parameters: Parameters) -> jax.Array:
        """In closed form."""
        return entropy_of(self._log_det(parameters), self.noise_size)

    def units(self, parameters: Parameters) -> Parameters:
        """Not asked for: no optimiser moves these."""
        return jax.tree.map(lambda _: 1.0, parameters)

    def _log_det(self, parameters: Parameters) -> jax.Array:
        return jnp.sum(jnp.stack([of_block["log_det"] for of_block in parameters["blocks"]]))


def _stretched(block: Block, of_block: dict[str, Any], noise: jax.Array) -> jax.Array:
    if block.kind == "dense":
        return of_block["factor"] @ noise
    if block.kind == "independent":
        return of_block["scale"] * noise
    return of_block["left"] @ (of_block["scale"] * noise.reshape(block.shape)) @ of_block["right"].T


def _white(block: Block, of_block: dict[str, Any], gap: jax.Array) -> jax.Array:
    """The noise that made a gap."""
    if block.kind == "dense":
        return solve_triangular(of_block["factor"], gap, lower=True)
    if block.kind == "independent":
        return gap / of_block["scale"]
    turned = jnp.linalg.solve(of_block["right"], (of_block["left"].T @ gap).T).T
    return jnp.ravel(turned / of_block["scale"])


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class OfMode(OfPositions):
    """A Gaussian around a mode of a posterior; of a network, also of the one that is linearised there.

    Attributes:
        linearised: Whether it is an approximation of the posterior of the linearised network.
        has_ratios: Whether draws are judged by p / q.
    """

    linearised: bool = dataclasses.field(default=False, metadata={"static": True})
    has_ratios: bool = dataclasses.field(default=True, metadata={"static": True})

    def values(self, parameters: Parameters, noise: Any, batch: Batch | None) -> tuple[dict[str, Any], Position]:
        """One draw: what is reported of it, and its position."""
        reported, position = super().values(parameters, noise, batch)
        if self.linearised:
            network = self.posterior.model.network
            probes = network.probes(self.posterior.data, self.num_data)
            output, values = self._output(parameters, position, reported, probes)
            reported = {**reported, PREDICTION: predicted(network.distribution(output, values), output)}
        return reported, position

    def log_terms(self, parameters: Parameters, noise: Any) -> tuple[jax.Array, jax.Array]:
        """Log p and log q of one draw, on all rows."""
        if not self.linearised:
            return super().log_terms(parameters, noise)
        x, log_q = self.family.draw(parameters, noise)
        position, network, rows = self.unravel(x), self.posterior.model.network, self.posterior.rows
        output, values = self._output(parameters, position, self.posterior.constrain(position), network.rows(rows))
        log_likelihood = network.log_likelihood(output, values, rows[network.outcome])
        return self.posterior.log_prior(position) + jnp.sum(log_likelihood), log_q

    def _output(self, parameters: Parameters, position: Position, sites: Any, rows: Any) -> tuple[jax.Array, Any]:
        """What the linearised network puts out for rows, and the further unknowns of the likelihood."""
        network = self.posterior.model.network
        mode = self.unravel(parameters["mean"])
        weights, at = ({name: place[name] for name in network.shapes} for place in (position, mode))
        values = {name: sites[name] for name in network.likelihood.sites}
        return linear_outputs(network.net, at, weights, rows), values
