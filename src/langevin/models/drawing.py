"""Discrete sites drawn back, or their probabilities, given all other sites.

The log of a sum of products has the derivative

    d log Z / d log p(z = k) = P(z = k | everything else)

so the gradient of the summed-out log-density, with respect to something that is added to the log-probability of each
value, is the posterior probability of that value: for a chain, by the forward and backward algorithms. Draws come in
the same way. Backwards through a sum, the derivative is handed on to all its terms in proportion to their size; if it
is handed on to one of them, drawn with that probability, what arrives is 1 at the values of an exact joint draw and 0
elsewhere: forward filtering, backward sampling.
"""

from __future__ import annotations

import itertools
from typing import Any

import jax
import jax.numpy as jnp

from langevin.models.chains import Site
from langevin.models.elimination import LogSum, log_sum
from langevin.models.enumeration import Enumeration
from langevin.posterior import Batch, Centring, Key, Position


def probabilities(labels: Enumeration, position: Position, batch: Batch, centring: Centring) -> dict[str, jax.Array]:
    """The probability of each value of each discrete site, given the rows and the other sites: values last."""
    return _shares(labels, position, batch, centring, log_sum)


def drawn(labels: Enumeration, key: Key, position: Position, batch: Batch, centring: Centring) -> dict[str, jax.Array]:
    """One joint draw of the discrete sites given the rows and the other sites: for each, which of its values."""
    shares = _shares(labels, position, batch, centring, _drawing(key))
    return {name: jnp.argmax(share, axis=-1) for name, share in shares.items()}


def _shares(
    labels: Enumeration, position: Position, batch: Batch, centring: Centring, how: LogSum
) -> dict[str, jax.Array]:
    sites, _ = labels.static(position, batch, centring)
    dtype = jnp.result_type(float)
    tilts = {}
    for name, count in labels.choices.items():
        tilts[name] = jnp.zeros((count, *sites[name].sizes.values()), dtype)
    for chain in labels.chains.values():
        site = sites[chain.name]
        tilts[chain.name] = jnp.zeros((site.length, chain.num_states, *site.sizes.values()), dtype)
    shares = jax.grad(lambda tilts: labels.total(position, batch, centring, tilts, how))(tilts)
    found = {name: _in_full(jnp.moveaxis(shares[name], 0, -1), labels, name, sites[name]) for name in labels.choices}
    for chain in labels.chains.values():
        # One joint state of several sites: each has the sum over the others.
        joint = jnp.moveaxis(shares[chain.name], 1, -1)
        joint = joint.reshape(*joint.shape[:-1], *chain.sizes)
        first = joint.ndim - len(chain.sizes)
        for i, name in enumerate(chain.labels):
            others = tuple(first + j for j in range(len(chain.sizes)) if j != i)
            found[name] = _in_full(jnp.sum(joint, axis=others), labels, name, sites[chain.name])
    return found


def _in_full(share: jax.Array, labels: Enumeration, name: str, site: Site) -> jax.Array:
    """With all axes of the discrete site: those of size 1 too, that are no plate's."""
    time = share.shape[:1] if site.length else ()
    num_axes = len(labels.dims[name]) - len(time)
    sizes = [site.sizes[site.plates[axis]] if axis in site.plates else 1 for axis in range(-num_axes, 0)]
    return share.reshape(*time, *sizes, share.shape[-1])


def _drawing(key: Key) -> LogSum:
    """A sum that, backwards, draws one of its terms."""
    count = itertools.count()

    def drawing(array: jax.Array, axis: int, step: Any) -> jax.Array:
        here = jax.random.fold_in(jax.random.fold_in(key, next(count)), step)
        return _drawn_sum(axis, array, jax.random.gumbel(here, array.shape, array.dtype))

    return drawing


def _drawn_sum(axis: int, array: jax.Array, noise: jax.Array) -> jax.Array:
    """The log of a sum of exponentials; its derivative is 1 at one of the terms, drawn by its size."""

    @jax.custom_vjp
    def summed(array: jax.Array, noise: jax.Array) -> jax.Array:
        del noise
        return log_sum(array, axis)

    def forward(array: jax.Array, noise: jax.Array) -> tuple[jax.Array, jax.Array]:
        chosen = jnp.argmax(array + noise, axis=axis)
        which = jax.nn.one_hot(chosen, array.shape[axis], axis=axis, dtype=array.dtype)
        return log_sum(array, axis), which

    def backward(which: jax.Array, share: jax.Array) -> tuple[jax.Array, jax.Array]:
        given = jnp.expand_dims(share, axis) * which
        return given, jnp.zeros_like(which)

    summed.defvjp(forward, backward)
    return summed(array, noise)
