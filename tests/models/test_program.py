"""A NumPyro program as a posterior, against NumPyro's own log-densities."""

import jax
import jax.numpy as jnp
import numpy as np
import numpyro
import numpyro.distributions as dist
import pytest
from numpyro import handlers
from numpyro.contrib.control_flow import scan
from numpyro.infer.reparam import LocScaleReparam
from numpyro.infer.util import constrain_fn, initialize_model, log_density, potential_energy

from langevin.data.table import as_table
from langevin.errors import ModelError
from langevin.models.program import Program

NUM_ROWS = 6
RNG = np.random.default_rng(0)
DATA = {
    "x": RNG.normal(size=(NUM_ROWS, 2)).astype(np.float32),
    "y": RNG.normal(size=NUM_ROWS).astype(np.float32),
    "group": np.array([0, 1, 2, 0, 1, 2]),
}


@pytest.fixture(autouse=True, scope="module")
def quick_compilation():
    """These programs run once each: their time is XLA's."""
    jax.config.update("jax_disable_most_optimizations", True)
    yield
    jax.config.update("jax_disable_most_optimizations", False)


def make(model, data=DATA, *, minibatch=False, constants=None, rows=None):
    return Program(model, constants or {}, rows).posterior(as_table(data), minibatch=minibatch)


def rows(x):
    return numpyro.plate("rows", x.shape[0])


def scalars(x, y, group):
    m = numpyro.sample("m", dist.Normal(1.0, 2.0))
    s = numpyro.sample("s", dist.HalfNormal(0.7))
    with rows(x):
        numpyro.sample("y", dist.Normal(m, s), obs=y)


def vectors(x, y, group):
    w = numpyro.sample("w", dist.Normal(0.0, 1.0).expand([2]).to_event(1))
    s = numpyro.sample("s", dist.Gamma(2.0, 3.0).expand([2]).to_event(1))
    with rows(x):
        numpyro.sample("y", dist.Normal(x @ w, s[0] + s[1]), obs=y)


def event_rows(x, y, group):
    s = numpyro.sample("s", dist.LogNormal(0.0, 1.0))
    with rows(x):
        numpyro.sample("x", dist.Normal(0.0, s).expand([2]).to_event(1), obs=x)


def nested_plates(x, y, group):
    with numpyro.plate("groups", 3, dim=-2):
        a = numpyro.sample("a", dist.Normal(0.0, 1.0))
        with numpyro.plate("features", 2, dim=-1):
            b = numpyro.sample("b", dist.Exponential(1.5))
    with rows(x):
        numpyro.sample("y", dist.Normal(a[group, 0] + (x * b[group]).sum(-1), 1.0), obs=y)


def plate_inside_rows(x, y, group):
    m = numpyro.sample("m", dist.Normal(0.0, 1.0))
    with numpyro.plate("rows", x.shape[0], dim=-2), numpyro.plate("features", 2, dim=-1):
        numpyro.sample("x", dist.Normal(m, 1.0), obs=x)


def derived(x, y, group):
    s = numpyro.sample("s", dist.HalfCauchy(1.0))
    v = numpyro.deterministic("v", s**2)
    with rows(x):
        numpyro.sample("y", dist.Normal(0.0, v), obs=y)


def factors(x, y, group):
    s = numpyro.sample("s", dist.HalfNormal(1.0))
    numpyro.factor("penalty", -3.0 * s)
    with rows(x):
        numpyro.factor("soft", -jnp.abs(y - s))
        numpyro.factor("constant", -0.5 * s)


def correlated(x, y, group):
    factor = numpyro.sample("factor", dist.LKJCholesky(2, 1.5))
    scale = numpyro.sample("scale", dist.HalfNormal(1.0).expand([2]).to_event(1))
    with rows(x):
        numpyro.sample("x", dist.MultivariateNormal(0.0, scale_tril=scale[:, None] * factor), obs=x)


def simplex(x, y, group):
    p = numpyro.sample("p", dist.Dirichlet(jnp.array([1.0, 2.0, 3.0])))
    with numpyro.plate("kinds", 2):
        q = numpyro.sample("q", dist.Dirichlet(jnp.ones(3)))
    with rows(x):
        numpyro.sample("group", dist.Categorical(probs=(p + q.sum(0)) / 3), obs=group)


