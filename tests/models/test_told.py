"""Mistakes in programs, by what is said of them: names, values, supports."""

import math

import jax.numpy as jnp
import numpy as np
import numpyro
import numpyro.distributions as dist
import pytest
from erring import NUM_ROWS, X, Y, accepted, every_method, fit, normal, quiet, with_mean

import langevin as lv


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
    culprit = rf"The program asks for a value of a latent site.*test_told\.py, line {number}: `.*`.*{remedy}"
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
    with pytest.raises(lv.ModelError, match=rf"The program .*at .*test_told\.py, {culprit}"):
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
