"""Programs that are not conditionally conjugate: the error names the site, the term that breaks it, and a remedy."""

import jax
import jax.numpy as jnp
import numpy as np
import numpyro
import numpyro.distributions as dist
import pytest
from conjugate import Case, conditionals_of
from numpyro.contrib.control_flow import scan

import langevin as lv

RNG = np.random.default_rng(8)
X = RNG.normal(size=(12, 2))
Y = X @ [1.0, -0.5] + RNG.normal(size=12)
BINARY = (Y > 0).astype(int)
COUNTS = RNG.poisson(3, size=12)
ROWS = {"x": X, "y": Y}


def slopes():
    return numpyro.sample("w", dist.Normal(0.0, 1.0).expand([2]).to_event(1))


def observe(distribution, y):
    with numpyro.plate("rows", len(y)):
        numpyro.sample("y", distribution, obs=y)


def logistic(x, y):
    observe(dist.Bernoulli(logits=x @ slopes()), y)


def probit(x, y):
    observe(dist.Bernoulli(jax.scipy.stats.norm.cdf(x @ slopes())), y)


def half_normal_scale(x, y):
    sigma = numpyro.sample("sigma", dist.HalfNormal(2.0))
    observe(dist.Normal(x @ slopes(), sigma), y)


def half_cauchy_scale(x, y):
    sigma = numpyro.sample("sigma", dist.HalfCauchy(2.0))
    observe(dist.Normal(x @ slopes(), sigma), y)


def uniform_scale(x, y):
    sigma = numpyro.sample("sigma", dist.Uniform(0.0, 10.0))
    observe(dist.Normal(x @ slopes(), sigma), y)


def log_normal_scale(x, y):
    sigma = numpyro.sample("sigma", dist.LogNormal(0.0, 1.0))
    observe(dist.Normal(x @ slopes(), sigma), y)


def student(y):
    df = numpyro.sample("df", dist.Gamma(2.0, 0.1))
    observe(dist.StudentT(df, 0.0, 1.0), y)


def gamma_shape(y):
    shape = numpyro.sample("shape", dist.Gamma(2.0, 1.0))
    observe(dist.Gamma(shape, 1.0), jnp.abs(y))


def beta_concentration(y):
    a = numpyro.sample("a", dist.Gamma(2.0, 1.0))
    observe(dist.Beta(a, 2.0), jax.nn.sigmoid(y))


def dirichlet_concentration(y):
    a = numpyro.sample("a", dist.Gamma(2.0, 1.0))
    p = numpyro.sample("p", dist.Dirichlet(a * jnp.ones(3)))
    observe(dist.Categorical(p), y)


def log_linear(x, y):
    observe(dist.Poisson(jnp.exp(x @ slopes())), y)


def lasso(x, y):
    w = numpyro.sample("w", dist.Laplace(0.0, 1.0).expand([2]).to_event(1))
    observe(dist.Normal(x @ w, 1.0), y)


def horseshoe(x, y):
    tau = numpyro.sample("tau", dist.HalfCauchy(1.0))
    w = numpyro.sample("w", dist.Normal(0.0, tau).expand([2]).to_event(1))
    observe(dist.Normal(x @ w, 1.0), y)


def noncentred(x, y):
    tau = numpyro.sample("tau", dist.Gamma(2.0, 2.0))
    raw = numpyro.sample("raw", dist.Normal(0.0, 1.0).expand([2]).to_event(1))
    observe(dist.Normal(x @ (raw / jnp.sqrt(tau)), 1.0), y)


def correlation(x):
    root = numpyro.sample("root", dist.LKJCholesky(2, 2.0))
    observe(dist.MultivariateNormal(0.0, scale_tril=root), x)


def mixed_away(y):
    p = numpyro.sample("p", dist.Dirichlet(jnp.ones(2)))
    m = numpyro.sample("m", dist.Normal(0.0, 5.0).expand([2]).to_event(1))
    observe(dist.MixtureSameFamily(dist.Categorical(p), dist.Normal(m, 1.0)), y)


def gaussian_process(x, y):
    length = numpyro.sample("length", dist.Gamma(2.0, 1.0))
    kernel = jnp.exp(-((x[:, None, 0] - x[None, :, 0]) ** 2) / length) + 0.1 * jnp.eye(len(y))
    numpyro.sample("y", dist.MultivariateNormal(0.0, kernel), obs=y)


def network(x, y):
    first = numpyro.sample("first", dist.Normal(0.0, 1.0).expand([2, 3]).to_event(2))
    last = numpyro.sample("last", dist.Normal(0.0, 1.0).expand([3]).to_event(1))
    observe(dist.Normal(jnp.tanh(x @ first) @ last, 1.0), y)


def volatility(series):
    def step(before, y):
        h = numpyro.sample("h", dist.Normal(0.9 * before, 0.3))
        numpyro.sample("y", dist.Normal(0.0, jnp.exp(h / 2)), obs=y)
        return h, None

    scan(step, 0.0, series)


def second_order(series):
    def step(before, y):
        h = numpyro.sample("h", dist.Normal(1.5 * before[0] - 0.6 * before[1], 0.3))
        numpyro.sample("y", dist.Normal(h, 1.0), obs=y)
        return (h, before[0]), None

    scan(step, (0.0, 0.0), series)


def parameter(y):
    scale = numpyro.param("scale", 1.0)
    mean = numpyro.sample("mean", dist.Normal(0.0, 1.0))
    observe(dist.Normal(mean, scale), y)


def poisson_latent(y):
    n = numpyro.sample("n", dist.Poisson(3.0))
    observe(dist.Normal(n, 1.0), y)


