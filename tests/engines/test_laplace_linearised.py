"""Predictions of Laplace's method: those of the network that is linearised at the mode."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from laplace_cases import QUICK, gaussian, quiet, two_layers

import langevin as lv


@quiet
def test_predictions_are_those_of_the_linearised_network(tmp_path):
    network, data = two_layers(lv.likelihoods.Gaussian(0.3), rows=30)
    fit = lv.fit(network, data, lv.Laplace("dense", climb=lv.MAP(learning_rate=0.01)), progress=False)
    mean, covariance = gaussian(fit)
    x = np.random.default_rng(8).normal(size=(7, 4)).astype(np.float32)
    unravel = fit.guide.objective.unravel
    apply = lambda flat: network.net.apply(unravel(flat), x)[:, 0]  # noqa: E731
    jacobian = np.asarray(jax.jacobian(apply)(jnp.asarray(mean, jnp.float32)), np.float64)
    sd = np.sqrt(np.einsum("ni,ij,nj->n", jacobian, covariance, jacobian))
    found = fit.predict({"x": x})
    # 1,000 draws.
    np.testing.assert_allclose(found["mean"], apply(mean.astype(np.float32)), atol=4.5 * sd.max() / np.sqrt(1000))
    np.testing.assert_allclose(found["sd_epistemic"], sd, rtol=4.5 / np.sqrt(2000))
    np.testing.assert_allclose(found["sd_aleatoric"], 0.3, rtol=1e-3)
    assert "linearised at the mode" in repr(fit)
    # So are those at a few rows that are kept with the draws.
    kept = fit.posterior["prediction"].values.reshape(-1, 30)
    at_mode = np.asarray(network.net.apply(unravel(jnp.asarray(mean, jnp.float32)), data["x"])[:, 0])
    np.testing.assert_allclose(kept.mean(axis=0), at_mode, atol=4.5 * kept.std(axis=0).max() / np.sqrt(4000))
    # And what else is computed of the fit: the log-density of its draws.
    first = {name: jnp.asarray(fit.posterior[name].values[1, 3]) for name in network.shapes}
    assert float(fit.target.log_density(first)) == pytest.approx(float(fit.stats["lp"][1, 3]), rel=1e-4)
    fit.save(tmp_path / "fit")
    loaded = lv.load(tmp_path / "fit", network).predict({"x": x})
    np.testing.assert_allclose(loaded["mean"], found["mean"], atol=1e-6)
    np.testing.assert_allclose(loaded["sd_epistemic"], found["sd_epistemic"], rtol=1e-4)
    plain = lv.fit(network, data, lv.Laplace("dense", climb=None, linearised=False), init=fit, progress=False)
    through = plain.predict({"x": x})
    assert np.abs(through["sd_epistemic"] / sd - 1).max() > 0.05


def test_the_posterior_of_the_linearised_network_is_gaussian():
    """With Gaussian noise that is known: its ratios are all the same, where those of the network itself are not."""
    network, data = two_layers(lv.likelihoods.Gaussian(0.3), rows=30)
    climb = lv.MAP(learning_rate=0.01)
    fit = lv.fit(network, data, lv.Laplace("dense", climb), **QUICK)
    assert fit.settings["evidence"]["ratios"]["efficiency"] > 0.98
    assert fit.verdict.word == "trustworthy"
    with pytest.warns(lv.LangevinWarning, match="far from the posterior"):
        fit = lv.fit(network, data, lv.Laplace("dense", climb, linearised=False), **QUICK)
    assert fit.settings["evidence"]["ratios"]["efficiency"] < 0.5


def test_predictions_of_the_linearised_network_are_not_kept_without_weights():
    network, data = two_layers(lv.likelihoods.Gaussian(0.3), rows=10)
    with pytest.raises(lv.SettingError, match="give linearised=False"):
        lv.fit(network, data, lv.Laplace("dense"), keep=lv.Keep(predict={"x": data["x"]}), progress=False)
