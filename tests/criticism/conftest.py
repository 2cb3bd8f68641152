"""One small regression, fitted by four methods."""

import warnings

import numpy as np
import numpyro
import numpyro.distributions as dist
import pytest

import langevin as lv

NUM_ROWS = 60


def regression(x, y):
    w = numpyro.sample("w", dist.Normal(0.0, 1.0).expand([x.shape[-1]]).to_event(1))
    sigma = numpyro.sample("sigma", dist.HalfNormal(2.0))
    with numpyro.plate("rows", x.shape[0]):
        numpyro.sample("y", dist.Normal(x @ w, sigma), obs=y)


def rows():
    generator = np.random.default_rng(5)
    x = generator.normal(size=(NUM_ROWS, 2))
    return {"x": x, "y": x @ np.array([1.0, -1.0]) + generator.normal(size=NUM_ROWS)}


METHODS = {
    "nuts": ("nuts", {}),
    "sghmc": ("sghmc", {"batch_size": 20}),
    "weighted sgld": (
        lv.SGLD(step_size=lv.Polynomial(1e-2, 10, 0.55)),
        {"batch_size": 20, "thin": 100, "num_warmup": 2000},
    ),
    "vi": (lv.VI("fullrank"), {}),
}


def fitted(method, model=regression, data=None, **more):
    settings = {"num_chains": 2, "num_warmup": 200, "num_draws": 200, "progress": False, "seed": 1}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", lv.LangevinWarning)
        return lv.fit(model, rows() if data is None else data, method, **settings | more)


@pytest.fixture(scope="session")
def fits():
    """By name."""
    return {name: fitted(method, **more) for name, (method, more) in METHODS.items()}


@pytest.fixture(params=METHODS, scope="session")
def fit(request, fits):
    return fits[request.param]
