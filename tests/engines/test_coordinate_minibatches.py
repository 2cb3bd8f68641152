"""Coordinate ascent on minibatches: where it begins, and where it ends."""

import numpy as np
import numpyro
import numpyro.distributions as dist
import pytest

import langevin as lv

CENTRES = np.array([-9.0, -3.0, 3.0, 9.0])


def mixture(x):
    w = numpyro.sample("w", dist.Dirichlet(np.ones(4)))
    with numpyro.plate("components", 4):
        m = numpyro.sample("m", dist.Normal(0.0, 10.0))
    with numpyro.plate("rows", x.shape[0]):
        z = numpyro.sample("z", dist.Categorical(w))
        numpyro.sample("x", dist.Normal(m[z], 1.0), obs=x)


@pytest.mark.parametrize("seed", [0, 2])
def test_minibatches_begin_at_the_best_of_several_starts(seed):
    """From one start, the fit with seed 2 ends with two components in one place, between two clusters."""
    generator = np.random.default_rng(seed)
    x = generator.choice(CENTRES, 4000) + generator.normal(size=4000)
    fit = lv.fit(mixture, {"x": x}, "cavi", batch_size=400, num_draws=5, num_chains=1, seed=seed, progress=False)
    found = np.sort(fit.data_tree["parameters"]["m.loc"].values.ravel())
    # Means of 1,000 rows each, and steps that still have noise.
    np.testing.assert_allclose(found, CENTRES, atol=0.25)
