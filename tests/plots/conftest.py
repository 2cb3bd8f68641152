"""Fits whose draws are known, and small ones of every kind of engine."""

import json
import warnings

import numpy as np
import numpyro
import numpyro.distributions as dist
import pytest
import xarray as xr

import langevin as lv


def fit_of(sites, weights=None, stats=None, coords=None, evidence=None, method="NUTS"):
    """A fit with these draws: name -> (dimensions, array)."""
    shape = next(iter(sites.values()))[1].shape[:2]
    index = {"chain": np.arange(shape[0]), "draw": np.arange(shape[1])}
    posterior = xr.Dataset(
        {name: (("chain", "draw", *dims), values) for name, (dims, values) in sites.items()}, index | (coords or {})
    )
    told = {"lp": np.zeros(shape), "weight": np.ones(shape) if weights is None else weights} | (stats or {})
    sample_stats = xr.Dataset({name: (("chain", "draw"), values) for name, values in told.items()}, index)
    tree = xr.DataTree.from_dict({"posterior": posterior, "sample_stats": sample_stats})
    settings = {"method": {"name": method}, "approximation": "", "evidence": evidence or {}}
    tree.attrs["settings"] = json.dumps(settings)
    return lv.Fit(tree)


def slow(generator, shape, memory=0.98):
    """Draws that hardly move."""
    draws = generator.normal(size=shape)
    for i in range(1, shape[1]):
        draws[:, i] = memory * draws[:, i - 1] + np.sqrt(1 - memory**2) * draws[:, i]
    return draws


@pytest.fixture(scope="session")
def many():
    """60 coordinates of a site with levels, of which numbers 7 and 31 mix badly, and two scalars."""
    generator = np.random.default_rng(0)
    theta = generator.normal(size=(4, 250, 60))
    theta[:, :, 7] = slow(generator, (4, 250))
    theta[:, :, 31] = slow(generator, (4, 250), 0.9)
    sites = {
        "mu": ((), generator.normal(5, 1, size=(4, 250))),
        "theta": (("group",), theta),
        "tau": ((), generator.gamma(2, 1000, size=(4, 250))),
    }
    levels = [f"<{i}>" for i in range(60)]
    return fit_of(sites, coords={"group": levels}, evidence={"mixing": {"exact": True}})


@pytest.fixture(scope="session")
def uneven():
    """Weights that fall from draw to draw, and draws that move with them: unweighted summaries are far off."""
    generator = np.random.default_rng(1)
    weights = np.tile(np.linspace(2, 0, 400) ** 2, (2, 1))
    weights /= weights.mean()
    drift = np.linspace(0, 3, 400)
    values = generator.normal(size=(2, 400, 3)) + drift[:, None]
    return fit_of({"w": (("part",), values)}, weights)


def line(x, y=None):
    a = numpyro.sample("a", dist.Normal(0, 10))
    b = numpyro.sample("b", dist.Normal(0, 10))
    with numpyro.plate("rows", len(x)):
        numpyro.sample("y", dist.Normal(a + b * x, 0.5), obs=y)


def coin(x, y=None):
    w = numpyro.sample("w", dist.Normal(0, 1).expand([2]).to_event(1))
    with numpyro.plate("rows", len(x)):
        numpyro.sample("y", dist.Bernoulli(logits=x @ w), obs=y)


def quietly(*args, **keywords):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", lv.LangevinWarning)
        return lv.fit(*args, progress=False, **keywords)


@pytest.fixture(scope="session")
def coins():
    generator = np.random.default_rng(2)
    x = generator.normal(size=(600, 2))
    return {"x": x, "y": (generator.random(600) < 1 / (1 + np.exp(-x @ [1.5, -1.0]))).astype(int)}


@pytest.fixture(scope="session")
def nuts():
    x = np.linspace(-1, 2, 40)
    return quietly(line, {"x": x, "y": 1 + 2 * x + np.random.default_rng(3).normal(0, 0.5, 40)}, num_draws=500)


@pytest.fixture(scope="session")
def decreasing(coins):
    method = lv.SGLD(step_size=lv.Polynomial(3e-3, 1, 0.55))
    return quietly(coin, coins, method, batch_size=100, num_draws=300, thin=5)


@pytest.fixture(scope="session")
def engines(nuts, decreasing, coins):
    """One fit by each kind of engine."""
    return {
        "nuts": nuts,
        "decreasing": decreasing,
        "sghmc": quietly(coin, coins, "sghmc", batch_size=100, num_draws=200),
        "vi": quietly(coin, coins, lv.VI("fullrank"), num_draws=200),
        "steps": quietly(coin, coins, lv.VI("meanfield", num_steps=400, learning_rate=0.03), num_draws=200),
        "map": quietly(coin, coins, "map"),
    }
