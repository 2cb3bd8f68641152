"""Bounds on the evidence, and estimators of their gradients.

    ELBO(q) = E_q[log p(z, data) - log q(z)],    with minibatches (num_data / rows) * the terms of the rows in both

The estimators differ in how the gradient passes the draw z of q:

    pathwise    through z = place(parameters, noise); what is known in closed form is not sampled
    stl         as pathwise, but log q is not differentiated by its parameters: zero variance where q is the posterior
                ('sticking the landing', Roeder, Wu & Duvenaud 2017)
    score       not at all: (log p - log q) * grad log q (Ranganath, Gerrish & Blei 2014). Needs no gradient of the
                model, so it serves discrete sites; a baseline and Rao-Blackwellisation take most of its variance off

A surrogate is a number whose gradient is the estimate, and whose value means nothing.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

Terms = dict[str, jax.Array]
# How fast a learned baseline follows the cost.
LEARNING = 0.1


class Sampled(NamedTuple):
    """The terms of the bound at one draw.

    Attributes:
        log_p: Log-probabilities of the model's sites, already scaled for minibatches, with the axes of their plates.
        log_q: The same of the approximation.
        closed: What is known in closed form: an entropy, or minus a Kullback-Leibler divergence.
        scores: Of the sites whose gradient is by the score function, log q without the scale of minibatches.
    """

    log_p: Terms
    log_q: Terms
    closed: jax.Array
    scores: Terms


@dataclasses.dataclass(frozen=True)
class Wiring:
    """Which sites have their gradient by the score function, and what their draws have a part in.

    Attributes:
        scored: The sites.
        costs: For each, the names of the terms of log_p and of log_q that depend on its draw.
        plates: For each term (`p.` or `q.` and its name), the plates of its axes: name -> axis, from the right.
        row_scale: num_data / rows, where every site of the approximation has its own value for each row; else None.
        entangled: For a scored site and a term (`p.` or `q.` and its name), the plates in which an element of the site
            has a part in other elements' terms too.
        elements: For a scored site, the shape of its learned baseline: that of its log-probability, with 1 for an axis
            of rows that change from step to step. Where there is none, one baseline serves all.
    """

    scored: tuple[str, ...] = ()
    costs: Mapping[str, tuple[tuple[str, ...], tuple[str, ...]]] = dataclasses.field(default_factory=dict)
    plates: Mapping[str, Mapping[str, int]] = dataclasses.field(default_factory=dict)
    row_scale: float | None = None
    entangled: Mapping[str, Mapping[str, frozenset[str]]] = dataclasses.field(default_factory=dict)
    elements: Mapping[str, tuple[int, ...]] = dataclasses.field(default_factory=dict)


class Baseline(NamedTuple):
    """A learned baseline of a site.

    Attributes:
        mean: Of the cost of each of its elements, over the steps so far: later ones count more.
        weight: How many steps there were.
    """

    mean: jax.Array
    weight: jax.Array


class Estimate(NamedTuple):
    """A bound at one point.

    Attributes:
        value: The bound, estimated.
        baselines: What the learned baselines are now.
    """

    value: jax.Array
    baselines: dict[str, Baseline]


def begin_baselines(wiring: Wiring, dtype: Any) -> dict[str, Baseline]:
    """Learned baselines before the first step."""
    return {
        name: Baseline(jnp.zeros(wiring.elements.get(name, ()), dtype), jnp.zeros((), dtype)) for name in wiring.scored
    }


def surrogate(
    sample: Callable[[Any], Sampled],
    wiring: Wiring,
    noises: Any,
    num_particles: int,
    baselines: Mapping[str, Baseline],
    *,
    bound: str = "elbo",
    baseline: str | None = None,
    rao_blackwell: bool = True,
) -> tuple[jax.Array, Estimate]:
    """The surrogate, and the estimate.

    Args:
        sample: `noise -> Sampled`, differentiable by the parameters that it closes over.
        wiring: Of the approximation.
        noises: Of every particle, which is their first axis.
        num_particles: How many draws of q.
        baselines: Learned ones; see `begin_baselines`.
        bound: "elbo", or "importance" for the importance-weighted one (Burda, Grosse & Salakhutdinov 2016).
        baseline: "leave_one_out", "learned" or None.
        rao_blackwell: Whether the score of a site is multiplied only by what its draw has a part in.
    """
    sampled = for_each(sample, num_particles, noises)
    log_q = {
        name: jax.lax.stop_gradient(value) if name in wiring.scored else value for name, value in sampled.log_q.items()
    }
    direct = sampled._replace(log_q=log_q)
    if bound == "importance":
        value = _importance(direct, wiring, num_particles)
    else:
        value = jnp.mean(_totals(direct))
    total, found = value, dict(baselines)
    for name in wiring.scored:
        score = sampled.scores[name]
        cost = jax.lax.stop_gradient(_cost(direct, wiring, name, score, rao_blackwell))
        if baseline == "leave_one_out":
            # The cost minus the mean of the other particles'.
            centred = (cost - jnp.mean(cost, axis=0)) * (num_particles / (num_particles - 1))
        elif baseline == "learned":
            centred, found[name] = _centre(cost, baselines[name])
        else:
            centred = cost
        total = total + jnp.sum(centred * score) / num_particles
    return total, Estimate(jax.lax.stop_gradient(value), found)


def for_each(function: Callable[..., Any], count: int, *arguments: Any) -> Any:
    """Calls a function on each of so many arguments. A single one is not batched, which XLA would be slower at."""
    if count > 1:
        return jax.vmap(function)(*arguments)
    alone = jax.tree.map(lambda leaf: leaf[0], arguments)
    return jax.tree.map(lambda leaf: jnp.asarray(leaf)[None], function(*alone))


def _totals(sampled: Sampled) -> jax.Array:
    """What is under the expectation, for every particle."""
    total = sampled.closed
    for value in sampled.log_p.values():
        total = total + _summed(value)
    for value in sampled.log_q.values():
        total = total - _summed(value)
    return total


def _summed(value: jax.Array) -> jax.Array:
    return jnp.sum(value, axis=tuple(range(1, value.ndim)))


def _importance(sampled: Sampled, wiring: Wiring, num_particles: int) -> jax.Array:
    """The bound log (1/S) sum_s p(z_s, data) / q(z_s); where every row has its own z, that for every row."""
    if wiring.row_scale is None:
        return jax.nn.logsumexp(_totals(sampled)) - math.log(num_particles)
    weights: Any = 0.0
    for sign, kind, terms in ((1, "p", sampled.log_p), (-1, "q", sampled.log_q)):
        for name, value in terms.items():
            (axis,) = wiring.plates[f"{kind}.{name}"].values()
            kept = value.ndim + axis
            summed = jnp.sum(value, axis=tuple(i for i in range(1, value.ndim) if i != kept))
            weights = weights + sign * summed / wiring.row_scale
    bounds = jax.nn.logsumexp(weights, axis=0) - math.log(num_particles)
    return wiring.row_scale * jnp.sum(bounds)


def _cost(sampled: Sampled, wiring: Wiring, name: str, score: jax.Array, rao_blackwell: bool) -> jax.Array:
    """What the score of a site is multiplied by, in a shape that goes with it.

    Rao-Blackwellised: terms that the draw has no part in are left out, since their product with the score is zero on
    average; and within a plate that a term shares with the site, every element of the site meets only its own.
    """
    if not rao_blackwell:
        return _totals(sampled).reshape(-1, *[1] * (score.ndim - 1))
    own = f"q.{name}"
    plates, entangled = wiring.plates.get(own), wiring.entangled.get(name, {})

    def onto(kind: str, term: str, value: jax.Array) -> jax.Array:
        key = f"{kind}.{term}"
        kept = {p: axis for p, axis in wiring.plates.get(key, {}).items() if p not in entangled.get(key, ())}
        return _onto(value, plates or {}, kept, score.ndim)

    of_p, of_q = wiring.costs[name]
    cost = jnp.zeros_like(score)
    if name in sampled.log_q:
        # The parts of a family are independent. Of a guide's site, axes without a plate may not be: time in a scan.
        value = sampled.log_q[name]
        cost = cost - (value if plates is None else onto("q", name, value))
    for term in of_p:
        cost = cost + onto("p", term, sampled.log_p[term])
    for term in of_q:
        if term != name:
            cost = cost - onto("q", term, sampled.log_q[term])
    return cost


def _onto(value: jax.Array, plates: Mapping[str, int], own: Mapping[str, int], ndim: int) -> jax.Array:
    """Sums a term over all axes but those of the plates that it shares, and lines these up."""
    shared = {axis for plate, axis in own.items() if plates.get(plate) == axis}
    value = jnp.sum(value, axis=tuple(i for i in range(1, value.ndim) if i - value.ndim not in shared), keepdims=True)
    if value.ndim > ndim:
        return value.reshape(value.shape[0], *value.shape[value.ndim - ndim + 1 :])
    return value.reshape(value.shape[0], *[1] * (ndim - value.ndim), *value.shape[1:])


def _centre(cost: jax.Array, baseline: Baseline) -> tuple[jax.Array, Baseline]:
    """Takes off the mean of earlier costs, and goes on with it. In the first step there is none yet."""
    mean, weight = baseline
    shape = mean.shape or (1,) * (cost.ndim - 1)
    over = (0, *(axis + 1 for axis, size in enumerate(shape) if size == 1))
    now = jnp.broadcast_to(jnp.mean(cost, axis=over, keepdims=True)[0], shape).reshape(mean.shape)
    rate = jnp.maximum(LEARNING, 1 / (weight + 1))
    return cost - mean, Baseline(mean + rate * (now - mean), weight + 1)
