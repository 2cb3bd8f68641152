"""The nearest Gaussian q to one block of a model given the others, and its bound, as a function of the others.

    B(theta) = max over q of  E_q[log p(theta, s, data)] + H[q]  <=  log p(theta, data)

with every prior term of s in it. q is found by natural-gradient steps on mean m and precision P, which on a Gaussian
are Newton's (conjugate-computation variational inference, Khan & Lin 2017; variational online Newton, Khan &
Rue 2021):

    P <- -E_q[Hessian of log p in s],    m <- m + rho P^-1 E_q[gradient of log p in s]

with a smaller rho where the bound falls, until neither moves. Expectations are sums over fixed nodes, so that B is one
and the same number whenever theta is the same. At the optimum B has the gradient of its first argument alone (the
envelope theorem): dB/dtheta = E_q[d log p(theta, s, data) / dtheta] at q fixed.

Two forms of q:

- `Path`: a Markov chain, where the Hessian is tridiagonal and what couples neighbours is quadratic (a Gaussian random
  walk, an autoregression, with rows that depend on one state each). One Gauss-Hermite rule serves all steps at once:
  at the nodes m + sd x_k everything that depends on one state is integrated by itself, and a product of neighbours gets
  the product of their sds, which is replaced by their covariance. O(length).
  With diagonal Hessians (`coupled=False`) the same rule serves independent elements: local variables.
- `Cloud`: full rank or mean-field for any smooth density of few dimensions: expectations over 2 d points of norm
  sqrt(d), plus and minus a rotation of the axes. Hessians come from the gradients there by Stein's identity. Exact for
  quadratic densities.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple, Protocol

import jax
import jax.numpy as jnp
import numpy as np

from langevin.posterior import Key
from langevin.variational import tridiagonal

LOG_2PI = float(np.log(2 * np.pi))
# Of Gauss-Hermite quadrature: exact for polynomials up to degree 9.
NUM_NODES = 5
MOST_ITERATIONS = 60
# In sds of q: steps below are the end.
TOLERANCE = 3e-3
# The bound may fall by so much of its size: rounding.
SLACK = 2e-6
SMALLEST_STEP = 1e-6
MOST_LOG_SD = 12.0
# Of every so many columns of a Hessian the sum is read.
MOST_COLOURS = 16

LogDensity = Callable[[jax.Array], jax.Array]
"""Of a flat vector of the block, given the others and the rows."""


class Q(NamedTuple):
    """A Gaussian: its mean, and its precision in the form's own way."""

    mean: jax.Array
    precision: Any


class Look(NamedTuple):
    """What one look at the density around q tells.

    Attributes:
        bound: Of q.
        step: The natural-gradient step of the mean.
        precision: The next precision.
    """

    bound: jax.Array
    step: jax.Array
    precision: Any


class Form(Protocol):
    """A form of q. Frozen; its representation says all of it."""

    def first(self, mean: jax.Array, log_sd: jax.Array) -> Any:
        """A precision to begin with, of independent elements."""
        ...

    def look(self, log_density: LogDensity, q: Q) -> Look:
        """One look: gradients and Hessians at the nodes."""
        ...

    def bound(self, log_density: LogDensity, q: Q) -> jax.Array:
        """The bound of q."""
        ...

    def sds(self, precision: Any) -> jax.Array:
        """The marginal sds."""
        ...

    def draw(self, q: Q, noise: jax.Array) -> tuple[jax.Array, jax.Array]:
        """A draw from standard normal noise, and its log-density."""
        ...