def quadratic(y):
    x = numpyro.sample("x", dist.Normal(0.0, 1.0))
    observe(dist.Normal(x**2, 1.0), y)


def self_product(y):
    x = numpyro.sample("x", dist.Normal(0.0, 1.0).expand([2]).to_event(1))
    observe(dist.Normal(x[0] * x[1], 1.0), y)


def chosen(y):
    x = numpyro.sample("x", dist.Normal(0.0, 1.0))
    observe(dist.Normal(jnp.where(x > 0, x, 0.1 * x), 1.0), y)


def clipped(y):
    x = numpyro.sample("x", dist.Normal(0.0, 1.0))
    observe(dist.Normal(jnp.clip(x, -1.0, 1.0), 1.0), y)


def sum_of_variances(y):
    a = numpyro.sample("a", dist.InverseGamma(2.0, 1.0))
    b = numpyro.sample("b", dist.InverseGamma(2.0, 1.0))
    observe(dist.Normal(0.0, jnp.sqrt(a + b)), y)


def count_and_variance(y):
    rate = numpyro.sample("rate", dist.Gamma(2.0, 1.0))
    with numpyro.plate("rows", len(y)):
        numpyro.sample("y", dist.Normal(0.0, jnp.sqrt(rate)), obs=y)


def truncated(y):
    x = numpyro.sample("x", dist.TruncatedNormal(0.0, 1.0, low=0.0))
    observe(dist.Normal(x, 1.0), y)


def shares_as_numbers(x, y):
    p = numpyro.sample("p", dist.Dirichlet(jnp.ones(2)))
    observe(dist.Normal(x @ p, 1.0), y)


# The program, its rows, the sites that the error names: the latent one, and the one of the log-density; and a remedy.
REFUSED = [
    (logistic, {"x": X, "y": BINARY}, "w", "y", 'logistic="polya-gamma"'),
    (probit, {"x": X, "y": BINARY}, "w", "y", "lv.Hybrid"),
    (half_normal_scale, ROWS, "sigma", "y", "sigma_precision"),
    (half_cauchy_scale, ROWS, "sigma", "sigma", "lv.Hybrid"),
    (log_normal_scale, ROWS, "sigma", "sigma", "lv.Hybrid"),
    (uniform_scale, ROWS, "sigma", "", "positive interval"),
    (student, {"y": Y}, "df", "y", "lv.Hybrid"),
    (gamma_shape, {"y": Y}, "shape", "y", "lv.Hybrid"),
    (beta_concentration, {"y": Y}, "a", "y", "lv.Hybrid"),
    (dirichlet_concentration, {"y": COUNTS % 3}, "a", "p", "lv.Hybrid"),
    (log_linear, {"x": X, "y": COUNTS}, "w", "y", "lv.Hybrid"),
    (lasso, ROWS, "w", "w", "lv.Hybrid"),
    (horseshoe, ROWS, "tau", "tau", "lv.Hybrid"),
    (noncentred, ROWS, "tau", "y", "lv.Hybrid"),
    (correlation, {"x": X}, "root", "root", "lv.Hybrid"),
    (mixed_away, {"y": Y}, "m", "y", "numpyro.sample"),
    (gaussian_process, ROWS, "length", "y", "lv.Hybrid"),
    (network, ROWS, "first", "y", "lv.Hybrid"),
    (volatility, None, "h", "y", "lv.Hybrid"),
    (quadratic, {"y": Y}, "x", "y", "lv.Hybrid"),
    (self_product, {"y": Y}, "x", "y", "lv.Hybrid"),
    (chosen, {"y": Y}, "x", "y", "lv.Hybrid"),
    (clipped, {"y": Y}, "x", "y", "lv.Hybrid"),
    (sum_of_variances, {"y": Y}, "a", "y", "lv.Hybrid"),
    (count_and_variance, {"y": Y}, "rate", "y", "lv.Hybrid"),
    (truncated, {"y": Y}, "x", "x", "lv.Hybrid"),
    (shares_as_numbers, ROWS, "p", "y", "lv.Hybrid"),
]


def case_of(model, rows):
    return Case(model, rows, {"series": Y} if rows is None else None)


@pytest.mark.parametrize(("model", "rows", "site", "where", "remedy"), REFUSED, ids=[r[0].__name__ for r in REFUSED])
def test_error_names_the_site_the_term_and_a_remedy(model, rows, site, where, remedy):
    with jax.enable_x64(True), pytest.raises(lv.NotConjugateError) as caught:
        conditionals_of(case_of(model, rows))
    message = str(caught.value)
    assert repr(site) in message
    assert repr(where) in message or not where
    assert remedy in message
    assert caught.value.site in message


# What has no conditional at all, or cannot be read: an error of the model, that says what to do.
UNREADABLE = [
    (second_order, None, "one site"),
    (parameter, {"y": Y}, "numpyro.sample"),
    (poisson_latent, {"y": Y}, "finitely many"),
]


@pytest.mark.parametrize(("model", "rows", "remedy"), UNREADABLE, ids=[row[0].__name__ for row in UNREADABLE])
def test_error_of_the_model(model, rows, remedy):
    with jax.enable_x64(True), pytest.raises(lv.ModelError, match=remedy):
        conditionals_of(case_of(model, rows))


@pytest.mark.parametrize("method", ["cavi", "gibbs"])
def test_fit_refuses(method):
    with pytest.raises(lv.NotConjugateError, match="'w' is not conditionally conjugate"):
        lv.fit(logistic, {"x": X, "y": BINARY}, method, progress=False)
