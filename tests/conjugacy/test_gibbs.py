"""Gibbs sampling: draws against exact ones, and conditionals against those derived by hand."""

import types

import jax
import jax.numpy as jnp
import numpy as np
import numpyro
import numpyro.distributions as dist
import pytest
from by_hand import sum_by
from compilation import forget
from conjugate import CASES, Case, conditionals_of, random_values

import langevin as lv
from langevin.conjugacy.families import Gaussian
from langevin.engines import gibbs

# Chains that have the labels of a mixture in another order are not mixed, which is right, and not what is tested here.
pytestmark = pytest.mark.filterwarnings("ignore::langevin.LangevinWarning")

NUM_EXACT, NUM_DRAWS, NUM_BATCHES, MOST_ERRORS = 200_000, 1500, 20, 4.5
SITES = {
    "normal_gamma": ("mu", "gamma"),
    "regression": ("intercept", "slopes", "noise"),
    "separated": ("weights", "means", "precisions"),
    "beta_binomial": ("p",),
    "poisson_gamma": ("scale", "rate"),
}


def separated(x):
    """A mixture of two clusters that no point is between."""
    weights = numpyro.sample("weights", dist.Dirichlet(jnp.full(2, 2.0)))
    with numpyro.plate("clusters", 2):
        means = numpyro.sample("means", dist.Normal(0.0, 10.0))
        precisions = numpyro.sample("precisions", dist.Gamma(2.0, 1.0))
    with numpyro.plate("rows", len(x)):
        z = numpyro.sample("z", dist.Categorical(weights))
        numpyro.sample("x", dist.Normal(means[z], precisions[z] ** -0.5), obs=x)


RNG = np.random.default_rng(4)
CLUSTERS = {"x": np.concatenate([RNG.normal(-6, 1, 12), RNG.normal(6, 0.7, 20)])}
PROGRAMS = {**{name: CASES[name] for name in SITES if name in CASES}, "separated": Case(separated, CLUSTERS)}


def on_grid(rng, log_density):
    """Draws of a positive number with this log-density."""
    grid = np.linspace(-8, 6, 20_001)
    logs = log_density(np.exp(grid)) + grid
    cumulated = np.cumsum(np.exp(logs - logs.max()))
    return np.exp(np.interp(rng.random(NUM_EXACT) * cumulated[-1], cumulated, grid))


def exact_normal(rng, x, sd, concentration, rate):
    """The precision from its marginal density, and the mean given it."""
    count, total = len(x), x.sum()

    def log_density(precision):
        own = (concentration - 1 + count / 2) * np.log(precision) - rate * precision - precision * np.sum(x**2) / 2
        of_mean = sd**-2 + count * precision
        return own - np.log(of_mean) / 2 + (precision * total) ** 2 / of_mean / 2

    precision = on_grid(rng, log_density)
    of_mean = sd**-2 + count * precision
    return precision * total / of_mean + rng.normal(size=NUM_EXACT) / np.sqrt(of_mean), precision


def exact_normal_gamma(rng, x):
    return exact_normal(rng, x, 3.0, 2.0, 1.5)


def exact_regression(rng, x, y):
    design = np.column_stack([np.ones(len(y)), x])
    prior, gram, along = np.diag([1 / 25, 1 / 4, 1 / 4]), design.T @ design, design.T @ y

    def log_density(precision):
        of_weights = prior + precision[:, None, None] * gram
        explained = np.einsum("i,nij,j->n", along, np.linalg.inv(of_weights), along) * precision**2
        own = len(y) / 2 * np.log(precision) - 0.5 * precision - precision * np.sum(y**2) / 2
        return own + explained / 2 - np.linalg.slogdet(of_weights)[1] / 2

    precision = on_grid(rng, log_density)
    covariance = np.linalg.inv(prior + precision[:, None, None] * gram)
    noise = np.einsum("nij,nj->ni", np.linalg.cholesky(covariance), rng.normal(size=(NUM_EXACT, 3)))
    weights = np.einsum("nij,j->ni", covariance, along) * precision[:, None] + noise
    return weights[:, 0], weights[:, 1:], precision


def exact_separated(rng, x):
    parts = [x[x < 0], x[x > 0]]
    weights = rng.dirichlet([2 + len(part) for part in parts], size=NUM_EXACT)
    drawn = [exact_normal(rng, part, 10.0, 2.0, 1.0) for part in parts]
    return weights, *(np.stack(of_both, -1) for of_both in zip(*drawn, strict=True))


def exact_beta_binomial(rng, tried, hits, group):
    ones, tries = sum_by(group, hits, 6), sum_by(group, tried, 6)
    return (rng.beta(2 + ones, 3 + tries - ones, size=(NUM_EXACT, 6)),)


def exact_poisson_gamma(rng, y, group):
    totals, counts = sum_by(group, y, 6), sum_by(group, np.ones(len(y)), 6)

    def log_density(scale):
        each = 3 * np.log(scale)[:, None] - (3 + totals) * np.log(scale[:, None] + counts)
        return np.log(scale) - scale + each.sum(-1)

    scale = on_grid(rng, log_density)
    return scale, rng.gamma(3 + totals, 1 / (scale[:, None] + counts))


