"""Mistakes of beginners, by what they are told: in programs, and in calls."""

import functools
import inspect
import math
import re

import jax
import jax.numpy as jnp
import numpy as np
import numpyro
import numpyro.distributions as dist
import pytest
from numpyro.contrib.control_flow import scan

import langevin as lv
from langevin import spelling
from langevin.data.table import as_table
from langevin.models.program import Program

NUM_ROWS = 12
RNG = np.random.default_rng(0)
X = RNG.normal(size=NUM_ROWS).astype(np.float32)
Y = RNG.normal(size=NUM_ROWS).astype(np.float32)
G = np.arange(NUM_ROWS) % 4
SHORT = {"num_warmup": 20, "num_draws": 20, "num_chains": 1, "progress": False}
METHODS = {
    "nuts": {"method": "nuts"},
    "sgld": {"method": lv.SGLD(step_size=1e-3), "batch_size": 4},
    "vi": {"method": lv.VI(num_steps=50)},
}
every_method = pytest.mark.parametrize("method", METHODS)
quiet = pytest.mark.filterwarnings("ignore::langevin.LangevinWarning")


def fit(model, data, method="nuts", **keywords):
    asked = METHODS[method] if isinstance(method, str) and method in METHODS else {"method": method}
    return lv.fit(model, data, **SHORT | asked | keywords)


def accepted(model, data):
    """The target of a program that nothing is said against."""
    return Program(model).posterior(as_table(data))


def normal(y):
    m = numpyro.sample("m", dist.Normal(0.0, 1.0))
    with numpyro.plate("rows", y.shape[0]):
        numpyro.sample("y", dist.Normal(m, 1.0), obs=y)


def with_mean(mean):
    """A program whose mean is a function of its latent site."""

    def model(y):
        z = numpyro.sample("z", dist.Normal(0.0, 1.0))
        with numpyro.plate("rows", y.shape[0]):
            numpyro.sample("y", dist.Normal(mean(z), 1.0), obs=y)

    return model


def grouped(lookup, num_groups=3):
    def model(g, y):
        with numpyro.plate("groups", num_groups):
            a = numpyro.sample("a", dist.Normal(0.0, 1.0))
        with numpyro.plate("rows", y.shape[0]):
            numpyro.sample("y", dist.Normal(lookup(a, g), 1.0), obs=y)

    return model


@every_method
def test_a_plate_of_another_size_than_the_data(method):
    def model(x, y):
        w = numpyro.sample("w", dist.Normal(0.0, 1.0))
        with numpyro.plate("rows", 10):
            numpyro.sample("y", dist.Normal(w * x, 1.0), obs=y)

    with pytest.raises(lv.ModelError, match=r"Site 'y' cannot be made, at .*test_mistakes.*\(10,\), \(12,\).*x\.shape"):
        fit(model, {"x": X, "y": Y}, method)


@every_method
@pytest.mark.parametrize("lookup", [lambda a, g: a[g], jnp.take], ids=["index", "take"])
def test_codes_beyond_the_plate(method, lookup):
    with pytest.raises(
        lv.DataError, match=r"`data\['g'\]` gives the index 3 at row 3, in site 'a'.*from 0 to 2.*plate"
    ):
        fit(grouped(lookup), {"g": G, "y": Y}, method)


@pytest.mark.parametrize(
    ("lookup", "codes", "index"),
    [
        (lambda a, g: a[g - 1], G, "-1 at row 0"),
        (lambda a, g: a[g.astype(int)], G.astype(np.float32), "3 at row 3"),
        (lambda a, g: jnp.exp(a)[g], G, "3 at row 3"),
        (lambda a, g: a[g[:, 0]], G[:, None], "3 at row 3"),
        (lambda a, g: jnp.outer(a, a)[g, g - 1], G, "3 at row 3"),
        (lambda a, g: jax.jit(lambda: a[g])(), G, "3 at row 3"),
        (lambda a, g: jnp.take_along_axis(a[None] * jnp.ones((NUM_ROWS, 1)), g[:, None], 1)[:, 0], G, "3 at row 3"),
    ],
    ids=["shifted", "floats", "transformed", "column", "matrix", "jit", "along an axis"],
)
def test_codes_are_followed_through_the_program(lookup, codes, index):
    with pytest.raises(lv.DataError, match=rf"`data\['g'\]` gives the index {index}, in site 'a'"):
        fit(grouped(lookup), {"g": codes, "y": Y})


