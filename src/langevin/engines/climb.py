"""The engine of MAP: every chain climbs, and the highest point is the one draw."""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING, Any

import jax
import numpy as np

from langevin.contracts import Chunk, Draws, Outcome, Plan, State
from langevin.engines.chains import Carry, Chains, tenths
from langevin.engines.space import Space
from langevin.errors import SamplingError
from langevin.geometry import landscape
from langevin.posterior import Posterior
from langevin.run.keep import Keep
from langevin.tuning import Tuning

if TYPE_CHECKING:
    from langevin.methods.point import MAP


class ClimbEngine:
    """Climbs from every start."""

    def __init__(self, method: MAP, target: Posterior, plan: Plan) -> None:
        self._method, self._target, self._plan = method, target, plan
        self._space = Space(target, plan)
        seed = plan.seed.child("climb")
        self._num_steps = method.steps(target, plan)
        # With its numbers spelled out, since a compiled program is known by its settings.
        maker = dataclasses.replace(method, num_steps=self._num_steps, learning_rate=method.rate(target))
        self._chains = Chains(maker, target, self._space.rows, None, seed, self._space.programs)

    @property
    def num_chains(self) -> int:
        """One: the highest point."""
        return 1

    def begin(self) -> State:
        """Starts that nothing is known of."""
        return {"phase": "start", "attempt": 0, "positions": self._space.starts(0), "chains": None, "drawn": False}

    def advance(self, state: State, limit: int) -> tuple[State, Chunk]:
        """Takes at most so many steps of every chain."""
        total = self._num_steps
        if state["drawn"]:
            return state, Chunk("climbing", 0, total, total, finished=True)
        if state["phase"] == "start":
            return self._space.search(state, "climbing")
        if state["phase"] == "top":
            return self._at_the_top(state)
        chains = state["chains"]
        before = 0 if chains is None else chains["step"]
        if chains is None:
            chains = self._chains.begin(self._space.tree(state["positions"]), Tuning())
        lengths = tenths(total)
        chains, _ = self._chains.advance(chains, Tuning(), limit, lengths.__getitem__, len(lengths))
        state = state | {"chains": chains}
        shown = {"log-density": float(np.mean(self._chains.carry(chains, Tuning()).info.log_density))}
        phase = "top" if chains["drawn"] == len(lengths) else "climbing"
        return state | {"phase": phase}, Chunk("climbing", chains["step"] - before, chains["step"], total, shown)

    def _at_the_top(self, state: State) -> tuple[State, Chunk]:
        carry, total = self._chains.carry(state["chains"], Tuning()), self._num_steps
        chunk = Chunk("climbing", 1, total, total, draws=(self._highest(carry),), finished=True)
        return state | {"drawn": True}, chunk

    def finish(self, state: State) -> Outcome:
        """A single point says nothing of uncertainty."""
        del state
        settings = {"thin": self._num_steps, "num_chains": 1, "num_draws": 1}
        return Outcome({"point": {}}, settings, by_chain={"stopped": np.full(1, -1)})

    def cut_short(self, state: State) -> State | None:
        """Where the climbs are."""
        return None if state["chains"] is None else state | {"phase": "top", "drawn": False}

    def fingerprint(self) -> str:
        """A digest of all that is computed of the model."""
        return self._space.fingerprint()

    def _highest(self, carry: Carry) -> Draws:
        heights = np.asarray(self._space.programs(landscape.heights, None, self._target, carry.state.position))
        stopped = np.asarray(carry.stopped)
        heights = np.where((stopped < 0) & np.isfinite(heights), heights, -np.inf)
        if not np.isfinite(heights).any():
            raise SamplingError(
                f"Every climb left the finite numbers, the last at step {stopped.max()}. Try a `learning_rate` below "
                f"{self._method.rate(self._target):.3g}."
            )
        best = int(np.argmax(heights))
        position = jax.tree.map(lambda leaf: np.asarray(leaf)[best], carry.state.position)
        reported = self._space.programs(_report, self._plan.keep, self._target, position)
        row = lambda leaf: np.asarray(leaf)[None]  # noqa: E731
        return self._plan.keep.grouped(
            jax.tree.map(row, reported), jax.tree.map(row, position), {"log_density": heights[best : best + 1]}
        )


def _report(keep: Keep, target: Posterior, position: Any) -> dict[str, jax.Array]:
    return keep.reported(target.constrain(position))
