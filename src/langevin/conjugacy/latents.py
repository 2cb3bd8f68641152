"""What is static of a latent site, and what its distribution is under its wrappers."""

from __future__ import annotations

import math
from typing import Any, NamedTuple

import jax.core
import jax.numpy as jnp
from numpyro import distributions as dist
from numpyro.distributions import constraints

from langevin.culprit import ASKS_FOR_VALUES
from langevin.errors import ModelError
from langevin.models.chains import support_of

SUPPORTS: tuple[tuple[Any, str], ...] = (
    (constraints.real, "real"),
    (constraints.real_vector, "real"),
    (constraints.positive, "positive"),
    (constraints.nonnegative, "positive"),
    (constraints.softplus_positive, "positive"),
    (constraints.unit_interval, "unit"),
    (constraints.simplex, "simplex"),
    (constraints.positive_definite, "matrix"),
)
# Of what is always positive: powers and logarithms of it are terms. `positive interval` has no family.
POSITIVE_INTERVAL = "positive interval"
POSITIVE = ("positive", "unit", "simplex", POSITIVE_INTERVAL)


class Latent(NamedTuple):
    """What is static of a latent site.

    Attributes:
        name: Its name.
        shape: The shape of its value.
        support: "real", "positive", "unit", "simplex", "matrix", "discrete", "positive interval", or NumPyro's name of
            another.
        values: What a discrete one can be.
        place: For a discrete one, how far its axis of values is to the left of the plates, from 1.
        place_before: The same for its values at the step before, in a `scan`; 0 outside.
        plates: For each plate it is in, its axis from the right, and the name.
        local: Whether each row has its own.
        time: The axis, from the left, that a `scan` runs along; None outside.
        distribution: The name of its distribution.
        constraint: NumPyro's constraint of its support; None if it is discrete, or depends on other sites.
    """

    name: str
    shape: tuple[int, ...]
    support: str
    values: tuple[int, ...] | None
    place: int
    place_before: int
    plates: tuple[tuple[int, str], ...]
    local: bool
    time: int | None
    distribution: str
    constraint: Any = None


def peeled(distribution: Any) -> tuple[Any, Any]:
    """The distribution inside its wrappers, and the product of the masks among them."""
    mask = None
    while isinstance(distribution, dist.Independent | dist.ExpandedDistribution | dist.MaskedDistribution):
        if isinstance(distribution, dist.MaskedDistribution):
            own = jnp.asarray(distribution._mask) * 1.0
            mask = own if mask is None else mask * own
        distribution = distribution.base_dist
    return distribution, mask


def values_of(name: str, distribution: Any) -> tuple[int, ...]:
    """What a discrete site can be.

    Raises:
        ModelError: If that is not finitely many values, known beforehand.
    """
    try:
        return tuple(int(value) for value in support_of(distribution))
    except Exception as error:
        raise ModelError(
            f"Discrete site {name!r} ({type(peeled(distribution)[0]).__name__}) has infinitely many values, or a "
            "number of them that is not known beforehand, so that it has no conditional that can be computed. Give it "
            "finitely many, or fit the program by lv.VI with a distribution of that site."
        ) from error


def support_name(distribution: Any, discrete: bool) -> str:
    """The name of a support: one of those in `SUPPORTS`, "discrete", or another."""
    if discrete:
        return "discrete"
    support = distribution.support
    support = getattr(support, "base_constraint", support)
    for known, name in SUPPORTS:
        if support is known or type(support) is type(known):
            return name
    ends = [_number(getattr(support, end, None)) for end in ("lower_bound", "upper_bound")]
    named = {(0.0, 1.0): "unit", (0.0, None): "positive"}
    positive = ends[0] is not None and ends[0] >= 0.0
    return named.get((ends[0], ends[1]), POSITIVE_INTERVAL if positive else type(support).__name__.strip("_"))


def _number(bound: Any) -> float | None:
    """A bound as a number, if it is one and known."""
    if bound is None:
        return None
    try:
        return float(bound)
    except (TypeError, *ASKS_FOR_VALUES):
        return math.nan


def constraint_of(distribution: Any) -> Any:
    """The support of a continuous distribution, if it is the same whatever the values of other sites are."""
    support = distribution.support
    support = getattr(support, "base_constraint", support) if isinstance(support, constraints.independent) else support
    if support.is_discrete or any(isinstance(leaf, jax.core.Tracer) for leaf in vars(support).values()):
        return None
    return support