def test_negative_codes_are_not_counted_from_the_end():
    codes = G.copy()
    codes[5] = -1
    with pytest.raises(
        lv.DataError, match=r"index -1 at row 5, in site 'a'.*from the end; pandas writes -1 for a miss"
    ):
        fit(grouped(lambda a, g: a[g], 4), {"g": codes, "y": Y})


MISSING = np.where(G == 3, -1, G)


@pytest.mark.parametrize(
    ("lookup", "codes"),
    [
        (lambda a, g: a[g], G % 3),
        (lambda a, g: a[g - 7], G % 3 + 7),
        (lambda a, g: jnp.where(g >= 0, a[g], 0.0), MISSING),
        (lambda a, g: jnp.where(g > 0, a[g], 0.0), MISSING),
        (lambda a, g: a[jnp.where(g < 0, 0, g)], MISSING),
        (lambda a, g: a[jnp.clip(g, 0, 2)], G),
        (lambda a, g: jnp.take(a, g, mode="clip"), G),
        (lambda a, g: a[g % 3], G),
    ],
    ids=["right", "shifted", "left out", "more left out", "replaced", "clipped", "nearest", "wrapped"],
)
def test_codes_that_are_meant_so_pass(lookup, codes):
    assert accepted(grouped(lookup), {"g": codes, "y": Y}).num_data == NUM_ROWS


def test_a_choice_by_something_else_is_no_excuse():
    def model(g, x, y):
        a = numpyro.sample("a", dist.Normal(0.0, 1.0).expand([3]).to_event(1))
        with numpyro.plate("rows", y.shape[0]):
            numpyro.sample("y", dist.Normal(jnp.where(x > 0, a[g], 0.0), 1.0), obs=y)

    codes = G % 3
    codes[7] = 3
    with pytest.raises(lv.DataError, match="index 3 at row 7, in site 'a'"):
        fit(model, {"g": codes, "x": X, "y": Y})
    # A column that says which codes there are is one.
    accepted(model, {"g": codes, "x": np.where(np.arange(NUM_ROWS) == 7, -1.0, 1.0), "y": Y})


def test_codes_of_masked_rows_pass():
    def model(g, y):
        a = numpyro.sample("a", dist.Normal(0.0, 1.0).expand([3]).to_event(1))
        with numpyro.plate("rows", y.shape[0]), numpyro.handlers.mask(mask=g < 3):
            numpyro.sample("y", dist.Normal(a[g], 1.0), obs=y)

    assert accepted(model, {"g": G, "y": Y}).num_data == NUM_ROWS


@every_method
@pytest.mark.parametrize("second", ["sample", "deterministic", "observed"])
def test_two_sites_of_one_name(method, second):
    def model(y):
        m = numpyro.sample("m", dist.Normal(0.0, 1.0))
        if second == "sample":
            numpyro.sample("m", dist.Normal(0.0, 1.0))
        elif second == "deterministic":
            numpyro.deterministic("m", 2 * m)
        else:
            numpyro.sample("m", dist.Normal(0.0, 1.0), obs=y)

    with pytest.raises(lv.ModelError, match=r"two sites named 'm', at .*, line \d+: `numpyro\..*\"m\".*Rename one"):
        fit(model, {"y": Y}, method)


@every_method
def test_a_name_for_the_rows_and_for_something_else(method):
    def model(y):
        with numpyro.plate("rows", 3):
            a = numpyro.sample("a", dist.Normal(0.0, 1.0))
        with numpyro.plate("rows", y.shape[0]):
            numpyro.sample("y", dist.Normal(a.sum(), 1.0), obs=y)

    with pytest.raises(lv.ModelError, match=r"Two plates are named 'rows': one over the 12 rows.*size 3, at site 'a'"):
        fit(model, {"y": Y}, method)


@quiet
@every_method
def test_a_site_may_have_the_name_of_a_column(method):
    def model(x, y):
        w = numpyro.sample("x", dist.Normal(0.0, 1.0))
        with numpyro.plate("y", x.shape[0]):
            numpyro.sample("observed", dist.Normal(w * x, 1.0), obs=y)

    assert fit(model, {"x": X, "y": Y}, method).posterior["x"].shape == (1, 20)


