"""The engine of ensembles: one fit after another, each from a start of its own, and every member counts the same.

    p(y | data) is approximated by the mean over members m of p(y | draws of m)

Lakshminarayanan, Pritzel & Blundell (2017), 'Simple and scalable predictive uncertainty estimation using deep
ensembles'. A member is a chain of the result. Each has its own seed, and so its own start and order of minibatches.
Members run one after the other, so that memory holds the engine of one.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Protocol

import numpy as np

from langevin.contracts import Chunk, Draws, Engine, Outcome, Plan, State


class MakesEngine(Protocol):
    """A method, as far as an ensemble needs it."""

    def engine(self, target: Any, plan: Plan) -> Engine:
        """The engine of a run."""
        ...


class EnsembleEngine:
    """Members of one method on one target.

    Args:
        method: Makes the engine of a member.
        num_members: How many.
        target: What the method needs of the model.
        plan: What was asked of the run. A member has one chain.
    """

    def __init__(self, method: MakesEngine, num_members: int, target: Any, plan: Plan) -> None:
        self._method, self._num_members, self._target, self._plan = method, num_members, target, plan
        self._current = 0, method.engine(target, alone(plan, 0))

    @property
    def num_chains(self) -> int:
        """One a member."""
        return self._num_members

    def begin(self) -> State:
        """The first member, before its first step. `asked` has the draws that each finished member was asked for."""
        first, none = self._member(0).begin(), (0,) * self._num_members
        members = (first, *(None for _ in none[1:]))
        return {"phase": first["phase"], "members": members, "asked": none, "drawn": none, "stop": len(none)}

    def advance(self, state: State, limit: int) -> tuple[State, Chunk]:
        """Takes at most so many steps of the first member that is not finished."""
        number = self._unfinished(state)
        if number is None:
            return state, Chunk("drawing", 0, 1, 1, finished=True)
        inner, chunk = self._member(number).advance(state["members"][number], limit)
        drawn = state["drawn"][number] + _length(chunk.draws)
        asked = self._plan.num_draws if chunk.finished else state["asked"][number]
        state = state | {"members": _with(state["members"], number, inner), "phase": inner["phase"]}
        state |= {"drawn": _with(state["drawn"], number, drawn), "asked": _with(state["asked"], number, asked)}
        following = self._unfinished(state)
        if following not in (number, None):
            state |= self._ready(state, following)
        return state, self._of_all(chunk, number)._replace(finished=following is None)

    def finish(self, state: State) -> Outcome:
        """What each member says of itself."""
        count = self._num_members if all(state["drawn"]) else max(sum(map(bool, state["asked"])), 1)
        outcomes = [self._member(number).finish(state["members"][number]) for number in range(count)]
        first = outcomes[0]
        common = {
            name: value
            for name, value in first.settings.items()
            if all(o.settings.get(name) == value for o in outcomes)
        }
        return Outcome(
            {"ensemble": {"asked": self._num_members, "members": [outcome.evidence for outcome in outcomes]}},
            common | {"num_chains": count, "members": [outcome.settings for outcome in outcomes]},
            " ".join(dict.fromkeys(outcome.remark for outcome in outcomes if outcome.remark)),
            {name: np.concatenate([outcome.by_chain[name] for outcome in outcomes]) for name in first.by_chain},
        )

    def cut_short(self, state: State) -> State | None:
        """The members that are finished; if there is none, where the first is."""
        finished = sum(map(bool, state["asked"]))
        if finished:
            return state | {"stop": finished}
        if state["drawn"][0]:
            return state | {"stop": 1, "asked": _with(state["asked"], 0, self._plan.num_draws)}
        inner = self._member(0).cut_short(state["members"][0])
        return None if inner is None else state | {"stop": 1, "members": _with(state["members"], 0, inner)}

    def fingerprint(self) -> str:
        """That of a member."""
        return self._member(0).fingerprint()

    def _member(self, number: int) -> Engine:
        """The engine of a member; only the latest is kept."""
        if self._current[0] != number:
            self._current = number, self._method.engine(self._target, alone(self._plan, number))
        return self._current[1]

    def _ready(self, state: State, number: int) -> State:
        """What changes in the state when it is a member's turn."""
        inner = state["members"][number]
        inner = self._member(number).begin() if inner is None else inner
        return {"members": _with(state["members"], number, inner), "phase": inner["phase"]}

    def _unfinished(self, state: State) -> int | None:
        lacking = [asked < self._plan.num_draws for asked in state["asked"][: state["stop"]]]
        return lacking.index(True) if any(lacking) else None

    def _of_all(self, chunk: Chunk, number: int) -> Chunk:
        """A member's chunk as one of the ensemble: how far it is, if the other members take as long."""
        draws: tuple[Draws, ...] = ()
        if chunk.draws:
            draws = tuple(chunk.draws[0] if other == number else {} for other in range(self._num_members))
        return chunk._replace(
            phase=f"{chunk.phase} {number + 1}/{self._num_members}",
            done=number * chunk.total + chunk.done,
            total=self._num_members * chunk.total,
            draws=draws,
        )


def alone(plan: Plan, number: int) -> Plan:
    """The plan of a member: one chain, with a seed of its own."""
    return plan._replace(num_chains=1, seed=plan.seed.child("member", number))


def _with(values: Sequence[Any], place: int, value: Any) -> tuple[Any, ...]:
    return (*values[:place], value, *values[place + 1 :])


def _length(draws: tuple[Draws, ...]) -> int:
    return next((len(array) for arrays in (draws[0] if draws else {}).values() for array in arrays.values()), 0)
