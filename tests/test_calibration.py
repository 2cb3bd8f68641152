"""Simulation-based calibration (Talts et al. 2018): parameters from the prior, rows from the model, and the rank of
each parameter among the draws of its posterior, which is uniform if the draws are right."""

import jax
import numpy as np
import numpyro
import numpyro.distributions as dist
import pytest
from scipy import stats

import langevin as lv
from langevin.run import compilation

pytestmark = [pytest.mark.slow, pytest.mark.filterwarnings("ignore::langevin.LangevinWarning")]

NUM_DRAWS = 39
NUM_BINS = 10


@pytest.fixture(autouse=True)
def _trace_once(monkeypatch):
    """All fits of a test are of one program, with other rows as its argument: to trace it for each would take the most
    time."""
    real, known = compilation.compiled, {}

    def compiled(function, static, *arguments, **rest):
        shapes = tuple((leaf.shape, leaf.dtype) for leaf in jax.tree.leaves(arguments))
        if (function, static, shapes) not in known:
            known[function, static, shapes] = real(function, static, *arguments, **rest)
        return known[function, static, shapes]

    monkeypatch.setattr(compilation, "compiled", compiled)


def normal(y, prior_sd=1.0):
    mu = numpyro.sample("mu", dist.Normal(0.0, prior_sd))
    sigma = numpyro.sample("sigma", dist.LogNormal(1.5, 0.5))
    with numpyro.plate("rows", y.shape[0]):
        numpyro.sample("y", dist.Normal(mu, sigma), obs=y)


def simulate_normal(generator):
    mu, sigma = generator.normal(), generator.lognormal(1.5, 0.5)
    return {"mu": mu, "sigma": sigma}, {"y": generator.normal(mu, sigma, size=5)}


def groups(y):
    """Effects of unknown spread, fitted by their noise (`noncentred`)."""
    mu = numpyro.sample("mu", dist.Normal(0.0, 1.0))
    tau = numpyro.sample("tau", dist.HalfNormal(1.0))
    with numpyro.plate("rows", y.shape[0]):
        theta = numpyro.sample("theta", dist.Normal(mu, tau))
        numpyro.sample("y", dist.Normal(theta, 1.0), obs=y)


def simulate_groups(generator):
    mu, tau = generator.normal(), np.abs(generator.normal())
    theta = generator.normal(mu, tau, size=6)
    return {"mu": mu, "tau": tau, "theta": theta}, {"y": generator.normal(theta, 1.0)}


def p_values(model, simulate, num_fits, **settings):
    """For each parameter, how likely ranks as uneven as these are if all is right."""
    generator, ranks = np.random.default_rng(0), {}
    for seed in range(num_fits):
        truth, data = simulate(generator)
        run = {"num_chains": 4, "num_warmup": 200, "num_draws": 10, "thin": 10, "seed": seed, "progress": False}
        draws = lv.fit(model, data, "nuts", **run, **settings).posterior
        for name, value in truth.items():
            # One draw is left out, so that ranks from 0 to 39 are as many as the bins hold.
            chosen = draws[name].values.reshape(-1, *np.shape(value))[:NUM_DRAWS]
            ranks.setdefault(name, []).append((chosen < value).sum(axis=0))
    found = {}
    for name, values in ranks.items():
        for index, column in enumerate(np.reshape(values, (num_fits, -1)).T):
            counts = np.bincount(column * NUM_BINS // (NUM_DRAWS + 1), minlength=NUM_BINS)
            found[f"{name}[{index}]"] = stats.chisquare(counts).pvalue
    return found


def test_a_normal_of_unknown_mean_and_scale():
    found = p_values(normal, simulate_normal, 200)
    assert min(found.values()) > 0.001, found


def test_groups_of_unknown_spread():
    found = p_values(groups, simulate_groups, 200, noncentred=("theta",))
    assert min(found.values()) > 0.001, found


def test_a_prior_that_is_too_narrow_is_found_out():
    found = p_values(normal, simulate_normal, 200, constants={"prior_sd": 1 / 1.5})
    assert found["mu[0]"] < 1e-4, found