@quiet
def test_scopes_give_names_with_dots(tmp_path):
    def model(y):
        m = numpyro.handlers.scope(lambda: numpyro.sample("m", dist.Normal(0.0, 1.0)), prefix="part")()
        with numpyro.plate("rows", y.shape[0]):
            numpyro.sample("y", dist.Normal(m, 1.0), obs=y)

    result = fit(model, {"y": Y})
    assert list(result.posterior) == ["part.m"]
    result.save(tmp_path / "fit")
    assert list(lv.load(tmp_path / "fit").posterior) == ["part.m"]

    def clash(y):
        numpyro.sample("a/b", dist.Normal(0.0, 1.0))
        numpyro.sample("a.b", dist.Normal(0.0, 1.0))
        normal(y)

    with pytest.raises(lv.ModelError, match=r"'a/b' and 'a\.b' would have one name"):
        fit(clash, {"y": Y})


@pytest.mark.parametrize("name", ["", 3])
def test_names_that_are_none(name):
    with pytest.raises(lv.ModelError, match=rf"name of a site must be a text.*got {name!r}"):
        fit(lambda y: numpyro.sample(name, dist.Normal(0.0, 1.0)), {"y": Y})


@pytest.mark.parametrize(
    ("mean", "remedy"),
    [
        (lambda z: np.exp(z), r"jnp\.exp\(z\) in place of np\.exp\(z\)"),
        (lambda z: z if z > 0 else -z, r"jnp\.where\(z > 0, a, b\), or jax\.lax\.cond"),
        (lambda z: float(z), "leave the conversion out"),
        (lambda z: z.item(), "leave the conversion out"),
        (lambda z: math.exp(z), r"in place of math\.exp\(z\)"),
        (lambda z: max(z, 0.0), r"jnp\.where"),
        (lambda z: [1.0, 2.0][z.astype(int)], r"jnp\.asarray\(values\)\[z\]"),
        (lambda z: jnp.ones(3)[jnp.ones(3) > z].sum(), r"jnp\.where\(x > 0, x, 0\.0\)"),
    ],
    ids=["np.exp", "if", "float", "item", "math.exp", "max", "list", "boolean index"],
)
def test_values_of_latent_sites(mean, remedy):
    number = mean.__code__.co_firstlineno
    culprit = rf"The program asks for a value of a latent site.*test_mistakes\.py, line {number}: `.*`.*{remedy}"
    with pytest.raises(lv.ModelError, match=culprit):
        fit(with_mean(mean), {"y": Y})
    density = lv.Density(lambda z: mean(z) - z**2, init=0.0)
    with pytest.raises(lv.ModelError, match=rf"`Density`: `log_prior` asks for a value.*line {number}: .*{remedy}"):
        fit(density, None)


@every_method
def test_values_of_latent_sites_by_every_method(method):
    with pytest.raises(lv.ModelError, match=r"value of a latent site.*line \d+: .*np\.exp\(z\).*jnp\.exp\(z\)"):
        fit(with_mean(lambda z: np.exp(z)), {"y": Y}, method)


def fill(z):
    means = np.zeros(NUM_ROWS)
    means[0] = z
    return means


@pytest.mark.parametrize(
    ("mean", "culprit"),
    [
        (lambda z: sum(range(z)), r"line \d+: .*range\(z\).*known beforehand"),
        (lambda z: z.exp(), r"line \d+: .*has no attribute exp.*jnp\.exp\(z\) in place of z\.exp\(\)"),
        (lambda z: jnp.ones((2, 3)) @ jnp.ones(2) * z, r"line \d+: .*dot_general.*\(3,\) and \(2,\)"),
        (lambda z: float(f"{z:.2f}"), r"line \d+: .*jax\.debug\.print"),
        (fill, r"line \d+: `means\[0\] = z`.*x\.at\[i\]\.set\(z\)"),
    ],
    ids=["range", "method", "shapes", "format", "fill"],
)
def test_errors_of_libraries_have_a_line(mean, culprit):
    with pytest.raises(lv.ModelError, match=rf"The program .*at .*test_mistakes\.py, {culprit}"):
        fit(with_mean(mean), {"y": Y})


def test_values_of_the_data():
    def model(y):
        m = numpyro.sample("m", dist.Normal(0.0, 1.0))
        if y.max() > 0:
            m = 2 * m
        numpyro.sample("y", dist.Normal(m, 1.0), obs=y)

    with pytest.raises(lv.ModelError, match=r"a value of the data.*line \d+: `if y\.max\(\) > 0:`.*`constants`"):
        fit(model, {"y": Y})


