"""The gallery: hierarchies, and models that are not by rows."""

from __future__ import annotations

import jax.numpy as jnp
import numpy as np
import numpyro
from gallery import Posterior, register, shown
from numpyro import distributions as dist
from programs import eight_schools_centred as centred_model
from programs import eight_schools_data
from programs import eight_schools_noncentred as noncentred_model

SCHOOLS = shown("mu", "theta", logarithms=("tau",))


@register
def eight_schools_centred() -> Posterior:
    """Eight schools, each effect drawn around the mean."""
    return Posterior(centred_model, eight_schools_data()[0], view=SCHOOLS, noncentred=("theta",))


@register
def eight_schools_noncentred() -> Posterior:
    """Eight schools, each effect in units of their spread."""
    return Posterior(noncentred_model, eight_schools_data()[0], view=SCHOOLS)


def intercepts(family: str):
    """A model of groups whose intercepts vary: rows of a Normal, logistic or Poisson family."""

    def model(group, x, y, num_groups):
        mu = numpyro.sample("mu", dist.Normal(0, 3))
        tau = numpyro.sample("tau", dist.HalfNormal(2))
        b = numpyro.sample("b", dist.Normal(0, 2))
        a = numpyro.sample("a", dist.Normal(mu, tau).expand([num_groups]).to_event(1))
        linear = a[group] + b * x
        likelihood = {
            "normal": lambda: dist.Normal(linear, 1),
            "logistic": lambda: dist.Bernoulli(logits=linear),
            "poisson": lambda: dist.Poisson(jnp.exp(linear)),
        }[family]()
        with numpyro.plate("rows", x.shape[0]):
            numpyro.sample("y", likelihood, obs=y)

    return model


def groups(family: str, num_groups: int, num_rows: int, mu: float, tau: float, batch_size: int | None) -> Posterior:
    """Groups of very unequal size."""
    rng = np.random.default_rng(0)
    shares = rng.dirichlet(np.full(num_groups, 0.7))
    group = rng.choice(num_groups, size=num_rows, p=shares).astype(np.int32)
    x = rng.normal(size=num_rows)
    linear = (mu + tau * rng.normal(size=num_groups))[group] + 0.5 * x
    if family == "normal":
        y = linear + rng.normal(size=num_rows)
    elif family == "logistic":
        y = (rng.random(num_rows) < 1 / (1 + np.exp(-linear))).astype(np.float32)
    else:
        y = rng.poisson(np.exp(linear)).astype(np.float32)
    data, constants = {"group": group, "x": x, "y": y}, {"num_groups": num_groups}
    view = shown("mu", "b", "a", logarithms=("tau",))
    return Posterior(intercepts(family), data, constants, batch_size, noncentred=("a",), view=view)


@register
def intercepts_20() -> Posterior:
    """20 groups, 200 rows, Normal; the groups differ little."""
    return groups("normal", 20, 200, 1.0, 0.3, None)


@register
def intercepts_100() -> Posterior:
    """100 groups, 2,000 rows, logistic, minibatches of 200."""
    return groups("logistic", 100, 2000, -1.0, 0.8, 200)


@register
def intercepts_230() -> Posterior:
    """230 groups, 4,000 rows, Poisson, minibatches of 400."""
    return groups("poisson", 230, 4000, 0.0, 0.7, 400)


@register
def slopes() -> Posterior:
    """15 groups whose intercepts and slopes vary, 150 rows."""
    rng = np.random.default_rng(0)
    group, x = rng.integers(15, size=150).astype(np.int32), rng.normal(size=150)
    a, b = 1 + 0.8 * rng.normal(size=15), 0.5 + 0.2 * rng.normal(size=15)
    y = a[group] + b[group] * x + rng.normal(size=150)

    def model(group, x, y):
        mu = numpyro.sample("mu", dist.Normal(0, 3).expand([2]).to_event(1))
        tau = numpyro.sample("tau", dist.HalfNormal(1).expand([2]).to_event(1))
        effects = numpyro.sample("effects", dist.Normal(mu, tau).expand([15, 2]).to_event(2))
        sigma = numpyro.sample("sigma", dist.HalfNormal(2))
        with numpyro.plate("rows", x.shape[0]):
            numpyro.sample("y", dist.Normal(effects[group, 0] + effects[group, 1] * x, sigma), obs=y)

    view = shown("mu", "effects", "sigma", logarithms=("tau",))
    return Posterior(model, {"group": group, "x": x, "y": y}, view=view, noncentred=("effects",))