class Path(NamedTuple):
    """A Markov chain of scalars."""

    coupled: bool = True

    def first(self, mean: jax.Array, log_sd: jax.Array) -> Any:
        """Independent steps."""
        return jnp.exp(-2 * log_sd), jnp.zeros_like(mean[1:])

    def look(self, log_density: LogDensity, q: Q) -> Look:
        """One gradient and one product with the Hessian at each node."""
        diag, off = q.precision
        factors = tridiagonal.factor(diag, off)
        variance, covariance = tridiagonal.moments(factors)
        couplings = self.couplings(log_density, q.mean)
        sd = jnp.sqrt(variance)
        ones = jnp.ones_like(q.mean)

        def at(node: jax.Array) -> tuple[jax.Array, jax.Array, jax.Array]:
            here = q.mean + sd * node
            both = lambda s: jax.value_and_grad(log_density)(s)  # noqa: E731
            (value, gradient), (_, turned) = jax.jvp(both, (here,), (ones,))
            return value, gradient, turned

        nodes, weights = hermite(q.mean.dtype)
        value, gradient, turned = (jnp.tensordot(weights, part, 1) for part in jax.vmap(at)(nodes))
        around = jnp.zeros_like(q.mean).at[1:].add(couplings).at[:-1].add(couplings)
        across = jnp.zeros_like(q.mean).at[1:].add(jnp.abs(couplings)).at[:-1].add(jnp.abs(couplings))
        # What a step's own terms tell is never less than nothing: then the precision is positive definite.
        diag = jnp.maximum(around - turned, across * (1 + 1e-6) + 1e-6)
        step = tridiagonal.solve(tridiagonal.factor(diag, -couplings), gradient)
        bound = value + self._excess(couplings, sd, covariance) + self._entropy(factors)
        return Look(bound, step, (diag, -couplings))

    def bound(self, log_density: LogDensity, q: Q) -> jax.Array:
        """By the same nodes."""
        factors = tridiagonal.factor(*q.precision)
        variance, covariance = tridiagonal.moments(factors)
        sd = jnp.sqrt(variance)
        nodes, weights = hermite(q.mean.dtype)
        values = jax.vmap(lambda node: log_density(q.mean + sd * node))(nodes)
        excess = self._excess(self.couplings(log_density, q.mean), sd, covariance)
        return jnp.tensordot(weights, values, 1) + excess + self._entropy(factors)

    def expected(self, log_density: LogDensity, mean: jax.Array, sd: jax.Array, covariance: jax.Array) -> jax.Array:
        """The mean of a density over marginals of q."""
        nodes, weights = hermite(mean.dtype)
        values = jax.vmap(lambda node: log_density(mean + sd * node))(nodes)
        return jnp.tensordot(weights, values, 1) + self._excess(self.couplings(log_density, mean), sd, covariance)

    def couplings(self, log_density: LogDensity, at: jax.Array) -> jax.Array:
        """The off-diagonal of the Hessian: of three products with it, each reads every third column."""
        if not self.coupled:
            return jnp.zeros_like(at[1:])
        place = jnp.arange(at.size)
        return _next_to(jax.vmap(lambda colour: hessian_product(log_density, at, place % 3 == colour))(jnp.arange(3)))

    def sds(self, precision: Any) -> jax.Array:
        """By the recursion of the variances."""
        return jnp.sqrt(tridiagonal.moments(tridiagonal.factor(*precision))[0])

    def draw(self, q: Q, noise: jax.Array) -> tuple[jax.Array, jax.Array]:
        """A path."""
        factors = tridiagonal.factor(*q.precision)
        moved = tridiagonal.draw(factors, noise)
        return q.mean + moved, tridiagonal.log_prob(factors, moved)

    @staticmethod
    def _excess(couplings: jax.Array, sd: jax.Array, covariance: jax.Array) -> jax.Array:
        return jnp.sum(couplings * (covariance - sd[1:] * sd[:-1]))

    @staticmethod
    def _entropy(factors: tridiagonal.Factor) -> jax.Array:
        return (factors.d.size * (1 + LOG_2PI) - tridiagonal.log_det(factors)) / 2


