"""Families of distributions q over unconstrained vectors, as maps of standard normal noise.

    mean-field   x = m + s * e                      covariance diag(s)^2
    full rank    x = m + s * (e + T e)              T strictly lower triangular: any covariance
    low rank     x = m + s * (e + V f)              covariance diag(s) (I + V V^T) diag(s)

with `s = exp(log_scale)`. A family holds sizes only; its parameters are a dict of arrays that an optimiser moves.
"""

from __future__ import annotations

import dataclasses
import math
from typing import Any, Protocol

import jax
import jax.numpy as jnp
import numpy as np
from jax.scipy.linalg import solve_triangular

Parameters = Any
LOG_2PI = math.log(2 * math.pi)


class Family(Protocol):
    """What the bound needs of a family. `noise` is a standard normal vector of `noise_size`."""

    @property
    def noise_size(self) -> int:
        """How many numbers of noise make a draw."""
        ...

    @property
    def identified(self) -> bool:
        """Whether other parameters make another q, so that an average of parameters is one of the q they make."""
        ...

    def init(self, generator: np.random.Generator, centre: np.ndarray, scale: float) -> Parameters:
        """Parameters of a q around `centre`, about `scale` wide."""
        ...

    def draw(self, parameters: Parameters, noise: jax.Array) -> tuple[jax.Array, jax.Array]:
        """A draw and its log-probability."""
        ...

    def log_parts(self, parameters: Parameters, x: jax.Array) -> jax.Array:
        """The log-probabilities of the independent parts of x, whose sum is log q(x)."""
        ...

    def held(self, parameters: Parameters, x: jax.Array, noise: jax.Array) -> jax.Array:
        """Log q(x) as a function of x alone, with the parameters held; x is the draw that the noise made."""
        ...

    def entropy(self, parameters: Parameters) -> jax.Array | None:
        """In closed form; None if there is none."""
        ...

    def units(self, parameters: Parameters) -> Parameters:
        """By how much each parameter must change to make q another distribution: arrays, or 1 for all of an array."""
        ...


class Scaled:
    """What families with parameters "mean" and "log_scale" have in common."""

    identified = True

    def held(self: Any, parameters: Parameters, x: jax.Array, noise: jax.Array) -> jax.Array:
        """Log q(x) as a function of x alone."""
        del noise
        return jnp.sum(self.log_parts(jax.lax.stop_gradient(parameters), x))

    def units(self, parameters: Parameters) -> Parameters:
        """Of a mean its scale, of all others 1."""
        return jax.tree.map(lambda _: 1.0, parameters) | {"mean": jnp.exp(parameters["log_scale"])}


@dataclasses.dataclass(frozen=True)
class MeanField(Scaled):
    """Independent Gaussians. At its optimum on a Gaussian posterior of precision P, `s^2 = 1 / diag(P)`: too narrow."""

    size: int

    @property
    def noise_size(self) -> int:
        """One number a coordinate."""
        return self.size

    def init(self, generator: np.random.Generator, centre: np.ndarray, scale: float) -> Parameters:
        """Parameters of a q around `centre`."""
        del generator
        return {"mean": centre, "log_scale": np.full_like(centre, math.log(scale))}

    def draw(self, parameters: Parameters, noise: jax.Array) -> tuple[jax.Array, jax.Array]:
        """A draw and its log-probability."""
        log_prob = standard(noise) - jnp.sum(parameters["log_scale"])
        return parameters["mean"] + jnp.exp(parameters["log_scale"]) * noise, log_prob

    def log_parts(self, parameters: Parameters, x: jax.Array) -> jax.Array:
        """One part a coordinate."""
        noise = (x - parameters["mean"]) * jnp.exp(-parameters["log_scale"])
        return -(noise**2) / 2 - LOG_2PI / 2 - parameters["log_scale"]

    def entropy(self, parameters: Parameters) -> jax.Array:
        """In closed form."""
        return entropy_of(jnp.sum(parameters["log_scale"]), self.size)


