"""The posteriors that the samplers are compared on: NumPyro programs with their data.

Only NumPy is imported here, and a program imports NumPyro when it runs: environments without JAX share the data.
"""

from __future__ import annotations

import dataclasses
import functools
import math
from collections.abc import Callable
from pathlib import Path

import numpy as np

Arrays = dict[str, np.ndarray]
FIRST_DAY, LAST_DAY = "2008-05-01", "2018-12-31"


@dataclasses.dataclass(frozen=True, eq=False)
class Problem:
    """A NumPyro program, what it is called with, and what is reported of it.

    Args:
        name: Of the problem.
        model: The program.
        make: Makes the rows (None if there are none) and the constants; called when they are first needed.
        reported: The sites whose coordinates are judged. None of these coordinates is constant.
        peer: The same posterior in the form that other samplers do best with; None for the program itself.
        peer_start: Takes the arguments; makes values of the peer's sites near which the others start, where from a
            random start they would not arrive in the time of a run. We start at random.
    """

    name: str
    model: Callable[..., None]
    make: Callable[[], tuple[Arrays | None, Arrays]]
    reported: tuple[str, ...]
    peer: Callable[..., None] | None = None
    peer_start: Callable[..., Arrays] | None = None

    @property
    def for_peers(self) -> Callable[..., None]:
        """The program that the other samplers get."""
        return self.peer or self.model

    @functools.cached_property
    def _made(self) -> tuple[Arrays | None, Arrays]:
        return self.make()

    @property
    def data(self) -> Arrays | None:
        """The rows: arrays with the same leading axis."""
        return self._made[0]

    @property
    def constants(self) -> Arrays:
        """Arguments that are not rows."""
        return self._made[1]

    @property
    def arguments(self) -> Arrays:
        """Rows and constants: the keywords of the program."""
        return {**(self.data or {}), **self.constants}

    @property
    def start(self) -> Arrays:
        """Where peers start; empty for their own way."""
        return self.peer_start(**self.arguments) if self.peer_start else {}

    def save(self, path: Path) -> None:
        """Writes the arguments to an .npz file."""
        rows = {f"rows {name}": value for name, value in (self.data or {}).items()}
        np.savez(path, **rows, **{f"constant {name}": value for name, value in self.constants.items()})

    def saved(self, path: Path) -> Problem:
        """This problem with the arguments in a file, so that nothing need be imported to make them."""
        found: dict[str, Arrays] = {"rows": {}, "constant": {}}
        with np.load(path) as file:
            for label in file.files:
                kind, name = label.split(" ", 1)
                found[kind][name] = file[label]
        return dataclasses.replace(self, make=lambda: (found["rows"] or None, found["constant"]))


def gaussian_data(size: int = 100, correlation: float = 0.9) -> tuple[None, Arrays]:
    """Mean and Cholesky factor of a Gaussian: correlations 0.9^|i - j|, sds spread evenly in log over 0.1..10."""
    rng = np.random.default_rng(0)
    sds = rng.permutation(np.logspace(-1, 1, size))
    mean = sds * rng.normal(size=size)
    lags = np.abs(np.subtract.outer(np.arange(size), np.arange(size)))
    return None, {"mean": mean, "scale_tril": sds[:, None] * np.linalg.cholesky(correlation**lags)}


def gaussian(mean, scale_tril):
    """A Gaussian in 100 dimensions, correlated and badly scaled."""
    import numpyro
    from numpyro import distributions as dist

    numpyro.sample("x", dist.MultivariateNormal(mean, scale_tril=scale_tril))


def eight_schools_data() -> tuple[Arrays, Arrays]:
    """The effects of coaching in eight schools, and their standard errors (Rubin 1981)."""
    y = np.array([28.0, 8.0, -3.0, 7.0, -1.0, 1.0, 18.0, 12.0])
    return {"y": y, "sigma": np.array([15.0, 10.0, 16.0, 11.0, 9.0, 11.0, 10.0, 18.0])}, {}


def eight_schools_centred(y, sigma):
    """Eight schools, each effect drawn around the mean: a funnel."""
    import numpyro
    from numpyro import distributions as dist

    mu = numpyro.sample("mu", dist.Normal(0, 5))
    tau = numpyro.sample("tau", dist.HalfCauchy(5))
    with numpyro.plate("rows", y.shape[0]):
        theta = numpyro.sample("theta", dist.Normal(mu, tau))
        numpyro.sample("y", dist.Normal(theta, sigma), obs=y)


