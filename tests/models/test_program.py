"""A NumPyro program as a posterior, against NumPyro's own log-densities."""

import jax
import jax.numpy as jnp
import numpy as np
import numpyro
import numpyro.distributions as dist
import pytest
from examples import (
    BY_ROWS,
    DATA,
    FULL_ONLY,
    NUM_ROWS,
    correlated,
    derived,
    factors,
    independent_terms,
    make,
    moving_supports,
    name_of,
    nested_plates,
    numpyros,
    ordered,
    row_local,
    rows,
    scalars,
    simplex,
    time_series,
    vectors,
)
from numpyro.infer.util import constrain_fn, initialize_model, potential_energy

from langevin.data.table import as_table
from langevin.models.program import Program

pytestmark = pytest.mark.usefixtures("quick_compilation")


@pytest.mark.parametrize("model", BY_ROWS + FULL_ONLY, ids=name_of)
def test_log_density_is_numpyros(model):
    posterior = make(model)
    both = jax.jit(lambda position: (posterior.log_density(position), numpyros(model, position)))
    for seed in (0, 1):
        ours, theirs = both(posterior.init(jax.random.key(seed)))
        np.testing.assert_allclose(ours, theirs, rtol=2e-5)


@pytest.mark.parametrize("model", BY_ROWS + FULL_ONLY, ids=name_of)
def test_positions_have_the_shapes_of_numpyros(model):
    def start(key):
        return initialize_model(key, model, model_kwargs=DATA, validate_grad=False).param_info.z

    theirs = jax.eval_shape(start, jax.random.key(0))
    ours = make(model).init(jax.random.key(0))
    assert {name: leaf.shape for name, leaf in ours.items()} == {name: leaf.shape for name, leaf in theirs.items()}


@pytest.mark.parametrize("model", BY_ROWS, ids=name_of)
def test_minibatches_scale_the_rows_and_nothing_else(model):
    posterior = make(model, minibatch=True)
    position = posterior.init(jax.random.key(3))

    @jax.jit
    def both(batch):
        return posterior.log_density(position, batch), independent_terms(model, position, batch)

    values = []
    for index in ([0, 3], [5, 1], [2, 4]):
        ours, (log_prior, log_likelihood) = both({name: column[np.array(index)] for name, column in DATA.items()})
        np.testing.assert_allclose(ours, log_prior + NUM_ROWS / 2 * log_likelihood, rtol=1e-4)
        values.append(ours)
    np.testing.assert_allclose(np.mean(values), jax.jit(posterior.log_density)(position), rtol=1e-5)


@pytest.mark.parametrize("model", [scalars, factors, row_local], ids=name_of)
def test_log_prior_and_log_likelihood_are_told_apart(model):
    posterior = make(model)
    position = posterior.init(jax.random.key(2))
    log_prior, log_likelihood = independent_terms(model, position, DATA)
    assert posterior.log_likelihood(position).shape == (NUM_ROWS,)
    np.testing.assert_allclose(posterior.log_prior(position), log_prior, rtol=1e-5)
    np.testing.assert_allclose(posterior.log_likelihood(position).sum(), log_likelihood, rtol=1e-5)


def test_jacobian_by_hand():
    posterior = make(scalars)
    m, u = 0.3, -0.4
    s = np.exp(u)
    log_prior = -0.5 * ((m - 1) / 2) ** 2 - np.log(2) - 0.5 * np.log(2 * np.pi)
    log_prior += np.log(2) - 0.5 * (s / 0.7) ** 2 - np.log(0.7) - 0.5 * np.log(2 * np.pi) + u
    np.testing.assert_allclose(posterior.log_prior({"m": jnp.array(m), "s": jnp.array(u)}), log_prior, rtol=1e-5)


def test_unconstrained_density_integrates_to_one():
    """Without the Jacobian the integral over the real line diverges; with it twice it is not 1."""

    def prior_only():
        numpyro.sample("s", dist.HalfNormal(0.7))

    posterior = Program(prior_only).posterior(as_table(None))
    grid = jnp.linspace(-20.0, 5.0, 4001)
    density = jnp.exp(jax.vmap(lambda u: posterior.log_density({"s": u}))(grid))
    np.testing.assert_allclose(jnp.trapezoid(density, grid), 1.0, rtol=1e-4)


@pytest.mark.parametrize("model", [derived, simplex, ordered, correlated, moving_supports, time_series], ids=name_of)
def test_reports_constrained_values(model):
    posterior = make(model)

    @jax.jit
    def both(position):
        return posterior.constrain(position), constrain_fn(model, (), DATA, position, return_deterministic=True)

    reported, expected = both(posterior.init(jax.random.key(4)))
    assert set(reported) == set(expected)
    for name, value in reported.items():
        np.testing.assert_allclose(value, expected[name], rtol=1e-5)


def test_each_step_of_a_scan_has_its_own_latent():
    posterior = make(time_series)
    position = posterior.init(jax.random.key(0))
    gradient = jax.jit(jax.grad(posterior.log_density))(position)
    assert position["jump"].shape == position["level"].shape == (NUM_ROWS,)
    assert len(np.unique(gradient["level"])) == NUM_ROWS


