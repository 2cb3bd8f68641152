"""A climb to where a function is high, over few coordinates."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

# In unconstrained units.
FARTHEST = 12.0
MOST_STEPS = 60
ValueAndGradient = Callable[[np.ndarray], tuple[float, np.ndarray]]


def climbed(function: ValueAndGradient, point: np.ndarray) -> np.ndarray:
    """The top by L-BFGS from a point, within bounds; where the function is not finite, it turns back."""
    from scipy.optimize import minimize

    def cost(at: np.ndarray) -> tuple[float, np.ndarray]:
        value, gradient = function(at.astype(point.dtype))
        fine = np.isfinite(value) and np.isfinite(gradient).all()
        return (-value, -gradient) if fine else (1e12, np.zeros_like(at))

    bounds = [(-FARTHEST, FARTHEST)] * point.size
    settings = {"maxiter": MOST_STEPS, "maxfun": 2 * MOST_STEPS}
    found = minimize(cost, point.astype(np.float64), jac=True, method="L-BFGS-B", bounds=bounds, options=settings)
    return found.x.astype(point.dtype)


def first_finite(
    function: ValueAndGradient, size: int, dtype: np.dtype, generator: np.random.Generator
) -> np.ndarray | None:
    """The origin, or the first of some random points where the function is finite; None if there is none."""
    points = [np.zeros(size, dtype)] + [generator.uniform(-2, 2, size).astype(dtype) for _ in range(20)]
    return next((point for point in points if np.isfinite(function(point)[0])), None)


def with_differences(
    at: Callable[[np.ndarray], list[np.ndarray]], point: np.ndarray, spacing: float
) -> list[np.ndarray]:
    """The derivatives of arrays in each coordinate of a point, by central differences: coordinates last."""
    slopes = []
    for axis in range(point.size):
        step = np.zeros_like(point)
        step[axis] = spacing
        slopes.append(
            [(up - down) / (2 * spacing) for up, down in zip(at(point + step), at(point - step), strict=True)]
        )
    return [np.stack(parts, axis=-1) for parts in zip(*slopes, strict=True)]
