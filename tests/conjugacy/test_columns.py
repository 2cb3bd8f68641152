"""Columns as they come, and what programs compute of them and of their constants before a site sees them."""

import jax
import jax.numpy as jnp
import numpy as np
import numpyro
import numpyro.distributions as dist
import pytest
from conjugate import Case, conditionals_of
from scipy import stats

import langevin as lv
from langevin.run.seeds import Seed

RNG = np.random.default_rng(20261119)
X = RNG.normal(size=60)


def computed(x):
    """Columns that a program makes of one."""
    return [2 * x - 1, (x > 0.5) * 1.0, jnp.maximum(x, 0), jnp.where(x < 0, x, 0.5) ** 2, x * jnp.asarray(0.3)]


def transformed(x, y):
    table = jnp.stack(computed(x), -1)
    w = numpyro.sample("w", dist.Normal(0.0, 2.0).expand([5]).to_event(1))
    with numpyro.plate("rows", len(y)):
        numpyro.sample("y", dist.Normal(table @ w, 0.5), obs=y)


def test_arithmetic_with_columns():
    y = np.sin(X) + 0.5 * RNG.normal(size=60)
    fit = lv.fit(transformed, {"x": X, "y": y}, "cavi", num_draws=10, progress=False)
    table = np.stack([np.asarray(column) for column in computed(X)], -1)
    precision = table.T @ table / 0.25 + np.eye(5) / 4
    np.testing.assert_allclose(
        fit.data_tree["parameters"]["w.loc"], np.linalg.solve(precision, table.T @ y / 0.25), rtol=1e-4
    )


def arms(n, y):
    with numpyro.plate("arms", 2):
        p = numpyro.sample("p", dist.Beta(1.0, 1.0))
        numpyro.sample("y", dist.Binomial(n, p), obs=y)


@pytest.mark.parametrize("closed", [False, True])
def test_large_counts_in_constants(closed):
    """Of whole numbers JAX computes the log-gamma function in single precision."""
    n, y = np.array([50_000, 48_000]), np.array([6_000, 6_500])

    def over_arrays():
        arms(jnp.asarray(n, jnp.int32), jnp.asarray(y, jnp.int32))

    case = Case(over_arrays) if closed else Case(arms, None, {"n": n, "y": y})
    fit = lv.fit(case.model, None, "cavi", constants=case.constants, num_draws=10, progress=False)
    parameters = fit.data_tree["parameters"]
    np.testing.assert_allclose(parameters["p.concentration1"], y + 1.0)
    np.testing.assert_allclose(parameters["p.concentration0"], n - y + 1.0)
    exact = stats.betabinom.logpmf(y, n, 1, 1).sum()
    np.testing.assert_allclose(fit.elbo[..., -1], exact, atol=1e-6)


def test_constants_of_densities_count():
    """What is the same at all points is checked too."""
    conditionals = conditionals_of(Case(arms, None, {"n": np.array([30, 40]), "y": np.array([3, 4])}))

    class Shifted:
        def __getattr__(self, name):
            return getattr(conditionals, name)

        def at(self, *arguments):
            equations = conditionals.at(*arguments)
            log_joint = equations.log_joint
            equations.log_joint = lambda statistics: log_joint(statistics) + 0.5
            return equations

    with jax.enable_x64(True), pytest.raises(lv.ModelError, match="read off"):
        type(conditionals).check(Shifted(), Seed.of(0), conditionals.joint.rows)
