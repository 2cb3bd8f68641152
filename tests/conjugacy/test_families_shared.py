"""Every exponential family: its normaliser, expected statistics, entropy, draws, and use in compiled code."""

import dataclasses
import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from langevin.conjugacy import families
from langevin.conjugacy.families import shares

NUM_DRAWS = 6_000


def gamma_eta(rng, shape, power):
    return {"log": rng.uniform(1.5, 5, shape) * power - 1, "power": -rng.uniform(0.5, 3, shape)}


def gaussian_eta(rng, batch, size):
    root = rng.normal(size=(*batch, size, size))
    skew = rng.normal(size=(*batch, size, size))
    precision = root @ np.swapaxes(root, -1, -2) + np.eye(size)
    return {"x": rng.normal(size=(*batch, size)), "xx": -precision / 2 + skew - np.swapaxes(skew, -1, -2)}


def case(make, *settings):
    return pytest.param(make, settings, id="-".join([make.__name__, *map(str, settings)]))


def powered_gamma(rng, power):
    return families.PoweredGamma((3, 2), power), gamma_eta(rng, (3, 2), power)


def beta(rng):
    return families.Beta((4,)), {"log": rng.uniform(-0.6, 4, 4), "log1m": rng.uniform(-0.6, 4, 4)}


def dirichlet(rng):
    return families.Dirichlet((2, 4)), {"log": rng.uniform(-0.6, 4, (2, 4))}


def categorical(rng):
    eta = rng.normal(size=(5, 2, 3))
    eta[1, 0, 2] = eta[4, 1, 1] = -np.inf
    return families.Categorical(5, (2, 3)), {"onehot": eta}


def gaussian(rng, size):
    return families.Gaussian((2,), size), gaussian_eta(rng, (2,), size)


def gaussian_chain(rng, length, size):
    eta = gaussian_eta(rng, (2, length), size)
    cross = rng.normal(size=(2, length - 1, size, size))
    margin = 0.45 / max(1, np.linalg.norm(cross, 2, axis=(-1, -2)).max(initial=0))
    return families.GaussianChain((2,), length, size), {**eta, "cross": margin * cross}


def categorical_chain(rng, length):
    onehot, pair = rng.normal(size=(3, length, 2)), rng.normal(size=(3, 3, length - 1, 2))
    onehot[1, 0, 0] = pair[2, 0, 0:2, 1] = -np.inf
    return families.CategoricalChain(3, length, (2,)), {"onehot": onehot, "pair": pair}


def wishart(rng, dim):
    matrix = gaussian_eta(rng, (2,), dim)["xx"]
    return families.Wishart((2,), dim), {"matrix": matrix, "logdet": np.array([-0.3, 2.0])}


def polya_gamma(rng):
    return families.PolyaGamma((2, 3), jnp.asarray([1, 4, 9])), {"omega": -np.array([[0, 0, 2.0], [1e-3, 40, 0.1]])}


CASES = [
    *[case(powered_gamma, power) for power in (1, -2)],
    case(beta),
    case(dirichlet),
    case(categorical),
    *[case(gaussian, size) for size in (1, 7, 3)],
    *[case(gaussian_chain, *settings) for settings in [(1, 2), (5, 1), (4, 2)]],
    *[case(categorical_chain, length) for length in (1, 4)],
    *[case(wishart, dim) for dim in (1, 3)],
    case(polya_gamma),
]
ONE_EACH = [*{parameters.values[0]: parameters for parameters in CASES}.values()]


@pytest.fixture(autouse=True)
def double_precision():
    with jax.enable_x64(True):
        yield


def made(make, settings):
    family, eta = make(np.random.default_rng(1), *settings)
    return family, jax.tree.map(np.asarray, eta)


def all_answers(family, eta):
    return {
        "expected": family.expected(eta),
        "log_normalizer": family.log_normalizer(eta),
        "entropy": family.entropy(eta),
        "slope": jax.grad(family.log_normalizer)(eta),
        "slope of entropy": jax.grad(family.entropy)(eta),
        "proper": family.proper(eta),
        "described": family.described(eta),
    }


@functools.cache
def answers(make, settings):
    """A family, its parameters, and all that it says of them, compiled once for all tests."""
    family, eta = made(make, settings)
    return family, eta, jax.jit(all_answers)(family, eta)


