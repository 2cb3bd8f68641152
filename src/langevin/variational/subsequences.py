"""Pieces of a long time series in place of all of it.

    log p(y | theta) = log p(y_0) + sum over pieces k of log p(y_k | y_before k)

and the likelihood of a piece given all that was before it is nearly that given a buffer of some steps before it, which
is a difference of two marginal likelihoods of short series, or of their bounds:

    log p(y_k | y_before k)  ~  B(buffer and piece k) - B(buffer)

A step sees some pieces, and scales them by their number. Around a centre c, where the gradient g_k of every piece is
taken once, each piece has the control variate

    log p_k(theta) - (g_k - mean of g) (theta - c)

which changes nothing of the sum over all pieces, and of the noise of a few leaves what is of second order. What is
forgotten is what the series before the buffer says of the state at its beginning, where the program's own distribution
of a first state stands for it: a bias that falls geometrically with the buffer, as the chain forgets. (Aicher et al.
2019, 'Stochastic gradient MCMC for state space models', have gradients of the piece's own terms under the smoothed
states of the piece with a buffer on each side. This has the same terms in another order, and is the gradient of a
density, so that it can be climbed and measured.)
"""

from __future__ import annotations

import dataclasses
import functools
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.flatten_util import ravel_pytree

from langevin import checks, spelling
from langevin.posterior import Batch, Centring, Model, Position, Posterior
from langevin.variational.marginal import START, Nest, Start, best, bound_of

HEAD = "_head"
SLOPE, LOOKED, LOOKED_BEFORE = KNOWN = ("_slope", "_q", "_q before")
PIECES_AT_ONCE = 16


@dataclasses.dataclass(frozen=True)
class Subsequences:
    """How a long time series is cut: a step sees pieces of it, each with a buffer before it.

    Args:
        length: Steps of time in a piece.
        buffer: Steps before it, from which the state at its beginning is inferred. What was before the buffer is
            forgotten, a bias that falls geometrically with the buffer's length.
        number: Pieces in a step.

    Example:
        >>> Subsequences(length=500, buffer=50).width
        550
    """

    length: int
    buffer: int
    number: int = 1

    def __post_init__(self) -> None:
        object.__setattr__(self, "length", checks.count("Subsequences", "length", self.length))
        object.__setattr__(self, "buffer", checks.count("Subsequences", "buffer", self.buffer, least=2))
        object.__setattr__(self, "number", checks.count("Subsequences", "number", self.number))

    @property
    def width(self) -> int:
        """Steps that are read for a piece."""
        return self.length + self.buffer


spelling.check_keywords(Subsequences)


def cut(columns: dict[str, Any], num_rows: int, how: Subsequences) -> tuple[Batch, Batch]:
    """The first steps, (steps, ...), and the pieces with their buffers, (pieces, width, ...)."""
    count = (num_rows - how.buffer) // how.length
    head = num_rows - count * how.length
    firsts = head - how.buffer + how.length * np.arange(count)
    places = firsts[:, None] + np.arange(how.width)
    arrays = {name: np.asarray(column)[:num_rows] for name, column in columns.items()}
    return {name: array[:head] for name, array in arrays.items()}, {name: a[places] for name, a in arrays.items()}


def of_pieces(target: Posterior, nest: Nest, start: Start, how: Subsequences) -> Posterior:
    """The posterior of the other sites, with pieces for rows, of which nothing is known yet."""
    whole = target.model
    like = {name: leaf for name, leaf in whole.like.items() if name not in nest.names}
    head, pieces = cut(target.data, target.num_data, how)
    fixed = jax.tree.map(jnp.asarray, {START: start._asdict(), HEAD: head})
    shapes = jax.tree.map(lambda leaf: jax.ShapeDtypeStruct(leaf.shape, leaf.dtype), fixed)

    def begin(generator: np.random.Generator) -> Position:
        position = whole.start(generator)
        return {name: position[name] for name in like} | fixed

    def report(position: Position, rows: Batch, hidden: frozenset[str], centring: Centring) -> dict[str, jax.Array]:
        del rows
        first = position[HEAD]
        path = {nest.names[0]: jnp.zeros(len(jax.tree.leaves(first)[0]))}
        found = whole.report({**{name: position[name] for name in like}, **path}, first, hidden, centring)
        return {name: found[name] for name in like if name in found}

    model = Model(
        terms=functools.partial(_terms, whole, nest, how.buffer),
        report=report,
        start=begin,
        like={**like, **shapes},
        dims=tuple((name, dims) for name, dims in whole.dims if name in like),
        observed=whole.observed,
        explain=lambda position, data, centring: "the bound of a piece is not finite",
    )
    count = len(next(iter(pieces.values())))
    data = {name: jnp.asarray(column) for name, column in (pieces | unknown(start, count, how)).items()}
    return Posterior(data, model, count, True, fixed, dict(target.centring))


