"""Draws from a fitted approximation: in the order of the rows, in blocks, and judged as far as time allows."""

import jax.numpy as jnp
import numpy as np
import numpyro
import numpyro.distributions as dist
import pytest
from numpyro.distributions import constraints

import langevin as lv
from langevin.engines import drawing


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


@pytest.mark.filterwarnings("ignore::langevin.LangevinWarning")
def test_only_so_many_draws_are_judged(monkeypatch, tmp_path):
    """The others have no ratios, in memory and on disk alike, and are not drawn again."""
    density = lv.Density(lambda x: -((x - 1.0) ** 2) / 2, init=0.0)

    def fit(**more):
        return lv.fit(density, method=lv.VI(num_steps=200), num_chains=2, num_draws=1000, progress=False, **more)

    every = fit()
    monkeypatch.setattr(drawing, "MOST_JUDGED", 600)
    some, stored = fit(), fit(store=tmp_path / "run")
    for one in (some, stored):
        assert one.settings["evidence"]["ratios"]["count"] == 1000
        for name in ("lp", "log_q"):
            assert one.stats[name].dtype == np.float32
            np.testing.assert_array_equal(one.stats[name][:, :500], every.stats[name][:, :500])
            assert np.isnan(one.stats[name][:, 500:]).all()
        np.testing.assert_array_equal(one.posterior["position"], every.posterior["position"])
    assert set(some.resampled().posterior["position"].values.ravel()) <= set(
        every.posterior["position"].values[:, :500].ravel()
    )


@pytest.mark.parametrize("count", [30, 100, 4000])
def test_ratios_that_are_farther_apart_have_a_heavier_tail(count):
    """At any spread: quotients that underflow are no thinner tail."""
    log_ratios = np.random.default_rng(0).normal(size=count)
    log_ratios /= np.ptp(log_ratios)

    def khat(log_ratios):
        return drawing.ratios_of(np.stack([log_ratios, np.zeros(count)]))["ratios"]["khat"]

    shapes = [khat(spread * log_ratios) for spread in (30, 100, 300, 600, 1e3, 3e3, 1e5, 1e9)]
    assert np.all(np.diff(shapes) > 0)
    assert shapes[0] > 0.7
    # What is added to all of them makes no difference.
    for spread in (30, 1e3, 1e5):
        assert khat(spread * log_ratios - 1e6) == pytest.approx(khat(spread * log_ratios), rel=1e-3)