def ordered(x, y, group):
    cuts = numpyro.sample("cuts", dist.ImproperUniform(dist.constraints.ordered_vector, (), event_shape=(2,)))
    base = dist.Normal(0.0, 1.0).expand([3]).to_event(1)
    more = numpyro.sample("more", dist.TransformedDistribution(base, dist.transforms.OrderedTransform()))
    with rows(x):
        numpyro.sample("group", dist.OrderedLogistic(y + more[0], cuts), obs=group)


def moving_supports(x, y, group):
    low = numpyro.sample("low", dist.Normal(0.0, 1.0))
    width = numpyro.sample("width", dist.HalfNormal(2.0))
    m = numpyro.sample("m", dist.Uniform(low, low + width))
    with rows(x):
        numpyro.sample("y", dist.Normal(m, width), obs=y)


def matrices(x, y, group):
    a = numpyro.sample("a", dist.Normal(0.0, 1.0).expand([2, 3]).to_event(2))
    tril = jnp.array([[1.0, 0.0], [0.5, 1.0]])
    b = numpyro.sample("b", dist.MatrixNormal(jnp.zeros((2, 2)), tril, tril))
    c = numpyro.sample("c", dist.Wishart(4.0, jnp.eye(2)))
    with rows(x):
        numpyro.sample("y", dist.Normal((x @ a).sum(-1) + (x @ b @ c).sum(-1), 1.0), obs=y)


def two_plates(x, y, group):
    m = numpyro.sample("m", dist.Normal(0.0, 1.0))
    s = numpyro.sample("s", dist.HalfNormal(1.0))
    with rows(x):
        numpyro.sample("y", dist.Normal(m, s), obs=y)
    with numpyro.plate("again", x.shape[0]):
        numpyro.sample("x0", dist.Normal(m, 2 * s), obs=x[:, 0])


def masked(x, y, group):
    with handlers.mask(mask=jnp.array([True, False])), numpyro.plate("pair", 2):
        s = numpyro.sample("s", dist.HalfNormal(1.0))
    with rows(x), handlers.mask(mask=y > 0):
        numpyro.sample("y", dist.Normal(0.0, s.sum()), obs=y)


def scaled(x, y, group):
    with handlers.scale(scale=0.3):
        m = numpyro.sample("m", dist.Normal(0.0, 1.0))
    s = numpyro.sample("s", dist.HalfNormal(1.0))
    with rows(x), handlers.scale(scale=2.5):
        numpyro.sample("y", dist.Normal(m, s), obs=y)


def scaled_positive(x, y, group):
    with handlers.scale(scale=0.3):
        s = numpyro.sample("s", dist.HalfNormal(1.0))
    with rows(x):
        numpyro.sample("y", dist.Normal(0.0, s), obs=y)


def reparametrised(x, y, group):
    s = numpyro.sample("s", dist.HalfNormal(1.0))
    with handlers.reparam(config={"m": LocScaleReparam(0.0)}), numpyro.plate("groups", 3):
        m = numpyro.sample("m", dist.Normal(0.0, s))
    with rows(x):
        numpyro.sample("y", dist.Normal(m[group], 1.0), obs=y)


def row_local(x, y, group):
    s = numpyro.sample("s", dist.HalfNormal(1.0))
    with rows(x):
        z = numpyro.sample("z", dist.HalfNormal(s))
        numpyro.sample("y", dist.Normal(z, 1.0), obs=y)


def time_series(x, y, group):
    s = numpyro.sample("s", dist.HalfNormal(1.0))

    def step(level, observed):
        jump = numpyro.sample("jump", dist.HalfNormal(s))
        level = numpyro.sample("level", dist.Normal(level + jump, 1.0))
        numpyro.sample("y", dist.Normal(level, 0.5), obs=observed)
        return level, None

    scan(step, 0.0, y)


def no_plate(x, y, group):
    w = numpyro.sample("w", dist.Normal(0.0, 1.0).expand([2]))
    numpyro.sample("y", dist.Normal(x @ w, 1.0), obs=y)


BY_ROWS = [
    scalars,
    vectors,
    event_rows,
    nested_plates,
    plate_inside_rows,
    derived,
    factors,
    correlated,
    simplex,
    ordered,
    moving_supports,
    matrices,
    two_plates,
    masked,
    scaled,
    scaled_positive,
    reparametrised,
]
FULL_ONLY = [row_local, time_series, no_plate]


