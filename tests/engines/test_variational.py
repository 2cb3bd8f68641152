"""The engine of variational inference: what it reports of sites that every row has its own of."""

import jax.numpy as jnp
import numpy as np
import numpyro
import numpyro.distributions as dist
import pytest
from numpyro.distributions import constraints

import langevin as lv


def model(x):
    with numpyro.plate("rows", x.shape[0]):
        z = numpyro.sample("z", dist.Normal(0.0, 10.0))
        numpyro.sample("x", dist.Normal(z, 0.1), obs=x)


def encoder(x):
    slope = numpyro.param("slope", jnp.array(0.5))
    scale = numpyro.param("scale", jnp.array(0.3), constraint=constraints.positive)
    with numpyro.plate("rows", x.shape[0]):
        numpyro.sample("z", dist.Normal(slope * x, scale))


@pytest.mark.filterwarnings("ignore::langevin.LangevinWarning")
@pytest.mark.parametrize("batch_size", [None, 20])
def test_sites_of_rows_are_reported_in_the_order_of_the_rows(batch_size):
    """Minibatches are slices of rows in random order: what is reported must not be in that order."""
    x = np.random.default_rng(0).normal(0, 5, size=100)
    method = lv.VI(encoder, num_steps=2000, learning_rate=0.02)
    fit = lv.fit(model, {"x": x}, method, batch_size=batch_size, num_chains=2, num_draws=50, progress=False)
    np.testing.assert_allclose(fit.posterior["z"].mean(["chain", "draw"]), x, atol=0.3)
    np.testing.assert_allclose(fit.guide.sample(50)["z"].mean(axis=0), x, atol=0.3)
