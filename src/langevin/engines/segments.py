"""How many sweeps of blocks lead to which draws, and what is shown of them."""

from __future__ import annotations

from typing import Any

import numpy as np

from langevin.contracts import State
from langevin.engines.chains import Segments
from langevin.engines.claims import Block
from langevin.tuning import Tuning

MOST_DENSE = 128


def kind_of(asked: str, size: int) -> str:
    """The kind of a block's metric."""
    if asked not in ("auto", "lowrank"):
        return asked
    return "dense" if size <= MOST_DENSE else "diagonal"


def is_automatic(block: Block) -> bool:
    """Whether the step of a stochastic-gradient block is to be found by its geometry."""
    return block.method.role == "kernel" and not block.method.acceptances and block.method.step_size == "auto"


def number_of(tuning: Tuning) -> float | None:
    """The step of a tuning."""
    return None if tuning.step_size is None else float(tuning.step_size)


def segmented(capacity: int, limit: int, wanted: int, stride: int, state: State) -> tuple[Segments, int, int]:
    """So many sweeps, cut into draws: the segments, how many draws, and the sweeps left to the next."""
    counts, draws = np.zeros(capacity, np.int32), np.zeros(capacity, bool)
    number, made, left = 0, 0, state["left"]
    while number < capacity and made < wanted and limit > 0:
        left = left or stride
        counts[number] = min(left, limit)
        left, limit = left - int(counts[number]), limit - int(counts[number])
        draws[number] = left == 0
        made += left == 0
        number += 1
    return Segments(counts, draws, np.int32(number)), made, left


def shown(recorded: dict[str, Any] | None) -> dict[str, float]:
    """Numbers for the progress bar."""
    if recorded is None:
        return {}
    stats = recorded["stats"]
    return {"log-density": float(stats["log_density"].mean()), "gradients a draw": float(stats["n_steps"].mean())}
