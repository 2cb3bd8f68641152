"""More programs that are conditionally conjugate, of many kinds, with very small data."""

import jax.numpy as jnp
import numpy as np
import numpyro
import numpyro.distributions as dist
from conjugate import CASES, Case
from numpyro.contrib.control_flow import scan

RNG = np.random.default_rng(77)
Y = RNG.normal(size=10)
X = RNG.normal(size=(10, 2))
GROUP = np.array([0, 1, 2, 0, 1, 2, 0, 1, 1, 2])
POSITIVE = dist.Gamma(3.0, 2.0)


def rows(y):
    return numpyro.plate("rows", len(y))


def varying_slopes(x, y, group):
    centre = numpyro.sample("centre", dist.Normal(0.0, 1.0).expand([2]).to_event(1))
    spread = numpyro.sample("spread", dist.Gamma(2.0, 1.0).expand([2]).to_event(1))
    with numpyro.plate("groups", 3):
        w = numpyro.sample("w", dist.Normal(centre, spread**-0.5).to_event(1))
        noise = numpyro.sample("noise", POSITIVE)
    with rows(y):
        numpyro.sample("y", dist.Normal(jnp.sum(w[group] * x, -1), noise[group] ** -0.5), obs=y)


def multivariate_mixture(x):
    p = numpyro.sample("p", dist.Dirichlet(jnp.ones(2)))
    with numpyro.plate("clusters", 2):
        m = numpyro.sample("m", dist.MultivariateNormal(jnp.zeros(2), 4 * jnp.eye(2)))
        precision = numpyro.sample("precision", dist.Wishart(4.0, rate_matrix=jnp.eye(2)))
    with rows(x):
        z = numpyro.sample("z", dist.Categorical(p))
        numpyro.sample("x", dist.MultivariateNormal(m[z], precision_matrix=precision[z]), obs=x)


def factor_analysis(x):
    loadings = numpyro.sample("loadings", dist.Normal(0.0, 1.0).expand([2, 2]).to_event(2))
    noise = numpyro.sample("noise", dist.Gamma(3.0, 2.0).expand([2]).to_event(1))
    with rows(x):
        f = numpyro.sample("f", dist.Normal(0.0, 1.0).expand([2]).to_event(1))
        numpyro.sample("x", dist.Normal(f @ loadings, noise**-0.5).to_event(1), obs=x)


def random_walk(y):
    precision = numpyro.sample("precision", POSITIVE)
    walk = numpyro.sample("walk", dist.GaussianRandomWalk(1 / jnp.sqrt(precision), len(y)))
    with rows(y):
        numpyro.sample("y", dist.Normal(walk, 0.5), obs=y)


def local_level(series):
    moves, errors = (numpyro.sample(name, POSITIVE) for name in ("moves", "errors"))
    drift = numpyro.sample("drift", dist.Normal(0.0, 1.0))

    def step(before, y):
        x = numpyro.sample("x", dist.Normal(before + drift, moves**-0.5))
        numpyro.sample("y", dist.Normal(x, errors**-0.5), obs=y)
        return x, None

    scan(step, 0.0, series)


def chain_of(observe):
    def step(onward, start, before, y):
        z = numpyro.sample("z", dist.Categorical(onward[before]))
        observe(z, y)
        return z, None

    onward = numpyro.sample("onward", dist.Dirichlet(jnp.ones((2, 2))).to_event(1))
    return lambda series: scan(lambda before, y: step(onward, 0, before, y), 0, series)


def categorical_chain(labels):
    shown = numpyro.sample("shown", dist.Dirichlet(jnp.ones((2, 3))).to_event(1))
    chain_of(lambda z, y: numpyro.sample("y", dist.Categorical(shown[z]), obs=y))(labels)


def poisson_chain(counts):
    with numpyro.plate("states", 2):
        rate = numpyro.sample("rate", POSITIVE)

    def observe(z, y):
        with numpyro.plate("inside", 3):
            numpyro.sample("y", dist.Poisson(rate[z]), obs=y)

    chain_of(observe)(counts)


