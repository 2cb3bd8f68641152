"""Constant metrics G = R R^T: the shape of a step, and of its noise.

A kernel works in whitened units, `whiten(gradient) = R^T gradient`, and comes back with `unwhiten(step) = R step`: so
it moves along `G gradient` and adds noise of covariance proportional to `G`. With `G` near the posterior's covariance
every direction is equally easy. `None` stands for the identity.
"""

from __future__ import annotations

import dataclasses
from typing import Any

import jax
import jax.numpy as jnp
from jax.flatten_util import ravel_pytree

from langevin.posterior import Position

MOST_FUSED = 16


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class Diagonal:
    """G = diag(variance).

    Attributes:
        variance: A pytree like the position.
    """

    variance: Position

    def unwhiten(self, vector: Position) -> Position:
        """R vector: turns standard normal noise into noise of covariance G."""
        return jax.tree.map(lambda variance, x: jnp.sqrt(variance) * x, self.variance, vector)

    def whiten(self, gradient: Position) -> Position:
        """R^T gradient: the gradient in the coordinates where G is the identity."""
        return self.unwhiten(gradient)


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class Dense:
    """G = factor factor^T, over the flattened position.

    Attributes:
        factor: A lower triangular matrix.
    """

    factor: Any

    def unwhiten(self, vector: Position) -> Position:
        """R vector: turns standard normal noise into noise of covariance G."""
        flat, unravel = ravel_pytree(vector)
        return unravel(product(self.factor, flat))

    def whiten(self, gradient: Position) -> Position:
        """R^T gradient: the gradient in the coordinates where G is the identity."""
        flat, unravel = ravel_pytree(gradient)
        return unravel(product(self.factor.T, flat))


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class LowRank:
    """R = diag(scale) (I + vectors diag(stretches - 1) vectors^T), over the flattened position.

    Attributes:
        scale: (size,).
        vectors: (size, rank), orthonormal columns; zero columns do nothing.
        stretches: (rank,): how much wider than `scale` alone says the posterior is along each.
    """

    scale: Any
    vectors: Any
    stretches: Any

    def unwhiten(self, vector: Position) -> Position:
        """R vector: turns standard normal noise into noise of covariance G."""
        flat, unravel = ravel_pytree(vector)
        return unravel(self.scale * self._stretch(flat))

    def whiten(self, gradient: Position) -> Position:
        """R^T gradient: the gradient in the coordinates where G is the identity."""
        flat, unravel = ravel_pytree(gradient)
        return unravel(self._stretch(self.scale * flat))

    def _stretch(self, flat: jax.Array) -> jax.Array:
        return flat + ((self.stretches - 1) * (flat @ self.vectors)) @ self.vectors.T


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class Wheel:
    """The covariance of a hierarchy, over the flattened position: `x_h = L e_h`, `x_j = W_j e_h + C_j e_j`.

    Attributes:
        hub: Where the global coordinates are, (hub,).
        factor: L.
        groups: For each plate, where the coordinates of its groups are, (groups, width).
        onto: W_j, for each plate (groups, width, hub).
        own: C_j, for each plate (groups, width, width).
    """

    hub: Any
    factor: Any
    groups: tuple[Any, ...]
    onto: tuple[Any, ...]
    own: tuple[Any, ...]

    def unwhiten(self, vector: Position) -> Position:
        """R vector: turns standard normal noise into noise of covariance G."""
        flat, unravel = ravel_pytree(vector)
        of_hub = flat[self.hub]
        moved = jnp.zeros_like(flat).at[self.hub].set(self.factor @ of_hub)
        for places, onto, own in zip(self.groups, self.onto, self.own, strict=True):
            moved = moved.at[places].set(onto @ of_hub + jnp.einsum("jab,jb->ja", own, flat[places]))
        return unravel(moved)

    def whiten(self, gradient: Position) -> Position:
        """R^T gradient: the gradient in the coordinates where G is the identity."""
        flat, unravel = ravel_pytree(gradient)
        of_hub = self.factor.T @ flat[self.hub]
        white = jnp.zeros_like(flat)
        for places, onto, own in zip(self.groups, self.onto, self.own, strict=True):
            part = flat[places]
            of_hub = of_hub + jnp.einsum("jah,ja->h", onto, part)
            white = white.at[places].set(jnp.einsum("jab,ja->jb", own, part))
        return unravel(white.at[self.hub].set(of_hub))

    def narrowed(self, share: Any) -> Wheel:
        """R with its columns multiplied by these numbers, (size,)."""
        of_hub = share[self.hub]
        own = tuple(own * share[places][:, None, :] for places, own in zip(self.groups, self.own, strict=True))
        return Wheel(self.hub, self.factor * of_hub, self.groups, tuple(onto * of_hub for onto in self.onto), own)


Learned = Diagonal | Dense | LowRank
"""Metrics that exact methods learn from draws."""
Metric = Learned | Wheel
KINDS: dict[str, Any] = {"diagonal": Diagonal, "dense": Dense, "lowrank": LowRank, "wheel": Wheel}


def as_plain(metric: Metric | None) -> tuple[str, tuple[Any, ...]] | None:
    """A metric as a word and arrays, as the state of a run holds it."""
    if metric is None:
        return None
    kind = next(name for name, made in KINDS.items() if type(metric) is made)
    return kind, tuple(jax.tree.leaves(metric))


def from_plain(plain: tuple[str, tuple[Any, ...]] | None, example: Position) -> Metric | None:
    """The metric that `as_plain` described; `example` has the structure of a position."""
    if plain is None:
        return None
    kind, arrays = plain
    if kind == "diagonal":
        return Diagonal(jax.tree.unflatten(jax.tree.structure(example), arrays))
    if kind == "wheel":
        hub, factor, *parts = arrays
        count = len(parts) // 3
        return Wheel(hub, factor, *(tuple(parts[first : first + count]) for first in range(0, 3 * count, count)))
    return KINDS[kind](*arrays)


def unwhiten(metric: Metric | None, vector: Position) -> Position:
    """R vector, where None is the identity."""
    return vector if metric is None else metric.unwhiten(vector)


def whiten(metric: Metric | None, gradient: Position) -> Position:
    """R^T gradient, where None is the identity."""
    return gradient if metric is None else metric.whiten(gradient)


def product(matrix: jax.Array, vector: jax.Array) -> jax.Array:
    """A matrix times a vector. A small one as a sum, which XLA fuses with what comes before and after."""
    if vector.size <= MOST_FUSED:
        # Not over the last axis: in a loop over more than 2^15 numbers, XLA 0.10 overwrites some before it reads them.
        return jnp.sum(matrix.T * vector[:, None], axis=0)
    return matrix @ vector