def eight_schools_noncentred(y, sigma):
    """Eight schools, each effect in units of their spread."""
    import numpyro
    from numpyro import distributions as dist

    mu = numpyro.sample("mu", dist.Normal(0, 5))
    tau = numpyro.sample("tau", dist.HalfCauchy(5))
    with numpyro.plate("rows", y.shape[0]):
        z = numpyro.sample("z", dist.Normal(0, 1))
        theta = numpyro.deterministic("theta", mu + tau * z)
        numpyro.sample("y", dist.Normal(theta, sigma), obs=y)


def funnel():
    """Neal's funnel in ten dimensions (Neal 2003)."""
    import jax.numpy as jnp
    import numpyro
    from numpyro import distributions as dist

    v = numpyro.sample("v", dist.Normal(0, 3))
    numpyro.sample("x", dist.Normal(0, jnp.exp(v / 2)).expand([9]).to_event(1))


def logistic_data(num_rows: int = 1000, num_columns: int = 25) -> tuple[Arrays, Arrays]:
    """Standard normal columns, and labels from a logistic model."""
    rng = np.random.default_rng(0)
    x = rng.normal(size=(num_rows, num_columns))
    logits = 0.5 + x @ rng.normal(size=num_columns) / np.sqrt(num_columns)
    return {"x": x, "y": (rng.random(num_rows) < 1 / (1 + np.exp(-logits))).astype(np.int32)}, {}


def logistic(x, y):
    """Logistic regression with an intercept and standard normal priors."""
    import numpyro
    from numpyro import distributions as dist

    a = numpyro.sample("a", dist.Normal(0, 1))
    w = numpyro.sample("w", dist.Normal(0, 1).expand([x.shape[-1]]).to_event(1))
    with numpyro.plate("rows", x.shape[0]):
        numpyro.sample("y", dist.Bernoulli(logits=a + x @ w), obs=y)


def horseshoe_data(num_rows: int = 100, num_columns: int = 20) -> tuple[Arrays, Arrays]:
    """A regression in which 4 of 20 columns matter."""
    rng = np.random.default_rng(0)
    x = rng.normal(size=(num_rows, num_columns))
    beta = np.zeros(num_columns)
    beta[:4] = 2.0, -1.5, 1.0, 0.5
    return {"x": x, "y": x @ beta + rng.normal(size=num_rows)}, {}


def horseshoe(x, y):
    """Linear regression with a horseshoe prior, non-centred (Carvalho et al. 2009).

    The local scales are not reported: their posterior has a mean but no variance.
    """
    import numpyro
    from numpyro import distributions as dist

    tau = numpyro.sample("tau", dist.HalfCauchy(1))
    local = numpyro.sample("local", dist.HalfCauchy(1).expand([x.shape[-1]]).to_event(1))
    z = numpyro.sample("z", dist.Normal(0, 1).expand([x.shape[-1]]).to_event(1))
    beta = numpyro.deterministic("beta", z * local * tau)
    sigma = numpyro.sample("sigma", dist.HalfNormal(1))
    with numpyro.plate("rows", x.shape[0]):
        numpyro.sample("y", dist.Normal(x @ beta, sigma), obs=y)


def dirichlet_lkj_data(num_rows: int = 200) -> tuple[Arrays, Arrays]:
    """Rows of four correlated columns, and counts in five categories."""
    rng = np.random.default_rng(0)
    scales = np.array([0.5, 1.0, 2.0, 4.0])
    correlation = 0.7 ** np.abs(np.subtract.outer(np.arange(4), np.arange(4)))
    factor = scales[:, None] * np.linalg.cholesky(correlation)
    y = np.array([0.0, 1.0, -1.0, 3.0]) + rng.normal(size=(num_rows, 4)) @ factor.T
    counts = rng.multinomial(100, [0.4, 0.3, 0.15, 0.1, 0.05])
    return {"y": y}, {"counts": counts}


def dirichlet_lkj(y, counts):
    """Means, scales and correlations of a Gaussian, and the weights of a multinomial: simplex and Cholesky factor.

    The correlations are reported as a vector: those below the diagonal, row by row.
    """
    import jax.numpy as jnp
    import numpyro
    from numpyro import distributions as dist

    size = y.shape[-1]
    mu = numpyro.sample("mu", dist.Normal(0, 5).expand([size]).to_event(1))
    scale = numpyro.sample("scale", dist.HalfNormal(5).expand([size]).to_event(1))
    factor = numpyro.sample("factor", dist.LKJCholesky(size, concentration=2.0))
    numpyro.deterministic("rho", (factor @ factor.T)[jnp.tril_indices(size, -1)])
    weights = numpyro.sample("weights", dist.Dirichlet(jnp.ones(len(counts))))
    numpyro.sample("counts", dist.Multinomial(int(np.sum(counts)), probs=weights), obs=counts)
    with numpyro.plate("rows", y.shape[0]):
        numpyro.sample("y", dist.MultivariateNormal(mu, scale_tril=scale[:, None] * factor), obs=y)