def test_values_in_other_functions():
    def guide(y):
        loc = numpyro.param("loc", 0.0)
        numpyro.sample("m", dist.Normal(loc, np.exp(loc)))

    with pytest.raises(lv.ModelError, match=r"The guide asks for a value.*line \d+: .*np\.exp\(loc\)"):
        fit(normal, {"y": Y}, lv.VI(guide))
    with pytest.raises(lv.ModelError, match=r"`Density`: `constrain` asks for a value.*line \d+"):
        fit(lv.Density(lambda m: -(m**2), init=0.0, constrain=lambda m: {"a": np.exp(m)}), None)
    with pytest.raises(lv.ModelError, match=r"`Density`: `log_likelihood` asks for a value.*line \d+"):
        fit(lv.Density(lambda m: -(m**2), lambda m, rows: np.exp(m) * rows["y"], init=0.0), {"y": Y})
    with pytest.raises(lv.ModelError, match=r"`Keep`: `function` asks for a value.*line \d+"):
        fit(normal, {"y": Y}, keep=lambda sites: {"a": np.exp(sites["m"])})


def at(value, other, dtype=np.float32):
    y = np.full(NUM_ROWS, other, dtype)
    y[3] = value
    return {"y": y}


@pytest.mark.parametrize(
    ("distribution", "data", "culprit"),
    [
        (lambda z: dist.Poisson(jnp.exp(z)), at(-1, 1), "-1. at row 3.*Poisson.*a whole number, at least 0"),
        (lambda z: dist.Poisson(jnp.exp(z)), at(2.5, 1), "2.5 at row 3.*Poisson.*a whole number, at least 0"),
        (lambda z: dist.Bernoulli(logits=z), at(2, 1, int), "2 at row 3.*Bernoulli,.*0 or 1"),
        (lambda z: dist.Categorical(logits=z * jnp.ones(3)), at(3, 1, int), "3 at row 3.*Categorical,.*from 0 to 2"),
        (lambda z: dist.Beta(jnp.exp(z), 2.0), at(1.5, 0.5), "1.5 at row 3.*Beta.*from 0 to 1"),
        (lambda z: dist.Gamma(jnp.exp(z), 1.0), at(0.0, 1.0), "0. at row 3.*Gamma.*above 0"),
        (lambda z: dist.LogNormal(z, 1.0), at(-2.0, 1.0), "-2. at row 3.*LogNormal.*above 0"),
        (lambda z: dist.Binomial(10, logits=z), at(11, 1, int), "11 at row 3.*Binomial,.*from 0 to 10"),
        (lambda z: dist.Uniform(0.0, 1.0), at(2.0, 0.5), "2. at row 3.*Uniform.*from 0 to 1"),
        (
            lambda z: dist.NegativeBinomial2(jnp.exp(z), 1.0),
            at(-1, 1, int),
            "-1 at row 3.*NegativeBinomial2.*at least 0",
        ),
    ],
)
def test_data_outside_the_support(distribution, data, culprit):
    def model(y):
        z = numpyro.sample("z", dist.Normal(0.0, 1.0))
        with numpyro.plate("rows", y.shape[0]):
            numpyro.sample("y", distribution(z), obs=y)

    with pytest.raises(lv.DataError, match=rf"Observed site 'y' has the value {culprit}.*`data\['y'\]`"):
        fit(model, data)


def counted(scale=1, **keywords):
    def model(n, y):
        p = numpyro.sample("p", dist.Beta(1.0, 1.0))
        with numpyro.plate("rows", y.shape[0]):
            numpyro.sample("y", dist.Binomial(scale * n, p, **keywords), obs=y)

    return model


@every_method
def test_the_support_may_follow_from_the_row(method):
    data = {"n": np.arange(NUM_ROWS), "y": np.arange(NUM_ROWS)}
    data["y"][[7, 9]] += 1
    with pytest.raises(lv.DataError, match=r"value 8 at row 7 \(2 such values\).*from 0 to 7"):
        fit(counted(), data, method)


