"""A network as its expansion to first order in the weights, around a mode (Immer et al. 2021).

    f(x, w) ~ f(x, mode) + J(x) (w - mode)

The Gauss-Newton matrix is the curvature of this network's posterior, and not of the network's itself: so the Gaussian
that it makes is one for these predictions.
"""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp

from langevin.models.networks.nets import Net, Weights


def linear_outputs(net: Net, mode: Weights, weights: Weights, rows: Any) -> Any:
    """What the linearised network says of rows."""
    at = {name: jnp.asarray(mode[name], jnp.asarray(weights[name]).dtype) for name in weights}
    steps = jax.tree.map(lambda there, here: there - here, dict(weights), at)
    output, change = jax.jvp(lambda w: net.apply(w, rows), (at,), (steps,))
    return jax.tree.map(jnp.add, output, change)


def linearised(net: Net, mode: Weights) -> Net:
    """The network that is linear in its weights around a mode."""
    return net._replace(apply=lambda weights, rows: linear_outputs(net, mode, weights, rows))
