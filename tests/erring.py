"""Short fits and small programs, for tests of what is said of mistakes."""

import numpy as np
import numpyro
import numpyro.distributions as dist
import pytest

import langevin as lv
from langevin.data.table import as_table
from langevin.models.program import Program

NUM_ROWS = 12
RNG = np.random.default_rng(0)
X = RNG.normal(size=NUM_ROWS).astype(np.float32)
Y = RNG.normal(size=NUM_ROWS).astype(np.float32)
G = np.arange(NUM_ROWS) % 4
SHORT = {"num_warmup": 20, "num_draws": 20, "num_chains": 1, "progress": False}
METHODS = {
    "nuts": {"method": "nuts"},
    "sgld": {"method": lv.SGLD(step_size=1e-3), "batch_size": 4},
    "vi": {"method": lv.VI(num_steps=50)},
}
every_method = pytest.mark.parametrize("method", METHODS)
quiet = pytest.mark.filterwarnings("ignore::langevin.LangevinWarning")


def fit(model, data, method="nuts", **keywords):
    asked = METHODS[method] if isinstance(method, str) and method in METHODS else {"method": method}
    return lv.fit(model, data, **SHORT | asked | keywords)


def accepted(model, data):
    """The target of a program that nothing is said against."""
    return Program(model).posterior(as_table(data))


def normal(y):
    m = numpyro.sample("m", dist.Normal(0.0, 1.0))
    with numpyro.plate("rows", y.shape[0]):
        numpyro.sample("y", dist.Normal(m, 1.0), obs=y)


def with_mean(mean):
    """A program whose mean is a function of its latent site."""

    def model(y):
        z = numpyro.sample("z", dist.Normal(0.0, 1.0))
        with numpyro.plate("rows", y.shape[0]):
            numpyro.sample("y", dist.Normal(mean(z), 1.0), obs=y)

    return model


def grouped(lookup, num_groups=3):
    def model(g, y):
        with numpyro.plate("groups", num_groups):
            a = numpyro.sample("a", dist.Normal(0.0, 1.0))
        with numpyro.plate("rows", y.shape[0]):
            numpyro.sample("y", dist.Normal(lookup(a, g), 1.0), obs=y)

    return model
