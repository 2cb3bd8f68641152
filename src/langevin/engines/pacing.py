"""The pace of a chain with an automatic step, and what is said where it is not what it should be."""

from __future__ import annotations

import math
import warnings
from typing import TYPE_CHECKING

from langevin.errors import LangevinWarning
from langevin.tuning import Landscape, Pace

if TYPE_CHECKING:
    from langevin.methods.stochastic import Stochastic

MOST_AUTOCORRELATION_TIME = 1_000_000


def pace_of(method: Stochastic, scene: Landscape) -> Pace:
    """The method's pace, but with an autocorrelation time that a run can have."""
    pace = method.pace(scene)
    if pace.autocorrelation_time <= MOST_AUTOCORRELATION_TIME:
        return pace
    warnings.warn(
        f"The autocorrelation time of a chain would be {pace.autocorrelation_time:.0g} steps: the largest curvature is "
        f"{scene.stiffest / scene.softest:.0g} times the smallest, and the gradient noise {scene.noise:.0g}, in units "
        f"of the metric. It gets {MOST_AUTOCORRELATION_TIME}. Take metric='auto', larger minibatches, or "
        "estimator='control_variate'.",
        LangevinWarning,
        stacklevel=2,
    )
    return pace._replace(autocorrelation_time=float(MOST_AUTOCORRELATION_TIME))


def warn_of_width(name: str, halvings: int, value: float | None) -> None:
    """Warns of chains that are too wide, by the square of their relative width; None if they blew up."""
    symptom = "blow up" if value is None else f"are {math.sqrt(value):.2f} times too wide by Stein's identity"
    warnings.warn(
        f"`{name}`: after {halvings} halvings of the automatic step the chains still {symptom}. A Gaussian may not "
        "describe this posterior: compare with a smaller step_size, or reparameterise.",
        LangevinWarning,
        stacklevel=2,
    )