def test_data_outside_the_support_that_is_meant_so():
    def soft(y):
        z = numpyro.sample("z", dist.Normal(0.0, 1.0))
        with numpyro.plate("rows", y.shape[0]):
            numpyro.sample("y", dist.Bernoulli(logits=z, validate_args=False), obs=y)

    def masked(y):
        z = numpyro.sample("z", dist.Normal(0.0, 1.0))
        with numpyro.plate("rows", y.shape[0]), numpyro.handlers.mask(mask=y >= 0):
            numpyro.sample("y", dist.Poisson(jnp.exp(z)), obs=y)

    def moving(y):
        z = numpyro.sample("z", dist.HalfNormal(100.0))
        with numpyro.plate("rows", y.shape[0]):
            numpyro.sample("y", dist.Uniform(0.0, 1.0 + z), obs=y)

    for model, data in ((soft, at(0.5, 1.0)), (masked, at(-1, 1)), (moving, at(2.0, 0.5))):
        target = accepted(model, data)
        assert np.isfinite(target.log_density({"z": jnp.array(1.0)}))


@pytest.mark.parametrize("value", [[1.0, 2.0], "abc"])
def test_observations_that_are_no_array(value):
    def model(y):
        m = numpyro.sample("m", dist.Normal(0.0, 1.0))
        numpyro.sample("y", dist.Normal(m, 1.0), obs=value)

    with pytest.raises(lv.ModelError, match=rf"Observed site 'y' has a value of the type {type(value).__name__}.*jnp"):
        fit(model, {"y": Y})


def test_parameters_that_are_no_numbers():
    def invalid(y):
        numpyro.sample("m", dist.Normal(0.0, -1.0))

    def text(y):
        numpyro.sample("m", dist.Normal("0", 1.0))

    with pytest.raises(lv.ModelError, match=r"line \d+: .*dist\.Normal\(0\.0, -1\.0\).*invalid scale parameter"):
        fit(invalid, {"y": Y})
    with pytest.raises(lv.ModelError, match="log-probability of site 'm' failed.*'str'"):
        fit(text, {"y": Y})


@quiet
def test_nothing_observed_is_warned_about():
    def model(y):
        with numpyro.plate("rows", y.shape[0]):
            numpyro.sample("m", dist.Normal(0.0, 1.0))

    with pytest.warns(lv.LangevinWarning, match=r"Nothing is observed.*\(y\).*of the prior.*`obs=y`"):
        fit(model, {"y": Y})
    with pytest.raises(lv.ModelError, match="Nothing is observed inside the plate over the rows, 'rows'"):
        fit(model, {"y": Y}, "sgld")


@quiet
def test_deterministic_sites_that_a_minibatch_leaves_out(tmp_path):
    def model(x, y):
        w = numpyro.sample("w", dist.Normal(0.0, 1.0))
        numpyro.deterministic("twice", 2 * w)
        with numpyro.plate("rows", x.shape[0]):
            mean = numpyro.deterministic("mean", w * x)
            numpyro.sample("y", dist.Normal(mean, 1.0), obs=y)

    data = {"x": X, "y": Y}
    some = fit(model, data, "sgld")
    assert list(some.posterior) == ["w", "twice"]
    assert some.settings["left_out"] == ["mean"]
    assert "Left out: mean, which depend on the rows" in repr(some)
    some.save(tmp_path / "fit")
    assert "Left out: mean" in repr(lv.load(tmp_path / "fit"))
    whole = fit(model, data)
    assert list(whole.posterior) == ["w", "twice", "mean"]
    assert whole.settings["left_out"] == []
    assert "Left out" not in repr(whole)


class Thing:
    def __call__(self, y):
        normal(y)

    def method(self, y):
        normal(y)


def generator(y):
    yield normal(y)


async def asynchronous(y):
    normal(y)


@pytest.mark.parametrize(
    ("model", "culprit"),
    [
        (None, r"got None\. Pass the function itself, `model`"),
        (Thing, "is the class 'Thing'"),
        (generator, "is a generator"),
        (asynchronous, "is asynchronous"),
        (lambda z: normal(z), r"missing a required argument: 'z'.*\(z\); `data` has \['y'\]"),
        (np.zeros(100), r"got array\(\[.*\.\.\."),
    ],
)
def test_what_is_no_program(model, culprit):
    with pytest.raises(lv.ModelError, match=re.compile(culprit, re.DOTALL)):
        fit(model, {"y": Y})


def shifted(y, by):
    normal(y - by)


@quiet
@every_method
@pytest.mark.parametrize(
    "model",
    [jax.jit(normal), functools.partial(shifted, by=0.0), Thing(), Thing().method, numpyro.handlers.seed(normal, 0)],
    ids=["jit", "partial", "object", "method", "seeded"],
)
def test_what_is_a_program(method, model):
    np.testing.assert_array_equal(
        fit(model, {"y": Y}, method).posterior["m"], fit(normal, {"y": Y}, method).posterior["m"]
    )


