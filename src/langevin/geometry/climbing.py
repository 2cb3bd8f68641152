"""To the modes of a target with few coordinates: damped Newton steps (Levenberg-Marquardt), kept only where it rises.

Every start climbs on a sample of the rows, and the highest goes on with all of them. All linear algebra is in double
precision, in units in which the curvature has a unit diagonal.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from langevin.contracts import State

MOST_CLIMBS = 60
MOST_ON_ALL_ROWS = 15
# Half of the square of the distance to the mode, in posterior sds, at which a climb ends.
NEAR = 1e-4
# A sum over rows in single precision is known to about this share of itself.
ROUNDING = 1e-6


def begin(positions: np.ndarray) -> State:
    """Climbers at flat positions (climbers, size), of which nothing is known."""
    count, size = positions.shape
    return {
        "here": positions.astype(np.float64),
        "tried": positions.astype(np.float64),
        "height": np.full(count, -np.inf),
        "gradient": np.zeros((count, size)),
        "curvature": np.zeros((count, size, size)),
        "damping": np.full(count, 1e-2),
        "arrived": np.zeros(count, bool),
        "count": 0,
    }


def climbed(climb: State, found: Any) -> State:
    """The climbers after a look at what they tried: log-densities, gradients and curvatures."""
    height, gradient, curvature = (np.asarray(part, np.float64) for part in found)
    fine = np.isfinite(height) & np.isfinite(gradient).all(axis=1)
    better = fine & (height >= climb["height"] - ROUNDING * np.abs(climb["height"])) & ~climb["arrived"]
    pick = lambda new, old: np.where(better.reshape(-1, *[1] * (old.ndim - 1)), new, old)  # noqa: E731
    curvature = np.where(np.isfinite(curvature), curvature, 0.0)
    new = {"here": climb["tried"], "height": height, "gradient": gradient, "curvature": curvature}
    damping = np.clip(np.where(better, climb["damping"] / 10, climb["damping"] * 10), 1e-9, 1e9)
    climb = climb | {name: pick(values, climb[name]) for name, values in new.items()}
    steps = np.stack([newton(g, h, d) for g, h, d in zip(climb["gradient"], climb["curvature"], damping, strict=True)])
    gain = np.sum(steps * climb["gradient"], axis=1) / 2
    known = np.isfinite(climb["height"])
    near = np.maximum(NEAR, ROUNDING * np.abs(climb["height"]))
    arrived = climb["arrived"] | ~known | (gain < near) | (damping >= 1e9)
    tried = np.where(arrived[:, None], climb["here"], climb["here"] + steps)
    return climb | {"damping": damping, "arrived": arrived, "tried": tried, "count": climb["count"] + 1}


def log_masses(climb: State) -> np.ndarray:
    """By Laplace's method, up to a constant: of the tops that were reached. Minus infinity for what is no top."""
    masses = np.full(len(climb["here"]), -np.inf)
    for index in np.flatnonzero(climb["arrived"] & np.isfinite(climb["height"])):
        sign, log_det = np.linalg.slogdet(climb["curvature"][index])
        if sign > 0 and np.isfinite(log_det):
            masses[index] = climb["height"][index] - log_det / 2
    return masses


def newton(gradient: np.ndarray, curvature: np.ndarray, damping: float = 0.0) -> np.ndarray:
    """The step to where the density would be highest, if it had this curvature everywhere (in size)."""
    scale, values, vectors = decomposed(curvature)
    return scale * (vectors @ ((vectors.T @ (scale * gradient)) / (values + damping)))


def factor(curvature: np.ndarray) -> np.ndarray:
    """R with R R^T the inverse of a curvature, of which negative values count by their size."""
    scale, values, vectors = decomposed(curvature)
    return scale[:, None] * vectors / np.sqrt(values)


def decomposed(curvature: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """The scale that makes a unit diagonal, and eigenvalues (made positive) and eigenvectors of what is then left.

    A coordinate without any curvature counts as if it had 1: it may have a kink.
    """
    diagonal = np.abs(np.diagonal(curvature))
    flat = diagonal < 1e-30
    scale = 1 / np.sqrt(np.where(flat, 1.0, diagonal))
    scaled = scale[:, None] * curvature * scale + np.diag(flat.astype(np.float64))
    values, vectors = np.linalg.eigh((scaled + scaled.T) / 2)
    return scale, np.maximum(np.abs(values), 1e-7 * max(np.abs(values).max(), 1e-30)), vectors