def name_of(model):
    return model.__name__


def numpyros(model, position, data=DATA):
    return -potential_energy(model, (), data, position)


def independent_terms(model, position, data):
    """The log-probability of all but the rows, with the Jacobians, and that of the rows, by NumPyro alone."""
    total = numpyros(model, position, data)
    constrained = constrain_fn(model, (), data, position)
    _, trace = log_density(model, (), data, constrained)
    likelihood = 0.0
    for site in trace.values():
        inside = any(frame.name in ("rows", "again") for frame in site.get("cond_indep_stack", ()))
        if site["type"] == "sample" and site["is_observed"] and inside:
            likelihood += jnp.sum((site["scale"] or 1.0) * site["fn"].log_prob(site["value"]))
    return total - likelihood, likelihood


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


def pairs(x, y, group):
    m = numpyro.sample("m", dist.Normal(0.0, 1.0))
    with numpyro.plate("left", x.shape[0], dim=-2), numpyro.plate("right", x.shape[0], dim=-1):
        numpyro.sample("z", dist.Normal(m, 1.0), obs=y[:, None] * y)


def test_nested_plates_of_the_size_of_the_data_are_ambiguous_until_named():
    with pytest.raises(ModelError, match=r"'(left|right)' and '(left|right)' both have the size.*`rows="):
        make(pairs)
    posterior = make(pairs, rows="left")
    position = {"m": jnp.array(0.4)}
    by_row = dist.Normal(0.4, 1.0).log_prob(DATA["y"][:, None] * DATA["y"]).sum(1)
    np.testing.assert_allclose(posterior.log_likelihood(position), by_row, rtol=1e-5)


@pytest.mark.parametrize("named", [None, "left"])
def test_pairs_of_rows_cannot_be_minibatched(named):
    with pytest.raises(ModelError, match=r"Site 'z'.*pairs of rows.*`batch_size`"):
        make(pairs, minibatch=True, rows=named)


def test_rows_must_name_a_plate_over_the_rows():
    with pytest.raises(ModelError, match=r"`rows='nowhere'`.*no such plate.*'rows'"):
        make(scalars, rows="nowhere")
    with pytest.raises(ModelError, match=r"`rows='groups'`.*size 3.*6 rows.*'rows'"):
        make(nested_plates, minibatch=True, rows="groups")


def test_discrete_latent():
    def model(y):
        k = numpyro.sample("k", dist.Bernoulli(0.5))
        numpyro.sample("y", dist.Normal(k, 1.0), obs=y)

    with pytest.raises(ModelError, match=r"'k' is a discrete latent.*MixtureSameFamily"):
        make(model, {"y": DATA["y"]})


def test_support_without_a_bijection():
    def model(y):
        v = numpyro.sample("v", dist.ProjectedNormal(jnp.ones(3)))
        numpyro.sample("y", dist.Normal(v[0], 1.0), obs=y)

    with pytest.raises(ModelError, match=r"'v' has the support.*reparam"):
        make(model, {"y": DATA["y"]})


def test_row_local_latent_under_minibatch():
    with pytest.raises(ModelError, match=r"'z' is latent and inside the plate over the rows.*`batch_size`"):
        make(row_local, minibatch=True)


def test_latent_whose_shape_follows_the_rows():
    def model(x, y, group):
        z = numpyro.sample("z", dist.Normal(0.0, 1.0).expand([x.shape[0]]).to_event(1))
        with rows(x):
            numpyro.sample("y", dist.Normal(z, 1.0), obs=y)

    with pytest.raises(ModelError, match=r"shape of latent site 'z' follows the number of rows.*`batch_size`"):
        make(model, minibatch=True)


def test_site_that_exists_only_for_many_rows():
    def model(x, y, group):
        m = numpyro.sample("m", dist.Normal(0.0, 1.0))
        if x.shape[0] > 4:
            m = m + numpyro.sample("extra", dist.Normal(0.0, 1.0))
        with rows(x):
            numpyro.sample("y", dist.Normal(m, 1.0), obs=y)

    with pytest.raises(ModelError, match=r"site 'extra' follows the number of rows.*`constants`"):
        make(model, minibatch=True)