class Cloud(NamedTuple):
    """A Gaussian of few dimensions.

    Attributes:
        full: Whether it has a full covariance; else it is mean-field.
        seed: Of the rotation.
    """

    full: bool
    seed: int = 0

    def first(self, mean: jax.Array, log_sd: jax.Array) -> Any:
        """Independent elements."""
        del mean
        return jnp.diag(jnp.exp(-2 * log_sd)) if self.full else jnp.exp(-2 * log_sd)

    def look(self, log_density: LogDensity, q: Q) -> Look:
        """Gradients at the points; the Hessian by Stein's identity."""
        points, scale, log_det = self._points(q)
        values, gradients = jax.vmap(jax.value_and_grad(log_density))(q.mean + points)
        gradient = jnp.mean(gradients, axis=0)
        nodes = self._nodes(q.mean)
        if self.full:
            hessian = jnp.linalg.cholesky(q.precision) @ (nodes.T @ gradients / len(nodes))
            precision = _positive(-(hessian + hessian.T) / 2)
            step = jax.scipy.linalg.cho_solve((jnp.linalg.cholesky(precision), True), gradient)
        else:
            precision = jnp.maximum(-jnp.mean(nodes * gradients, axis=0) / scale, 1e-6)
            step = gradient / precision
        return Look(jnp.mean(values) + self._entropy(q.mean.size, log_det), step, precision)

    def bound(self, log_density: LogDensity, q: Q) -> jax.Array:
        """By the same points."""
        points, _, log_det = self._points(q)
        return jnp.mean(jax.vmap(log_density)(q.mean + points)) + self._entropy(q.mean.size, log_det)

    def sds(self, precision: Any) -> jax.Array:
        """Of the inverse."""
        return jnp.sqrt(jnp.diagonal(jnp.linalg.inv(precision)) if self.full else 1 / precision)

    def draw(self, q: Q, noise: jax.Array) -> tuple[jax.Array, jax.Array]:
        """By the factor of the covariance."""
        _, scale, log_det = self._points(q)
        moved = scale @ noise if self.full else scale * noise
        return q.mean + moved, (log_det - jnp.sum(noise**2) - noise.size * LOG_2PI) / 2

    def _points(self, q: Q) -> tuple[jax.Array, jax.Array, jax.Array]:
        """The points around the mean, R with covariance R R^T, and the log-determinant of the precision."""
        nodes = self._nodes(q.mean)
        if not self.full:
            scale = 1 / jnp.sqrt(q.precision)
            return nodes * scale, scale, jnp.sum(jnp.log(q.precision))
        lower = jnp.linalg.cholesky(q.precision)
        scale = jax.scipy.linalg.solve_triangular(lower, jnp.eye(len(lower)), lower=True).T
        return nodes @ scale.T, scale, 2 * jnp.sum(jnp.log(jnp.diagonal(lower)))

    def _nodes(self, like: jax.Array) -> jax.Array:
        """(2 d, d): with mean 0 and covariance I exactly, and each as long as a draw."""
        size = like.size
        axes = np.linalg.qr(np.random.default_rng(self.seed).standard_normal((size, size)))[0]
        return jnp.asarray(np.sqrt(size) * np.concatenate([axes, -axes]), like.dtype)

    @staticmethod
    def _entropy(size: int, log_det: jax.Array) -> jax.Array:
        return (size * (1 + LOG_2PI) - log_det) / 2


class Solved(NamedTuple):
    """Where the search for q came to.

    Attributes:
        q: The best.
        count: How many looks it took.
        settled: Whether it came to its end.
    """

    q: Q
    count: jax.Array
    settled: jax.Array


class _Search(NamedTuple):
    """A search: the best so far, from where the trial went, and the trial."""

    base: Q
    bound: jax.Array
    step: jax.Array
    following: Any
    rho: jax.Array
    trial: Q
    count: jax.Array
    settled: jax.Array


def solved(form: Form, log_density: LogDensity, mean: jax.Array, log_sd: jax.Array) -> Solved:
    """The q with the highest bound, from a q with this mean and these sds.

    Args:
        form: Of q.
        log_density: Of the block; it is maximised over, and no derivative goes through it.
        mean: To begin with.
        log_sd: To begin with.
    """
    first = Q(mean, form.first(mean, jnp.clip(log_sd, -MOST_LOG_SD, MOST_LOG_SD)))
    low = jnp.asarray(-jnp.inf, mean.dtype)

    def body(search: _Search) -> _Search:
        look = form.look(log_density, search.trial)
        slack = SLACK * jnp.abs(search.bound) + 1e-4
        better = jnp.isfinite(look.bound) & jnp.all(jnp.isfinite(look.step))
        better = better & ((search.count == 0) | (look.bound >= search.bound - slack))
        base = _pick(better, search.trial, search.base)
        step = jnp.where(better, look.step, search.step)
        following = _pick(better, look.precision, search.following)
        bound = jnp.where(better, look.bound, search.bound)
        whole = search.rho >= 1.0
        rho = jnp.where(better, jnp.minimum(4 * search.rho, 1.0), search.rho / 4)
        size = jnp.max(jnp.abs(step) / form.sds(following))
        settled = (better & whole & (search.count > 0) & (size < TOLERANCE)) | (rho < SMALLEST_STEP)
        trial = Q(base.mean + rho * step, following)
        count = search.count + 1
        return _Search(base, bound, step, following, rho, trial, count, settled)

    def goes_on(search: _Search) -> jax.Array:
        return ~search.settled & (search.count < MOST_ITERATIONS)

    zeros, one = jnp.zeros_like(mean), jnp.ones((), mean.dtype)
    count, no = jnp.zeros((), jnp.int32), jnp.zeros((), bool)
    search = jax.lax.while_loop(goes_on, body, _Search(first, low, zeros, first.precision, one, first, count, no))
    return jax.lax.stop_gradient(Solved(search.base, search.count, search.settled))


