"""What every target does: it checks positions, fixes sites, and takes other rows; and which target a model becomes."""

import jax
import jax.numpy as jnp
import numpy as np
import numpyro
import numpyro.distributions as dist
import pytest
from examples import (
    DATA,
    NUM_ROWS,
    correlated,
    derived,
    make,
    name_of,
    nested_plates,
    row_local,
    rows,
    scalars,
    vectors,
)
from numpyro.infer.util import log_density as numpyro_log_density

import langevin as lv
from langevin.contracts import Needs
from langevin.data.table import as_table
from langevin.models.build import target_of
from langevin.models.joint import Joint
from langevin.models.program import Program
from langevin.posterior import Posterior

BATCH = {name: column[1:3] for name, column in DATA.items()}


def mixture(x, y, group):
    """A discrete site of every row, and a parameter."""
    p = numpyro.sample("p", dist.Beta(2.0, 3.0))
    gap = numpyro.param("gap", 1.5)
    with rows(x):
        k = numpyro.sample("k", dist.Bernoulli(p))
        s = numpyro.sample("s", dist.HalfNormal(1.0))
        numpyro.sample("y", dist.Normal(gap * k, s), obs=y)


def mixture_by_hand(position, data, scale, gap=1.5):
    """The log joint density in NumPyro's own words; `scale` for what is in the plate."""
    p, s = jax.nn.sigmoid(position["p"]), jnp.exp(position["s"])
    globally = dist.Beta(2.0, 3.0).log_prob(p) + jnp.log(p) + jnp.log1p(-p)
    by_row = dist.Bernoulli(p).log_prob(position["k"]) + dist.HalfNormal(1.0).log_prob(s) + position["s"]
    by_row += dist.Normal(gap * position["k"], s).log_prob(data["y"])
    return globally + scale * by_row.sum()


def joint_of(model, *, minibatch=False):
    return Program(model).joint(as_table(DATA), minibatch=minibatch)


def somewhere(posterior):
    return posterior.init(jax.random.key(1))


def target(model, kind, minibatch=False, **others):
    settings = {"constants": {}, "rows": None, "noncentred": False} | others
    return target_of(model, as_table(DATA), **settings, needs=Needs(kind), minibatch=minibatch)


def with_param(x, y, group):
    m = numpyro.sample("m", dist.Normal(numpyro.param("centre", 0.0), 1.0))
    with rows(x):
        numpyro.sample("y", dist.Normal(m, 1.0), obs=y)


def with_discrete(x, y, group):
    k = numpyro.sample("k", dist.Bernoulli(0.5))
    with rows(x):
        numpyro.sample("y", dist.Normal(k, 1.0), obs=y)


@pytest.mark.parametrize("minibatch", [False, True])
@pytest.mark.parametrize(
    ("model", "obstacle"),
    [(scalars, None), (with_param, "numpyro.param"), (with_discrete, "discrete"), (row_local, "each row has its own")],
)
def test_either_is_the_density_unless_something_is_in_its_way(model, obstacle, minibatch):
    in_the_way = obstacle is not None and (minibatch or model is not row_local)
    assert isinstance(target(model, "either", minibatch), Joint if in_the_way else Posterior)
    assert isinstance(target(model, "joint", minibatch), Joint)
    if in_the_way:
        with pytest.raises(lv.ModelError, match=obstacle):
            target(model, "density", minibatch)
    else:
        assert isinstance(target(model, "density", minibatch), Posterior)


def test_obstacles_are_told_one_by_one():
    obstacles = joint_of(mixture, minibatch=True).structure.obstacles
    assert [sentence.split(" ")[1] for sentence in obstacles] == ["'gap'", "'s'"]


def test_other_errors_are_no_reason_to_take_the_joint():
    def looks(x, y, group):
        numpyro.sample("m", dist.Normal(float(y[0]), 1.0))

    with pytest.raises(lv.ModelError, match="asks for a value of the data that is not there"):
        target(looks, "either")
    with pytest.raises(lv.ModelError, match="no latent site"):
        target(lambda x, y, group: numpyro.sample("y", dist.Normal(0.0, 1.0), obs=y), "either")


