"""An engine that computes in double precision, whatever JAX's own precision is.

Formulas in sufficient statistics are differences of large sums: of 10,000 rows around 2,000, single precision keeps of
a variance nothing.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from langevin.contracts import Chunk, Engine, Outcome, Plan, State
from langevin.posterior import Posterior


class DoubleEngine:
    """Another engine in double precision. Its draws come in JAX's own.

    Args:
        make: Makes the engine.
        target: The posterior.
        plan: What was asked of the run.
    """

    def __init__(self, make: Callable[[Posterior, Plan], Engine], target: Posterior, plan: Plan) -> None:
        self._float = jnp.result_type(float)
        with jax.enable_x64(True):
            self._engine = make(in_double(target), plan)

    @property
    def num_chains(self) -> int:
        """As the engine says."""
        return self._engine.num_chains

    def begin(self) -> State:
        """As the engine does."""
        with jax.enable_x64(True):
            return self._engine.begin()

    def advance(self, state: State, limit: int) -> tuple[State, Chunk]:
        """As the engine does."""
        with jax.enable_x64(True):
            state, chunk = self._engine.advance(state, limit)
        return state, chunk._replace(draws=tuple(jax.tree.map(self._rounded, draws) for draws in chunk.draws))

    def finish(self, state: State) -> Outcome:
        """As the engine says."""
        with jax.enable_x64(True):
            return self._engine.finish(state)

    def cut_short(self, state: State) -> State | None:
        """As the engine does."""
        with jax.enable_x64(True):
            return self._engine.cut_short(state)

    def fingerprint(self) -> str:
        """As the engine says."""
        with jax.enable_x64(True):
            return self._engine.fingerprint()

    def _rounded(self, leaf: Any) -> np.ndarray:
        array = np.asarray(leaf)
        return array.astype(self._float) if array.dtype == np.float64 else array


def in_double(target: Posterior) -> Posterior:
    """The same posterior with its rows, its fixed sites and its positions in double precision."""
    double = lambda leaf: jax.ShapeDtypeStruct(leaf.shape, np.float64)  # noqa: E731
    model = dataclasses.replace(target.model, like=jax.tree.map(double, target.model.like))
    return dataclasses.replace(
        target,
        data=as_double(target.data),
        model=model,
        fixed=as_double(target.fixed),
        centring=as_double(target.centring),
    )


def as_double(tree: Any) -> Any:
    """Arrays in double precision. Not outside of `jax.enable_x64`."""
    return jax.tree.map(
        lambda leaf: (
            jnp.asarray(leaf).astype(jnp.float64) if jnp.issubdtype(jnp.result_type(leaf), jnp.floating) else leaf
        ),
        tree,
    )
