"""The gallery: densities whose shape is the difficulty, with answers in closed form, on a grid or by exact draws."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import numpyro
from gallery import Moments, Posterior, drawn, gaussian, on_grid, register
from jax.scipy import stats
from numpyro import distributions as dist
from programs import gaussian_data, mixture, mixture_data

import langevin as lv


def normal(mean: np.ndarray, covariance: np.ndarray) -> Posterior:
    """A Gaussian, by its density."""
    factor = np.linalg.inv(np.linalg.cholesky(covariance))

    def log_density(x: jax.Array) -> jax.Array:
        return -jnp.sum((factor.astype(np.float32) @ (x - mean.astype(np.float32))) ** 2) / 2

    return Posterior(lv.Density(log_density, init=_near(len(mean))), reference=gaussian("position", mean, covariance))


def _near(size: int):
    return lambda key: jax.random.uniform(key, (size,), minval=-2.0, maxval=2.0)


def _rotated(eigenvalues: np.ndarray) -> np.ndarray:
    rng = np.random.default_rng(1)
    basis = np.linalg.qr(rng.normal(size=(len(eigenvalues), len(eigenvalues))))[0]
    return basis * eigenvalues @ basis.T


@register
def gaussian_1() -> Posterior:
    """One dimension."""
    return normal(np.array([3.0]), np.array([[4.0]]))


@register
def gaussian_10() -> Posterior:
    """Ten dimensions, variances from 0.5 to 2, rotated."""
    return normal(np.linspace(-2, 2, 10), _rotated(np.linspace(0.5, 2, 10)))


@register
def gaussian_10_ill() -> Posterior:
    """Ten dimensions, variances from 1e-4 to 100, rotated."""
    return normal(np.linspace(-1, 1, 10), _rotated(np.logspace(-4, 2, 10)))


@register
def gaussian_100() -> Posterior:
    """A hundred dimensions, neighbours correlated at 0.9, sds from 0.1 to 10."""
    constants = gaussian_data()[1]
    return normal(constants["mean"], constants["scale_tril"] @ constants["scale_tril"].T)


@register
def gaussian_300() -> Posterior:
    """Three hundred dimensions, all correlated at 0.5."""
    return normal(np.zeros(300), 0.5 + 0.5 * np.eye(300))


@register
def gaussian_300_ill() -> Posterior:
    """Three hundred dimensions, neighbours correlated at 0.95, sds from 0.1 to 10."""
    constants = gaussian_data(300, 0.95)[1]
    return normal(constants["mean"], constants["scale_tril"] @ constants["scale_tril"].T)


@register
def scales_1e6() -> Posterior:
    """Independent coordinates with sds of 1e-3, 1 and 1e3."""
    return normal(np.zeros(3), np.diag([1e-6, 1.0, 1e6]))


@register
def funnel() -> Posterior:
    """Neal's funnel in ten dimensions."""

    def model():
        v = numpyro.sample("v", dist.Normal(0, 3))
        numpyro.sample("x", dist.Normal(0, jnp.exp(v / 2)).expand([9]).to_event(1))

    def draw(rng, count):
        v = 3 * rng.normal(size=count)
        return {"v": v, "x": np.exp(v / 2)[:, None] * rng.normal(size=(count, 9))}

    def view(draws):
        return {"v": draws["v"], "arsinh x": np.arcsinh(draws["x"])}

    return Posterior(model, noncentred=("x",), view=view, reference=drawn(draw, view))


@register
def banana() -> Posterior:
    """A curved ridge: `y` is Normal(x^2, 0.3) around a standard normal `x`."""

    def model():
        x = numpyro.sample("x", dist.Normal(0, 1))
        numpyro.sample("y", dist.Normal(x**2, 0.3))

    def draw(rng, count):
        x = rng.normal(size=count)
        return {"x": x, "y": x**2 + 0.3 * rng.normal(size=count)}

    return Posterior(model, reference=drawn(draw))