def test_what_is_for_programs_only():
    density = lv.Density(lambda m: -(m**2), lambda m, rows: -((rows["y"] - m) ** 2), init=0.0)
    assert isinstance(target(density, "either"), Posterior)
    with pytest.raises(lv.SettingError, match=r"guides and distributions by site.*not for an lv\.Density"):
        target(density, "joint")
    with pytest.raises(lv.SettingError, match="`constants`, `rows` and `noncentred`"):
        target(density, "density", noncentred=True)
    with pytest.raises(lv.ModelError, match="must be a NumPyro program or an lv.Density; got 3"):
        target(3, "either")


def test_observed_sites_are_not_enumerated():
    """The support of this site is as large as a column says, which is not known beforehand."""

    def model(y, total):
        p = numpyro.sample("p", dist.Beta(1.0, 1.0))
        with numpyro.plate("rows", len(y)):
            numpyro.sample("y", dist.Binomial(total_count=total, probs=p), obs=y)

    data = {"y": np.array([1, 2, 3]), "total": np.array([4, 5, 6])}
    posterior = Program(model).posterior(as_table(data), minibatch=True)
    expected = dist.Beta(1.0, 1.0).log_prob(0.5) + jnp.log(0.25)
    expected += dist.Binomial(data["total"], 0.5).log_prob(data["y"]).sum()
    np.testing.assert_allclose(posterior.log_density({"p": jnp.array(0.0)}), expected, rtol=1e-5)


@pytest.mark.parametrize("minibatch", [False, True])
def test_a_latent_support_that_a_column_sets_is_unknown(minibatch):
    """With minibatches too: that rows have other supports does not make them depend on each other."""

    def model(total, y):
        with numpyro.plate("rows", len(y)):
            k = numpyro.sample("k", dist.Binomial(total_count=total, probs=0.5))
            numpyro.sample("y", dist.Normal(k, 1.0), obs=y)

    table = as_table({"total": np.array([1, 40, 5]), "y": np.ones(3)})
    joint = Program(model).joint(table, minibatch=minibatch)
    assert joint.structure.values["k"].choices is None
    assert joint_of(with_discrete).structure.values["k"].choices == 2


@pytest.mark.parametrize("minibatch", [False, True])
def test_joint_log_density_by_hand(minibatch):
    joint = joint_of(mixture, minibatch=minibatch)
    data = BATCH if minibatch else DATA
    count = len(data["y"])
    position = {"p": jnp.array(0.3), "k": jnp.arange(count) % 2, "s": jnp.linspace(-0.5, 0.4, count)}
    scale = NUM_ROWS / count
    found = joint.log_density(position, data if minibatch else None)
    np.testing.assert_allclose(found, mixture_by_hand(position, data, scale), rtol=1e-5)
    found = joint.log_density(position | {"gap": 0.5}, data if minibatch else None)
    np.testing.assert_allclose(found, mixture_by_hand(position, data, scale, 0.5), rtol=1e-5)


@pytest.mark.parametrize("model", [scalars, vectors, nested_plates, correlated, derived, row_local], ids=name_of)
def test_joint_and_posterior_agree(model):
    posterior, joint = make(model), joint_of(model)
    position = somewhere(posterior)
    both = jax.jit(lambda x: (posterior.log_density(x), joint.log_density(x)))(position)
    np.testing.assert_allclose(*both, rtol=1e-5)
    assert posterior.dims == joint.dims


TARGETS = {
    "posterior": lambda: make(scalars),
    "joint": lambda: joint_of(scalars),
    "density": lambda: lv.Density(lambda x: -(x["m"] ** 2) - x["s"] ** 2, init={"m": 0.0, "s": 0.0}).posterior(),
}


@pytest.mark.parametrize("name", TARGETS)
def test_positions_are_checked(name):
    model = TARGETS[name]()
    calls = [model.log_density, jax.jit(model.log_density), jax.grad(model.log_density)]
    if name != "joint":
        calls += [model.constrain, model.log_prior, lambda x: model.explain(x, model.rows)]
    for call in calls:
        with pytest.raises(lv.ModelError, match=r"lacks site 's'; its sites are 'm', 's'"):
            call({"m": jnp.array(0.0)})
        with pytest.raises(lv.ModelError, match=r"has site 'sigma', which the model does not know"):
            call({"m": jnp.array(0.0), "s": jnp.array(0.0), "sigma": jnp.array(0.0)})
        with pytest.raises(lv.ModelError, match=r"Site 's' of the position must have shape \(\); got \(2,\)"):
            call({"m": jnp.array(0.0), "s": jnp.zeros(2)})
        with pytest.raises(lv.ModelError, match=r"must be a dict with the sites 'm', 's'"):
            call(jnp.zeros(2))


