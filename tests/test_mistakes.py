"""Mistakes in calls, by what is said of them: what is no program, where no fit can be made, arguments."""

import functools
import inspect
import re

import jax
import jax.numpy as jnp
import numpy as np
import numpyro
import numpyro.distributions as dist
import pytest
from erring import RNG, SHORT, X, Y, accepted, every_method, fit, normal, quiet
from numpyro.contrib.control_flow import scan

import langevin as lv
from langevin import spelling


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
