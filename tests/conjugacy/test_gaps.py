"""Values that are missing, states that cannot be reached, and pairs of labels."""

import jax
import jax.numpy as jnp
import numpy as np
import numpyro
import numpyro.distributions as dist
import pytest
from conjugate import Case, conditionals_of, log_joints, random_values
from numpyro import handlers
from numpyro.contrib.control_flow import scan

import langevin as lv
from langevin.run.seeds import Seed

RNG = np.random.default_rng(4)
Y = np.concatenate([RNG.normal(0, 0.5, 12), RNG.normal(3, 0.5, 12), RNG.normal(-3, 0.5, 6)])
MISSING = np.array([2, 3, 11, 29])
GAPS = np.where(np.isin(np.arange(30), MISSING), np.nan, Y)
ONWARD = np.array([[0.9, 0.1, 0.0], [0.0, 0.9, 0.1], [0.0, 0.0, 1.0]])


def masked_gaps(y):
    m, t = numpyro.sample("m", dist.Normal(0.0, 5.0)), numpyro.sample("t", dist.Gamma(2.0, 1.0))
    with numpyro.plate("rows", len(y)), handlers.mask(mask=~np.isnan(y)):
        numpyro.sample("y", dist.Normal(m, t**-0.5), obs=y)


def filled_in(y):
    """As in NumPyro's example of missing data: the density of what is missing is that of the column."""
    m, t = numpyro.sample("m", dist.Normal(0.0, 5.0)), numpyro.sample("t", dist.Gamma(2.0, 1.0))
    slope = numpyro.sample("slope", dist.Normal(0.0, 1.0))
    unknown = numpyro.sample("unknown", dist.Normal(0.0, 1.0).expand([len(MISSING)]).mask(False))
    y = jnp.asarray(y).at[MISSING].set(unknown)
    numpyro.sample("y", dist.Normal(m, t**-0.5), obs=y)
    numpyro.sample("later", dist.Normal(slope * y, 1.0), obs=Y + 1)


def filled_table():
    """Rows of a table, a row that is outside of it, and precisions."""
    t = numpyro.sample("t", dist.Gamma(2.0, 1.0).expand([2, 3]).to_event(2))
    table = jnp.full((4, 3), 0.5).at[jnp.asarray([2, 0])].set(t).at[9].set(t[0])
    numpyro.sample("y", dist.Normal(0.0, table**-0.5), obs=Y[:12].reshape(4, 3))
    numpyro.sample("one", dist.Normal(0.0, jnp.ones(3).at[1].set(t[0, 0]) ** -0.5), obs=Y[:3])


def left_to_right(y):
    with numpyro.plate("states", 3):
        m = numpyro.sample("m", dist.Normal(0.0, 5.0))

    def step(before, y):
        z = numpyro.sample("z", dist.Categorical(jnp.asarray(ONWARD)[before]))
        numpyro.sample("y", dist.Normal(m[z], 0.5), obs=y)
        return z, None

    scan(step, 0, y)


def absorbing(y):
    with numpyro.plate("states", 2):
        m = numpyro.sample("m", dist.Normal(0.0, 5.0))

    def step(before, y):
        z = numpyro.sample("z", dist.Bernoulli(jnp.where(before == 1, 1.0, 0.1)))
        numpyro.sample("y", dist.Normal(m[z], 0.5), obs=y)
        return z, None

    scan(step, 0, y)


def block_model(edges):
    share = numpyro.sample("share", dist.Beta(1.0, 1.0).expand([2, 2]).to_event(2))
    with numpyro.plate("nodes", 6):
        z = numpyro.sample("z", dist.Categorical(jnp.full(2, 0.5)))
    numpyro.sample("edges", dist.Bernoulli(share[z[:, None], z]).to_event(2), obs=edges)


READ = [
    Case(masked_gaps, None, {"y": GAPS}),
    Case(filled_in, None, {"y": GAPS}),
    Case(filled_table),
    Case(absorbing, None, {"y": Y}),
]


@pytest.mark.parametrize("case", READ, ids=lambda case: case.name)
def test_log_joint_is_that_of_numpyro(case):
    with jax.enable_x64(True):
        conditionals = conditionals_of(case)
        conditionals.check(Seed.of(0), conditionals.joint.rows)
        ours, theirs = log_joints(case, conditionals, random_values(conditionals, 1))
    np.testing.assert_allclose(ours, theirs, rtol=1e-9)


def test_no_way_back():
    """Every draw of the labels can happen."""
    method, series = lv.CAVI(num_restarts=4), {"y": Y}
    fit = lv.fit(left_to_right, None, method, constants=series, num_draws=100, num_chains=1, progress=False)
    assert np.diff(fit.posterior["z"].values, axis=-1).min() == 0
    means = fit.posterior["m"].values.mean((0, 1))
    np.testing.assert_allclose(means, [Y[:12].mean(), Y[12:24].mean(), Y[24:].mean()], atol=0.1)


def test_a_density_that_is_wrong_where_states_are_impossible_is_refused(monkeypatch):
    conditionals = conditionals_of(Case(left_to_right, None, {"y": Y}))
    monkeypatch.setattr("langevin.conjugacy.densities.LOG_2_PI", 1.8)
    with jax.enable_x64(True), pytest.raises(lv.ModelError, match="read off"):
        conditionals.check(Seed.of(0), conditionals.joint.rows)


def test_pairs_of_labels_are_refused():
    with pytest.raises(lv.ModelError, match="pairs of labels"):
        lv.fit(block_model, None, "cavi", constants={"edges": np.eye(6, dtype=int)}, progress=False)