EXACT = {
    "normal_gamma": exact_normal_gamma,
    "regression": exact_regression,
    "separated": exact_separated,
    "beta_binomial": exact_beta_binomial,
    "poisson_gamma": exact_poisson_gamma,
}


def drawn(name):
    """Draws by Gibbs sampling, (chain, draw, number)."""
    case = PROGRAMS[name]
    fit = lv.fit(
        case.model,
        case.data,
        "gibbs",
        constants=case.constants,
        num_chains=2,
        num_warmup=100,
        num_draws=NUM_DRAWS,
        seed=1,
        progress=False,
    )
    values = [fit.posterior[site].values.astype(float) for site in SITES[name]]
    if name == "separated":
        order = np.argsort(values[1], -1)
        values = [np.take_along_axis(value, order, -1) for value in values]
    return np.concatenate([value.reshape(*value.shape[:2], -1) for value in values], -1)


def exact(name):
    parts = EXACT[name](np.random.default_rng(0), **PROGRAMS[name].data)
    return np.concatenate([np.reshape(part, (NUM_EXACT, -1)) for part in parts], -1)


def errors_of(draws, known):
    """By how many standard errors means, squares and products of neighbours are off."""
    centre, spread = known.mean(0), known.std(0)

    def moments(values):
        scaled = (values - centre) / spread
        return np.concatenate([scaled, scaled**2, scaled * np.roll(scaled, 1, -1)], -1)

    batches = moments(draws).reshape(2 * NUM_BATCHES, NUM_DRAWS // NUM_BATCHES, -1).mean(1)
    error = np.sqrt(batches.var(0, ddof=1) / len(batches) + moments(known).var(0) / NUM_EXACT)
    return np.abs(batches.mean(0) - moments(known).mean(0)) / error


@pytest.mark.parametrize("name", SITES)
def test_draws_are_those_of_the_posterior(name):
    assert errors_of(drawn(name), exact(name)).max() < MOST_ERRORS


def one_key(monkeypatch):
    """The same key in every sweep."""
    own = jax.random.fold_in
    random = types.SimpleNamespace(fold_in=lambda key, data: own(key, data) if isinstance(data, int) else key)
    replaced = types.SimpleNamespace(**{name: getattr(jax, name) for name in dir(jax) if not name.startswith("_")})
    replaced.random = random
    monkeypatch.setattr(gibbs, "jax", replaced)


def doubled_variance(monkeypatch):
    own = Gaussian.sample

    def sample(self, key, eta):
        mean = self.expected(eta)["x"]
        return mean + np.sqrt(2) * (own(self, key, eta) - mean)

    monkeypatch.setattr(Gaussian, "sample", sample)


@pytest.mark.parametrize("bug", [one_key, doubled_variance])
def test_wrong_draws_are_seen(bug, monkeypatch):
    forget()
    bug(monkeypatch)
    try:
        assert errors_of(drawn("regression"), exact("regression")).max() > 2 * MOST_ERRORS
    finally:
        monkeypatch.undo()
        forget()


def test_conditionals_of_one_sweep():
    """At values of all sites: of the slopes, of the noise given these, and of labels."""
    with jax.enable_x64(True):
        case = CASES["regression"]
        conditionals = conditionals_of(case)
        values = random_values(conditionals, 3)
        x, y = case.data["x"], case.data["y"]
        described = at_values(conditionals, values)
        design = np.column_stack([np.ones(len(y)), x])
        precision = np.diag([1 / 25, 1 / 4, 1 / 4]) + values["noise"] * design.T @ design
        weights = described["intercept+slopes"]
        np.testing.assert_allclose(weights["covariance_matrix"], np.linalg.inv(precision))
        np.testing.assert_allclose(weights["loc"], np.linalg.solve(precision, values["noise"] * design.T @ y))
        residuals = y - values["intercept"] - x @ values["slopes"]
        np.testing.assert_allclose(described["noise"]["concentration"], 1 + len(y) / 2)
        np.testing.assert_allclose(described["noise"]["rate"], 0.5 + np.sum(residuals**2) / 2)

        conditionals = conditionals_of(CASES["mixture"])
        values = random_values(conditionals, 4)
        x = CASES["mixture"].data["x"][:, None]
        squares = values["precisions"] * (x - values["means"]) ** 2
        probs = values["weights"] * np.sqrt(values["precisions"]) * np.exp(-squares / 2)
        described = at_values(conditionals, values)
        np.testing.assert_allclose(described["z"]["probs"], probs / probs.sum(-1, keepdims=True), rtol=1e-9)
        counts = np.bincount(values["z"], minlength=3)
        np.testing.assert_allclose(described["weights"]["concentration"], 2.0 + counts)


def at_values(conditionals, values):
    """The parameters of each block's conditional, given the values of all other sites."""

    def described(values):
        equations, statistics = conditionals.at(conditionals.joint.rows), conditionals.statistics(values)
        blocks = conditionals.blocks
        return {block.name: block.family.described(equations.natural(block.name, statistics)) for block in blocks}

    return jax.jit(described)(values)
