"""A program with its discrete sites as parts of the position, in place of summed out.

A position has, for each discrete site, which of its values each element has (an index, as a number). Sites inside the
plate over the rows count with the rows: under minibatches they are scaled, and have the rows of the batch.
"""

from __future__ import annotations

import dataclasses
import functools
from typing import Any

import jax
import jax.numpy as jnp

from langevin.models.drawing import drawn
from langevin.models.enumeration import Enumeration
from langevin.posterior import Batch, Centring, Key, Position, Posterior


def labelled(target: Posterior, batch: Batch) -> Posterior:
    """The same with discrete sites that are parts of the position.

    Args:
        target: A posterior with discrete sites that are summed out.
        batch: Rows, for their number.
    """
    labels = target.model.labels
    position = {name: jax.ShapeDtypeStruct(leaf.shape, leaf.dtype) for name, leaf in target.model.like.items()}
    shapes = jax.eval_shape(
        lambda at, rows, centring: drawn(labels, jax.random.key(0), at, rows, centring),
        position,
        batch,
        target.centring,
    )
    dtype = jnp.result_type(float)
    like = {name: jax.ShapeDtypeStruct(shape.shape, dtype) for name, shape in shapes.items()}
    model = dataclasses.replace(
        target.model, terms=functools.partial(_terms, labels), like={**target.model.like, **like}, labels=None
    )
    return dataclasses.replace(target, model=model)


def draw_labels(target: Posterior, key: Key, position: Position, batch: Batch) -> dict[str, jax.Array]:
    """One joint draw of the discrete sites given the rows and the other sites: for each, which of its values."""
    return drawn(target.model.labels, key, position, batch, target.centring)


def values_of(labels: Enumeration, indices: Position) -> dict[str, jax.Array]:
    """The values that indices stand for."""
    return {name: jnp.asarray(labels.supports[name])[index.astype(int)] for name, index in indices.items()}


def _terms(labels: Enumeration, position: Position, batch: Batch, centring: Centring) -> tuple[jax.Array, jax.Array]:
    program: Any = labels.program
    indices = {name: position[name] for name in labels.names}
    rest = {name: value for name, value in position.items() if name not in indices}
    return program.terms_given(labels.found, rest, batch, centring, values_of(labels, indices))
