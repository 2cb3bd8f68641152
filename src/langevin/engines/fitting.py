"""How a fit of q goes on: stages of the learning rate, and when it is over.

With a number of steps, the rate falls along a cosine, and the last quarter of the parameters is averaged. Without:

1. "descend": the learning rate is constant in a stage. At 200, 400, 800, ... steps of a stage (of a guide or a flow,
   whose parameters depend on one another, at 1000, 2000, ...) it is asked whether the bound still rises. If not, and
   the parameters still wander by more than 5 percent of their units, the next stage has a quarter of the rate. After
   the first stage, the rate of a family's means is in scales of q.
2. "average": at the last rate, the parameters are averaged in blocks until the error of their mean is a half percent of
   their units. (The unit of a mean is the scale of q; that of another parameter is the scale on which a change of it
   changes q.) Where every row has sites of its own, as many steps are averaged as were taken before.

A stage has goals, the steps at which something is decided. All of it is plain state.
"""

from __future__ import annotations

import math
from typing import NamedTuple, Protocol

import numpy as np

from langevin.contracts import State
from langevin.engines.settling import add_block, begin_blocks, is_rising, wander_of

FIRST_CHECK = 200
FIRST_CHECK_OF_OTHERS = 1000
MOST_STEPS = 100_000
FALL = 0.25
NUM_PLACES = 16
MOST_WANDER = 0.05
LAST_RATE = 2e-4
LEAST_RATE = 1e-7
FIRST_BLOCK = 50
LEAST_AVERAGED = 2000
TOLERANCE = 0.005
MOST_ERROR = 0.2
AVERAGED = 0.25
# In fewer steps it cannot be seen whether a bound still rises: a quarter of a quarter of them has no eight parts.
LEAST_TO_TELL = 128
FOREVER = int(np.iinfo(np.int32).max)


class Restarts(Protocol):
    """What a stage asks about the restarts."""

    def best(self) -> int:
        """The restart with the highest bound of late."""
        ...

    def units(self) -> np.ndarray | None:
        """The units of the parameters of the best restart; None if they are unknown."""
        ...

    def stacked(self, which: str) -> np.ndarray:
        """The "parameters" of all restarts, or their "average", as vectors: (restarts, size)."""
        ...


class Rules(NamedTuple):
    """What the settings and the approximation say about a fit.

    Attributes:
        num_steps: How many steps to take; None for as many as it needs.
        first_rate: The learning rate at the start.
        identified: Whether an average of parameters is one of the q they make.
        has_family: Whether there is a family, whose parameters have units.
        own_optimizer: Whether the user gave an optimiser, which has its own rate.
    """

    num_steps: int | None
    first_rate: float
    identified: bool
    has_family: bool
    own_optimizer: bool


