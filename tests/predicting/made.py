"""Fits with draws that are made and not sampled: prediction only asks what they are."""

import json
from typing import Any, NamedTuple

import jax.numpy as jnp
import numpy as np
import numpyro
import numpyro.distributions as dist
import xarray as xr
from numpyro.contrib.control_flow import scan

from langevin.data.table import as_table
from langevin.models.source import Source
from langevin.result import Fit

NUM_CHAINS, NUM_DRAWS = 2, 400


class Case(NamedTuple):
    """A program, rows with what is observed, constants, and draws of its latent sites, (chains * draws, ...)."""

    model: Any
    data: dict[str, np.ndarray]
    constants: dict[str, Any]
    draws: dict[str, np.ndarray]
    observed: tuple[str, ...] = ("y",)


def made(case: Case, weights: np.ndarray | None = None, data: Any = None) -> Fit:
    """A fit with these draws and weights."""
    shape = (NUM_CHAINS, len(next(iter(case.draws.values()))) // NUM_CHAINS)
    weights = np.ones(shape) if weights is None else weights.reshape(shape)
    posterior = {
        name: (("chain", "draw", *(f"{name}_dim_{axis}" for axis in range(values.ndim - 1))), values.reshape(*shape, *values.shape[1:]))
        for name, values in case.draws.items()
    }
    tree = xr.DataTree.from_dict(
        {"posterior": xr.Dataset(posterior), "sample_stats": xr.Dataset({"weight": (("chain", "draw"), weights)})}
    )
    settings = {"method": {"name": "made"}, "approximation": "", "evidence": {}, "observed": case.observed}
    tree.attrs["settings"] = json.dumps(settings)
    return Fit(tree, source=Source(case.model, case.constants, as_table(case.data if data is None else data)))


def uneven(seed: int = 0) -> np.ndarray:
    """Weights, 1 on average; some draws have none."""
    weights = np.random.default_rng(seed).gamma(0.7, size=NUM_CHAINS * NUM_DRAWS)
    weights[::17] = 0.0
    return weights / weights.mean()


def _normal(generator: np.random.Generator, mean: Any, sd: float) -> np.ndarray:
    mean = np.asarray(mean, np.float32)
    return (mean + sd * generator.normal(size=(NUM_CHAINS * NUM_DRAWS, *mean.shape))).astype(np.float32)


def linear() -> Case:
    generator = np.random.default_rng(1)
    x = generator.normal(size=(150, 3)).astype(np.float32)

    def model(x, y=None):
        w = numpyro.sample("w", dist.Normal(0, 1).expand([x.shape[-1]]).to_event(1))
        s = numpyro.sample("s", dist.HalfNormal(1.0))
        mu = numpyro.deterministic("mu", x @ w)
        with numpyro.plate("rows", x.shape[0]):
            numpyro.sample("y", dist.Normal(mu, s), obs=y)

    y = (x @ [1.0, -1.0, 0.5] + generator.normal(size=150)).astype(np.float32)
    draws = {"w": _normal(generator, [1.0, -1.0, 0.5], 0.3), "s": np.exp(_normal(generator, 0.0, 0.2))}
    return Case(model, {"x": x, "y": y}, {}, draws)


def logistic() -> Case:
    generator = np.random.default_rng(2)
    x = generator.normal(size=(150, 2)).astype(np.float32)

    def model(x, y=None):
        w = numpyro.sample("w", dist.Normal(0, 1).expand([2]).to_event(1))
        with numpyro.plate("rows", x.shape[0]):
            numpyro.sample("y", dist.Bernoulli(logits=x @ w), obs=y)

    return Case(model, {"x": x, "y": generator.integers(2, size=150)}, {}, {"w": _normal(generator, [1.0, -0.5], 0.5)})


def poisson_with_offset() -> Case:
    generator = np.random.default_rng(3)
    x, exposure = generator.normal(size=150).astype(np.float32), generator.uniform(1, 9, 150).astype(np.float32)

    def model(x, exposure, y=None):
        a = numpyro.sample("a", dist.Normal(0, 1))
        b = numpyro.sample("b", dist.Normal(0, 1))
        with numpyro.plate("rows", len(x)):
            numpyro.sample("y", dist.Poisson(exposure * jnp.exp(a + b * x)), obs=y)

    draws = {"a": _normal(generator, 0.3, 0.2), "b": _normal(generator, 0.5, 0.2)}
    return Case(model, {"x": x, "exposure": exposure, "y": generator.poisson(exposure)}, {}, draws)


def hierarchical_student() -> Case:
    generator = np.random.default_rng(4)

    def model(group, x, num_groups, y=None):
        tau = numpyro.sample("tau", dist.HalfNormal(1.0))
        slope = numpyro.sample("slope", dist.Normal(0, 1))
        with numpyro.plate("groups", num_groups):
            effect = numpyro.sample("effect", dist.Normal(2.0, tau))
        with numpyro.plate("rows", len(x)):
            numpyro.sample("y", dist.StudentT(5.0, effect[group] + slope * x, 0.5), obs=y)

    data = {
        "group": generator.integers(6, size=150),
        "x": generator.normal(size=150).astype(np.float32),
        "y": generator.standard_t(5, size=150).astype(np.float32),
    }
    draws = {"tau": np.exp(_normal(generator, 0.0, 0.2)), "slope": _normal(generator, 1.0, 0.1)}
    return Case(model, data, {"num_groups": 6}, draws | {"effect": _normal(generator, np.arange(6.0), 0.3)})


def softmax() -> Case:
    generator = np.random.default_rng(5)
    x = generator.normal(size=(150, 2)).astype(np.float32)

    def model(x, y=None):
        w = numpyro.sample("w", dist.Normal(0, 1).expand([2, 3]).to_event(2))
        with numpyro.plate("rows", x.shape[0]):
            numpyro.sample("y", dist.Categorical(logits=x @ w), obs=y)

    data = {"x": x, "y": generator.integers(3, size=150)}
    return Case(model, data, {}, {"w": _normal(generator, [[1.0, 0.0, -1.0], [0.0, 1.0, 0.0]], 0.5)})


def vectors() -> Case:
    generator = np.random.default_rng(6)
    x = generator.normal(size=(150, 2)).astype(np.float32)

    def model(x, y=None, z=None):
        w = numpyro.sample("w", dist.Normal(0, 1).expand([2, 3]).to_event(2))
        with numpyro.plate("rows", x.shape[0]):
            numpyro.sample("y", dist.Normal(x @ w, jnp.array([0.5, 1.0, 2.0])).to_event(1), obs=y)
            numpyro.sample("z", dist.MultivariateNormal(x @ w[:, :2], jnp.array([[1.0, 0.5], [0.5, 2.0]])), obs=z)

    data = {"x": x, "y": generator.normal(size=(150, 3)).astype(np.float32)}
    data["z"] = generator.normal(size=(150, 2)).astype(np.float32)
    return Case(model, data, {}, {"w": _normal(generator, np.ones((2, 3)), 0.5)}, ("y", "z"))


def series() -> Case:
    """A random walk with drift that is seen in noise: no plate over the rows, and states as latent sites."""
    generator = np.random.default_rng(7)

    def model(x, y=None):
        drift = numpyro.sample("drift", dist.Normal(0, 1))

        def step(state, inputs):
            x, y = inputs
            state = numpyro.sample("state", dist.Normal(state + drift + x, 0.3))
            numpyro.sample("y", dist.Normal(state, 0.5), obs=y)
            return state, None

        scan(step, 0.0, (x, y), length=len(x))

    x = 0.1 * generator.normal(size=40).astype(np.float32)
    draws = {"drift": _normal(generator, 0.1, 0.05), "state": _normal(generator, 0.1 * np.arange(40.0), 0.2)}
    return Case(model, {"x": x, "y": generator.normal(size=40).astype(np.float32)}, {}, draws)


def mixed() -> Case:
    """Each row has a latent variable of its own, and a log-normal outcome with no moments given the rest alone."""
    generator = np.random.default_rng(8)
    x = generator.normal(size=150).astype(np.float32)

    def model(x, y=None):
        a = numpyro.sample("a", dist.Normal(0, 1))
        with numpyro.plate("rows", len(x)):
            own = numpyro.sample("own", dist.Normal(a * x, 0.3))
            numpyro.sample("y", dist.LogNormal(own, 0.2), obs=y)

    data = {"x": x, "y": np.exp(generator.normal(size=150)).astype(np.float32)}
    return Case(model, data, {}, {"a": _normal(generator, 0.5, 0.2)})


CASES = {
    "linear": linear,
    "logistic": logistic,
    "Poisson with an offset": poisson_with_offset,
    "Student-t in groups": hierarchical_student,
    "softmax": softmax,
    "vectors": vectors,
    "time series": series,
    "rows with latents": mixed,
}
