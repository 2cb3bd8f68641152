"""The shape of one block of a posterior given the others.

The mean outer product of the gradient of log p(x_b | x_others), over draws of all, is the block's mean curvature: for a
Gaussian with precision P it is P_bb, whose inverse is the covariance of the block given the others. The covariance of
its draws would be that of its marginal, which is wider along everything that the block shares with others.
"""

from __future__ import annotations

from typing import Any, cast

import jax
import jax.numpy as jnp
import numpy as np
from numpyro.ops.provenance import eval_provenance

from langevin.contracts import Position
from langevin.geometry.finding import Found
from langevin.geometry.mass import metric_from, plain_gradient
from langevin.kernels.metrics import Dense, Diagonal, Learned, Metric
from langevin.posterior import Posterior

# As if so many gradients had come from independent coordinates.
PRIOR_COUNT = 5.0
SMALLEST = 1e-12


def plain(metric: Metric | None, whitened: Any) -> np.ndarray:
    """Gradients (..., size) in plain coordinates, from whitened ones."""
    flat = np.asarray(whitened)
    if metric is None:
        return flat
    return plain_gradient(cast("Learned", metric), flat.reshape(-1, flat.shape[-1])).reshape(flat.shape)


def metric_of(
    kind: str, draws: np.ndarray, gradients: np.ndarray, previous: Metric | None, dtype: Any
) -> Metric | None:
    """The metric of a block.

    Args:
        kind: "unit", "diagonal" or "dense".
        draws: (chains, draws, size): taken where there are no gradients.
        gradients: Of the log-density given the others; zeros if there are none.
        previous: The metric before, which stays where there is too little to tell.
        dtype: Of its arrays.
    """
    if kind == "unit":
        return None
    flat = gradients.reshape(-1, gradients.shape[-1]).astype(np.float64)
    flat = flat[np.isfinite(flat).all(axis=1)]
    if not flat.any():
        return metric_from(kind, list(draws), None, 1, dtype)
    if len(flat) < 2 * PRIOR_COUNT:
        return previous
    # A few gradients from far out in a tail must not make the metric: each counts at most as much as is usual.
    norms = np.linalg.norm(flat / np.maximum(np.median(np.abs(flat), axis=0), SMALLEST), axis=1)
    most = 10 * np.median(norms)
    flat = flat * np.minimum(1, most / np.maximum(norms, SMALLEST))[:, None]
    square = np.maximum(np.mean(flat**2, axis=0), SMALLEST)
    if kind == "diagonal":
        return Diagonal((1 / square).astype(dtype))
    scale = np.sqrt(square)
    scaled = flat / scale
    moment = (scaled.T @ scaled + PRIOR_COUNT * np.eye(len(scale))) / (len(flat) + PRIOR_COUNT)
    inverse = np.linalg.inv(moment) / np.outer(scale, scale)
    return Dense(np.linalg.cholesky((inverse + inverse.T) / 2).astype(dtype))


def found_of(found: Found, example: Position, names: tuple[str, ...]) -> Found:
    """What was found of a whole posterior, for a block given the others at their centre."""
    inside = np.concatenate([np.full(np.size(example[name]), name in names) for name in sorted(example)])
    if found.factor.ndim == 2:
        precision = np.linalg.inv(found.factor @ found.factor.T)
        factor = np.linalg.cholesky(np.linalg.inv(precision[np.ix_(inside, inside)]))
    else:
        factor = found.factor[inside]
    return found._replace(
        centre=found.centre[inside],
        factor=factor,
        modes=found.modes[:, inside],
        beyond=np.zeros(0),
        groups=None,
    )


def is_rowless(target: Posterior, names: tuple[str, ...]) -> bool:
    """Whether no row enters the conditional density of these sites: of scales above group effects, for instance."""
    like = target.model.like
    example = {name: np.zeros(leaf.shape, leaf.dtype) for name, leaf in like.items()}
    few = jax.tree.map(lambda array: array[:1], target.data)
    on = eval_provenance(lambda **position: jnp.sum(target.terms(position, few)[1]), **example)
    return not (set(names) & set(on))