def test_program_without_data():
    def model(scale):
        m = numpyro.sample("m", dist.Normal(0.0, scale))
        numpyro.sample("y", dist.Normal(m, 1.0), obs=jnp.array([1.0, 2.0]))

    posterior = Program(model, {"scale": 3.0}).posterior(as_table(None))
    position = posterior.init(jax.random.key(0))
    expected = -potential_energy(model, (), {"scale": 3.0}, position)
    assert posterior.num_data == 0
    np.testing.assert_allclose(posterior.log_density(position), expected, rtol=1e-6)


def test_posterior_does_not_follow_the_callers_array():
    y = np.zeros(4096, np.float32)
    posterior = make(
        lambda y: numpyro.sample("y", dist.Normal(numpyro.sample("m", dist.Normal()), 1.0), obs=y), {"y": y}
    )
    before = posterior.log_density({"m": jnp.array(1.0)})
    y[:] = 100.0
    assert posterior.log_density({"m": jnp.array(1.0)}) == before


def test_dimensions_are_named_by_plates():
    dims = dict(make(nested_plates).dims)
    assert dims == {"a": ("groups", "a_dim_1"), "b": ("groups", "features")}
    assert dict(make(vectors).dims) == {"w": ("w_dim_0",), "s": ("s_dim_0",)}
    assert dict(make(simplex).dims) == {"p": ("p_dim_0",), "q": ("kinds", "q_dim_1")}
    assert dict(make(row_local).dims) == {"s": (), "z": ("rows",)}
    assert dict(make(derived).dims) == {"s": (), "v": ()}


def test_dimensions_that_would_clash_are_numbered():
    def model(y):
        with numpyro.plate("chain", 2):
            a = numpyro.sample("a", dist.Normal())
        with numpyro.plate("g", 3):
            b = numpyro.sample("b", dist.Normal())
        with numpyro.plate("g", 4):
            c = numpyro.sample("c", dist.Normal())
        numpyro.sample("y", dist.Normal(a.sum() + b.sum() + c.sum(), 1.0), obs=y)

    dims = dict(make(model, {"y": DATA["y"]}).dims)
    assert dims["a"] == ("a_dim_0",)
    assert dims["b"] != dims["c"]


def test_minibatch_reports_only_what_ignores_the_rows():
    def model(x, y, group):
        w = numpyro.sample("w", dist.Normal(0.0, 1.0))
        numpyro.deterministic("twice", 2 * w)
        numpyro.deterministic("average", w * y.mean())  # constant at w = 0
        with rows(x):
            mean = numpyro.deterministic("mean", w * x[:, 0])
            numpyro.sample("y", dist.Normal(mean, 1.0), obs=y)

    assert set(dict(make(model).dims)) == {"w", "twice", "average", "mean"}
    assert set(dict(make(model, minibatch=True).dims)) == {"w", "twice"}


def test_observation_of_a_constant_outside_the_plate_is_allowed():
    def model(x, y, group, summary):
        m = numpyro.sample("m", dist.Normal(0.0, 1.0))
        numpyro.sample("summary", dist.Normal(m, 0.1), obs=summary)
        with rows(x):
            numpyro.sample("y", dist.Normal(m, 1.0), obs=y)

    posterior = make(model, minibatch=True, constants={"summary": 0.5})
    position = {"m": jnp.array(0.2)}
    batch = {name: column[:2] for name, column in DATA.items()}
    log_prior = dist.Normal(0.0, 1.0).log_prob(0.2) + dist.Normal(0.2, 0.1).log_prob(0.5)
    expected = log_prior + 3 * dist.Normal(0.2, 1.0).log_prob(batch["y"]).sum()
    np.testing.assert_allclose(posterior.log_density(position, batch), expected, rtol=1e-5)


def test_one_row():
    data = {name: column[:1] for name, column in DATA.items()}
    posterior = make(scalars, data, minibatch=True)
    position = posterior.init(jax.random.key(0))
    expected = -potential_energy(scalars, (), data, position)
    np.testing.assert_allclose(posterior.log_density(position), expected, rtol=1e-5)
    np.testing.assert_allclose(posterior.log_density(position, data), expected, rtol=1e-5)


def test_a_plate_that_happens_to_have_the_size_of_the_data_is_not_the_rows():
    def model(x, y, group):
        with numpyro.plate("levels", NUM_ROWS):
            a = numpyro.sample("a", dist.Normal(0.0, 1.0))
        with rows(x):
            numpyro.sample("y", dist.Normal(a[group], 1.0), obs=y)

    posterior = make(model, minibatch=True)
    assert posterior.init(jax.random.key(0))["a"].shape == (NUM_ROWS,)


def test_rounding_is_not_taken_for_a_dependence_on_the_rows():
    """XLA rounds the log-probability of this simplex otherwise when it is compiled next to more rows."""

    def model(y):
        p = numpyro.sample("p", dist.Dirichlet(np.ones(4)))
        m = numpyro.sample("m", dist.Normal(0.0, 10.0).expand([4]).to_event(1))
        with numpyro.plate("rows", y.shape[0]):
            numpyro.sample("y", dist.MixtureSameFamily(dist.Categorical(probs=p), dist.Normal(m, 0.01)), obs=y)

    y = 1e3 * np.random.default_rng(0).normal(size=5000)
    assert make(model, {"y": y}, minibatch=True).num_data == 5000