def unknown(start: Start, count: int, how: Subsequences) -> Batch:
    """What stands for what is known of so many pieces before they are looked at: the same start of q for all."""
    first = np.stack([start.mean, start.log_sd], axis=-1)
    return {
        SLOPE: np.zeros((count, start.centre.size), start.centre.dtype),
        LOOKED: np.broadcast_to(first, (count, how.width, 2)),
        LOOKED_BEFORE: np.broadcast_to(first, (count, how.buffer, 2)),
    }


def looked_at(target: Posterior, nest: Nest, pieces: Posterior, start: Start, buffer: int) -> dict[str, jax.Array]:
    """What is known of all pieces at the centre of a start: gradients less their mean, and where the q of each is."""
    whole, like = target.model, pieces.model.like
    others = {name: jnp.zeros(leaf.shape, leaf.dtype) for name, leaf in like.items() if name not in pieces.fixed}
    at = ravel_pytree(others)[1](jnp.asarray(start.centre))
    columns = {name: column for name, column in pieces.data.items() if name not in KNOWN}

    def q_of(rows: Batch) -> jax.Array:
        q = best(whole, nest, start, at, rows, target.centring)
        return jnp.stack([q.mean, jnp.log(nest.form.sds(q.precision))], axis=-1)

    def one(rows: Batch) -> dict[str, jax.Array]:
        before = {name: column[:buffer] for name, column in rows.items()}
        known = {LOOKED: q_of(rows), LOOKED_BEFORE: q_of(before)}
        gradient = jax.grad(
            lambda others: _piece(whole, nest, buffer, others, start, {**rows, **known}, target.centring)
        )
        return {SLOPE: ravel_pytree(gradient(at))[0], **known}

    found = jax.lax.map(one, columns, batch_size=PIECES_AT_ONCE)
    return found | {SLOPE: found[SLOPE] - jnp.mean(found[SLOPE], axis=0)}


def _terms(
    whole: Model, nest: Nest, buffer: int, position: Position, batch: Batch, centring: Centring
) -> tuple[jax.Array, jax.Array]:
    others = {name: value for name, value in position.items() if name not in (START, HEAD)}
    start = Start(**position[START])
    moved = ravel_pytree(others)[0] - start.centre

    def piece(rows: Batch) -> jax.Array:
        return _piece(whole, nest, buffer, others, start, rows, centring) - rows[SLOPE] @ moved

    return bound_of(whole, nest, start, others, position[HEAD], centring), jax.lax.map(
        piece, batch, batch_size=PIECES_AT_ONCE
    )


def _piece(
    whole: Model, nest: Nest, buffer: int, others: Position, start: Start, rows: Batch, centring: Centring
) -> jax.Array:
    """The bound of the piece with its buffer, less that of the buffer."""
    columns = {name: column for name, column in rows.items() if name not in KNOWN}
    before = {name: column[:buffer] for name, column in columns.items()}
    at = start._replace(mean=rows[LOOKED][:, 0], log_sd=rows[LOOKED][:, 1])
    at_before = start._replace(mean=rows[LOOKED_BEFORE][:, 0], log_sd=rows[LOOKED_BEFORE][:, 1])
    both = bound_of(whole, nest, at, others, columns, centring)
    return both - bound_of(whole, nest, at_before, others, before, centring)