def test_positions_of_other_kinds_are_checked_too():
    posterior = lv.Density(lambda x: -jnp.sum(x[0] ** 2) - x[1]["b"], init=(jnp.zeros(2), {"b": 0.0})).posterior()
    with pytest.raises(lv.ModelError, match="must have the structure"):
        posterior.log_density((jnp.zeros(2), {"c": 0.0}))
    with pytest.raises(lv.ModelError, match=r"at \[0\], must have shape \(2,\); got \(3,\)"):
        posterior.log_density((jnp.zeros(3), {"b": 0.0}))


def test_positions_of_a_batch_have_values_of_its_rows():
    joint = joint_of(mixture, minibatch=True)
    position = {"p": 0.0, "k": np.zeros(NUM_ROWS, int), "s": np.zeros(NUM_ROWS)}
    assert np.isfinite(joint.log_density(position))
    with pytest.raises(lv.ModelError, match=r"Site 'k' of the position must have shape \(2,\); got \(6,\)"):
        joint.log_density(position, BATCH)


REGRESSION = lv.Density(
    lambda x: -0.5 * (jnp.sum(x["w"] ** 2) + x["m"] ** 2),
    lambda x, rows: -0.5 * (rows["y"] - rows["x"] @ x["w"] - x["m"]) ** 2 * jnp.exp(-x["m"]),
    init={"w": jnp.zeros(2), "m": 0.0},
)
FIXABLE = {
    "scalars": (lambda: make(scalars, minibatch=True), "s"),
    "vectors": (lambda: make(vectors, minibatch=True), "s"),
    "correlated": (lambda: make(correlated, minibatch=True), "scale"),
    "joint": (lambda: joint_of(scalars, minibatch=True), "s"),
    "density": (lambda: REGRESSION.posterior(DATA), "w"),
}


@pytest.mark.parametrize("name", FIXABLE)
def test_fixed_sites_are_as_if_in_the_position(name):
    make_target, site = FIXABLE[name]
    model = make_target()
    start = somewhere(make(scalars) if name == "joint" else model)
    rest = {key: value for key, value in start.items() if key != site}
    traces = []

    @jax.jit
    def value_and_gradient(model, rest, batch):
        traces.append(1)
        return jax.value_and_grad(model.log_density)(rest, batch)

    for shift in (0.0, 0.3):
        fixed = {site: start[site] + shift}
        for batch in (None, BATCH):
            found = value_and_gradient(model.given(fixed), rest, batch)
            expected = jax.value_and_grad(lambda x, f=fixed, b=batch: model.log_density(f | x, b))(rest)
            jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-4, atol=1e-5), found, expected)
    assert len(traces) == 2  # with a batch, and without

    # The fixed values may themselves be traced: here a gradient by them.
    by_fixed = jax.grad(lambda value: model.given({site: value}).log_density(rest))(start[site])
    np.testing.assert_allclose(by_fixed, jax.grad(model.log_density)(start)[site], rtol=1e-4, atol=1e-5)


def test_everything_follows_the_fixed_sites():
    def model(x, y, group):
        a = numpyro.sample("a", dist.Normal(0.0, 1.0))
        s = numpyro.sample("s", dist.HalfNormal(1.0))
        m = numpyro.sample("m", dist.Normal(a, s))
        numpyro.deterministic("ratio", m / s)
        with rows(x):
            numpyro.sample("y", dist.Normal(m, s), obs=y)

    posterior = make(model)
    whole = somewhere(posterior)
    given = posterior.given({"s": whole["s"]}).given({"a": whole["a"]})
    rest = {"m": whole["m"]}
    assert set(given.start(np.random.default_rng(0))) == set(given.init(jax.random.key(0))) == {"m"}
    assert given.dims == (("m", ()), ("ratio", ()))
    reported, expected = given.constrain(rest), posterior.constrain(whole)
    assert set(reported) == {"m", "ratio"}
    np.testing.assert_allclose(reported["ratio"], expected["ratio"], rtol=1e-6)
    for ours, theirs in zip(given.terms(rest, DATA), posterior.terms(whole, DATA), strict=True):
        np.testing.assert_allclose(ours, theirs, rtol=1e-6)
    np.testing.assert_allclose(given.log_prior(rest), posterior.log_prior(whole), rtol=1e-6)
    assert set(posterior.priors(whole)) == {"a", "m"}
    assert set(given.priors(rest)) == {"m"}
    np.testing.assert_allclose(given.priors(rest)["m"].loc, whole["a"])
    infinite = posterior.given({"s": jnp.array(jnp.inf)})
    assert "site 's'" in infinite.explain({"m": jnp.array(0.0), "a": jnp.array(0.0)}, posterior.rows)


