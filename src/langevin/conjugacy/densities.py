"""The log-densities of NumPyro's distributions as they stand in a table, over numbers or polynomials.

NumPyro's own code clips probabilities and factors matrices, which hides what a density is as a function of its
arguments. These are the densities that can be conjugate to something; any other distribution is read from what its
`log_prob` computes.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any, NamedTuple

import jax.numpy as jnp
import numpy as np
from jax.scipy.special import gammaln, multigammaln, xlogy
from numpyro import distributions as dist
from numpyro.distributions.util import clamp_probs

from langevin.conjugacy import polynomial as poly
from langevin.conjugacy import shaping
from langevin.conjugacy.indexing import is_known
from langevin.conjugacy.polynomial import is_symbolic
from langevin.conjugacy.products import log_of

LOG_2_PI = math.log(2 * math.pi)
# In place of the logarithm of 0, which an indicator may multiply by 0. A whole number, so that sums are exact.
IMPOSSIBLE = -(2.0**24)


class Density(NamedTuple):
    """A log-density.

    Attributes:
        arguments: The names of the distribution's attributes that it takes.
        log_density: `(value, **arguments) -> array`, one element for each of the batch.
    """

    arguments: tuple[str, ...]
    log_density: Callable[..., Any]


def _of_numbers(name: str, function: Callable[..., Any]) -> Callable[..., Any]:
    """A function that is no polynomial: of numbers it is computed, of anything else it is opaque."""

    def apply(*values: Any) -> Any:
        if any(map(is_symbolic, values)):
            return poly.opaque(np.broadcast_shapes(*map(np.shape, values)), values, name)
        return function(*values)

    return apply


_gammaln = _of_numbers("a log-gamma function", lambda x: gammaln(jnp.asarray(x, float)))


def _normal(value: Any, loc: Any, scale: Any) -> Any:
    squares = (value - loc) ** 2 if not is_symbolic(value - loc) else poly.power(value - loc, 2.0)
    return squares * poly.power(scale, -2.0) * -0.5 - poly.log(scale) - LOG_2_PI / 2


def _log_normal(value: Any, loc: Any, scale: Any) -> Any:
    logs = poly.log(value)
    return _normal(logs, loc, scale) - logs


def _random_walk(value: Any, scale: Any) -> Any:
    size = value.shape[-1]
    steps = shaping.at_last(value, np.arange(1, size)) - shaping.at_last(value, np.arange(size - 1))
    return _normal(shaping.at_last(value, np.asarray(0)), 0.0, scale) + poly.total(
        _normal(steps, 0.0, shaping.with_axis(scale, -1)), [-1]
    )


def _half_normal(value: Any, scale: Any) -> Any:
    return _normal(value, 0.0, scale) + math.log(2)


def _gamma(value: Any, concentration: Any, rate: Any) -> Any:
    own = poly.log(rate) * concentration - _gammaln(concentration)
    return poly.log(value) * (concentration - 1.0) - poly.multiply(value, rate) + own


def _inverse_gamma(value: Any, concentration: Any, rate: Any) -> Any:
    own = poly.log(rate) * concentration - _gammaln(concentration)
    return own - poly.log(value) * (concentration + 1.0) - poly.multiply(poly.power(value, -1.0), rate)


def _exponential(value: Any, rate: Any) -> Any:
    return poly.log(rate) - poly.multiply(value, rate)


def _beta(value: Any, concentration1: Any, concentration0: Any) -> Any:
    if _is_one(concentration1):
        own = poly.log(concentration0)
    elif _is_one(concentration0):
        own = poly.log(concentration1)
    else:
        own = _gammaln(concentration1 + concentration0) - _gammaln(concentration1) - _gammaln(concentration0)
    first, second = poly.log(value), poly.log(1.0 - value)
    return poly.multiply(first, concentration1 - 1.0) + poly.multiply(second, concentration0 - 1.0) + own


def _is_one(value: Any) -> bool:
    return is_known(value) and bool(np.all(np.asarray(value) == 1))


def _dirichlet(value: Any, concentration: Any) -> Any:
    own = _gammaln(poly.total(concentration, [-1])) - poly.total(_gammaln(concentration), [-1])
    return poly.total(poly.log(value) * (concentration - 1.0), [-1]) + own


def _uniform(value: Any, low: Any, high: Any) -> Any:
    del value
    return poly.log(high - low) * -1.0


def _bernoulli(value: Any, probs: Any) -> Any:
    if not is_symbolic(probs):
        probs = clamp_probs(probs)
        return xlogy(value, probs) + xlogy(1 - value, 1 - probs)
    return poly.log(probs) * (value * 1.0) + poly.log(1.0 - probs) * (1.0 - value)


def _binomial(value: Any, probs: Any, total_count: Any) -> Any:
    ways = _gammaln(total_count + 1.0) - _gammaln(value + 1.0) - _gammaln(total_count - value + 1.0)
    if not is_symbolic(probs):
        return ways + xlogy(value, probs) + xlogy(total_count - value, 1 - probs)
    return poly.log(probs) * (value * 1.0) + poly.log(1.0 - probs) * (total_count - value) + ways


def _logistic(value: Any, logits: Any, total_count: Any = 1.0) -> Any:
    ways = _gammaln(total_count + 1.0) - _gammaln(value + 1.0) - _gammaln(total_count - value + 1.0)
    if poly.is_symbolic(logits):
        return poly.opaque(logits.shape, [logits], "a logistic function")
    return ways + value * logits - total_count * jnp.logaddexp(logits, 0.0)


def _negative_binomial(value: Any, probs: Any, concentration: Any) -> Any:
    ways = _gammaln(value + concentration) - _gammaln(concentration) - _gammaln(value + 1.0)
    return poly.log(probs) * (value * 1.0) + poly.log(1.0 - probs) * concentration + ways


def _geometric(value: Any, probs: Any) -> Any:
    return poly.log(probs) + poly.log(1.0 - probs) * (value * 1.0)


def _poisson(value: Any, rate: Any) -> Any:
    if not is_symbolic(rate):
        return xlogy(value, rate) - rate - _gammaln(value + 1.0)
    return poly.log(rate) * (value * 1.0) - rate - _gammaln(value + 1.0)


def _multinomial(value: Any, probs: Any, total_count: Any) -> Any:
    ways = _gammaln(total_count + 1.0) - poly.total(_gammaln(value + 1.0), [-1])
    if not is_symbolic(probs):
        return ways + xlogy(value, probs).sum(-1)
    return poly.total(log_of(probs) * (value * 1.0), [-1]) + ways


def _categorical(value: Any, probs: Any) -> Any:
    """The logarithm of the probability at the value; the values of a latent site are known (see `reading`)."""
    if is_symbolic(value):
        return poly.opaque(value.shape, [value], "a label that is itself computed from latent sites")
    index = value.astype(int)
    if not is_symbolic(probs):
        shares = probs / jnp.sum(probs, axis=-1, keepdims=True)
        logs = jnp.where(shares > 0, jnp.log(jnp.where(shares > 0, shares, 1.0)), IMPOSSIBLE)
        shape = np.broadcast_shapes(np.shape(index), logs.shape[:-1])
        logs = jnp.broadcast_to(logs, (*shape, logs.shape[-1]))
        return jnp.take_along_axis(logs, jnp.broadcast_to(index, shape)[..., None], -1)[..., 0]
    return shaping.at_last(log_of(probs), index)


def _multivariate_normal(
    value: Any, loc: Any, precision_matrix: Any = None, covariance_matrix: Any = None, scale_tril: Any = None
) -> Any:
    size = value.shape[-1]
    if precision_matrix is not None:
        logdet = log_determinant(precision_matrix)
    else:
        tril = scale_tril
        if covariance_matrix is not None:
            if is_symbolic(covariance_matrix):
                return poly.opaque(value.shape[:-1], [covariance_matrix, loc, value], "a matrix inverse")
            tril = jnp.linalg.cholesky(covariance_matrix)
        if is_symbolic(tril):
            return poly.opaque(value.shape[:-1], [tril, loc, value], "a Cholesky factor")
        inverse = jnp.linalg.inv(tril)
        precision_matrix = jnp.swapaxes(inverse, -1, -2) @ inverse
        logdet = -2 * jnp.log(jnp.diagonal(tril, axis1=-2, axis2=-1)).sum(-1)
    centred = value - loc
    left, right = shaping.with_axis(centred, -1), shaping.with_axis(centred, -2)
    squares = poly.total(poly.multiply(poly.multiply(left, right), precision_matrix), [-2, -1])
    return squares * -0.5 + logdet * 0.5 - size * LOG_2_PI / 2


def log_determinant(matrix: Any) -> Any:
    """Of a positive definite matrix: of numbers, or of a site (times a positive number)."""
    if not is_symbolic(matrix):
        return jnp.linalg.slogdet(matrix)[1]
    return shaping.log_determinant(matrix)


def _wishart(value: Any, concentration: Any, rate_matrix: Any) -> Any:
    size = value.shape[-1]
    own = log_determinant(rate_matrix) * (concentration * 0.5)
    own = own - concentration * (size * math.log(2) / 2) - _multigammaln(concentration, size)
    traces = poly.total(poly.multiply(value, rate_matrix), [-2, -1])
    return log_determinant(value) * ((concentration - size - 1) * 0.5) - traces * 0.5 + own


def _multigammaln(concentration: Any, size: int) -> Any:
    of_numbers = _of_numbers("a multivariate gamma function", lambda a: multigammaln(jnp.asarray(a, float) / 2, size))
    return of_numbers(concentration)


def _constant(value: Any, **arguments: Any) -> Any:
    del value, arguments
    return np.zeros(())


def _discrete_uniform(value: Any, low: Any, high: Any) -> Any:
    del value
    return -jnp.log(jnp.asarray(high - low + 1.0))


DENSITIES: dict[type, Density] = {
    dist.Normal: Density(("loc", "scale"), _normal),
    dist.LogNormal: Density(("loc", "scale"), _log_normal),
    dist.HalfNormal: Density(("scale",), _half_normal),
    dist.GaussianRandomWalk: Density(("scale",), _random_walk),
    dist.Gamma: Density(("concentration", "rate"), _gamma),
    dist.Chi2: Density(("concentration", "rate"), _gamma),
    dist.InverseGamma: Density(("concentration", "rate"), _inverse_gamma),
    dist.Exponential: Density(("rate",), _exponential),
    dist.Beta: Density(("concentration1", "concentration0"), _beta),
    dist.Dirichlet: Density(("concentration",), _dirichlet),
    dist.Uniform: Density(("low", "high"), _uniform),
    dist.BernoulliProbs: Density(("probs",), _bernoulli),
    dist.BinomialProbs: Density(("probs", "total_count"), _binomial),
    dist.BernoulliLogits: Density(("logits",), _logistic),
    dist.BinomialLogits: Density(("logits", "total_count"), _logistic),
    dist.GeometricProbs: Density(("probs",), _geometric),
    dist.NegativeBinomialProbs: Density(("probs", "concentration"), _negative_binomial),
    dist.Poisson: Density(("rate",), _poisson),
    dist.MultinomialProbs: Density(("probs", "total_count"), _multinomial),
    dist.CategoricalProbs: Density(("probs",), _categorical),
    dist.DiscreteUniform: Density(("low", "high"), _discrete_uniform),
    dist.MultivariateNormal: Density(
        ("loc", "precision_matrix", "covariance_matrix", "scale_tril"), _multivariate_normal
    ),
    dist.Wishart: Density(("concentration", "rate_matrix"), _wishart),
    dist.ImproperUniform: Density((), _constant),
}
# Densities that take the logarithms of shares, which may be products (see `products`).
OF_SHARES = (dist.CategoricalProbs, dist.MultinomialProbs)
# Densities in which what is positive is a precision, or a power of one.
GAUSSIAN = (dist.Normal, dist.LogNormal, dist.HalfNormal, dist.GaussianRandomWalk, dist.MultivariateNormal)


def arguments_of(distribution: Any) -> dict[str, Any]:
    """The arguments of a distribution that its density takes, as they were given.

    A multivariate normal is known by the one matrix that it was made with; the others would be factors of it.
    """
    names = DENSITIES[type(distribution)].arguments
    if isinstance(distribution, dist.MultivariateNormal):
        own = vars(distribution)
        matrix = next(name for name in names[1:] if name in own)
        return {"loc": distribution.loc, matrix: own[matrix]}
    if isinstance(distribution, dist.Wishart):
        # NumPyro keeps what it was made with in the distribution of the Cholesky factor.
        own = vars(distribution.base_dist)
        if "rate_matrix" in own:
            rate = own["rate_matrix"]
        else:
            rate = jnp.linalg.inv(distribution.base_dist.scale_matrix)
        return {"concentration": distribution.concentration, "rate_matrix": rate}
    return {name: getattr(distribution, name) for name in names}
