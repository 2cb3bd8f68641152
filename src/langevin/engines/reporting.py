"""What is reported of the draws of the exact methods: by groups of one size, so that one program serves all."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.flatten_util import ravel_pytree

from langevin.contracts import Draws, Position
from langevin.engines.space import Space
from langevin.engines.trajectories import Harvest, Record
from langevin.geometry.starts import flattened, unflattened
from langevin.posterior import Centring, Posterior
from langevin.run.keep import Keep

DRAWS_A_GROUP = 32
MOST_GROUPS = 64
MOST_BYTES = 16_000_000


class Reporter:
    """Maps flat positions to the sites that a run keeps.

    Args:
        space: Where the chains are.
        keep: What is kept of a draw.
        deepest: The most doublings of a trajectory; None if it has none.
        dtype: Of the positions.
    """

    def __init__(self, space: Space, keep: Keep, deepest: int | None, dtype: Any) -> None:
        self._space, self._keep, self._deepest = space, keep, deepest
        self._size = flattened(space.example).size
        group = np.zeros((DRAWS_A_GROUP, self._size), dtype)
        bytes_a_group = group.nbytes
        if keep.function is not None:
            reported = jax.eval_shape(lambda position: keep.reported(space.target.constrain(position)), space.example)
            bytes_a_group = max(
                bytes_a_group, DRAWS_A_GROUP * sum(x.size * x.dtype.itemsize for x in reported.values())
            )
        self._groups = np.zeros((int(np.clip(MOST_BYTES // bytes_a_group, 1, MOST_GROUPS)), *group.shape), dtype)

    def prepare(self) -> None:
        """Begins to compile, in a thread of its own."""
        _ = self._program

    def draws(self, kept: list[Harvest], firsts: list[int], centring: Centring) -> tuple[Draws, ...]:
        """The draws of each chain, of which the first has this number."""
        if not sum(len(harvest.position) for harvest in kept):
            return ()
        draws = []
        for harvest, sites in zip(kept, self._sites(kept, firsts, centring), strict=True):
            position = unflattened(self._space.example, harvest.position)
            draws.append(self._keep.grouped(sites, position, self._stats(harvest.record)))
        return tuple(draws)

    @functools.cached_property
    def _program(self) -> Callable[..., Any]:
        arguments = (self._space.target, self._space.example, self._groups, np.int32(0))
        return self._space.programs.aside(_report, self._keep, *arguments)

    def _sites(self, kept: list[Harvest], firsts: list[int], centring: Centring) -> list[dict[str, np.ndarray]]:
        """What is kept of the sites. A draw's place in its group is told by its number, however a run is cut."""
        parts, places, start = [], [], 0
        target = self._space.target.with_centring(centring)
        for harvest, first in zip(kept, firsts, strict=True):
            offset, count = first % DRAWS_A_GROUP, len(harvest.position)
            groups = -(-(offset + count) // DRAWS_A_GROUP)
            part = np.zeros((groups * DRAWS_A_GROUP, self._size), self._groups.dtype)
            part[offset : offset + count] = harvest.position
            parts.append(part.reshape(groups, *self._groups.shape[1:]))
            places.append(slice(start + offset, start + offset + count))
            start += len(part)
        groups, most, outs = np.concatenate(parts), len(self._groups), []
        for begun in range(0, len(groups), most):
            some = groups[begun : begun + most]
            padded = np.concatenate([some, self._groups[len(some) :]])
            out = self._program(target, self._space.example, padded, np.int32(len(some)))
            outs.append({name: np.asarray(values)[: len(some)] for name, values in out.items()})
        joined = {name: np.concatenate([out[name] for out in outs]) for name in outs[0]}
        flat = {name: values.reshape(-1, *values.shape[2:]) for name, values in joined.items()}
        return [{name: values[place] for name, values in flat.items()} for place in places]

    def _stats(self, records: np.ndarray) -> dict[str, np.ndarray]:
        stats = Record(*records.T)._asdict()
        del stats["done"]
        stats["n_steps"] = stats["n_steps"].astype(np.int32)
        stats["diverging"] = stats["diverging"] > 0
        depth = stats.pop("tree_depth").astype(np.int32)
        if self._deepest is not None:
            stats["tree_depth"] = depth
            stats["reached_max_treedepth"] = depth >= self._deepest
        return stats


def _report(keep: Keep, posterior: Posterior, example: Position, groups: jax.Array, count: jax.Array) -> Any:
    """What is kept of so many groups of positions, one group after the other."""
    unravel = ravel_pytree(example)[1]

    def of_group(flat: jax.Array) -> dict[str, jax.Array]:
        return jax.vmap(lambda row: keep.reported(posterior.constrain(unravel(row))))(flat)

    def body(index: jax.Array, buffers: dict[str, jax.Array]) -> dict[str, jax.Array]:
        put = lambda buffer, value: jax.lax.dynamic_update_index_in_dim(buffer, value, index, 0)  # noqa: E731
        return jax.tree.map(put, buffers, of_group(groups[index]))

    shapes = jax.eval_shape(of_group, groups[0])
    buffers = jax.tree.map(lambda leaf: jnp.zeros((len(groups), *leaf.shape), leaf.dtype), shapes)
    return jax.lax.fori_loop(0, count, body, buffers)
