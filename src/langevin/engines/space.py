"""What the engines over a log-density have in common: positions, rows in random orders, starts, compiled programs."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from langevin.contracts import Chunk, Plan, Position, State
from langevin.data.batches import Layout
from langevin.geometry.finding import Finder
from langevin.geometry.starts import flattened, no_start, proposed, retried, unflattened
from langevin.posterior import Posterior
from langevin.run.compilation import Programs
from langevin.run.gist import gist_of_density
from langevin.run.keep import Keep


class Space:
    """The space of positions of one target. In a state, a position is the tuple of its leaves.

    Args:
        target: The posterior.
        plan: What was asked of the run.
        largest: About how many numbers the largest array in a step of all chains has; by default, those of its rows.
        twice: Whether the programs of the run take second derivatives.
    """

    def __init__(self, target: Posterior, plan: Plan, *, largest: int | None = None, twice: bool = False) -> None:
        self.target, self.plan = target, plan
        self.example = jax.tree.map(np.asarray, target.start(np.random.default_rng(0)))
        self.size = flattened(self.example).size
        self.rows = None
        if plan.batches is not None:
            self.rows = (plan.batches, Layout(plan.batches, target.data, plan.seed.child("rows")))
        self._batch_size = None if plan.batches is None else plan.batches.size
        if largest is None:
            width = sum(math.prod(leaf.shape[1:]) for leaf in jax.tree.leaves(target.data))
            largest = plan.num_chains * max(width * max(self._batch_size or target.num_data, 1), self.size)
        gist = lambda: gist_of_density(target, self.example, self._batch_size, twice=twice)  # noqa: E731
        self.programs = Programs(gist, largest)

    @property
    def laid_out(self) -> Posterior:
        """The target with its rows in their first random order, as minibatches are taken from."""
        return self.target if self.rows is None else self.target.with_data(self.rows[1].at(0)[0])

    def tree(self, leaves: Sequence[Any]) -> Position:
        """Leaves as a position."""
        return jax.tree.unflatten(jax.tree.structure(self.example), list(leaves))

    def starts(self, attempt: int) -> tuple[np.ndarray, ...]:
        """The leaves of starts, with the chains in front."""
        return tuple(jax.tree.leaves(unflattened(self.example, proposed(self.target, self.plan, attempt))))

    def search(self, state: State, following: str) -> tuple[State, Chunk]:
        """One look at the starts in `state["positions"]`: on to the following phase, or others for those that fail.

        Raises:
            SamplingError: If there is none in `MOST_TRIES`.
        """
        positions = self.tree(state["positions"])
        good = np.asarray(self.programs(_finite, None, self.target, positions))
        if good.all():
            return state | {"phase": following, "attempt": 0}, Chunk("start", 1, 1, 1)
        attempt = state["attempt"] + 1

        def failure(chain: int) -> Exception:
            return no_start(self.target, jax.tree.map(lambda leaf: leaf[chain], positions))

        starts = retried(state["positions"], good, self.starts, attempt, failure)
        return state | {"attempt": attempt, "positions": starts}, Chunk("start", 1, attempt, attempt + 1)

    def find(self, finder: Finder, state: State, limit: int, following: str) -> tuple[State, Chunk]:
        """Some steps of a search for the geometry, from `state["positions"]`; at its end `following` is the phase.

        What the search knows, and at its end has found, is in `state["finder"]`.
        """
        search = state["finder"]
        if search is None:
            leaves = [np.reshape(leaf, (len(leaf), -1)) for leaf in state["positions"]]
            search = finder.begin(np.concatenate(leaves, axis=1))
        search, steps, done, total = finder.advance(search, limit)
        over = search["found"] is not None
        chunk = Chunk(state["phase"], steps, total if over else done, total)
        return state | {"finder": search, "phase": following if over else search["stage"]}, chunk

    def fingerprint(self) -> str:
        """A digest of the log-density, its gradient, and of what is kept of a draw."""
        batch = None
        if self._batch_size is not None:
            batch = jax.tree.map(lambda column: column[: self._batch_size], self.target.data)
        return self.programs.digest(_fingerprint, self.plan.keep, self.target, self.example, batch)


def _finite(_: None, target: Posterior, positions: Position) -> jax.Array:
    def one(position: Position) -> jax.Array:
        value, gradient = jax.value_and_grad(target.log_density)(position)
        finite = jnp.stack([jnp.isfinite(leaf).all() for leaf in jax.tree.leaves(gradient)])
        return jnp.isfinite(value) & finite.all()

    return jax.lax.map(one, positions)


def _fingerprint(keep: Keep, target: Posterior, position: Position, batch: Any) -> Any:
    return jax.value_and_grad(target.log_density)(position, batch), keep.reported(target.constrain(position))
