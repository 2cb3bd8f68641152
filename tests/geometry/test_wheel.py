"""Gaussian q for hierarchies: by hand on Gaussians, and against a grid."""

import jax
import jax.numpy as jnp
import numpy as np
import numpyro
import numpyro.distributions as dist
import pytest

import langevin as lv
from langevin.data.table import as_table
from langevin.geometry import wheel
from langevin.models.program import Program
from langevin.models.spokes import Layout, Spokes, layout_of
from langevin.variational.families import LOG_2PI
from langevin.variational.hierarchical import Hierarchical

# Two globals at 0 and 7; three groups of two coordinates, out of order.
LAYOUT = Layout(8, (0, 7), (Spokes(3, 2, (1, 4, 2, 5, 3, 6)),))


def precision(generator):
    """A precision that is zero between groups, in the order of the layout."""
    matrix = np.zeros((8, 8))
    for rows in LAYOUT.spokes[0].grid:
        block = [*LAYOUT.hub, *rows]
        noise = 0.4 * generator.standard_normal((4, 4))
        matrix[np.ix_(block, block)] += noise @ noise.T
    return matrix + np.diag(generator.uniform(0.7, 1.4, 8))


def dense(factor):
    return wheel.times(LAYOUT, factor, np.eye(8)).T


def test_one_look_finds_a_gaussian():
    generator = np.random.default_rng(0)
    exact, mean = precision(generator), 0.3 * generator.standard_normal(8)
    q = wheel.begin(LAYOUT, np.zeros(8), np.ones(8))
    noise = generator.standard_normal((2, 8))
    at = wheel.points(LAYOUT, q, noise)
    signs = (np.array([1.0, -1.0, -1.0]),)
    heights = -0.5 * np.einsum("pi,ij,pj->p", at - mean, exact, at - mean)
    products = -wheel.vectors(LAYOUT, q["factor"], signs) @ exact
    q = wheel.improved(LAYOUT, q, noise, signs, (heights, -(at - mean) @ exact, products))
    assert q["centre"] == pytest.approx(mean, abs=1e-10)
    assert dense(q["factor"]) @ dense(q["factor"]).T == pytest.approx(np.linalg.inv(exact), abs=1e-10)
    assert wheel.variances(LAYOUT, q["factor"]) == pytest.approx(np.diagonal(np.linalg.inv(exact)))
    turned = wheel.triangular(q["factor"])
    assert dense(turned) @ dense(turned).T == pytest.approx(np.linalg.inv(exact), abs=1e-10)
    assert np.triu(turned["hub"], 1) == pytest.approx(0.0)


def test_part_of_a_step_is_a_part_in_natural_parameters():
    """Precision (1 - s) P0 + s P, and a mean that is s times P'^-1 of the gradient away, where P' is that precision."""
    generator = np.random.default_rng(3)
    exact, gradient, share = precision(generator), generator.standard_normal(8), 0.3
    q = wheel.begin(LAYOUT, np.zeros(8), np.full(8, 1.2))
    signs = (np.ones(3),)
    products = -wheel.vectors(LAYOUT, q["factor"], signs) @ exact
    moved, factor = wheel._step(
        LAYOUT, q["factor"], *wheel._white(LAYOUT, q["factor"], signs, products, gradient), share
    )
    partly = (1 - share) * np.eye(8) / 1.2**2 + share * exact
    assert dense(factor) @ dense(factor).T == pytest.approx(np.linalg.inv(partly), abs=1e-10)
    assert moved == pytest.approx(share * np.linalg.solve(partly, gradient), abs=1e-10)


def test_family_is_the_gaussian_that_it_says():
    generator = np.random.default_rng(1)
    family = Hierarchical(LAYOUT)
    start = family.init(generator, np.zeros(8), 0.5)
    parameters = jax.tree.map(lambda leaf: leaf + 0.3 * generator.standard_normal(leaf.shape), start)
    noise = generator.standard_normal((3, 8))
    with jax.enable_x64():
        factor = np.stack([family.draw(parameters, e)[0] - parameters["mean"] for e in jnp.eye(8)], axis=1)
        covariance = factor @ factor.T
        for e in noise:
            x, log_prob = family.draw(parameters, jnp.asarray(e))
            gap = np.asarray(x) - parameters["mean"]
            log_det = np.linalg.slogdet(covariance)[1]
            exact = -(gap @ np.linalg.solve(covariance, gap) + log_det + 8 * LOG_2PI) / 2
            assert float(log_prob) == pytest.approx(exact)
            assert float(family.log_parts(parameters, x).sum()) == pytest.approx(exact)
        assert float(family.entropy(parameters)) == pytest.approx((log_det + 8 * (1 + LOG_2PI)) / 2)
    # Groups are independent given the hub: so the precision is zero between them.
    exact = np.linalg.inv(covariance)
    first, second, third = LAYOUT.spokes[0].grid
    assert np.abs(exact[np.ix_(first, [*second, *third])]).max() < 1e-8
    assert np.abs(exact[np.ix_(first, [0, 7])]).min() > 1e-3


