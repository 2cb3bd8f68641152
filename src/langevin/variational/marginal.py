"""A posterior with one block of sites replaced by a bound on its log-marginal (see `langevin.variational.nested`).

The search for q begins near where it ends: its mean and log-sds are affine in the other sites around a centre. Where
it begins changes nothing but how long it takes.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax.flatten_util import ravel_pytree

from langevin.posterior import Batch, Centring, Key, Model, Position, Posterior
from langevin.variational.nested import LOG_2PI, Look, Q, Solved, hermite, solved

START = "_start of q"
# How far from the centre the start follows the other sites.
MOST_FOLLOWED = 1.0


class Nest(NamedTuple):
    """What is nested.

    Attributes:
        names: The sites of the block.
        form: Of q.
        by_row: Whether every row has its own, so that the bound is a sum over rows.
        twice: Whether second derivatives of the bound are taken.
        in_pieces: Whether it is a path of which pieces are looked at.
    """

    names: tuple[str, ...]
    form: Any
    by_row: bool = False
    twice: bool = False
    in_pieces: bool = False


class Start(NamedTuple):
    """Where the search for q begins.

    Attributes:
        centre: Of the other sites, flat.
        mean: Of q there; one number for all rows, if each has its own.
        log_sd: The same of its sds.
        mean_slope: How the mean moves with each of the others, (size, others).
        log_sd_slope: The same of the log-sds.
    """

    centre: Any
    mean: Any
    log_sd: Any
    mean_slope: Any
    log_sd_slope: Any


def cold(num_others: int, size: int, dtype: Any) -> Start:
    """A start that nothing is known of: standard normal."""
    slopes = np.zeros((size, num_others), dtype)
    return Start(np.zeros(num_others, dtype), np.zeros(size, dtype), np.zeros(size, dtype), slopes, slopes)


def marginal(target: Posterior, nest: Nest, start: Start) -> Posterior:
    """The posterior of the other sites, up to the gap of the bound."""
    like = {name: leaf for name, leaf in target.model.like.items() if name not in nest.names}
    shapes = jax.tree.map(lambda leaf: jax.ShapeDtypeStruct(np.shape(leaf), leaf.dtype), start._asdict())
    whole = target.model

    def begin(generator: np.random.Generator) -> Position:
        position = whole.start(generator)
        return {name: position[name] for name in (*like,)} | {START: start._asdict()}

    def report(position: Position, rows: Batch, hidden: frozenset[str], centring: Centring) -> dict[str, jax.Array]:
        others = {name: position[name] for name in like}
        block = {name: jnp.zeros(whole.like[name].shape) for name in nest.names}
        if nest.by_row:
            block = {name: jnp.zeros(_num_rows(rows)) for name in nest.names}
        found = whole.report({**others, **block}, rows, hidden, centring)
        return {name: found[name] for name in others if name in found}

    model = Model(
        terms=functools.partial(_terms, whole, nest),
        report=report,
        start=begin,
        like={**like, START: shapes},
        dims=tuple((name, dims) for name, dims in whole.dims if name in like),
        observed=whole.observed,
        explain=lambda position, data, centring: "the bound of the nested block is not finite",
    )
    fixed = {START: jax.tree.map(jnp.asarray, start._asdict())}
    return Posterior(target.data, model, target.num_data, target.by_rows, fixed, dict(target.centring))


def search(target: Posterior, nest: Nest, start: Start, others: Position, batch: Batch) -> Solved:
    """The q of the block given the others."""
    return _search(target.model, nest, start, others, batch, target.centring)


def block_density(
    target: Posterior, names: tuple[str, ...], others: Position
) -> tuple[Callable[[jax.Array], jax.Array], int]:
    """The log-density of everything as a function of the flat block, and its size."""
    density, _ = _density(target.model, Nest(names, None), others, target.rows, target.centring)
    return density, sum(math.prod(target.model.like[name].shape) for name in names)


def draw(
    target: Posterior, nest: Nest, start: Start, others: Position, key: Key
) -> tuple[Position, jax.Array, jax.Array, jax.Array]:
    """A draw of the block from q given the others.

    Returns:
        The draw, log p of everything, log q of it plus the bound, and how many looks the search for q took.
    """
    found = search(target, nest, start, others, target.rows)
    density, unravel = _density(target.model, nest, others, target.rows, target.centring)
    noise = jax.random.normal(key, found.q.mean.shape, found.q.mean.dtype)
    flat, log_q = nest.form.draw(found.q, noise)
    return unravel(flat), density(flat), log_q + nest.form.bound(density, found.q), found.count


def _terms(
    whole: Model, nest: Nest, position: Position, batch: Batch, centring: Centring
) -> tuple[jax.Array, jax.Array]:
    """The bound as a log-prior without rows; or what is of no row, and the bound of each row."""
    start = Start(**position[START])
    others = {name: value for name, value in position.items() if name != START}
    if nest.by_row:
        return _by_row(whole, nest, others, best(whole, nest, start, others, batch, centring), batch, centring)
    return bound_of(whole, nest, start, others, batch, centring), jnp.zeros(0)


def bound_of(whole: Model, nest: Nest, start: Start, others: Position, batch: Batch, centring: Centring) -> jax.Array:
    """The bound on the log-marginal of these rows and the other sites."""
    density, _ = _density(whole, nest, others, batch, centring)
    return nest.form.bound(density, best(whole, nest, start, others, batch, centring))


def best(whole: Model, nest: Nest, start: Start, others: Position, batch: Batch, centring: Centring) -> Q:
    """The q of these rows and the other sites; derivatives go through it where second ones are taken."""
    q = _search(whole, nest, start, jax.lax.stop_gradient(others), batch, centring).q
    if not nest.twice:
        return q
    # One more step, through which derivatives go: that of the optimum, as the step forgets where it began.
    density, _ = _density(whole, nest, others, batch, centring)
    look: Look = nest.form.look(density, q)
    return Q(q.mean + look.step, look.precision)


def _search(whole: Model, nest: Nest, start: Start, others: Position, batch: Batch, centring: Centring) -> Solved:
    density, _ = _density(whole, nest, others, batch, centring)
    moved = ravel_pytree(others)[0] - start.centre
    moved = jnp.clip(moved, -MOST_FOLLOWED, MOST_FOLLOWED)
    mean, log_sd = start.mean, start.log_sd
    if not nest.in_pieces:
        mean, log_sd = mean + start.mean_slope @ moved, log_sd + start.log_sd_slope @ moved
    if nest.by_row or nest.in_pieces:
        shape = (_num_rows(batch),)
        mean, log_sd = jnp.broadcast_to(mean, shape), jnp.broadcast_to(log_sd, shape)
    return solved(nest.form, density, mean, log_sd)


def _density(
    whole: Model, nest: Nest, others: Position, batch: Batch, centring: Centring
) -> tuple[Callable[[jax.Array], jax.Array], Callable[[jax.Array], Position]]:
    """The log-density of everything as a function of the flat block, and the block of a flat vector."""
    if nest.by_row or nest.in_pieces:
        unravel: Any = lambda flat: {nest.names[0]: flat}  # noqa: E731
    else:
        like = {name: jnp.zeros(whole.like[name].shape, whole.like[name].dtype) for name in nest.names}
        unravel = ravel_pytree(like)[1]

    def density(flat: jax.Array) -> jax.Array:
        log_prior, log_likelihood = whole.terms({**others, **unravel(flat)}, batch, centring)
        return log_prior + jnp.sum(log_likelihood)

    return density, unravel


def _by_row(
    whole: Model, nest: Nest, others: Position, q: Q, batch: Batch, centring: Centring
) -> tuple[jax.Array, jax.Array]:
    precision = q.precision[0]
    sd = 1 / jnp.sqrt(precision)
    nodes, weights = hermite(q.mean.dtype)

    def at(node: jax.Array) -> tuple[jax.Array, jax.Array]:
        return whole.terms({**others, nest.names[0]: q.mean + sd * node}, batch, centring)

    log_prior, rows = jax.vmap(at)(nodes)
    entropy = (1 + LOG_2PI - jnp.log(precision)) / 2
    return jnp.tensordot(weights, log_prior, 1), jnp.tensordot(weights, rows, 1) + entropy


def _num_rows(batch: Batch) -> int:
    return jnp.shape(jax.tree.leaves(batch)[0])[0]