def mixture_data(num_rows: int = 100) -> tuple[Arrays, Arrays]:
    """The rows of Keng (2023), from NumPy's legacy generator at seed 3."""
    generator = np.random.RandomState(3)
    first = generator.rand(num_rows) >= 0.5
    return {"x": np.where(first, generator.normal(0, 1.6, num_rows), generator.normal(1, 1.6, num_rows))}, {}


def mixture(x):
    """A Gaussian mixture with tied means and two modes (Welling & Teh 2011)."""
    import jax.numpy as jnp
    import numpyro
    from numpyro import distributions as dist

    t1 = numpyro.sample("t1", dist.Normal(0, math.sqrt(10)))
    t2 = numpyro.sample("t2", dist.Normal(0, 1))
    parts = dist.Normal(jnp.stack([t1, t1 + t2]), math.sqrt(2))
    with numpyro.plate("rows", x.shape[0]):
        numpyro.sample("x", dist.MixtureSameFamily(dist.Categorical(probs=jnp.full(2, 0.5)), parts), obs=x)


def stochastic_volatility_data() -> tuple[Arrays, Arrays]:
    """The 2,686 daily log-returns of the S&P 500 from May 2008 to December 2018."""
    from arch.data import sp500

    prices = sp500.load()["Adj Close"]
    returns = np.log(prices).diff()[FIRST_DAY:LAST_DAY]
    return {"returns": returns.to_numpy()}, {}


def stochastic_volatility(returns):
    """The log-volatility of daily returns as a random walk (Hoffman & Gelman 2014)."""
    import jax.numpy as jnp
    import numpyro
    from numpyro import distributions as dist

    num_rows = returns.shape[0]
    sigma = numpyro.sample("sigma", dist.Exponential(10))
    nu = numpyro.sample("nu", dist.Exponential(0.1))
    start = numpyro.sample("s_0", dist.Normal(0, 10))
    walk = numpyro.sample("walk", dist.GaussianRandomWalk(sigma, num_steps=num_rows - 1))
    s = numpyro.deterministic("s", jnp.concatenate([start[None], start + walk]))
    with numpyro.plate("rows", num_rows):
        numpyro.sample("returns", dist.StudentT(nu, 0, jnp.exp(s)), obs=returns)


def stochastic_volatility_centred(returns):
    """The same posterior with the path itself as the unknown: on it the others are faster."""
    import jax.numpy as jnp
    import numpyro
    from numpyro import distributions as dist

    num_rows = returns.shape[0]
    sigma = numpyro.sample("sigma", dist.Exponential(10))
    nu = numpyro.sample("nu", dist.Exponential(0.1))
    drift = lambda x, _: (jnp.zeros_like(x), sigma)  # noqa: E731
    s = numpyro.sample("s", dist.EulerMaruyama(jnp.arange(float(num_rows)), drift, dist.Normal(0, 10)))
    with numpyro.plate("rows", num_rows):
        numpyro.sample("returns", dist.StudentT(nu, 0, jnp.exp(s)), obs=returns)


def stochastic_volatility_start(returns) -> Arrays:
    """The logarithm of the volatility over 41 days, and scales as they are commonly found."""
    squares = np.convolve(np.pad(returns**2, 20, mode="edge"), np.ones(41) / 41, "valid")
    return {"sigma": np.asarray(0.1), "nu": np.asarray(10.0), "s": np.log(np.sqrt(squares) + 1e-4) - 0.1}


SCHOOLS = ("mu", "tau", "theta")
PROBLEMS = {
    problem.name: problem
    for problem in (
        Problem("gaussian", gaussian, gaussian_data, ("x",)),
        Problem("eight_schools_centred", eight_schools_centred, eight_schools_data, SCHOOLS),
        Problem("eight_schools_noncentred", eight_schools_noncentred, eight_schools_data, SCHOOLS),
        Problem("funnel", funnel, lambda: (None, {}), ("v", "x")),
        Problem("logistic", logistic, logistic_data, ("a", "w")),
        Problem("horseshoe", horseshoe, horseshoe_data, ("tau", "sigma", "beta")),
        Problem("dirichlet_lkj", dirichlet_lkj, dirichlet_lkj_data, ("mu", "scale", "rho", "weights")),
        Problem("mixture", mixture, mixture_data, ("t1", "t2")),
        Problem(
            "stochastic_volatility",
            stochastic_volatility,
            stochastic_volatility_data,
            ("sigma", "nu", "s"),
            peer=stochastic_volatility_centred,
            peer_start=stochastic_volatility_start,
        ),
    )
}
