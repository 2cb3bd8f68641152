"""A Gaussian family for time series: given the global coordinates, the path is a Markov chain.

    x_t = m_t + y_t + C_t e,    y_t = A_t y_{t-1} + B_t f_t,    e, f standard normal,   B_t lower triangular

so that the precision of the path is block tridiagonal, as in the posterior of a random walk or a state-space model
(Archer et al. 2015, 'Black box variational inference for state space models'). The globals are
`g = m + s * (e + T e)`, and `C_t` lets the path move with them.
"""

from __future__ import annotations

import dataclasses
import functools
import math
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.scipy.linalg import solve_triangular

from langevin.errors import SettingError
from langevin.variational.families import LOG_2PI, FullRank, MeanField, Parameters, Scaled

MOST_FULL = 256


@dataclasses.dataclass(frozen=True)
class Markov(Scaled):
    """The family, for a flat vector that is made of arrays of these shapes.

    Args:
        shapes: Of the arrays, in the order in which they are raveled.
        length: The steps of time: arrays whose leading axis is of this length are the path.
    """

    shapes: tuple[tuple[int, ...], ...]
    length: int

    @functools.cached_property
    def _places(self) -> tuple[np.ndarray, np.ndarray]:
        """Where in the flat vector the path is, (length, width), and where the globals are."""
        path, rest, start = [], [], 0
        for shape in self.shapes:
            places = np.arange(start, start + math.prod(shape))
            start += math.prod(shape)
            if shape and shape[0] == self.length:
                path.append(places.reshape(self.length, -1))
            else:
                rest.append(places)
        return np.concatenate(path, axis=1), np.concatenate([np.zeros(0, int), *rest])

    @property
    def _globals(self) -> FullRank | MeanField:
        size = len(self._places[1])
        return FullRank(size) if 0 < size <= MOST_FULL else MeanField(size)

    @property
    def noise_size(self) -> int:
        """One number a coordinate: those of the globals first."""
        return sum(places.size for places in self._places)

    def init(self, generator: np.random.Generator, centre: np.ndarray, scale: float) -> Parameters:
        """Parameters of a q around `centre` whose coordinates are independent."""
        path, rest = self._places
        length, width = path.shape
        return {
            "globals": self._globals.init(generator, centre[rest], scale),
            "mean": centre[path],
            "log_scale": np.full((length, width), math.log(scale), centre.dtype),
            "below": np.zeros((length, width, width), centre.dtype),
            "carry": np.zeros((length, width, width), centre.dtype),
            "along": np.zeros((length, width, len(rest)), centre.dtype),
        }

    def draw(self, parameters: Parameters, noise: jax.Array) -> tuple[jax.Array, jax.Array]:
        """A draw and its log-probability. The recursion takes log2(length) parallel rounds."""
        path, rest = self._places
        common, own = noise[: len(rest)], noise[len(rest) :].reshape(path.shape)
        values, log_prob = self._globals.draw(parameters["globals"], common)
        turned = own + jnp.einsum("tij,tj->ti", jnp.tril(parameters["below"], -1), own)
        pushes = jnp.exp(parameters["log_scale"]) * turned
        moved = jax.lax.associative_scan(_then, (parameters["carry"], pushes))[1]
        moved = parameters["mean"] + moved + parameters["along"] @ common
        x = jnp.zeros(noise.shape, noise.dtype).at[path].set(moved).at[rest].set(values)
        return x, log_prob - (jnp.sum(own**2) + own.size * LOG_2PI) / 2 - jnp.sum(parameters["log_scale"])

    def log_parts(self, parameters: Parameters, x: jax.Array) -> jax.Array:
        """A single part."""
        path, rest = self._places
        common = self._noise_of_globals(parameters["globals"], x[rest])
        moved = x[path] - parameters["mean"] - parameters["along"] @ common
        before = jnp.concatenate([jnp.zeros_like(moved[:1]), moved[:-1]])
        pushes = moved - jnp.einsum("tij,tj->ti", parameters["carry"], before)
        turned = pushes * jnp.exp(-parameters["log_scale"])
        solve = functools.partial(solve_triangular, lower=True, unit_diagonal=True)
        own = jax.vmap(solve)(parameters["below"], turned)
        log_prob = jnp.sum(self._globals.log_parts(parameters["globals"], x[rest]))
        log_prob -= (jnp.sum(own**2) + own.size * LOG_2PI) / 2 + jnp.sum(parameters["log_scale"])
        return log_prob[None]

    def entropy(self, parameters: Parameters) -> jax.Array:
        """In closed form."""
        size = self._places[0].size
        return self._globals.entropy(parameters["globals"]) + (
            jnp.sum(parameters["log_scale"]) + size * (1 + LOG_2PI) / 2
        )

    def units(self, parameters: Parameters) -> Parameters:
        """Of a mean its scale, of all others 1."""
        return super().units(parameters) | {"globals": self._globals.units(parameters["globals"])}

    def _noise_of_globals(self, parameters: Parameters, values: jax.Array) -> jax.Array:
        turned = (values - parameters["mean"]) * jnp.exp(-parameters["log_scale"])
        if "below" not in parameters or not values.size:
            return turned
        return solve_triangular(parameters["below"], turned, lower=True, unit_diagonal=True)


def markov(shapes: tuple[tuple[int, ...], ...]) -> Markov:
    """The family for arrays of these shapes: the longest leading axis is time.

    Raises:
        SettingError: If no array has an axis to be time.
    """
    length = max((shape[0] for shape in shapes if shape), default=0)
    if length < 2:
        raise SettingError(
            f"`VI(family='markov')` is for time series, and no site has a leading axis of at least 2 steps; the "
            f"shapes are {list(shapes)}. Try family='fullrank'."
        )
    return Markov(shapes, length)


def _then(first: Any, second: Any) -> Any:
    """The map y -> A y + b of the first, and then that of the second."""
    (a1, b1), (a2, b2) = first, second
    return a2 @ a1, jnp.einsum("...ij,...j->...i", a2, b1) + b2