def hessian_product(log_density: LogDensity, at: jax.Array, vector: jax.Array) -> jax.Array:
    """The Hessian times a vector."""
    return jax.jvp(jax.grad(log_density), (at,), (vector.astype(at.dtype),))[1]


def couples(log_density: LogDensity, key: Key, at: jax.Array) -> tuple[jax.Array, jax.Array, jax.Array]:
    """How large the Hessian is next to its diagonal and elsewhere; of what is next, how much it changes.

    All in units in which the diagonal is one, or a coordinate in dollars would hide what the others are tied to.

    Args:
        log_density: Of the block.
        key: Of the points and the vector.
        at: Around this; two numbers or more.

    Returns:
        The largest element next to the diagonal; the largest number of what a random vector becomes by all elements
        that are further off; and the largest change of what is next between two points.
    """
    ends = [at + jax.random.normal(jax.random.fold_in(key, i), at.shape, at.dtype) for i in (0, 1)]
    number, place = min(MOST_COLOURS, at.size), jnp.arange(at.size)

    def columns(end: jax.Array) -> jax.Array:
        product = lambda colour: hessian_product(log_density, end, place % number == colour)  # noqa: E731
        return jax.vmap(product)(jnp.arange(number))

    first, second = (columns(end) for end in ends)
    own, near, later = first[place % number, place], _next_to(first), _next_to(second)
    scale = 1 / jnp.sqrt(jnp.where(own == 0, 1.0, jnp.abs(own)))
    vector = scale * jax.random.normal(jax.random.fold_in(key, 2), at.shape, at.dtype)
    banded = own * vector
    banded = banded.at[1:].add(near * vector[:-1]).at[:-1].add(near * vector[1:])
    beyond = scale * (hessian_product(log_density, ends[0], vector) - banded)
    largest = lambda array: jnp.max(jnp.abs(array))  # noqa: E731
    both = scale[1:] * scale[:-1]
    return largest(both * near), largest(beyond), largest(both * (later - near))


def _next_to(columns: jax.Array) -> jax.Array:
    """Of sums of every so many columns, row t of column t - 1."""
    place = jnp.arange(columns.shape[1])
    return columns[(place[1:] - 1) % len(columns), place[1:]]


def hermite(dtype: Any) -> tuple[jax.Array, jax.Array]:
    """Nodes and weights of a standard normal."""
    nodes, weights = np.polynomial.hermite_e.hermegauss(NUM_NODES)
    return jnp.asarray(nodes, dtype), jnp.asarray(weights / weights.sum(), dtype)


def _positive(matrix: jax.Array) -> jax.Array:
    """The matrix with eigenvalues of at least a millionth of the largest, in units in which its diagonal is one."""
    own = jnp.abs(jnp.diagonal(matrix))
    unit = jnp.sqrt(jnp.where(own > 0, own, 1.0))
    values, vectors = jnp.linalg.eigh(matrix / unit[:, None] / unit)
    least = 1e-6 * jnp.maximum(jnp.max(jnp.abs(values)), 1e-6)
    return ((vectors * jnp.maximum(values, least)) @ vectors.T) * unit[:, None] * unit


def _pick(flag: jax.Array, this: Any, other: Any) -> Any:
    return jax.tree.map(lambda a, b: jnp.where(flag, a, b), this, other)
