"""Where a posterior is and what shape it has: on all rows and on few, with many coordinates, and in which centring."""

from contextlib import nullcontext

import jax
import jax.numpy as jnp
import numpy as np
import numpyro
import numpyro.distributions as dist
import pytest

import langevin as lv
from langevin.data.batches import Batches
from langevin.data.table import as_table
from langevin.geometry import evaluating
from langevin.geometry.finding import Finder
from langevin.geometry.starts import flattened
from langevin.models.program import Program
from langevin.run.checkpoint import decode, encode
from langevin.run.compilation import Programs
from langevin.run.seeds import Seed

GROUPS = 200


def groups(num_rows=8000, seed=0):
    """Groups of very unequal size."""
    rng = np.random.default_rng(seed)
    shares = rng.pareto(1.0, GROUPS) + 0.05
    g = rng.choice(GROUPS, num_rows, p=shares / shares.sum()).astype(np.int32)
    effects = 1.0 + 0.7 * rng.normal(size=GROUPS)
    return {"g": g, "y": (effects[g] + rng.normal(size=num_rows)).astype(np.float32)}


def intercepts(g, y):
    mu = numpyro.sample("mu", dist.Normal(0, 5))
    tau = numpyro.sample("tau", dist.HalfNormal(2))
    with numpyro.plate("groups", GROUPS):
        a = numpyro.sample("a", dist.Normal(mu, tau))
    with numpyro.plate("rows", len(y)):
        numpyro.sample("y", dist.Normal(a[g], 1), obs=y)


def reference(data):
    """Mean and sd of mu, tau and the effects, on a grid of tau, in closed form given it."""
    counts = np.bincount(data["g"], minlength=GROUPS)
    sums = np.bincount(data["g"], data["y"], minlength=GROUPS)
    taus = np.linspace(0.3, 1.3, 401)
    weights, mus, mu_sds, effects, squares = [], [], [], [], []
    for tau in taus:
        # y-bar_j ~ N(mu, tau^2 + 1 / n_j) for groups with rows.
        some = counts > 0
        variance = tau**2 + 1 / counts[some]
        means = sums[some] / counts[some]
        precision = np.sum(1 / variance) + 1 / 25
        mu = np.sum(means / variance) / precision
        log_weight = -0.5 * np.sum(np.log(variance) + (means - mu) ** 2 / variance) - mu**2 / 50 - tau**2 / 8
        weights.append(log_weight - 0.5 * np.log(precision))
        shrink = (counts * tau**2) / (counts * tau**2 + 1)
        bar = np.where(some, sums / np.maximum(counts, 1), 0.0)
        mean = shrink * bar + (1 - shrink) * mu
        effects.append(mean)
        squares.append(mean**2 + tau**2 * (1 - shrink) + (1 - shrink) ** 2 / precision)
        mus.append(mu)
        mu_sds.append(1 / precision)
    w = np.exp(np.array(weights) - max(weights))
    w /= w.sum()
    mu, tau, a = w @ np.array(mus), w @ taus, w @ np.array(effects)
    return {
        "mu": (mu, np.sqrt(w @ (np.array(mu_sds) + np.array(mus) ** 2) - mu**2)),
        "tau": (tau, np.sqrt(w @ taus**2 - tau**2)),
        "a": (a, np.sqrt(w @ np.array(squares) - a**2)),
    }


def finder_of(program, data, batch_size=None, **settings):
    target = Program(program, noncentred="auto").posterior(as_table(data), minibatch=batch_size is not None)
    batches = None if batch_size is None else Batches(batch_size, order="slices")
    if batches is not None:
        columns = {name: np.asarray(column) for name, column in target.data.items()}
        target = target.with_data(batches.lay_out(columns, target.num_data, [0]))
    example = jax.tree.map(np.asarray, target.start(np.random.default_rng(0)))
    finder = Finder(target, example, batches, Programs(lambda: None), Seed.of(0), **settings)
    starts = np.stack([flattened(target.start(np.random.default_rng(seed))) for seed in range(4)])
    return finder, finder.begin(starts)


def to_the_end(finder, state, limit=2**30, stored=False):
    while finder.found(state) is None:
        state, *_ = finder.advance(decode(encode(state)) if stored else state, limit)
    return finder.found(state)


