"""Networks under exact methods: a linear one against its closed form, a small one against NumPyro."""

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import numpyro
import pytest
from numpyro import distributions as dist

import langevin as lv
from langevin.diagnostics import weighted

RNG = np.random.default_rng(0)


def moments(predictions):
    """Means and mean squares of predictions (chains, draws, rows), with their Monte Carlo errors."""
    weights = np.ones(predictions.shape[:2])
    found = []
    for values in (predictions, predictions**2):
        size = np.maximum(weighted.sizes(values.astype(np.float64), weights).bulk, 4)
        found.append((values.mean(axis=(0, 1)), values.std(axis=(0, 1)) / np.sqrt(size)))
    return found


def assert_agree(one, other):
    for (a, error_a), (b, error_b) in zip(moments(one), moments(other), strict=True):
        assert (np.abs(a - b) < 4.5 * np.hypot(error_a, error_b)).all()


def test_a_linear_network_has_the_closed_form():
    x = RNG.normal(size=(25, 3)).astype(np.float32)
    y = (x @ [1.0, -0.5, 0.2] + 0.3 + 0.4 * RNG.normal(size=25)).astype(np.float32)
    network = lv.Network(eqx.nn.Linear(3, 1, key=jax.random.key(0)), lv.likelihoods.Gaussian(0.4), dist.Normal(0, 2))
    fit = lv.fit(network, {"x": x, "y": y}, "nuts", num_warmup=300, num_draws=500, progress=False)
    design = np.column_stack([x, np.ones(25)]).astype(np.float64)
    covariance = np.linalg.inv(design.T @ design / 0.4**2 + np.eye(4) / 2**2)
    mean = covariance @ design.T @ y / 0.4**2
    draws = np.concatenate([fit.posterior["weight"].values[:, :, 0], fit.posterior["bias"].values], axis=2)
    (means, errors), _ = moments(draws)
    assert (np.abs(means - mean) < 4.5 * errors).all()
    np.testing.assert_allclose(draws.std(axis=(0, 1)), np.sqrt(np.diag(covariance)), rtol=0.12)
    # And what is predicted at new rows, split into its parts.
    new = RNG.normal(size=(4, 3)).astype(np.float32)
    found = fit.predict({"x": new})
    rows = np.column_stack([new, np.ones(4)])
    epistemic = np.sqrt(np.einsum("ni,ij,nj->n", rows, covariance, rows))
    np.testing.assert_allclose(found["mean"], rows @ mean, atol=4.5 * epistemic.max() / np.sqrt(800))
    np.testing.assert_allclose(found["sd_epistemic"], epistemic, rtol=0.12)
    np.testing.assert_allclose(found["sd_aleatoric"], 0.4, rtol=1e-5)


@pytest.fixture(scope="module")
def small():
    x = np.sort(RNG.uniform(-2, 2, 16)).astype(np.float32)
    y = (np.sin(1.5 * x) + 0.5 * RNG.normal(size=16)).astype(np.float32)
    net = eqx.nn.MLP(1, 1, 16, 1, activation=jnp.tanh, key=jax.random.key(0))
    return lv.Network(net, lv.likelihoods.Gaussian(0.5), lv.FanIn(1.0, 0.5)), {"x": x, "y": y}


def test_a_small_network_agrees_with_numpyro_in_function_space(small):
    network, data = small
    settings = {"num_warmup": 200, "num_draws": 250, "progress": False}
    nuts = lv.fit(network, data, "nuts", **settings)
    hmc = lv.fit(network, data, lv.HMC(), seed=1, **settings)
    mcmc = numpyro.infer.MCMC(
        numpyro.infer.NUTS(network), num_warmup=200, num_samples=250, num_chains=4, chain_method="vectorized",
        progress_bar=False,
    )  # fmt: skip
    mcmc.run(jax.random.key(0), **data)
    rows = jnp.asarray(data["x"])[:, None]
    draws = {name: values for name, values in mcmc.get_samples(group_by_chain=True).items() if name in network.shapes}
    theirs = np.asarray(jax.vmap(jax.vmap(lambda weights: network.net.apply(weights, rows)[:, 0]))(draws))
    ours = [fit.posterior["prediction"].values for fit in (nuts, hmc)]
    assert_agree(*ours)
    assert_agree(ours[0], theirs)
    assert_agree(ours[1], theirs)