def naive_bayes(seen):
    p = numpyro.sample("p", dist.Dirichlet(jnp.ones(2)))
    chance = numpyro.sample("chance", dist.Beta(1.5, 2.0).expand([2, 4]).to_event(2))
    with rows(seen):
        z = numpyro.sample("z", dist.Categorical(p))
        numpyro.sample("seen", dist.Bernoulli(chance[z]).to_event(1), obs=seen)


def dirichlet_multinomial(counts):
    with rows(counts):
        p = numpyro.sample("p", dist.Dirichlet(jnp.asarray([0.5, 1.0, 2.0])))
        numpyro.sample("counts", dist.Multinomial(probs=p, total_count=6), obs=counts)


def inverse_gamma(y, group):
    between = numpyro.sample("between", dist.InverseGamma(3.0, 2.0))
    within = numpyro.sample("within", dist.InverseGamma(3.0, 2.0))
    with numpyro.plate("groups", 3):
        m = numpyro.sample("m", dist.Normal(0.0, jnp.sqrt(between)))
    with rows(y):
        numpyro.sample("y", dist.Normal(m[group], jnp.sqrt(within)), obs=y)


def standard_deviation(y):
    """A flat prior of a standard deviation: its power -2 has a gamma distribution."""
    m = numpyro.sample("m", dist.Normal(0.0, 1.0))
    sd = numpyro.sample("sd", dist.ImproperUniform(dist.constraints.positive, (), ()))
    with rows(y):
        numpyro.sample("y", dist.Normal(m, sd), obs=y)


def change_point(y):
    early, late = (numpyro.sample(name, POSITIVE) for name in ("early", "late"))
    when = numpyro.sample("when", dist.DiscreteUniform(1, len(y) - 1))
    with rows(y):
        numpyro.sample("y", dist.Poisson(jnp.where(jnp.arange(len(y)) < when, early, late)), obs=y)


def biased_factorisation(y, group):
    scale = numpyro.sample("scale", POSITIVE)
    with numpyro.plate("groups", 3):
        bias = numpyro.sample("bias", dist.Normal(0.0, scale**-0.5))
        u = numpyro.sample("u", dist.Normal(0.0, 1.0).expand([2]).to_event(1))
    v = numpyro.sample("v", dist.Normal(0.0, 1.0).expand([10, 2]).to_event(2))
    with rows(y):
        numpyro.sample("y", dist.Normal(bias[group] + jnp.sum(u[group] * v, -1), 0.5), obs=y)


def exponential_waits(waits):
    rate = numpyro.sample("rate", dist.Exponential(2.0))
    with rows(waits):
        numpyro.sample("waits", dist.Exponential(2 * rate), obs=waits)


LABELS = RNG.integers(3, size=8)
ALL = {
    **{name: CASES[name] for name in ("normal_gamma", "regression", "hidden_markov", "topics")},
    **{
        case.name: case
        for case in (
            Case(varying_slopes, {"x": X, "y": Y, "group": GROUP}),
            Case(multivariate_mixture, {"x": X}),
            Case(factor_analysis, {"x": X}),
            Case(random_walk, {"y": Y}),
            Case(local_level, None, {"series": Y}),
            Case(categorical_chain, None, {"labels": LABELS}),
            Case(poisson_chain, None, {"counts": RNG.poisson(2, size=(6, 3))}),
            Case(naive_bayes, {"seen": RNG.integers(2, size=(8, 4))}),
            Case(dirichlet_multinomial, {"counts": RNG.multinomial(6, [0.2, 0.3, 0.5], size=5)}),
            Case(inverse_gamma, {"y": Y, "group": GROUP}),
            Case(standard_deviation, {"y": Y}),
            Case(change_point, {"y": RNG.poisson(2, size=10)}),
            Case(biased_factorisation, {"y": Y, "group": GROUP}),
            Case(exponential_waits, {"waits": RNG.exponential(size=7)}),
        )
    },
}