def test_parts_of_the_rows_add_up():
    data = {"x": np.random.default_rng(0).normal(size=(103, 3)), "y": np.arange(103) % 2}

    def model(x, y):
        w = numpyro.sample("w", dist.Normal(0, 1).expand([3]).to_event(1))
        with numpyro.plate("rows", len(y)):
            numpyro.sample("y", dist.Bernoulli(logits=x @ w), obs=y)

    target = Program(model).posterior(as_table(data), minibatch=True)
    example, points = {"w": np.zeros(3, np.float32)}, np.array([[0.1, 0.2, 0.3], [1.0, -1.0, 0.0]], np.float32)
    whole = evaluating.summed(evaluating.slopes(evaluating.Parts(2, None, 2), target, points, example, None))
    parts = evaluating.summed(evaluating.slopes(evaluating.Parts(2, 20, 2), target, points, example, None))
    for one, other in zip(whole, parts, strict=True):
        np.testing.assert_allclose(one, other, rtol=1e-5)
    value, gradient, curvature = evaluating.summed(evaluating.curvatures(20, target, points, example, None))
    np.testing.assert_allclose(value, whole[0], rtol=1e-5)
    np.testing.assert_allclose(gradient, whole[1], rtol=1e-5)
    hessian = jax.vmap(jax.hessian(lambda x: target.log_density({"w": x})))(jnp.asarray(points))
    np.testing.assert_allclose(curvature, -hessian, rtol=1e-4)
    vectors = np.array([[1.0, 0.0, 2.0], [0.5, -1.0, 0.0]], np.float32)
    for num_rows in (None, 20):
        static = evaluating.Products(2, 2, num_rows)
        seen, products = evaluating.products(static, target, points, vectors, example)
        for one, other in zip(whole, evaluating.summed(seen), strict=True):
            np.testing.assert_allclose(one, other, rtol=1e-5)
        np.testing.assert_allclose(products, vectors @ np.mean(hessian, axis=0), rtol=1e-4, atol=1e-4)


def test_many_coordinates_by_minibatches():
    """Groups of 1 to 2,000 rows: small ones stay non-centred, large ones are centred; q is where the posterior is."""
    data = groups()
    finder, state = finder_of(intercepts, data, 200)
    found = to_the_end(finder, state)
    counts, centring = np.bincount(data["g"], minlength=GROUPS), found.centring["a"]
    assert (centring[counts == 0] == 0).all()
    assert (centring[counts > 50] > 0.9).all()
    expected = reference(data)
    mu, tau = found.centre[GROUPS], np.exp(found.centre[GROUPS + 1])
    assert abs(mu - expected["mu"][0]) < 0.2 * expected["mu"][1]
    assert abs(tau - expected["tau"][0]) < 0.5 * expected["tau"][1]
    assert found.error < 0.1


def test_a_search_that_is_cut_is_the_same():
    finder, state = finder_of(intercepts, groups(4000), 200)
    whole, cut = to_the_end(finder, state), to_the_end(finder, state, 77, stored=True)
    assert whole.groups is not None
    jax.tree.map(np.testing.assert_array_equal, whole, cut)


@pytest.mark.slow
@pytest.mark.parametrize("method", ["sghmc", "sgld", "vi"])
def test_group_effects_by_minibatches(method):
    """The group scale collapsed to zero, with an effective size of 4, before there was one geometry."""
    data = groups()
    fit = lv.fit(intercepts, data, method, batch_size=200, progress=False)
    for name, (mean, sd) in reference(data).items():
        draws = fit.posterior[name].values.reshape(-1, *np.shape(mean))
        assert np.max(np.abs(draws.mean(axis=0) - mean) / sd) < 0.3
        ratio = draws.std(axis=0) / sd
        assert np.min(ratio) > 0.8
        assert np.max(ratio) < 1.25
    assert fit.verdict.word == "trustworthy"


