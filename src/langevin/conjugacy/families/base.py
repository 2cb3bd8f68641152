"""What every exponential family here can do.

    p(z) = exp(<eta, t(z)> - A(eta))        E t = grad A(eta)        entropy = A(eta) - <eta, E t>

Both eta, the natural parameters, and t, the statistics, are dictionaries of arrays of the same names and shapes. The
density is with respect to Lebesgue measure, or to counting for a discrete z, with every constant in A. (`PolyaGamma`
alone has a base measure of its own.) Leading axes are elements, independent of one another; A, the entropy and the
log-probability are summed over them.
"""

from __future__ import annotations

import abc
import dataclasses
from typing import Any

import jax
import jax.numpy as jnp

Statistics = dict[str, jax.Array]


class Family(abc.ABC):
    """An exponential family of a known shape: settings only, no parameters."""

    @property
    @abc.abstractmethod
    def value_shape(self) -> tuple[int, ...]:
        """The shape of a value z."""

    @property
    def precision_power(self) -> float | None:
        """Which power of z is a precision where z stands in a normal density; None if none is."""
        return None

    @abc.abstractmethod
    def like(self) -> dict[str, jax.ShapeDtypeStruct]:
        """The names and shapes of the statistics, and so of eta."""

    @abc.abstractmethod
    def statistics(self, value: jax.Array) -> Statistics:
        """The statistics t(z) of a value z."""

    @abc.abstractmethod
    def log_normalizer(self, eta: Statistics) -> jax.Array:
        """A(eta), summed over the elements: NaN or infinite where eta is not proper."""

    @abc.abstractmethod
    def expected(self, eta: Statistics) -> Statistics:
        """The expected statistics E t(z) under eta."""

    @abc.abstractmethod
    def sample(self, key: jax.Array, eta: Statistics) -> jax.Array:
        """One exact draw of z."""

    @abc.abstractmethod
    def proper(self, eta: Statistics) -> jax.Array:
        """Whether eta gives a distribution: it is finite, and A(eta) exists. One boolean for all elements."""

    @abc.abstractmethod
    def described(self, eta: Statistics) -> dict[str, jax.Array]:
        """The usual parameters, under the names of NumPyro's arguments."""

    def entropy(self, eta: Statistics) -> jax.Array:
        """A(eta) - <eta, E t>, summed over the elements."""
        return self.log_normalizer(eta) - inner(eta, self.expected(eta))

    def log_prob(self, eta: Statistics, value: jax.Array) -> jax.Array:
        """<eta, t(z)> - A(eta), summed over the elements."""
        return inner(eta, self.statistics(value)) - self.log_normalizer(eta)


def inner(eta: Statistics, statistics: Statistics) -> jax.Array:
    """The inner product <eta, t>, where an eta of -inf times a statistic of 0 is 0."""
    return jnp.sum(jnp.stack([_inner(eta[name], statistics[name]) for name in eta]))


def _inner(eta: jax.Array, statistic: jax.Array) -> jax.Array:
    impossible = jnp.isneginf(eta) & (statistic == 0)
    return jnp.sum(jnp.where(impossible, 0, eta) * statistic)


def finite(eta: Statistics) -> jax.Array:
    """Whether every number of eta is finite."""
    return jnp.all(jnp.stack([jnp.all(jnp.isfinite(array)) for array in eta.values()]))


def like_of(**shapes: tuple[int, ...]) -> dict[str, jax.ShapeDtypeStruct]:
    """Arrays of these shapes, in JAX's precision."""
    return {name: jax.ShapeDtypeStruct(shape, jnp.result_type(float)) for name, shape in shapes.items()}


def static_field() -> Any:
    """A field of a registered dataclass that is part of the program, not an array."""
    return dataclasses.field(metadata={"static": True})
