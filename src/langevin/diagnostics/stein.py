"""Kernel Stein discrepancy: how far weighted draws are from a target whose gradient is known (Gorham & Mackey 2017).

    KSD^2 = sum_ij w_i w_j k_p(x_i, x_j),   sum_i w_i = 1
    k_p(x, y) = s(x).s(y) k + s(x).grad_y k + s(y).grad_x k + trace(grad_x grad_y k),   s = grad log p
    k(x, y) = (1 + |x - y|^2)^(-1/2)

The inverse multiquadric kernel, in coordinates scaled to unit sd. Stochastic gradients may stand in for s: then the
terms i = j, where the noise meets itself, are left out, and the estimate stays unbiased (Huggins & Mackey 2018).
"""

from __future__ import annotations

import numpy as np


def kernel_stein_discrepancy(
    positions: np.ndarray,
    gradients: np.ndarray,
    weights: np.ndarray | None = None,
    *,
    stochastic: bool = False,
) -> float:
    """The squared kernel Stein discrepancy of draws from the target with these gradients.

    Args:
        positions: (draws, coordinates), unconstrained.
        gradients: The gradient of the log-density at each, exact or from an independent minibatch each.
        weights: One a draw; uniform by default.
        stochastic: Whether the gradients come from minibatches. The result is then unbiased, and may be below 0.

    Returns:
        The squared discrepancy: 0 for perfect draws, in the limit.

    Example:
        >>> x = np.random.default_rng(0).normal(size=(500, 1))
        >>> good, wide = (kernel_stein_discrepancy(x, -x / s**2, stochastic=True) for s in (1.0, 0.5))
        >>> bool(abs(good) < 0.02 < wide)
        True
    """
    positions = np.asarray(positions, np.float64)
    shares = np.ones(len(positions)) if weights is None else np.asarray(weights, np.float64)
    shares = shares / shares.sum()
    scale = np.sqrt(shares @ (positions - shares @ positions) ** 2)
    scale = np.where(scale > 0, scale, 1.0)
    x, s = positions / scale, np.asarray(gradients, np.float64) * scale
    total = 0.0
    for start in range(0, len(x), 512):
        rows = slice(start, start + 512)
        block = _stein_kernel(x[rows], s[rows], x, s)
        if stochastic:
            block[np.arange(len(block)), start + np.arange(len(block))] = 0.0
        total += shares[rows] @ block @ shares
    return float(total / (1 - np.sum(shares**2)) if stochastic else total)


def _stein_kernel(x: np.ndarray, s: np.ndarray, y: np.ndarray, t: np.ndarray) -> np.ndarray:
    """k_p between the rows of x and of y, with their gradients s and t."""
    square = np.maximum((x**2).sum(1)[:, None] + (y**2).sum(1)[None] - 2 * x @ y.T, 0.0)
    base = 1 + square
    kernel, slope, bend = base**-0.5, base**-1.5, base**-2.5
    # s.(x - y) and t.(x - y) for every pair.
    along_s = (s * x).sum(1)[:, None] - s @ y.T
    along_t = x @ t.T - (t * y).sum(1)[None]
    trace = x.shape[1] * slope - 3 * square * bend
    return (s @ t.T) * kernel + (along_s - along_t) * slope + trace