@register
def tied_mixture() -> Posterior:
    """The tied-means mixture of Welling & Teh (2011): two modes."""
    data = mixture_data()[0]
    x = data["x"][:, None]

    def log_density(t1, t2):
        found = -(t1**2) / 20 - t2**2 / 2
        for row in x.ravel():
            found += np.logaddexp(-((row - t1) ** 2) / 4, -((row - t1 - t2) ** 2) / 4)
        return found

    axis = np.linspace(-6, 6, 601)
    return Posterior(mixture, data, reference=on_grid(log_density, t1=axis, t2=axis))


def two_modes(distance: float, share: float, size: int, width: float = 1.0) -> Posterior:
    """Two Gaussians at plus and minus a distance, the right one with this share and sd 1, the left one with a width."""

    def log_density(x):
        right = jnp.sum(stats.norm.logpdf(x, distance, 1.0))
        left = jnp.sum(stats.norm.logpdf(x, -distance, width))
        return jnp.logaddexp(jnp.log(share) + right, jnp.log(1 - share) + left)

    mean = (2 * share - 1) * distance
    variance = share + (1 - share) * width**2 + distance**2 - mean**2
    moments = Moments({"position": np.full(size, mean)}, {"position": np.full(size, np.sqrt(variance))})
    return Posterior(lv.Density(log_density, init=_near(size)), reference=moments)


@register
def far_modes() -> Posterior:
    """Two modes at -20 and 20, which share the mass 3 to 7."""
    return two_modes(20.0, 0.7, 1)


@register
def near_modes() -> Posterior:
    """Two modes at -3 and 3 in two dimensions, which share the mass 3 to 7."""
    return two_modes(3.0, 0.7, 2)


@register
def spike() -> Posterior:
    """Nine tenths of the mass in a spike of sd 0.01 inside a standard normal, in two dimensions."""
    return two_modes(0.0, 0.1, 2, width=0.01)


@register
def ring() -> Posterior:
    """A ring of radius 5 and width 0.2."""

    def log_density(x):
        radius = jnp.sqrt(jnp.sum(x**2) + 1e-12)
        return -((radius - 5) ** 2) / (2 * 0.2**2) - jnp.log(radius)

    def draw(rng, count):
        radius, angle = 5 + 0.2 * rng.normal(size=count), 2 * np.pi * rng.random(count)
        return {"position": radius[:, None] * np.stack([np.cos(angle), np.sin(angle)], axis=-1)}

    return Posterior(lv.Density(log_density, init=_near(2)), reference=drawn(draw))


@register
def cauchy() -> Posterior:
    """Two independent Cauchy coordinates, compared by their arctangents, which are uniform."""
    moments = Moments({"arctan": np.zeros(2)}, {"arctan": np.full(2, np.pi / np.sqrt(12))})
    density = lv.Density(lambda x: -jnp.sum(jnp.log1p(x**2)), init=_near(2))
    return Posterior(density, view=lambda draws: {"arctan": np.arctan(draws["position"])}, reference=moments)


@register
def student_t() -> Posterior:
    """Five dimensions of a multivariate t with 3 degrees of freedom, compared by their inverse hyperbolic sines."""

    def draw(rng, count):
        return {"position": rng.normal(size=(count, 5)) / np.sqrt(rng.chisquare(3, size=(count, 1)) / 3)}

    def view(draws):
        return {"arsinh": np.arcsinh(draws["position"])}

    density = lv.Density(lambda x: -4 * jnp.log1p(jnp.sum(x**2) / 3), init=_near(5))
    return Posterior(density, view=view, reference=drawn(draw, view))


@register
def hard_edge() -> Posterior:
    """A half-normal by its density, which is not finite below zero."""
    density = lv.Density(lambda x: jnp.where(x > 0, -(x**2) / 2, -jnp.inf), init=1.0)
    mean = np.sqrt(2 / np.pi)
    return Posterior(density, reference=Moments({"position": mean}, {"position": np.sqrt(1 - mean**2)}))


