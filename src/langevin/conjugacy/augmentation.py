"""Auxiliary sites that make a logistic likelihood conjugate, and the check that nothing else was changed.

    Binomial(y; n, sigma(f)):   C(n, y) 2^-n exp((y - n / 2) f) * integral of exp(-omega f^2 / 2) PG(omega; n, 0)

(Polson, Scott and Windle 2013). Given omega the log-density is a square in f; given f, omega is PG(n, f). Coordinate
ascent on both is the bound of Jaakkola and Jordan (2000).
"""

from __future__ import annotations

import dataclasses
import math
from typing import TYPE_CHECKING, Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.scipy.special import gammaln

from langevin.conjugacy import polynomial as poly
from langevin.conjugacy.densities import IMPOSSIBLE
from langevin.conjugacy.latents import support_name
from langevin.models import outline
from langevin.models.joint import Joint
from langevin.posterior import Batch, num_rows
from langevin.run.compilation import prepared

if TYPE_CHECKING:
    from langevin.conjugacy.conditionals import Conditionals


def auxiliary(name: str) -> str:
    """The name of the auxiliary site of an observed one."""
    return f"{name}_omega"


def log_density(omega: Any, value: Any, logits: Any, count: Any) -> Any:
    """Of an observation and its auxiliary site, without the density PG(omega; n, 0)."""
    if poly.is_symbolic(count):
        return poly.opaque(logits.shape, [count, logits], "an unknown number of trials")
    ways = gammaln(count + 1.0) - gammaln(value + 1.0) - gammaln(count - value + 1.0) - count * math.log(2)
    return poly.multiply(logits, value - count * 0.5) - poly.power(logits, 2.0) * omega * 0.5 + ways


def compared(
    conditionals: Conditionals,
    generator: np.random.Generator,
    batch: Batch,
    count: int,
) -> tuple[np.ndarray, np.ndarray, np.dtype, float]:
    """At random points, how far the polynomial is from the program's own log joint, and how large its parts are.

    With auxiliary sites the two differ by what these add; then they are compared where each is at the mean that it has
    given the rest, at which the bound of Jaakkola and Jordan is tight. Last, the variance of the real numbers that are
    observed, of several sites the geometric mean.
    """
    joint, latents = _with_wide_constants(conditionals.joint), conditionals.latents
    hidden = {auxiliary(name) for name in joint.observed}

    def both(drawn: Any, batch: Batch) -> Any:
        equations = conditionals.at(batch, {name: drawn[name] for name in drawn if name not in conditionals.block_of})
        statistics = {
            block.name: block.family.statistics(block.to_value(drawn))
            for block in conditionals.blocks
            if not set(block.sites) & hidden
        }
        extra: Any = 0.0
        for block in conditionals.blocks:
            if set(block.sites) & hidden:
                blank = {name: jnp.zeros(like.shape, like.dtype) for name, like in block.family.like().items()}
                eta = equations.natural(block.name, {**statistics, block.name: blank})
                scale = joint.num_data / num_rows(batch) if block.local else 1.0
                own = jax.tree.map(lambda leaf, scale=scale: leaf / scale, eta)
                family = equations.families[block.name]
                statistics[block.name] = family.expected(own)
                extra = extra + family.entropy(own) * scale
        value = equations.log_joint(statistics) + extra
        trace = joint.trace(joint.function, jax.tree.map(_widened, batch), drawn, jax.random.key(0))
        terms, sizes = [], []
        for site in trace.values():
            if site["type"] == "sample":
                parts = joint.scale(site, batch) * outline.unscaled_log_prob(site)
                # What is impossible counts by a number of our own.
                out = jnp.isneginf(parts)
                terms.append(jnp.sum(jnp.where(out, joint.scale(site, batch) * IMPOSSIBLE, parts)))
                sizes.append(jnp.abs(jnp.sum(jnp.where(out, 0.0, parts))))
        spreads = [
            jnp.nanvar(jnp.asarray(site["value"], value.dtype))
            for site in trace.values()
            if site["type"] == "sample" and site["is_observed"] and support_name(site["fn"], False) == "real"
        ]
        return value - sum(terms), sum(sizes, jnp.zeros(())), value, jnp.stack([jnp.ones(()), *spreads])

    def random() -> dict[str, Any]:
        return {name: random_value(latent, generator) for name, latent in latents.items() if name not in hidden}

    points = [random() for _ in range(count)]
    # Traced once, for all points.
    program = prepared(both, points[0], batch)
    found = [[np.asarray(part) for part in program(point, batch)] for point in points]
    difference, size, own, spreads = (np.stack(part) for part in zip(*found, strict=True))
    return difference, size, own.dtype, _mean(spreads[0, 1:])


def _mean(spreads: np.ndarray) -> float:
    """The geometric mean of variances; 1 if there are none."""
    known = spreads[np.isfinite(spreads) & (spreads > 0)]
    return float(np.exp(np.log(known).mean())) if len(known) else 1.0


def _widened(leaf: Any) -> Any:
    """Whole numbers as long as floating-point ones are: of short ones JAX computes functions in single precision."""
    return leaf.astype(int) if jnp.issubdtype(jnp.result_type(leaf), jnp.integer) else leaf


def _with_wide_constants(joint: Joint) -> Joint:
    wide = {
        name: _widened(value) if isinstance(value, np.ndarray) else value
        for name, value in joint.program.constants.items()
    }
    return dataclasses.replace(joint, program=dataclasses.replace(joint.program, constants=wide))


def random_value(latent: Any, generator: np.random.Generator) -> np.ndarray:
    """A value of a site somewhere in its support."""
    dtype = jnp.result_type(float)
    shape = latent.shape
    if latent.values is not None:
        return np.asarray(latent.values)[generator.integers(len(latent.values), size=shape)]
    if latent.support == "real":
        return np.asarray(generator.normal(size=shape), dtype)
    if latent.support == "unit":
        return np.asarray(generator.uniform(0.1, 0.9, size=shape), dtype)
    if latent.support == "simplex":
        raw = generator.gamma(2.0, size=shape) + 0.1
        return np.asarray(raw / raw.sum(-1, keepdims=True), dtype)
    if latent.support == "matrix":
        root = generator.normal(size=shape)
        return np.asarray(root @ np.swapaxes(root, -1, -2) / shape[-1] + np.eye(shape[-1]), dtype)
    return np.asarray(generator.gamma(4.0, 0.25, size=shape) + 0.1, dtype)
