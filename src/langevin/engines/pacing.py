"""The pace of a chain with an automatic step, and what is said where it is not what it should be."""

from __future__ import annotations

import math
import warnings
from typing import TYPE_CHECKING

from langevin.errors import LangevinWarning
from langevin.tuning import Landscape, Pace

if TYPE_CHECKING:
    from langevin.methods.stochastic import Stochastic

# The longest autocorrelation time that a run takes into account: more steps than that would have no end, and what the
# chains then lack is found at their end. Of network-sized models the weights never mix, and need not.
MOST_TIME, MOST_TIME_OF_LARGE = 10_000, 1_000
LARGE = 2_000
# How often a chain should forget: at least so often that four chains give an effective size of about 500, and where
# steps are cheap, by coordinates times rows that they take in all, more often.
LEAST_TIMES, MOST_TIMES = 150, 600
CHEAP = 4e9
MOST_THIN = 10_000


def pace_of(method: Stochastic, scene: Landscape) -> Pace:
    """The method's pace, but with an autocorrelation time that a run can have."""
    pace, most = method.pace(scene), longest_time(scene.size)
    if pace.autocorrelation_time <= most:
        return pace
    warnings.warn(
        f"The autocorrelation time of a chain would be {pace.autocorrelation_time:.2g} steps: the largest curvature is "
        f"{scene.stiffest / scene.softest:.2g} times the smallest, and the gradient noise {scene.noise:.2g}, in units "
        f"of the metric. It gets {most}, so the chains may not mix. Try metric='auto', estimator='auto', larger "
        "minibatches, or method='sghmc'.",
        LangevinWarning,
        stacklevel=2,
    )
    return pace._replace(autocorrelation_time=float(most))


def longest_time(size: int) -> int:
    """The longest autocorrelation time, in steps, for a model with so many coordinates."""
    return MOST_TIME_OF_LARGE if size > LARGE else MOST_TIME


def thin_of(time: float, num_draws: int, work: int) -> int:
    """How many steps there are to a draw.

    Args:
        time: The autocorrelation time, in steps.
        num_draws: How many draws there are.
        work: What a step costs: coordinates times rows.
    """
    times = min(max(CHEAP / (time * max(work, 1)), LEAST_TIMES), MOST_TIMES)
    return min(math.ceil(min(times / num_draws, 1) * time), MOST_THIN)


def warn_of_width(name: str, halvings: int, value: float | None) -> None:
    """Warns of chains that are too wide, by the square of their relative width; None if they blew up."""
    symptom = "blow up" if value is None else f"are {math.sqrt(value):.2f} times too wide by Stein's identity"
    warnings.warn(
        f"`{name}`: after {halvings} halvings of the automatic step the chains still {symptom}. A Gaussian may not "
        "describe this posterior: compare with a smaller step_size, or reparameterise.",
        LangevinWarning,
        stacklevel=2,
    )