@dataclasses.dataclass(frozen=True)
class FullRank(Scaled):
    """A Gaussian of any covariance."""

    size: int

    @property
    def noise_size(self) -> int:
        """One number a coordinate."""
        return self.size

    def init(self, generator: np.random.Generator, centre: np.ndarray, scale: float) -> Parameters:
        """Parameters of a round q around `centre`."""
        return MeanField(self.size).init(generator, centre, scale) | {
            "below": np.zeros((self.size, self.size), centre.dtype)
        }

    def draw(self, parameters: Parameters, noise: jax.Array) -> tuple[jax.Array, jax.Array]:
        """A draw and its log-probability."""
        turned = noise + jnp.tril(parameters["below"], -1) @ noise
        log_prob = standard(noise) - jnp.sum(parameters["log_scale"])
        return parameters["mean"] + jnp.exp(parameters["log_scale"]) * turned, log_prob

    def log_parts(self, parameters: Parameters, x: jax.Array) -> jax.Array:
        """A single part."""
        turned = (x - parameters["mean"]) * jnp.exp(-parameters["log_scale"])
        # The diagonal is taken to be 1, and what is above it is not read.
        noise = solve_triangular(parameters["below"], turned, lower=True, unit_diagonal=True)
        return (standard(noise) - jnp.sum(parameters["log_scale"]))[None]

    def entropy(self, parameters: Parameters) -> jax.Array:
        """In closed form."""
        return entropy_of(jnp.sum(parameters["log_scale"]), self.size)


@dataclasses.dataclass(frozen=True)
class LowRankGaussian(Scaled):
    """A Gaussian with `rank` correlated directions on top of independent coordinates.

    V is lower triangular: else turning it would change nothing, and the average of turned ones would be too small. For
    the same reason the rank is at most `identified_rank(size)`.
    """

    size: int
    rank: int

    @property
    def noise_size(self) -> int:
        """One number a coordinate, and one a direction."""
        return self.size + self.rank

    def init(self, generator: np.random.Generator, centre: np.ndarray, scale: float) -> Parameters:
        """Parameters of a nearly round q around `centre`: at V = 0 the gradient of V would be zero."""
        vectors = 0.1 * generator.standard_normal((self.size, self.rank), centre.dtype) / math.sqrt(self.rank)
        return MeanField(self.size).init(generator, centre, scale) | {"vectors": np.tril(vectors)}

    def draw(self, parameters: Parameters, noise: jax.Array) -> tuple[jax.Array, jax.Array]:
        """A draw and its log-probability."""
        turned = noise[: self.size] + jnp.tril(parameters["vectors"]) @ noise[self.size :]
        x = parameters["mean"] + jnp.exp(parameters["log_scale"]) * turned
        return x, jnp.sum(self.log_parts(parameters, x))

    def log_parts(self, parameters: Parameters, x: jax.Array) -> jax.Array:
        """A single part, by Woodbury's identity."""
        turned = (x - parameters["mean"]) * jnp.exp(-parameters["log_scale"])
        along = solve_triangular(self._factor(parameters), jnp.tril(parameters["vectors"]).T @ turned, lower=True)
        square = jnp.sum(turned**2) - jnp.sum(along**2)
        return (-(square + self.size * LOG_2PI) / 2 - self._log_det(parameters))[None]

    def entropy(self, parameters: Parameters) -> jax.Array:
        """In closed form."""
        return entropy_of(self._log_det(parameters), self.size)

    def _factor(self, parameters: Parameters) -> jax.Array:
        vectors = jnp.tril(parameters["vectors"])
        return jnp.linalg.cholesky(jnp.eye(self.rank, dtype=vectors.dtype) + vectors.T @ vectors)

    def _log_det(self, parameters: Parameters) -> jax.Array:
        return jnp.sum(parameters["log_scale"]) + jnp.sum(jnp.log(jnp.diagonal(self._factor(parameters))))


def identified_rank(size: int) -> int:
    """The largest rank of which a covariance of this size has one form only (Ledermann 1937); at least 1."""
    return max(int((2 * size + 1 - math.sqrt(8 * size + 1)) / 2), 1)


def standard(noise: jax.Array) -> jax.Array:
    """The log-density of standard normal noise."""
    return -(jnp.sum(noise**2) + noise.size * LOG_2PI) / 2


def entropy_of(log_det: jax.Array, size: int) -> jax.Array:
    """Of a Gaussian whose covariance has twice this log-determinant."""
    return log_det + size * (1 + LOG_2PI) / 2
