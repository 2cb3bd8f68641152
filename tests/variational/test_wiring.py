"""Which elements of a plate have a part in which terms of the bound."""

import jax
import jax.numpy as jnp
import numpy as np
import numpyro
import numpyro.distributions as dist
import pytest

import langevin as lv
from langevin.data.table import as_table
from langevin.engines.bound import loss_of
from langevin.models.program import Program
from langevin.variational.build import objective_of


def changepoints(y):
    """Whether the level goes up at a time; an element of the plate moves all that come after it."""
    with numpyro.plate("times", len(y)):
        c = numpyro.sample("c", dist.Bernoulli(0.3))
    level = jnp.cumsum(c)
    with numpyro.plate("times", len(y)):
        numpyro.sample("y", dist.Normal(level, 1.0), obs=y)


def neighbours(y):
    with numpyro.plate("times", len(y)):
        c = numpyro.sample("c", dist.Bernoulli(0.3))
        numpyro.sample("y", dist.Normal(c + 2.0 * jnp.roll(c, 1), 1.0), obs=y)


def by_way_of_another(y):
    w = numpyro.sample("w", dist.Normal(0.0, 1.0))
    with numpyro.plate("times", len(y)):
        c = numpyro.sample("c", dist.Bernoulli(0.3))
        numpyro.sample("y", dist.Normal(w + c, 1.0), obs=y)


def guide_of_the_other(y):
    logits = numpyro.param("c.logits", jnp.full(len(y), 0.01))
    with numpyro.plate("times", len(y)):
        c = numpyro.sample("c", dist.Bernoulli(logits=logits))
    numpyro.sample("w", dist.Normal(jnp.mean(c), 0.5))


@pytest.mark.parametrize(
    ("model", "family"),
    [
        (changepoints, {"c": dist.Bernoulli}),
        (neighbours, {"c": dist.Bernoulli}),
        (by_way_of_another, guide_of_the_other),
    ],
    ids=["cumulative", "neighbours", "by way of another"],
)
@pytest.mark.parametrize("baseline", ["leave_one_out", None])
def test_elements_of_a_plate_that_are_not_independent(model, family, baseline):
    """The gradient against that of the bound with the labels enumerated (and the other site integrated by hand)."""
    y = np.array([0.5, 1.5, 2.5])
    configurations = jnp.array([[(k >> i) & 1 for i in range(3)] for k in range(8)])

    def bound(logits):
        total = 0.0
        for c in configurations:
            log_q = jnp.sum(dist.Bernoulli(logits=logits).log_prob(c))
            log_p = jnp.sum(dist.Bernoulli(0.3).log_prob(c))
            if model is by_way_of_another:
                mean, scale = jnp.mean(c), 0.5
                # E log N(y; w + c, 1) + E log N(w; 0, 1) + entropy, for w ~ N(mean, scale).
                log_p += jnp.sum(dist.Normal(mean + c, 1.0).log_prob(y)) - 3 * scale**2 / 2
                log_p += dist.Normal(0.0, 1.0).log_prob(mean) - scale**2 / 2 + dist.Normal(0.0, scale).entropy()
            else:
                level = jnp.cumsum(c) if model is changepoints else c + 2.0 * jnp.roll(c, 1)
                log_p += jnp.sum(dist.Normal(level, 1.0).log_prob(y))
            total += jnp.exp(log_q) * (log_p - log_q)
        return total

    method = lv.VI(family, num_particles=4, baseline=baseline)
    found = lv.elbo_gradients(model, {"y": y}, method, num_samples=20_000)
    exact = jax.grad(bound)(jnp.full(3, 0.01))
    errors = np.sqrt(found.variance["params"]["c.logits"] / 20_000)
    assert np.all(np.abs(found.mean["params"]["c.logits"] - exact) < 4.5 * errors)
    assert np.all(errors < 0.02)


def test_rows_that_are_coupled_have_no_bound_of_their_own():
    def walk(y):
        with numpyro.plate("rows", len(y)):
            c = numpyro.sample("c", dist.Normal(0.0, 1.0))
        level = jnp.cumsum(c)
        with numpyro.plate("rows", len(y)):
            numpyro.sample("y", dist.Normal(level, 1.0), obs=y)

    method = lv.VI({"c": dist.Normal}, bound="importance", num_particles=5)
    assert objective_of(method, Program(walk).joint(as_table({"y": np.ones(4)})), None).wiring.row_scale is None


@pytest.mark.parametrize("batch_size", [None, 4])
def test_importance_weighted_bound_of_each_row_by_hand(batch_size):
    """(N/B) sum_i log mean_s p(x_i, z_si) / q(z_si), on the same draws."""
    x = np.random.default_rng(0).normal(size=8).astype(np.float32)

    def model(x):
        with numpyro.plate("rows", x.shape[0]):
            z = numpyro.sample("z", dist.Normal(0.0, 1.0))
            numpyro.sample("x", dist.Normal(z, 0.5), obs=x)

    def guide(x):
        with numpyro.plate("rows", x.shape[0]):
            numpyro.sample("z", dist.Normal(0.7 * x, 0.6))

    joint = Program(model).joint(as_table({"x": x}), minibatch=batch_size is not None)
    method = lv.VI(guide, bound="importance", num_particles=3)
    objective = objective_of(method, joint, batch_size)
    rows = {"x": jnp.asarray(x[:batch_size])}
    words = np.random.default_rng(1).integers(2**32, size=(3, 2), dtype=np.uint32)
    _, estimate = loss_of(method, objective, {}, {"key": words}, rows, {"params": {}})
    total = []
    for one in words:
        trace = objective.guide_trace({}, jax.random.wrap_key_data(one), rows)
        z = trace["z"]["value"]
        log_p = dist.Normal(0.0, 1.0).log_prob(z) + dist.Normal(z, 0.5).log_prob(rows["x"])
        total.append(log_p - dist.Normal(0.7 * rows["x"], 0.6).log_prob(z))
    expected = 8 / len(rows["x"]) * np.sum(np.log(np.mean(np.exp(np.array(total)), axis=0)))
    np.testing.assert_allclose(estimate.value, expected, rtol=1e-5)