def begin(rules: Rules, num_restarts: int) -> State:
    """The state of a fit before its first step."""
    state = {
        "stage": "descend",
        "step": 0,
        "rate": rules.first_rate,
        "in_units_from": FOREVER,
        "average_from": FOREVER,
        "began": 0,
        "length": 0,
        "goals": (),
        "places": (),
        "blocks": None,
        "units": None,
        "best": -1,
        "error": None,
        "settled": False,
        "elbo": np.zeros((num_restarts, 0)),
    }
    if rules.num_steps is None:
        return _next_stage(rules, state, rules.first_rate)
    last = rules.num_steps
    average_from = last - max(int(AVERAGED * last), 1)
    return state | {"stage": "fixed", "goals": (last,), "average_from": average_from, "in_units_from": last // 4}


def rates(rules: Rules, state: State, count: int) -> np.ndarray:
    """The learning rates of the next steps."""
    if rules.num_steps is None:
        return np.full(count, state["rate"])
    phase = math.pi * (state["step"] + np.arange(count)) / rules.num_steps
    return rules.first_rate * (1e-3 + (1 - 1e-3) * (1 + np.cos(phase)) / 2)


def reached(rules: Rules, restarts: Restarts, state: State) -> State:
    """The state after a goal was reached: with other goals, or at the stage "done"."""
    if state["stage"] == "fixed":
        best, average_from = restarts.best(), state["average_from"]
        told = state["step"] >= LEAST_TO_TELL
        settled = told and not is_rising(state["elbo"][best : best + 1, average_from:], errors=3.0)
        return state | {"stage": "done", "goals": (), "best": best, "settled": settled}
    if state["stage"] == "descend":
        return _descended(rules, restarts, state)
    return _averaged(restarts, state)


def _next_stage(rules: Rules, state: State, rate: float) -> State:
    length = FIRST_CHECK if rules.identified else FIRST_CHECK_OF_OTHERS
    state = state | {"rate": rate, "began": state["step"], "length": length, "average_from": FOREVER}
    return _with_places(state)


def _with_places(state: State) -> State:
    """Goals on the way to the next look at the bound, to see how far the parameters wander."""
    until = min(state["began"] + state["length"], MOST_STEPS // 2)
    goals = np.linspace(state["step"], until, NUM_PLACES + 1).astype(int)[1:]
    return state | {"goals": tuple(int(goal) for goal in goals if goal > state["step"]), "places": ()}


def _descended(rules: Rules, restarts: Restarts, state: State) -> State:
    places = (*state["places"], restarts.stacked("parameters"))
    state = state | {"goals": state["goals"][1:], "places": places}
    if state["goals"]:
        return state
    rate, is_last = state["rate"], state["step"] >= MOST_STEPS // 2
    if not is_last and is_rising(state["elbo"][:, state["began"] :]):
        return _with_places(state | {"length": 2 * state["length"]})
    best, units, wander = restarts.best(), restarts.units(), math.inf
    if units is not None:
        wander = wander_of([place[best] for place in places[len(places) // 2 :]], units)
    enough = wander <= MOST_WANDER if math.isfinite(wander) else rate <= LAST_RATE
    if enough or rate <= LEAST_RATE or is_last or rules.own_optimizer:
        state = state | {"stage": "average", "best": best, "began": state["step"], "units": units}
        return _with_blocks(state, places[-1].shape[1])
    if state["in_units_from"] == FOREVER and rules.has_family:
        return _next_stage(rules, state | {"in_units_from": state["step"]}, rate)
    return _next_stage(rules, state, rate * FALL)


def _with_blocks(state: State, size: int) -> State:
    blocks = begin_blocks(FIRST_BLOCK, size)
    return _next_block(state | {"blocks": blocks, "places": ()})


def _next_block(state: State) -> State:
    return state | {"average_from": state["step"], "goals": (state["step"] + state["blocks"]["length"],)}


def _averaged(restarts: Restarts, state: State) -> State:
    best, units = state["best"], state["units"]
    mean, place = (restarts.stacked(which)[best] for which in ("average", "parameters"))
    blocks = add_block(state["blocks"], mean, units)
    state = state | {"blocks": blocks}
    step, error = state["step"], blocks["error"]
    if units is None:
        over = step - state["began"] >= max(state["began"], LEAST_AVERAGED)
    else:
        over = error <= TOLERANCE
        places = (*state["places"], place)
        wanders = len(places) % NUM_PLACES == 0 and wander_of(places, units) > MOST_WANDER
        state = state | {"places": places}
        if wanders and step < MOST_STEPS // 2:
            # Far from the optimum the bound is not a parabola, and the mean of the places is not the optimum.
            return _with_blocks(state | {"rate": state["rate"] * FALL}, len(place))
    if not over and step < MOST_STEPS:
        return _next_block(state)
    settled = not is_rising(state["elbo"][best : best + 1, state["began"] :], errors=3.0)
    if units is not None:
        settled = settled and error <= MOST_ERROR
    return state | {"stage": "done", "goals": (), "settled": settled, "error": None if units is None else error}
