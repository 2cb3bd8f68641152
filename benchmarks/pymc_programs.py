"""The posteriors of programs.py as PyMC models, for peers in an environment without JAX.

Each is written as PyMC's documentation would write it. Only the parametrisation may differ from the NumPyro program,
never the posterior; reported names are the same.
"""

from __future__ import annotations

import math

import numpy as np
import pymc as pm
import pytensor.tensor as pt
from programs import stochastic_volatility_start


def gaussian(mean, scale_tril):
    """A Gaussian in 100 dimensions, correlated and badly scaled."""
    pm.MvNormal("x", mu=mean, chol=scale_tril, shape=len(mean))


def eight_schools_centred(y, sigma):
    """Eight schools, each effect drawn around the mean."""
    mu = pm.Normal("mu", 0, 5)
    tau = pm.HalfCauchy("tau", 5)
    theta = pm.Normal("theta", mu, tau, shape=len(y))
    pm.Normal("y", theta, sigma, observed=y)


def eight_schools_noncentred(y, sigma):
    """Eight schools, each effect in units of their spread."""
    mu = pm.Normal("mu", 0, 5)
    tau = pm.HalfCauchy("tau", 5)
    z = pm.Normal("z", 0, 1, shape=len(y))
    theta = pm.Deterministic("theta", mu + tau * z)
    pm.Normal("y", theta, sigma, observed=y)


def funnel():
    """Neal's funnel in ten dimensions."""
    v = pm.Normal("v", 0, 3)
    pm.Normal("x", 0, pt.exp(v / 2), shape=9)


def logistic(x, y):
    """Logistic regression with an intercept and standard normal priors."""
    a = pm.Normal("a", 0, 1)
    w = pm.Normal("w", 0, 1, shape=x.shape[1])
    pm.Bernoulli("y", logit_p=a + x @ w, observed=y)


def horseshoe(x, y):
    """Linear regression with a horseshoe prior, non-centred."""
    tau = pm.HalfCauchy("tau", 1)
    local = pm.HalfCauchy("local", 1, shape=x.shape[1])
    z = pm.Normal("z", 0, 1, shape=x.shape[1])
    beta = pm.Deterministic("beta", z * local * tau)
    sigma = pm.HalfNormal("sigma", 1)
    pm.Normal("y", x @ beta, sigma, observed=y)


def dirichlet_lkj(y, counts):
    """Means, scales and correlations of a Gaussian, and the weights of a multinomial."""
    size = y.shape[1]
    mu = pm.Normal("mu", 0, 5, shape=size)
    scales = pm.HalfNormal.dist(5, shape=size)
    factor, correlation, scale = pm.LKJCholeskyCov("factor", n=size, eta=2.0, sd_dist=scales, compute_corr=True)
    pm.Deterministic("scale", scale)
    pm.Deterministic("rho", correlation[np.tril_indices(size, -1)])
    weights = pm.Dirichlet("weights", np.ones(len(counts)))
    pm.Multinomial("counts", n=counts.sum(), p=weights, observed=counts)
    pm.MvNormal("y", mu, chol=factor, observed=y)


def mixture(x):
    """A Gaussian mixture with tied means and two modes."""
    t1 = pm.Normal("t1", 0, math.sqrt(10))
    t2 = pm.Normal("t2", 0, 1)
    pm.NormalMixture("x", w=np.full(2, 0.5), mu=pt.stack([t1, t1 + t2]), sigma=math.sqrt(2), observed=x)


def stochastic_volatility(returns):
    """The log-volatility of daily returns as a random walk, from where other samplers start too."""
    start = stochastic_volatility_start(returns)
    sigma = pm.Exponential("sigma", 10, initval=start["sigma"])
    nu = pm.Exponential("nu", 0.1, initval=start["nu"])
    first = pm.Normal.dist(0, 10)
    s = pm.GaussianRandomWalk("s", sigma=sigma, init_dist=first, shape=len(returns), initval=start["s"])
    pm.StudentT("returns", nu=nu, mu=0, sigma=pt.exp(s), observed=returns)


PROGRAMS = {
    program.__name__: program
    for program in (
        gaussian,
        eight_schools_centred,
        eight_schools_noncentred,
        funnel,
        logistic,
        horseshoe,
        dirichlet_lkj,
        mixture,
        stochastic_volatility,
    )
}


def model(name: str, arguments: dict[str, np.ndarray]) -> pm.Model:
    """The PyMC model of a problem on its rows and constants."""
    with pm.Model() as made:
        PROGRAMS[name](**arguments)
    return made
