"""The way from a far start to where the log-density can be resolved, in NumPy.

With raw columns (a year, an income in dollars) the log-density at a random start may be -1e11, and its rounding error
in single precision 1e4: no trajectory keeps such an energy. So chains whose gradients are that steep first climb, one
gradient a step. Every coordinate has a step of its own, which doubles while the sign of its gradient stays and halves
when it changes (Riedmiller & Braun 1993, 'Rprop'): signs have no scale. A step that lowers the log-density is taken
back.

A climb is no search for the mode, which is no place to start from (in a hierarchy, the density has its top where the
scale is zero): it ends where what it gains is little next to `NATS_A_COORDINATE`, and most runs have none.
"""

from __future__ import annotations

import numpy as np

from langevin.contracts import State

# From this far below the top (for each coordinate, and for ten more) trajectories find their way themselves.
NATS_A_COORDINATE = 1000.0
FIRST_STEP = 0.1
PATIENCE = 20
MOST_STEPS = 500
# How much of the way is remembered, for the first metric.
MEMORY = 16


def begin(positions: np.ndarray, log_density: np.ndarray, gradients: np.ndarray) -> State | None:
    """The state of chains at their starts (chains, size); None if none of them has to climb.

    Args:
        positions: The starts.
        log_density: The log-density there, (chains,).
        gradients: Its gradients, (chains, size).
    """
    # A start is a few units from the bulk in most coordinates: the gradient tells what a unit gains.
    going = np.sum(np.abs(gradients), axis=1) > _little(positions.shape[1])
    if not going.any():
        return None
    state = {
        "best": np.asarray(positions, np.float64),
        "log_density": np.asarray(log_density, np.float64),
        "gradients": np.asarray(gradients, np.float64),
        "steps": np.full(positions.shape, FIRST_STEP),
        "going": going,
        "climbed": going,
        "earlier": np.full((PATIENCE, len(positions)), -np.inf),
        "path": np.zeros((0, 2, *positions.shape)),
        "count": 0,
    }
    return state | {"trial": _trial(state)}


def advance(state: State, log_density: np.ndarray, gradients: np.ndarray) -> State:
    """The state after the log-density (chains,) and its gradients (chains, size) at `state["trial"]` are known."""
    log_density, gradients = np.asarray(log_density, np.float64), np.asarray(gradients, np.float64)
    good = np.isfinite(log_density) & np.isfinite(gradients).all(axis=1)
    higher = good & (log_density > state["log_density"])
    turned = good[:, None] & (np.sign(gradients) * np.sign(state["gradients"]) < 0)
    # Where no coordinate has turned, or none can be told to have, all went too far.
    back = turned | ~turned.any(axis=1, keepdims=True)
    factor = np.where(higher[:, None], np.where(turned, 0.5, 2.0), np.where(back, 0.5, 1.0))
    taken = (state["going"] & higher)[:, None]
    following = state | {
        "best": np.where(taken, state["trial"], state["best"]),
        "log_density": np.where(taken[:, 0], log_density, state["log_density"]),
        "gradients": np.where(taken, gradients, state["gradients"]),
        "steps": state["steps"] * factor,
        "earlier": np.concatenate([state["earlier"][1:], state["log_density"][None]]),
        "count": state["count"] + 1,
    }
    seen = np.stack([following["best"], following["gradients"]])
    gained = following["log_density"] - following["earlier"][0]
    going = state["going"] & (gained > _little(state["best"].shape[1])) & (following["count"] < MOST_STEPS)
    following |= {"going": going, "path": np.concatenate([state["path"], seen[None]])[-MEMORY:]}
    return following | {"trial": _trial(following)}


def path(state: State) -> tuple[list[np.ndarray], list[np.ndarray]]:
    """The last positions of each chain that climbed, and the gradients there."""
    chains = np.flatnonzero(state["climbed"])
    positions, gradients = ([state["path"][:, part, chain] for chain in chains] for part in (0, 1))
    return positions, gradients


def _little(size: int) -> float:
    return NATS_A_COORDINATE * (size + 10)


def _trial(state: State) -> np.ndarray:
    moved = state["best"] + np.sign(state["gradients"]) * state["steps"]
    return np.where(state["going"][:, None], moved, state["best"])