@pytest.mark.parametrize("method", ["sgld", "sghmc"])
def test_eight_schools_as_they_are_written(method):
    """Centred, on all rows: every chain blew up before its first draw. Reference: long runs of NUTS, non-centred."""
    y = np.array([28.0, 8, -3, 7, -1, 1, 18, 12])
    s = np.array([15.0, 10, 16, 11, 9, 11, 10, 18])

    def schools(y, s):
        mu = numpyro.sample("mu", dist.Normal(0, 5))
        tau = numpyro.sample("tau", dist.HalfCauchy(5))
        with numpyro.plate("schools", 8):
            theta = numpyro.sample("theta", dist.Normal(mu, tau))
            numpyro.sample("y", dist.Normal(theta, s), obs=y)

    fit = lv.fit(schools, {"y": y, "s": s}, method, progress=False)
    assert float(fit.posterior["mu"].mean()) == pytest.approx(4.4, abs=0.5)
    assert float(fit.posterior["tau"].mean()) == pytest.approx(3.6, abs=0.5)
    assert float(fit.posterior["tau"].std()) == pytest.approx(3.2, abs=0.6)
    assert fit.verdict.word != "wrong"


@pytest.mark.parametrize("family", ["fullrank", "meanfield"])
def test_vi_in_raw_columns(family):
    """A year, a height and dollars: VI was not settled, and far off."""
    rng = np.random.default_rng(0)
    x = np.stack([np.ones(200), rng.uniform(1952, 2013, 200), rng.normal(170, 10, 200)], axis=1)
    y = x @ np.array([-50000.0, 30.0, 150.0]) + rng.normal(size=200) * 2000

    def model(x, y):
        w = numpyro.sample("w", dist.Normal(0, jnp.array([1e5, 1e3, 1e3])).to_event(1))
        with numpyro.plate("rows", len(y)):
            numpyro.sample("y", dist.Normal(x @ w, 2000.0), obs=y)

    precision = x.T @ x / 2000**2 + np.diag([1e-10, 1e-6, 1e-6])
    mean = np.linalg.solve(precision, x.T @ y / 2000**2)
    sds = np.sqrt(np.diag(np.linalg.inv(precision)))
    widths = sds if family == "fullrank" else 1 / np.sqrt(np.diag(precision))
    with pytest.warns(lv.LangevinWarning) if family == "meanfield" else nullcontext():
        fit = lv.fit(model, {"x": x, "y": y}, lv.VI(family), progress=False)
    draws = fit.posterior["w"].values.reshape(-1, 3)
    assert np.abs((draws.mean(axis=0) - mean) / sds).max() < 0.2
    np.testing.assert_allclose(draws.std(axis=0), widths, rtol=0.1)


def test_starts_where_every_row_is_certain():
    """Columns of thousands: at random starts the logits are too, and the likelihood has no curvature."""
    rng = np.random.default_rng(0)
    x = rng.normal([3000.0, 200.0], [300.0, 100.0], size=(4000, 2))
    y = rng.random(4000) < 1 / (1 + np.exp(-(x @ np.array([0.002, -0.01]) - 4.0)))

    def model(x, y):
        b = numpyro.sample("b", dist.Normal(0, 10))
        w = numpyro.sample("w", dist.Normal(0, 1).expand([2]).to_event(1))
        with numpyro.plate("rows", len(y)):
            numpyro.sample("y", dist.Bernoulli(logits=b + x @ w), obs=y)

    whole, mode = np.concatenate([np.ones((4000, 1)), x], axis=1), np.zeros(3)
    for _ in range(30):
        p = 1 / (1 + np.exp(-whole @ mode))
        precision = (whole * (p * (1 - p))[:, None]).T @ whole + np.diag([0.01, 1, 1])
        mode = mode + np.linalg.solve(precision, whole.T @ (y - p) - np.array([0.01, 1, 1]) * mode)
    sds = np.sqrt(np.diag(np.linalg.inv(precision)))
    fit = lv.fit(model, {"x": x, "y": y}, lv.VI("fullrank"), batch_size=500, progress=False)
    draws = np.concatenate([fit.posterior["b"].values[..., None], fit.posterior["w"].values], axis=2).reshape(-1, 3)
    assert np.abs((draws.mean(axis=0) - mode) / sds).max() < 0.15
    np.testing.assert_allclose(draws.std(axis=0), sds, rtol=0.1)
