"""Weights made by breaking a stick (Blei and Jordan 2006), and products where they cannot be read."""

import jax
import jax.numpy as jnp
import numpy as np
import numpyro
import numpyro.distributions as dist
import pytest
from conjugate import Case, conditionals_of, log_joints, random_values

import langevin as lv
from langevin.run.seeds import Seed

X = np.random.default_rng(8).normal(size=12)


def padded(v):
    """As in NumPyro's and Pyro's examples."""
    rest = (1 - v).cumprod(-1)
    return jnp.pad(v, (0, 1), constant_values=1) * jnp.pad(rest, (1, 0), constant_values=1)


def put_together(v):
    rest = jnp.concatenate([jnp.ones(1), jnp.cumprod(1 - v)])
    return rest * jnp.concatenate([v, jnp.ones(1)])


def one_by_one(v):
    parts = [v[k] * jnp.prod(1 - v[:k]) for k in range(4)]
    return jnp.stack([*parts, jnp.prod(1 - v)])


def program(weights):
    def sticks(x):
        alpha = numpyro.sample("alpha", dist.Gamma(2.0, 1.0))
        with numpyro.plate("sticks", 4):
            v = numpyro.sample("v", dist.Beta(1.0, alpha))
        with numpyro.plate("clusters", 5):
            m = numpyro.sample("m", dist.Normal(0.0, 3.0))
        with numpyro.plate("rows", len(x)):
            z = numpyro.sample("z", dist.Categorical(weights(v)))
            numpyro.sample("x", dist.Normal(m[z], 1.0), obs=x)

    return sticks


@pytest.mark.parametrize("weights", [padded, put_together, one_by_one])
def test_log_joint_is_that_of_numpyro(weights):
    case = Case(program(weights), {"x": X})
    with jax.enable_x64(True):
        conditionals = conditionals_of(case)
        conditionals.check(Seed.of(0), conditionals.joint.rows)
        ours, theirs = log_joints(case, conditionals, random_values(conditionals, 1))
    np.testing.assert_allclose(ours, theirs, rtol=1e-9)


def test_conditionals_are_those_by_hand():
    conditionals = conditionals_of(Case(program(padded), {"x": X}))
    values = random_values(conditionals, 2)
    with jax.enable_x64(True):
        equations = conditionals.at(conditionals.joint.rows)
        statistics = conditionals.statistics(values)
        alpha, v = (
            conditionals._block(name).family.described(equations.natural(name, statistics)) for name in ("alpha", "v")
        )
    np.testing.assert_allclose(alpha["concentration"], 2 + 4)
    np.testing.assert_allclose(alpha["rate"], 1 - np.log1p(-values["v"]).sum(), rtol=1e-6)
    counts = np.bincount(values["z"], minlength=5)
    np.testing.assert_allclose(v["concentration1"], 1 + counts[:-1], rtol=1e-6)
    np.testing.assert_allclose(v["concentration0"], values["alpha"] + counts[::-1].cumsum()[::-1][1:], rtol=1e-6)


def test_products_elsewhere_are_refused():
    def rates(y):
        v = numpyro.sample("v", dist.Beta(1.0, 2.0).expand([3]).to_event(1))
        numpyro.sample("y", dist.Poisson(jnp.cumprod(v)), obs=y)

    with pytest.raises(lv.ModelError, match="'v' is not conditionally conjugate.*cumulative product"):
        conditionals_of(Case(rates, None, {"y": np.array([1, 2, 3])}))
