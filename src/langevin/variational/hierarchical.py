"""A Gaussian for hierarchies: globals of any covariance, and group effects that are linear in them.

    x_h = m_h + s_h * (e_h + T e_h)                      the hub: what no group has
    x_j = m_j + s_j * (e_j + T_j e_j + V_j e_h)          each group, independent of others given the hub

with T and T_j strictly lower triangular. It has about (hub + width) numbers a coordinate, not one for each pair of
them.
"""

from __future__ import annotations

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
from jax.scipy.linalg import solve_triangular

from langevin.models.spokes import Layout
from langevin.variational.families import LOG_2PI, MeanField, Parameters, Scaled, entropy_of, standard


@dataclasses.dataclass(frozen=True)
class Hierarchical(Scaled):
    """The family, for one layout of coordinates."""

    layout: Layout

    @property
    def size(self) -> int:
        """How many coordinates there are."""
        return self.layout.size

    @property
    def noise_size(self) -> int:
        """One number a coordinate."""
        return self.size

    def init(self, generator: np.random.Generator, centre: np.ndarray, scale: float) -> Parameters:
        """Parameters of a round q around `centre`."""
        num_hub = len(self.layout.hub)
        return MeanField(self.size).init(generator, centre, scale) | {
            "below": np.zeros((num_hub, num_hub), centre.dtype),
            "groups": [
                {
                    "below": np.zeros((part.num_groups, part.width, part.width), centre.dtype),
                    "hub": np.zeros((part.num_groups, part.width, num_hub), centre.dtype),
                }
                for part in self.layout.spokes
            ],
        }

    def draw(self, parameters: Parameters, noise: jax.Array) -> tuple[jax.Array, jax.Array]:
        """A draw and its log-probability."""
        hub = np.asarray(self.layout.hub)
        of_hub = noise[hub]
        turned = noise.at[hub].add(jnp.tril(parameters["below"], -1) @ of_hub)
        for part, group in zip(self.layout.spokes, parameters["groups"], strict=True):
            own = noise[part.grid]
            more = jnp.einsum("jab,jb->ja", jnp.tril(group["below"], -1), own) + group["hub"] @ of_hub
            turned = turned.at[part.grid].add(more)
        log_prob = standard(noise) - jnp.sum(parameters["log_scale"])
        return parameters["mean"] + jnp.exp(parameters["log_scale"]) * turned, log_prob

    def log_parts(self, parameters: Parameters, x: jax.Array) -> jax.Array:
        """A single part."""
        turned = (x - parameters["mean"]) * jnp.exp(-parameters["log_scale"])
        of_hub = solve_triangular(
            parameters["below"], turned[np.asarray(self.layout.hub)], lower=True, unit_diagonal=True
        )
        square = jnp.sum(of_hub**2)
        for part, group in zip(self.layout.spokes, parameters["groups"], strict=True):
            rest = turned[part.grid] - group["hub"] @ of_hub
            solve = jax.vmap(lambda a, b: solve_triangular(a, b, lower=True, unit_diagonal=True))
            square = square + jnp.sum(solve(group["below"], rest) ** 2)
        return (-(square + self.size * LOG_2PI) / 2 - jnp.sum(parameters["log_scale"]))[None]

    def entropy(self, parameters: Parameters) -> jax.Array:
        """In closed form."""
        return entropy_of(jnp.sum(parameters["log_scale"]), self.size)