def test_the_last_value_given_counts():
    posterior = make(scalars)
    position = {"m": jnp.array(0.1)}
    twice = posterior.given({"s": 0.5}).given({"s": -0.5})
    assert twice.log_density(position) == posterior.given({"s": -0.5}).log_density(position)


def test_parts_of_a_density_that_are_fixed_are_not_reported():
    density = lv.Density(lambda x: x["a"]["b"] * x["c"], init={"a": {"b": 1.0}, "c": 2.0})
    given = density.posterior().given({"a": {"b": 3.0}})
    assert set(given.constrain({"c": 2.0})) == {"c"}
    assert float(given.log_density({"c": 2.0})) == 6.0


@pytest.mark.parametrize("name", TARGETS)
def test_what_cannot_be_fixed(name):
    model = TARGETS[name]()
    with pytest.raises(lv.ModelError, match=r"no site 'sigma'; there are 'm', 's'"):
        model.given({"sigma": 0.0})
    with pytest.raises(lv.ModelError, match=r"Site 's' of the position must have shape \(\); got \(3,\)"):
        model.given({"s": np.zeros(3)})
    with pytest.raises(lv.ModelError, match="has site 's', which is fixed"):
        model.given({"s": 0.0}).log_density({"m": 0.0, "s": 0.0})
    with pytest.raises(lv.ModelError, match=r"lacks site 'm'; its sites are 'm'\."):
        model.given({"s": 0.0}).log_density({})


def test_positions_without_names_cannot_be_fixed():
    with pytest.raises(lv.ModelError, match=r"`given` fixes parts.*by name.*not dicts.*`init` that is a dict"):
        lv.Density(lambda x: -(x**2), init=0.0).posterior().given({"x": 1.0})


def test_joint_given_discrete_sites_and_parameters():
    joint = joint_of(mixture)
    rest = {"p": jnp.array(0.3), "s": jnp.linspace(-0.5, 0.4, NUM_ROWS)}
    k = jnp.arange(NUM_ROWS) % 2
    given = joint.given({"k": k, "gap": 0.5})
    expected = mixture_by_hand(rest | {"k": k}, DATA, 1.0, 0.5)
    np.testing.assert_allclose(given.log_density(rest), expected, rtol=1e-5)
    assert (set(given.structure.shapes), given.structure.discrete, given.structure.params) == ({"p", "s"}, (), ())
    assert dict(given.dims) == {"p": (), "s": ("rows",)}
    # A guide is run as it is, and the program with what is fixed.
    trace = given.trace(given.function, given.rows, {}, jax.random.key(0))
    np.testing.assert_array_equal(trace["k"]["value"], k)


@pytest.mark.parametrize("name", FIXABLE)
def test_other_rows(name):
    model = FIXABLE[name][0]()
    position = somewhere(make(scalars) if name == "joint" else model)
    turned = {key: column[::-1] for key, column in DATA.items()}
    first, second = (one.log_density(position) for one in (model, model.with_data(turned)))
    np.testing.assert_allclose(first, second, rtol=1e-5)
    doubled = model.with_data({key: 2 * column for key, column in DATA.items()})
    assert not np.allclose(doubled.log_density(position), first)


def test_joint_without_rows():
    def model():
        numpyro.sample("y", dist.Normal(numpyro.sample("m", dist.Normal(0.0, 1.0)), 1.0), obs=0.5)

    found = Program(model).joint(as_table(None)).log_density({"m": 0.2})
    np.testing.assert_allclose(found, numpyro_log_density(model, (), {}, {"m": 0.2})[0], rtol=1e-6)