def outside(x, y, group):
    m = numpyro.sample("m", dist.Normal(0.0, 1.0))
    numpyro.sample("total", dist.Normal(m, 1.0), obs=y.sum())
    with rows(x):
        numpyro.sample("y", dist.Normal(m, 1.0), obs=y)


def outside_times_latent(x, y, group):
    m = numpyro.sample("m", dist.Normal(0.0, 1.0))
    numpyro.factor("total", m * y.sum())  # does not depend on the rows at m = 0
    with rows(x):
        numpyro.sample("y", dist.Normal(m, 1.0), obs=y)


@pytest.mark.parametrize("model", [outside, outside_times_latent], ids=name_of)
def test_observed_site_outside_the_plate_under_minibatch(model):
    with pytest.raises(ModelError, match=r"'total' depends on the rows but is outside.*'rows'.*Move it inside"):
        make(model, minibatch=True)
    assert make(model).num_data == NUM_ROWS


def prior_of_data(x, y, group):
    m = numpyro.sample("m", dist.Normal(y.mean(), 1.0))
    with rows(x):
        numpyro.sample("y", dist.Normal(m, 1.0), obs=y)


def prior_of_data_times_latent(x, y, group):
    w = numpyro.sample("w", dist.Normal(0.0, 1.0))
    m = numpyro.sample("m", dist.Normal(w * y.mean(), 1.0))
    with rows(x):
        numpyro.sample("y", dist.Normal(m, 1.0), obs=y)


def prior_of_size(x, y, group):
    m = numpyro.sample("m", dist.Normal(0.0, 1 / x.shape[0]))
    with rows(x):
        numpyro.sample("y", dist.Normal(m, 1.0), obs=y)


@pytest.mark.parametrize("model", [prior_of_data, prior_of_data_times_latent, prior_of_size], ids=name_of)
def test_prior_that_depends_on_the_data(model):
    with pytest.raises(ModelError, match=r"prior of site 'm' depends on the rows.*`constants`"):
        make(model, minibatch=True)
    assert make(model).num_data == NUM_ROWS


def centred(x, y, group):
    w = numpyro.sample("w", dist.Normal(0.0, 1.0))
    with rows(x):
        numpyro.sample("y", dist.Normal(w * (x[:, 0] - x[:, 0].mean()), 1.0), obs=y)


def averaged(x, y, group):
    w = numpyro.sample("w", dist.Normal(0.0, 1.0))
    with rows(x), handlers.scale(scale=1 / x.shape[0]):
        numpyro.sample("y", dist.Normal(w, 1.0), obs=y)


@pytest.mark.parametrize("model", [centred, averaged], ids=name_of)
def test_rows_that_depend_on_each_other(model):
    with pytest.raises(ModelError, match=r"'y': the log-likelihood of a row depends on the other rows.*`constants`"):
        make(model, minibatch=True)
    assert make(model).num_data == NUM_ROWS


@pytest.mark.parametrize("minibatch", [False, True])
def test_a_column_of_observations_against_a_row_of_distributions(minibatch):
    data = DATA | {"y": DATA["y"][:, None]}
    with pytest.raises(ModelError, match=r"'y': values of shape \(6, 1\) meet .* \(6,\)"):
        make(scalars, data, minibatch=minibatch)


def test_no_row_plate():
    with pytest.raises(ModelError, match=r"No plate of the program is over the 6 rows.*numpyro.plate"):
        make(no_plate, minibatch=True)


def test_nothing_observed_in_the_row_plate():
    def model(x, y, group):
        numpyro.sample("m", dist.Normal(0.0, 1.0))
        with rows(x):
            numpyro.deterministic("d", y)

    with pytest.raises(ModelError, match="Nothing is observed inside the plate over the rows, 'rows'"):
        make(model, minibatch=True)


def test_nothing_to_infer():
    with pytest.raises(ModelError, match="no latent site"):
        make(lambda y: numpyro.sample("y", dist.Normal(0.0, 1.0), obs=y), {"y": DATA["y"]})