def assert_mean(draws, expected, label):
    """The mean of draws is within five of its standard errors."""
    draws = np.asarray(draws, float)
    error = draws.std(0) / np.sqrt(len(draws))
    assert np.all(np.abs(draws.mean(0) - expected) <= 5 * error + 1e-9), label


def test_every_family_is_tested_here():
    tested = {type(made(*parameters.values)[0]).__name__ for parameters in CASES}
    assert {*families.__all__} == {*tested, "Family"}


@pytest.mark.parametrize(("make", "settings"), CASES)
def test_the_gradient_of_the_normaliser_is_the_expected_statistics(make, settings):
    _, eta, says = answers(make, settings)
    for name in eta:
        np.testing.assert_allclose(says["slope"][name], says["expected"][name], rtol=1e-9, atol=1e-10, err_msg=name)
        assert np.all(np.isfinite(says["slope of entropy"][name])), name


@pytest.mark.parametrize(("make", "settings"), CASES)
def test_draws_have_the_expected_statistics_and_the_entropy(make, settings):
    family, eta, says = answers(make, settings)

    @jax.jit
    def draws_of(keys):
        draws = jax.vmap(family.sample, in_axes=(0, None))(keys, eta)
        return draws, jax.vmap(family.statistics)(draws), jax.vmap(family.log_prob, in_axes=(None, 0))(eta, draws)

    draws, statistics, log_prob = draws_of(jax.random.split(jax.random.key(0), NUM_DRAWS))
    assert draws.shape[1:] == family.value_shape
    for name, expected in says["expected"].items():
        assert_mean(statistics[name], expected, name)
    assert_mean(-log_prob, says["entropy"], "entropy")


@pytest.mark.parametrize(("make", "settings"), CASES)
def test_shapes_are_those_announced_in_either_precision(make, settings):
    family, eta = made(make, settings)

    def of_value(key, eta):
        value = family.sample(key, eta)
        return value, family.statistics(value), family.log_prob(eta, value)

    for x64, dtype in [(True, np.float64), (False, np.float32), (True, np.float32)]:
        like = jax.tree.map(lambda array, dtype=dtype: jax.ShapeDtypeStruct(array.shape, dtype), eta)
        with jax.enable_x64(x64):
            announced = family.like()
            value, statistics, log_prob = jax.eval_shape(of_value, jax.random.key(0), like)
            says = jax.eval_shape(functools.partial(all_answers, family), like)
        shapes = {name: array.shape for name, array in announced.items()}
        for others in (eta, statistics, says["expected"]):
            assert {name: array.shape for name, array in others.items()} == shapes
        assert value.shape == family.value_shape
        for scalar in (says["log_normalizer"], says["entropy"], says["proper"], log_prob):
            assert scalar.shape == ()
        assert says.pop("proper").dtype == bool
        assert {leaf.dtype for leaf in jax.tree.leaves(says)} == {np.dtype(dtype)}
        assert value.dtype == dtype or np.issubdtype(value.dtype, np.integer)


@pytest.mark.parametrize(("make", "settings"), ONE_EACH)
def test_single_precision_agrees(make, settings):
    family, eta, says = answers(make, settings)
    with jax.enable_x64(False):
        single = jax.jit(all_answers)(family, jax.tree.map(lambda array: array.astype(np.float32), eta))
    for name in ("log_normalizer", "entropy", "expected", "slope", "described"):
        close = functools.partial(np.testing.assert_allclose, rtol=1e-3, atol=1e-3, err_msg=name)
        jax.tree.map(close, single[name], says[name])


@pytest.mark.parametrize(("make", "settings"), ONE_EACH)
def test_mapped_and_scanned_agree(make, settings):
    family, eta, says = answers(make, settings)
    twice = jax.tree.map(lambda array: np.stack([array, array]), eta)

    @jax.jit
    def both(family, twice):
        return jax.vmap(family.entropy)(twice), jax.lax.scan(lambda _, eta: (_, family.entropy(eta)), 0, twice)[1]

    np.testing.assert_allclose(both(family, twice), np.full((2, 2), says["entropy"]), rtol=1e-10)