@register
def laplace_kink() -> Posterior:
    """Ten independent Laplace coordinates: no curvature but at zero."""
    density = lv.Density(lambda x: -jnp.sum(jnp.abs(x)), init=_near(10))
    return Posterior(density, reference=Moments({"position": np.zeros(10)}, {"position": np.full(10, np.sqrt(2))}))


@register
def beta_binomial() -> Posterior:
    """A probability after 2 successes in 30, uniform before."""

    def model(k):
        p = numpyro.sample("p", dist.Beta(1, 1))
        numpyro.sample("k", dist.Binomial(30, p), obs=k)

    a, b = 3.0, 29.0
    sd = np.sqrt(a * b / (a + b) ** 2 / (a + b + 1))
    return Posterior(model, constants={"k": np.int32(2)}, reference=Moments({"p": a / (a + b)}, {"p": sd}))


@register
def dirichlet() -> Posterior:
    """The shares of six categories after 20 counts, one of them never seen."""
    counts = np.array([9, 5, 3, 2, 1, 0])

    def model(counts):
        p = numpyro.sample("p", dist.Dirichlet(jnp.ones(6)))
        numpyro.sample("counts", dist.Multinomial(20, probs=p), obs=counts)

    a = counts + 1.0
    mean = a / a.sum()
    moments = Moments({"p": mean}, {"p": np.sqrt(mean * (1 - mean) / (a.sum() + 1))})
    return Posterior(model, constants={"counts": counts}, reference=moments)


@register
def unidentified() -> Posterior:
    """Two parameters of which the data tell only the sum; the priors have sd 100."""
    y = 3 + np.random.default_rng(0).normal(size=50)

    def model(y):
        w = numpyro.sample("w", dist.Normal(0, 100).expand([2]).to_event(1))
        with numpyro.plate("rows", y.shape[0]):
            numpyro.sample("y", dist.Normal(w[0] + w[1], 1), obs=y)

    covariance = np.linalg.inv(50 * np.ones((2, 2)) + np.eye(2) / 1e4)
    return Posterior(model, {"y": y}, reference=gaussian("w", covariance @ np.full(2, y.sum()), covariance))


@register
def wide_prior() -> Posterior:
    """Three rows about one parameter, none about another; the priors have sd 1e4."""
    y = np.array([0.3, -1.2, 2.1])

    def model(y):
        w = numpyro.sample("w", dist.Normal(0, 1e4).expand([2]).to_event(1))
        with numpyro.plate("rows", y.shape[0]):
            numpyro.sample("y", dist.Normal(w[0], 1), obs=y)

    covariance = np.diag([1 / (3 + 1e-8), 1e8])
    return Posterior(model, {"y": y}, reference=gaussian("w", covariance @ np.array([y.sum(), 0]), covariance))


@register
def improper() -> Posterior:
    """A parameter that nothing is known of: there is no posterior, and no fit is right."""
    moments = Moments({"position": np.zeros(2)}, {"position": np.array([1.0, np.inf])})
    return Posterior(lv.Density(lambda x: -(x[0] ** 2) / 2, init=_near(2)), reference=moments)


@register
def improper_variance() -> Posterior:
    """A scale with a flat prior on its logarithm and one row of one group: the posterior is improper at zero."""

    def log_density(x):
        return -x[0] - x[1] ** 2 * jnp.exp(-2 * x[0]) / 2 - (x[1] - 1) ** 2 / 2

    moments = Moments({"position": np.zeros(2)}, {"position": np.full(2, np.inf)})
    return Posterior(lv.Density(log_density, init=_near(2)), reference=moments)


@register
def frozen() -> Posterior:
    """A mean of 1,000,000 with sd 0.01, beside an ordinary one: single precision cannot hold its draws."""

    def model():
        numpyro.sample("x", dist.Normal(jnp.array([1e6, 0.0]), jnp.array([0.01, 1.0])).to_event(1))

    return Posterior(model, reference=gaussian("x", np.array([1e6, 0.0]), np.diag([1e-4, 1.0])))