def test_subsample_size():
    def model(y):
        m = numpyro.sample("m", dist.Normal(0.0, 1.0))
        with numpyro.plate("rows", y.shape[0], subsample_size=2) as index:
            numpyro.sample("y", dist.Normal(m, 1.0), obs=y[index])

    with pytest.raises(ModelError, match=r"Plate 'rows' has a `subsample_size`\. Leave it out"):
        make(model, {"y": DATA["y"]})


def test_param():
    def model(y):
        m = numpyro.param("m", 0.0)
        numpyro.sample("y", dist.Normal(m, 1.0), obs=y)

    with pytest.raises(ModelError, match=r"'m' is a `numpyro.param`.*`numpyro.sample`"):
        make(model, {"y": DATA["y"]})


@pytest.mark.parametrize(
    "look",
    [lambda group: int(group.max()), lambda group: range(group[0]), np.asarray, lambda group: group[group > 0].sum()],
    ids=["int", "range", "numpy", "boolean index"],
)
def test_program_that_looks_at_values(look):
    def model(group):
        numpyro.sample("m", dist.Normal(0.0, 1.0))
        look(group)

    with pytest.raises(ModelError, match=r"looks at the values of its data.*`constants`"):
        make(model, {"group": DATA["group"]})


def test_names_that_do_not_match():
    with pytest.raises(ModelError, match=r"unexpected keyword argument 'z'.*\(x, y, group\).*'z'"):
        make(scalars, DATA | {"z": DATA["y"]})
    with pytest.raises(ModelError, match="missing a required argument: 'group'"):
        make(scalars, {name: DATA[name] for name in "xy"})


def test_errors_of_the_program_itself_pass_through():
    def model(y):
        numpyro.sample("m", dist.Normal(0.0, 1.0, nonsense=1))

    with pytest.raises(TypeError, match="nonsense"):
        make(model, {"y": DATA["y"]})


def test_site_and_plate_of_one_name():
    def model(y):
        m = numpyro.sample("m", dist.Normal(0.0, 1.0))
        with numpyro.plate("m", y.shape[0]):
            numpyro.sample("y", dist.Normal(m, 1.0), obs=y)

    with pytest.raises(ModelError, match="'m' is the name of a site and of a plate"):
        make(model, {"y": DATA["y"]})


def hard_coded_plate(x, y, group):
    m = numpyro.sample("m", dist.Normal(0.0, 1.0))
    with numpyro.plate("rows", NUM_ROWS):
        numpyro.sample("y", dist.Normal(m, 1.0), obs=y)


def hard_coded_array(x, y, group):
    m = numpyro.sample("m", dist.Normal(0.0, 1.0))
    with rows(x):
        numpyro.sample("y", dist.Normal(m + jnp.zeros(NUM_ROWS), 1.0), obs=y)


@pytest.mark.parametrize(
    ("model", "message"), [(hard_coded_plate, "'rows' has that size, but keeps it"), (hard_coded_array, "but not on 5")]
)
def test_hard_coded_number_of_rows(model, message):
    with pytest.raises(ModelError, match=rf"{message}.*x\.shape\[0\]"):
        make(model, minibatch=True)
    assert make(model).num_data == NUM_ROWS


def test_rows_must_be_a_name():
    with pytest.raises(ModelError, match="`rows` must be the name of a plate; got 3"):
        make(scalars, rows=3)


def test_site_with_the_name_of_a_dimension():
    def model(y):
        numpyro.sample("y", dist.Normal(numpyro.sample("draw", dist.Normal()), 1.0), obs=y)

    with pytest.raises(ModelError, match="Site 'draw' has the name of a dimension"):
        make(model, {"y": DATA["y"]})


def test_data_and_constants_with_one_name():
    with pytest.raises(ModelError, match=r"both have \['y'\]"):
        make(scalars, constants={"y": 1.0})


def test_explain_names_site_and_row():
    def model(y):
        rate = numpyro.sample("rate", dist.HalfNormal(1.0))
        with numpyro.plate("rows", y.shape[0]):
            numpyro.sample("y", dist.Gamma(2.0, rate), obs=y)

    posterior = make(model, {"y": np.array([1.0, 2.0, -1.0])})
    message = posterior.explain({"rate": jnp.array(0.0)}, posterior.rows)
    assert "observed site 'y' is -inf at row 2" in message
    assert "site 'rate'" in posterior.explain({"rate": jnp.array(jnp.inf)}, posterior.rows)