def groups(g, y):
    mu = numpyro.sample("mu", dist.Normal(0.0, 2.0))
    tau = numpyro.sample("tau", dist.HalfNormal(1.0))
    with numpyro.plate("groups", 300):
        a = numpyro.sample("a", dist.Normal(mu, tau))
    with numpyro.plate("rows", len(y)):
        numpyro.sample("y", dist.Normal(a[g], 1.0), obs=y)


def grouped(generator, num_rows):
    share = generator.pareto(1.5, 300) + 0.1
    g = generator.choice(300, num_rows, p=share / share.sum()).astype(np.int32)
    a = 0.5 + 0.4 * generator.standard_normal(300)
    return {"g": g, "y": (a[g] + generator.standard_normal(num_rows)).astype(np.float32)}


def on_a_grid(data):
    """Means and sds of mu, tau and a: the effects are summed out by hand, mu and tau by a grid."""
    g, y = data["g"], data["y"].astype(np.float64)
    count = np.bincount(g, minlength=300)
    mean = np.bincount(g, y, minlength=300) / np.maximum(count, 1)
    mu, tau = np.meshgrid(np.linspace(0.2, 0.8, 161), np.linspace(0.2, 0.7, 161), indexing="ij")
    log_p = -(mu**2) / 8 - tau**2 / 2
    shrunk, spread = [], []
    for n, m in zip(count, mean, strict=True):
        if n:
            variance = tau**2 + 1 / n
            log_p = log_p - (m - mu) ** 2 / (2 * variance) - np.log(variance) / 2
        weight = n / (n + tau**-2)
        shrunk.append(weight * m + (1 - weight) * mu)
        spread.append(1 / (n + tau**-2))
    p = np.exp(log_p - log_p.max())
    p /= p.sum()

    def moments(value, variance=0.0):
        centre = np.sum(p * value)
        return centre, np.sqrt(np.sum(p * ((value - centre) ** 2 + variance)))

    effects = [moments(value, variance) for value, variance in zip(shrunk, spread, strict=True)]
    return {"mu": moments(mu), "tau": moments(tau), "a": tuple(np.array(effects).T)}


def test_layout_of_a_program():
    target = Program(groups, noncentred="auto").posterior(as_table(grouped(np.random.default_rng(0), 500)))
    layout = layout_of(target, target.start(np.random.default_rng(0)))
    assert layout.hub == (300, 301)
    assert [(part.num_groups, part.width) for part in layout.spokes] == [(300, 1)]
    assert layout.spokes[0].places == tuple(range(300))


@pytest.mark.parametrize("seed", [0, 1])
def test_many_groups_by_default(seed):
    data = grouped(np.random.default_rng(seed), 6000)
    exact = on_a_grid(data)
    fit = lv.fit(groups, data, "vi", batch_size=500, seed=seed, num_draws=2000, progress=False)
    for name, (mean, sd) in exact.items():
        draws = fit.posterior[name].values.reshape(-1, *np.shape(mean))
        assert np.abs((draws.mean(axis=0) - mean) / sd).max() < 0.2, name
        ratio = draws.std(axis=0) / sd
        assert ratio.min() > 0.85, name
        assert ratio.max() < 1.15, name
    assert fit.verdict.word == "trustworthy", fit.verdict


def test_only_programs_with_groups_are_hierarchies():
    density = lv.Density(lambda x: -jnp.sum(x**2) / 2, init=np.zeros(3))
    with pytest.raises(lv.SettingError, match=r"VI\('hierarchical'\)` is for programs with sites in plates"):
        lv.fit(density, method=lv.VI("hierarchical"), progress=False)
