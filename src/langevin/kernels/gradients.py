"""Estimators of the gradient of the log-density, interchangeable in every stochastic-gradient kernel.

    minibatch         g_B(x)                               unbiased; variance of order N^2 / B
    control variate   g(c) + g_B(x) - g_B(c)               c a fixed point near the mode
    SVRG              g(a) + g_B(x) - g_B(a)               a the chain's own position at the start of the epoch

Here g is the gradient on all rows and g_B the scaled one on a minibatch. All are unbiased; near c or a, the latter
two have a variance that shrinks with the distance, and that is what lets a constant step of order 1/N sample the
right density (Baker et al. 2019; Brosse, Durmus & Moulines 2018; Dubey et al. 2016).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from langevin.posterior import Batch, Position, Posterior


class Estimator(NamedTuple):
    """A gradient estimator.

    Attributes:
        init: `position -> state`. May read all rows.
        advance: `(position, state) -> state`, called once before each step.
        estimate: `(position, state, batch) -> (log_density, gradient)`.
        refresh: `state -> state`, called when the target has changed (see `Kernel`). May read all rows.
    """

    init: Callable[[Position], Any]
    advance: Callable[[Position, Any], Any]
    estimate: Callable[[Position, Any, Batch | None], tuple[jax.Array, Position]]
    refresh: Callable[[Any], Any] = lambda state: state


class AnchorState(NamedTuple):
    """A point, and the gradient on all rows there."""

    anchor: Position
    gradient: Position
    age: jax.Array


def minibatch(posterior: Posterior) -> Estimator:
    """The gradient of the minibatch log-density, as it is."""
    gradient = jax.value_and_grad(posterior.log_density)
    return Estimator(
        init=lambda position: (),
        advance=lambda position, state: state,
        estimate=lambda position, state, batch: gradient(position, batch),
    )


def control_variate(posterior: Posterior, centre: Position | None = None) -> Estimator:
    """Control variates around a fixed point (SGLD-CV, SGLDFP).

    Args:
        posterior: The target.
        centre: The point, best near the mode. By default where the chain starts.
    """
    return Estimator(
        init=lambda position: _anchor(posterior, position if centre is None else centre),
        advance=lambda position, state: state,
        estimate=lambda position, state, batch: _anchored(posterior, position, state, batch),
        refresh=lambda state: _anchor(posterior, state.anchor)._replace(age=state.age),
    )


def svrg(posterior: Posterior, period: int) -> Estimator:
    """Control variates around the chain's own position, renewed every `period` steps (SVRG-LD).

    The renewal reads all rows, so `period` should be the number of steps in an epoch or more.
    """

    def advance(position: Position, state: AnchorState) -> AnchorState:
        due = state.age >= period
        state = _cond_for_all(due, lambda x, _: _anchor(posterior, x), lambda _, old: old, position, state)
        return state._replace(age=state.age + 1)

    return Estimator(
        init=lambda position: _anchor(posterior, position),
        advance=advance,
        estimate=lambda position, state, batch: _anchored(posterior, position, state, batch),
        refresh=lambda state: _anchor(posterior, state.anchor)._replace(age=state.age),
    )


def _anchor(posterior: Posterior, position: Position) -> AnchorState:
    return AnchorState(position, jax.grad(posterior.log_density)(position), jnp.zeros((), jnp.int32))


def _anchored(
    posterior: Posterior, position: Position, state: AnchorState, batch: Batch | None
) -> tuple[jax.Array, Position]:
    gradient = jax.value_and_grad(posterior.log_density)
    log_density, here = gradient(position, batch)
    if batch is None:
        return log_density, here
    _, there = gradient(state.anchor, batch)
    return log_density, jax.tree.map(lambda g, x, a: g + x - a, state.gradient, here, there)


def _cond_for_all(due: jax.Array, then: Callable, otherwise: Callable, *operands: Any) -> Any:
    """`lax.cond` that stays a branch when chains are vmapped.

    Under `vmap` a cond becomes a select, which would compute the branch over all rows in every step. The chains of
    a run count their steps together, so that one of them being due means that all are.
    """

    @jax.custom_batching.custom_vmap
    def branch(due: jax.Array, *operands: Any) -> Any:
        return jax.lax.cond(due, then, otherwise, *operands)

    @branch.def_vmap
    def batched(axis_size: int, in_batched: Any, due: jax.Array, *operands: Any) -> Any:
        del axis_size
        axes = jax.tree.map(lambda is_batched: 0 if is_batched else None, in_batched[1:])
        out = jax.lax.cond(
            jnp.any(due),
            lambda *args: jax.vmap(then, in_axes=tuple(axes))(*args),
            lambda *args: jax.vmap(otherwise, in_axes=tuple(axes))(*args),
            *operands,
        )
        return out, jax.tree.map(lambda _: True, out)

    return branch(due, *operands)
