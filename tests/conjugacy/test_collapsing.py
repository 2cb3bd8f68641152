"""Sites that are integrated out before another method runs."""

import jax.numpy as jnp
import numpy as np
import numpyro
import numpyro.distributions as dist
import pytest
from scipy import stats

import langevin as lv

RNG = np.random.default_rng(3)
GROUP = RNG.integers(0, 6, 120)
DATA = {"y": (2 + 0.8 * RNG.normal(size=6))[GROUP] + RNG.normal(size=120), "g": GROUP}


def groups(g, y=None):
    centre = numpyro.sample("centre", dist.Normal(0, 5))
    scale = numpyro.sample("scale", dist.HalfNormal(2.0))
    with numpyro.plate("groups", 6):
        effect = numpyro.sample("effect", dist.Normal(centre, scale))
    numpyro.deterministic("range", effect.max() - effect.min())
    with numpyro.plate("rows", len(g)):
        numpyro.sample("y", dist.Normal(effect[g], 1.0), obs=y)


@pytest.fixture(scope="module")
def fit():
    return lv.fit(groups, DATA, "nuts", collapse=("effect", "centre"), progress=False, seed=1)


def exact(grid):
    """The marginal density of the scale, by the covariance of all rows."""
    same = GROUP[:, None] == GROUP[None, :]
    heights = [
        stats.multivariate_normal.logpdf(DATA["y"], np.zeros(120), np.eye(120) + 25.0 + s**2 * same)
        + stats.halfnorm.logpdf(s, scale=2)
        for s in grid
    ]
    weights = np.exp(np.array(heights) - max(heights))
    return weights / weights.sum()


def test_the_rest_has_its_marginal_and_the_collapsed_their_conditionals(fit):
    grid = np.linspace(0.05, 6, 400)
    weights = exact(grid)
    mean = weights @ grid
    sd = np.sqrt(weights @ (grid - mean) ** 2)
    draws = fit.posterior["scale"].values
    size = float(fit.summary().loc["scale", "ess"])
    assert abs(draws.mean() - mean) < 4 * sd / np.sqrt(size)
    assert abs(draws.std() / sd - 1) < 0.12
    # Given the scale, centre and effects are jointly Gaussian: compare with the law of total expectation.
    means, variances = [], []
    for s in grid:
        counts, sums = np.bincount(GROUP, minlength=6), np.bincount(GROUP, DATA["y"], 6)
        precision = np.diag([*(counts + s**-2), 6 / s**2 + 1 / 25])
        precision[:6, 6] = precision[6, :6] = -(s**-2)
        covariance = np.linalg.inv(precision)
        means.append(covariance @ [*sums, 0.0])
        variances.append(np.diag(covariance))
    means, variances = np.array(means), np.array(variances)
    right = weights @ means
    spread = np.sqrt(weights @ (variances + (means - right) ** 2))
    drawn = np.concatenate([fit.posterior["effect"].values, fit.posterior["centre"].values[..., None]], axis=-1)
    drawn = drawn.reshape(-1, 7)
    assert (np.abs(drawn.mean(0) - right) < 5 * spread / np.sqrt(1000)).all()
    np.testing.assert_allclose(drawn.std(0), spread, rtol=0.08)
    effects = fit.posterior["effect"].values
    np.testing.assert_allclose(fit.posterior["range"].values, effects.max(-1) - effects.min(-1), rtol=1e-5)


def test_it_predicts_with_the_program_as_it_was(fit):
    predicted = fit.predict({"g": np.arange(6)})["mean"].values
    np.testing.assert_allclose(predicted, fit.posterior["effect"].mean(("chain", "draw")).values, atol=0.1)


def test_many_rows_as_they_come():
    """In double precision whatever JAX's own is: in single, the squares of 30,000 years leave nothing of the noise."""
    generator = np.random.default_rng(0)
    year = generator.integers(1950, 2020, 30_000).astype(float)
    x = np.stack([np.ones(len(year)), year, (year - 1985) ** 2], axis=1)
    y = 1500 + 0.25 * year + generator.normal(size=len(year))

    def years(x, y=None):
        w = numpyro.sample("w", dist.Normal(0, np.array([1e4, 10.0, 1.0])).to_event(1))
        s = numpyro.sample("s", dist.HalfNormal(5.0))
        with numpyro.plate("rows", len(x)):
            numpyro.sample("y", dist.Normal(x @ w, s), obs=y)

    fit = lv.fit(years, {"x": x, "y": y}, "nuts", collapse="w", num_warmup=200, num_draws=250, progress=False)
    best = np.linalg.lstsq(x, y)[0]
    s = np.sqrt(np.sum((y - x @ best) ** 2) / len(y))
    sd = s * np.sqrt(np.diag(np.linalg.inv(x.T @ x)))
    # 1,000 draws, of which those of w are independent.
    w = fit.posterior["w"].values.reshape(-1, 3)
    assert (np.abs(w.mean(0) - best) < 4 * sd / np.sqrt(1000)).all()
    np.testing.assert_allclose(w.std(0), sd, rtol=4 / np.sqrt(2000))
    assert float(fit.posterior["s"].mean()) == pytest.approx(s, abs=0.3 * s / np.sqrt(2 * len(y)))
    assert fit.verdict.word == "trustworthy"


def test_what_cannot_be_integrated_out():
    with pytest.raises(lv.NotConjugateError, match="'scale'"):
        lv.fit(groups, DATA, "nuts", collapse="scale", progress=False)
    with pytest.raises(lv.SettingError, match="no latent site 'slope'"):
        lv.fit(groups, DATA, "nuts", collapse="slope", progress=False)
    with pytest.raises(lv.SettingError, match="batch_size"):
        lv.fit(groups, DATA, "sgld", batch_size=10, collapse="effect", progress=False)

    def product(y):
        one = numpyro.sample("one", dist.Normal(0, 1))
        two = numpyro.sample("two", dist.Normal(0, 1))
        scale = numpyro.sample("scale", dist.HalfNormal(1.0))
        with numpyro.plate("rows", len(y)):
            numpyro.sample("y", dist.Normal(one * two * jnp.ones(len(y)), scale), obs=y)

    with pytest.raises(lv.NotConjugateError, match="cannot both"):
        lv.fit(product, {"y": DATA["y"]}, "nuts", collapse=("one", "two"), progress=False)