@register
def item_response() -> Posterior:
    """40 persons answer 8 questions of unknown difficulty and discrimination."""
    rng = np.random.default_rng(0)
    ability, difficulty = rng.normal(size=40), rng.normal(size=8)
    person, item = (part.ravel().astype(np.int32) for part in np.meshgrid(np.arange(40), np.arange(8)))
    y = (rng.random(320) < 1 / (1 + np.exp(-1.2 * (ability[person] - difficulty[item])))).astype(np.float32)

    def model(person, item, y):
        ability = numpyro.sample("ability", dist.Normal(0, 1).expand([40]).to_event(1))
        difficulty = numpyro.sample("difficulty", dist.Normal(0, 2).expand([8]).to_event(1))
        discrimination = numpyro.sample("discrimination", dist.LogNormal(0, 0.5).expand([8]).to_event(1))
        with numpyro.plate("rows", y.shape[0]):
            logits = discrimination[item] * (ability[person] - difficulty[item])
            numpyro.sample("y", dist.Bernoulli(logits=logits), obs=y)

    return Posterior(model, {"person": person, "item": item, "y": y})


@register
def autoregression() -> Posterior:
    """An AR(1) series of 200 steps, close to a random walk."""
    rng = np.random.default_rng(0)
    y = np.zeros(200)
    for step in range(1, 200):
        y[step] = 0.95 * y[step - 1] + rng.normal()

    def model(y):
        c = numpyro.sample("c", dist.Normal(0, 1))
        phi = numpyro.sample("phi", dist.Uniform(-1, 1))
        sigma = numpyro.sample("sigma", dist.HalfNormal(2))
        numpyro.sample("y", dist.Normal(c + phi * y[:-1], sigma).to_event(1), obs=y[1:])

    return Posterior(model, constants={"y": y})


@register
def local_level() -> Posterior:
    """A random walk seen through noise, 60 steps, both scales unknown."""
    rng = np.random.default_rng(0)
    y = np.cumsum(0.3 * rng.normal(size=60)) + rng.normal(size=60)

    def model(y):
        step = numpyro.sample("step", dist.HalfNormal(1))
        noise = numpyro.sample("noise", dist.HalfNormal(2))
        level = numpyro.sample("level", dist.GaussianRandomWalk(step, num_steps=60))
        numpyro.sample("y", dist.Normal(level, noise).to_event(1), obs=y)

    view = shown("level", logarithms=("step", "noise"))
    return Posterior(model, constants={"y": y}, view=view, noncentred=("level",))


@register
def stochastic_volatility() -> Posterior:
    """A hundred returns whose log-volatility is a random walk."""
    rng = np.random.default_rng(0)
    returns = np.exp(-1 + np.cumsum(0.15 * rng.normal(size=100))) * rng.normal(size=100)

    def model(returns):
        sigma = numpyro.sample("sigma", dist.Exponential(5))
        start = numpyro.sample("start", dist.Normal(0, 3))
        walk = numpyro.sample("walk", dist.GaussianRandomWalk(sigma, num_steps=100))
        numpyro.sample("returns", dist.Normal(0, jnp.exp(start + walk)).to_event(1), obs=returns)

    view = shown("start", "walk", logarithms=("sigma",))
    return Posterior(model, constants={"returns": returns}, view=view, noncentred=("walk",))


@register
def gaussian_process() -> Posterior:
    """The length, height and noise of a Gaussian process on 30 points."""
    rng = np.random.default_rng(0)
    x = np.sort(rng.uniform(0, 6, size=30))
    y = np.sin(1.5 * x) + 0.3 * rng.normal(size=30)

    def model(x, y):
        length = numpyro.sample("length", dist.LogNormal(0, 1))
        height = numpyro.sample("height", dist.LogNormal(0, 1))
        noise = numpyro.sample("noise", dist.LogNormal(-1, 1))
        covariance = height**2 * jnp.exp(-((x[:, None] - x) ** 2) / (2 * length**2)) + noise**2 * jnp.eye(30)
        numpyro.sample("y", dist.MultivariateNormal(jnp.zeros(30), covariance), obs=y)

    return Posterior(model, constants={"x": x, "y": y}, view=shown(logarithms=("length", "height", "noise")))