@every_method
@pytest.mark.parametrize(
    "draw",
    [
        lambda: jax.jit(lambda: numpyro.sample("z", dist.Normal(0.0, 1.0)))(),
        lambda: jax.vmap(lambda loc: numpyro.sample("z", dist.Normal(loc, 1.0)))(jnp.zeros(3)).sum(),
        lambda: jax.lax.scan(lambda c, _: (numpyro.sample("z", dist.Normal(c, 1.0)),) * 2, 0.0, jnp.arange(3))[0],
    ],
    ids=["jit", "vmap", "scan"],
)
def test_sites_inside_functions_that_jax_runs(method, draw):
    def model(y):
        z = draw()
        with numpyro.plate("rows", y.shape[0]):
            numpyro.sample("y", dist.Normal(z, 1.0), obs=y)

    with pytest.raises(lv.ModelError, match=r"Site 'z' is inside a function that jax\.jit.*control_flow\.scan"):
        fit(model, {"y": Y}, method)


def test_sites_inside_numpyros_scan_are_fine():
    def model(y):
        def step(carry, _):
            z = numpyro.sample("z", dist.Normal(carry, 1.0))
            return z, z

        z, _ = scan(step, 0.0, jnp.arange(3))
        with numpyro.plate("rows", y.shape[0]):
            numpyro.sample("y", dist.Normal(z, 1.0), obs=y)

    assert accepted(model, {"y": Y}).dims == (("z", ("z_dim_0",)),)


@every_method
def test_programs_that_change(method):
    runs = []

    def counts(y):
        runs.append(0)
        m = numpyro.sample(f"m{len(runs)}", dist.Normal(0.0, 1.0))
        with numpyro.plate("rows", y.shape[0]):
            numpyro.sample("y", dist.Normal(m, 1.0), obs=y)

    def draws(y):
        m = numpyro.sample("m", dist.Normal(RNG.normal(), 1.0))
        with numpyro.plate("rows", y.shape[0]):
            numpyro.sample("y", dist.Normal(m, 1.0), obs=y)

    with pytest.raises(lv.ModelError, match=r"not the same latent sites each time.*'m\d+' comes and goes"):
        fit(counts, {"y": Y}, method)
    with pytest.raises(lv.ModelError, match=r"not the same each time.*np\.random.*`constants`"):
        fit(draws, {"y": Y}, method)


def prior(scale):
    def model(y):
        m = numpyro.sample("m", dist.Normal(0.0, scale))
        with numpyro.plate("rows", y.shape[0]):
            numpyro.sample("y", dist.Normal(m, 1.0), obs=y)

    return model


@pytest.mark.parametrize("transform", [jax.jit, jax.grad, lambda f: lambda x: jax.vmap(f)(x[None])])
def test_fits_inside_transformations(transform):
    def of_closure(scale):
        return fit(prior(scale), {"y": Y}).posterior["m"].mean().item()

    def of_data(shift):
        return fit(normal, {"y": Y + shift}).posterior["m"].mean().item()

    def of_nothing(scale):
        return scale * fit(normal, {"y": Y}).posterior["m"].mean().item()

    for function in (of_closure, of_data, of_nothing):
        with pytest.raises(lv.SettingError, match=r"`fit` is called inside jax\.jit, jax\.vmap or jax\.grad.*outside"):
            transform(function)(jnp.array(1.0))


def test_constants_that_are_traced():
    def model(y, scale):
        prior(scale)(y)

    with pytest.raises(lv.SettingError, match=r"`constants\['scale'\]` has no value yet.*outside"):
        jax.grad(lambda scale: fit(model, {"y": Y}, constants={"scale": scale}))(1.0)


@quiet
def test_fits_inside_handlers():
    with numpyro.handlers.seed(rng_seed=0), pytest.raises(lv.SettingError, match=r"handler of NumPyro's \(seed\)"):
        fit(normal, {"y": Y})
    assert fit(normal, {"y": Y}).posterior["m"].shape == (1, 20)


