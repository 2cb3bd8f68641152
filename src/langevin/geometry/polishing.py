"""From near a mode to the mode, on all rows.

First, with few coordinates, damped Newton steps that are kept only where the density rises (`climbing`). A density that
is summed over many rows is known to many nats only, and its gradient much better: so whole Newton steps follow, each
of which is kept if the distance to the mode, `g^T P^-1 g`, falls, and the density does not.
"""

from __future__ import annotations

import numpy as np

from langevin.contracts import State
from langevin.geometry import climbing
from langevin.geometry.curvature import factor_of

# With more coordinates, steps are not damped: that takes the eigenvalues of the curvature.
MOST_DAMPED = 512
MOST_WHOLE = 6
# The square of the distance to the mode, in sds, a coordinate, at which the last steps end.
NEAR = 1e-6


def begin(point: np.ndarray) -> State:
    """From a flat point."""
    damped = point.size <= MOST_DAMPED
    return {
        "climb": climbing.begin(point[None]) if damped else None,
        "here": point,
        "tried": point,
        "height": -np.inf,
        "distance": np.inf,
        "whole": 0,
        "over": False,
    }


def looked(polish: State, height: float, gradient: np.ndarray, curvature: np.ndarray) -> State:
    """After a look at what was tried: the log-density there, its gradient, and the negative Hessian."""
    if polish["climb"] is not None:
        climb = climbing.climbed(polish["climb"], (np.array([height]), gradient[None], curvature[None]))
        over = climb["arrived"][0] or climb["count"] >= climbing.MOST_CLIMBS
        here = climb["here"][0]
        tried = here if over else climb["tried"][0]
        return polish | {"climb": None if over else climb, "here": here, "tried": tried}
    fine = np.isfinite(height) and np.isfinite(gradient).all() and np.isfinite(curvature).all()
    if not fine:
        return polish | {"over": True}
    step = _newton(gradient, curvature)
    distance = float(step @ gradient)
    rises = height >= polish["height"] - climbing.ROUNDING * np.abs(height)
    if not (rises and distance < polish["distance"]):
        return polish | {"over": True}
    here, whole = polish["tried"], polish["whole"] + 1
    over = distance < NEAR * gradient.size or whole > MOST_WHOLE
    return polish | {
        "here": here,
        "tried": here + step,
        "height": height,
        "distance": distance,
        "whole": whole,
        "over": over,
    }


def _newton(gradient: np.ndarray, curvature: np.ndarray) -> np.ndarray:
    root = factor_of(curvature).factor
    return root @ (root.T @ gradient)