@pytest.mark.parametrize(("make", "settings"), CASES)
def test_what_is_not_a_number_is_improper(make, settings):
    family, eta, says = answers(make, settings)
    assert says["proper"]
    proper = jax.jit(family.proper)
    for name in eta:
        for bad in (np.nan, np.inf):
            spoilt = eta[name].copy()
            spoilt.flat[:1] = bad
            assert not spoilt.size or not proper({**eta, name: spoilt}), (name, bad)


def test_settings_cannot_be_changed():
    for parameters in ONE_EACH:
        family, _ = made(*parameters.values)
        with pytest.raises(dataclasses.FrozenInstanceError):
            setattr(family, dataclasses.fields(family)[0].name, None)


def improper(family, **changes):
    return pytest.param(family, changes, id="-".join([type(family).__name__, *changes]))


@pytest.mark.parametrize(
    ("family", "changes"),
    [
        improper(families.PoweredGamma((2,), 1), log=[0.0, -1.0], power=[-1.0, -1.0]),
        improper(families.PoweredGamma((2,), 1), power=[-1.0, 0.0], log=[0.0, 0.0]),
        improper(families.PoweredGamma((2,), -1), log=[-2.0, 0.0], power=[-1.0, -1.0]),
        improper(families.Beta((2,)), log=[0.0, -1.0], log1m=[0.0, 0.0]),
        improper(families.Beta((2,)), log1m=[0.0, -1.0], log=[0.0, 0.0]),
        improper(families.Dirichlet((2,)), log=[0.0, -1.0]),
        improper(families.Categorical(2, (2,)), onehot=[[0.0, -np.inf], [0.0, -np.inf]]),
        improper(families.Gaussian((2,), 1), x=[[0.0], [0.0]], xx=[[[-1.0]], [[0.0]]]),
        improper(families.Gaussian((), 2), x=[0.0, 0.0], xx=[[-1.0, 0.0], [-3.0, -1.0]]),
        improper(families.Gaussian((), 4), x=[0.0] * 4, xx=-np.diag([1.0, 1, 1, -1])),
        improper(families.GaussianChain((), 2, 1), x=[[0.0]] * 2, xx=[[[-0.5]]] * 2, cross=[[[1.01]]]),
        improper(families.CategoricalChain(2, 2, ()), onehot=np.zeros((2, 2)), pair=np.full((2, 2, 1), -np.inf)),
        improper(families.Wishart((), 2), matrix=[[-1.0, 0.0], [0.0, -1.0]], logdet=-1.0),
        improper(families.Wishart((), 2), matrix=[[-1.0, 0.0], [-3.0, -1.0]], logdet=1.0),
        improper(families.PolyaGamma((2,), 1), omega=[-1.0, 0.1]),
        improper(families.PolyaGamma((2,), jnp.asarray([1, 0])), omega=[-1.0, -1.0]),
    ],
)
def test_impossible_parameters_are_improper(family, changes):
    assert not family.proper({name: jnp.asarray(array) for name, array in changes.items()})


@pytest.mark.parametrize("shape", [(3, 5), (3, 7000), (1, 20_000), (40, 30, 20)])
def test_sums_and_shares_are_the_same_for_few_and_many(shape):
    generator = np.random.default_rng(0)
    x = 30 * generator.normal(size=shape)
    x[0, :3], x[:, -1] = -np.inf, -np.inf
    possible = np.isfinite(x).any(axis=0)
    with np.errstate(divide="ignore"):
        expected = np.log(np.sum(np.exp(x), axis=0))
    with jax.enable_x64(True):
        np.testing.assert_allclose(shares.log_sum(jnp.asarray(x)), expected, rtol=1e-12)
        found = np.asarray(shares.shares(jnp.asarray(x)))
        slope = np.asarray(jax.grad(lambda x: jnp.sum(jnp.where(possible, shares.log_sum(x), 0.0)))(jnp.asarray(x)))
    np.testing.assert_allclose(found.sum(axis=0), possible, rtol=1e-12)
    np.testing.assert_allclose(found, np.where(possible, np.exp(x - np.where(possible, expected, 0)), 0), rtol=1e-10)
    np.testing.assert_allclose(slope, found, rtol=1e-12, atol=1e-300)