@pytest.mark.parametrize(
    ("call", "culprit"),
    [
        (
            lambda: fit(normal, {"y": Y}, num_samples=10),
            "`fit` has no argument `num_samples`. Did you mean `num_draws`?",
        ),
        (lambda: fit(normal, {"y": Y}, num_chain=10), "`fit` has no argument `num_chain`. Did you mean `num_chains`?"),
        (lambda: fit(normal, {"y": Y}, tune=10), "Did you mean `num_warmup`?"),
        (lambda: fit(normal, {"y": Y}, "sgld", step_size=0.1), "It is a setting of the method: lv.SGLD(step_size=...)"),
        (lambda: fit(normal, {"y": Y}, target_accept=0.9), "It is a setting of the method: lv.NUTS(target_accept=...)"),
        (lambda: lv.fit(normal, y=Y), "Data goes in one dict, by the names of the program's arguments: {'y': y}"),
        (lambda: fit(normal, {"y": Y}, banana=1), "`fit` has no argument `banana`. Its arguments are model, data"),
        (lambda: lv.fit(normal, X, Y, "nuts"), "`fit`: too many positional arguments. Its arguments are model, data"),
        (lambda: lv.fit(), "`fit`: missing a required argument: 'model'"),
        (lambda: lv.SGLD(stepsize=0.1), "`SGLD` has no argument `stepsize`. Did you mean `step_size`?"),
        (lambda: lv.SGLD(lr=0.1), "`SGLD` has no argument `lr`. Did you mean `step_size`?"),
        (lambda: lv.NUTS(num_draws=10), "`NUTS` has no argument `num_draws`. It goes to lv.fit"),
        (lambda: lv.NUTS(draws=10), "It goes to lv.fit: lv.fit(model, data, method, num_draws=...)"),
        (lambda: lv.VI(famly="meanfield"), "`VI` has no argument `famly`. Did you mean `family`?"),
        (lambda: lv.Density(logprior=abs), "`Density` has no argument `logprior`. Did you mean `log_prior`?"),
        (lambda: lv.Batches(3, ordr="rows"), "`Batches` has no argument `ordr`. Did you mean `order`?"),
        (lambda: lv.Keep(site="w"), "`Keep` has no argument `site`. Did you mean `sites`?"),
        (
            lambda: lv.resume("x", normal, num_samples=3),
            "`resume` has no argument `num_samples`. Did you mean `num_draws`?",
        ),
        (lambda: fit(normal, {"y": Y}, "nutz"), "`method`: 'nutz' is not known. Did you mean 'nuts'?"),
        (lambda: lv.fit(normal, X, Y), "got an array. Data goes in one dict: lv.fit(model, {'x': x, 'y': y}, 'nuts')"),
        (lambda: lv.fit({"y": Y}, normal), "the model comes first"),
        (lambda: fit(normal, {"y": Y}, numpyro.infer.NUTS(normal)), "A method of numpyro is not one of langevin's"),
        (lambda: fit(normal, {"y": Y}, keep=3), "`Keep`: `sites` must be names of sites; got 3"),
        (lambda: fit(normal, {"y": Y}, init={"m": 0.0}), "`init` must be an earlier fit of the same model; got dict"),
        (
            lambda: fit(normal, {"y": Y}, noncentred=3),
            "`noncentred` must be True, False, 'auto' or names of sites; got 3",
        ),
        (lambda: fit(normal, {"y": Y}, store=3), "`fit`: `store` must be a path; got 3"),
        (lambda: fit(normal, {"y": Y}, cache=3), "`fit`: `cache` must be a path; got 3"),
        (lambda: lv.load(3), "`load`: `path` must be a path; got 3"),
        (lambda: lv.resume(3, normal, {"y": Y}), "`resume`: `path` must be a path; got 3"),
    ],
)
def test_arguments(call, culprit):
    with pytest.raises(lv.SettingError, match=re.escape(culprit)):
        call()


def test_names_of_arguments():
    assert tuple(inspect.signature(lv.fit).parameters) == spelling.OF_FIT
    known = {*spelling.OF_FIT, *inspect.signature(lv.SGLD).parameters, *inspect.signature(lv.NUTS).parameters}
    assert set(spelling.ELSEWHERE.values()) <= known
    assert "step_size" in inspect.signature(lv.SGLD).parameters
    with pytest.raises(AttributeError) as raised:
        lv.nuts  # noqa: B018
    assert (raised.value.name, raised.value.obj) == ("nuts", lv)


def test_a_warning_points_to_the_caller():
    with pytest.warns(lv.LangevinWarning) as warned:
        lv.fit(normal, {"y": Y}, **SHORT)
    assert {warning.filename for warning in warned} == {__file__}
