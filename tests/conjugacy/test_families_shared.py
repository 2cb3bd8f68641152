"""Every exponential family: its normaliser, expected statistics, entropy, draws, and use in compiled code."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from langevin.conjugacy import families
from langevin.conjugacy.families import shares

NUM_DRAWS = 20_000


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
    *[case(powered_gamma, power) for power in (1, -1, 2, -2, 0.5)],
    case(beta),
    case(dirichlet),
    case(categorical),
    *[case(gaussian, size) for size in (1, 2, 3, 5)],
    *[case(gaussian_chain, *settings) for settings in [(5, 1), (4, 2), (3, 4), (1, 2)]],
    *[case(categorical_chain, length) for length in (1, 4)],
    *[case(wishart, dim) for dim in (1, 2, 4)],
    case(polya_gamma),
]


@pytest.fixture(autouse=True)
def double_precision():
    with jax.enable_x64(True):
        yield


def made(make, settings):
    family, eta = make(np.random.default_rng(1), *settings)
    return family, jax.tree.map(jnp.asarray, eta)


def draws_of(family, eta, count=NUM_DRAWS):
    return jax.jit(jax.vmap(family.sample, in_axes=(0, None)))(jax.random.split(jax.random.key(0), count), eta)


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
    family, eta = made(make, settings)
    gradient, expected = jax.grad(family.log_normalizer)(eta), family.expected(eta)
    for name in eta:
        np.testing.assert_allclose(gradient[name], expected[name], rtol=1e-9, atol=1e-10, err_msg=name)


@pytest.mark.parametrize(("make", "settings"), CASES)
def test_draws_have_the_expected_statistics_and_the_entropy(make, settings):
    family, eta = made(make, settings)
    draws = draws_of(family, eta)
    assert draws.shape[1:] == family.value_shape
    statistics = jax.vmap(family.statistics)(draws)
    for name, expected in family.expected(eta).items():
        assert_mean(statistics[name], expected, name)
    log_prob = jax.vmap(family.log_prob, in_axes=(None, 0))(eta, draws)
    assert_mean(-log_prob, family.entropy(eta), "entropy")


@pytest.mark.parametrize(("make", "settings"), CASES)
def test_shapes_are_those_announced(make, settings):
    family, eta = made(make, settings)
    value = family.sample(jax.random.key(0), eta)
    announced = {name: (like.shape, like.dtype) for name, like in family.like().items()}
    for statistics in (eta, family.statistics(value), family.expected(eta)):
        assert {name: (array.shape, array.dtype) for name, array in statistics.items()} == announced
    for scalar in (family.log_normalizer(eta), family.entropy(eta), family.log_prob(eta, value), family.proper(eta)):
        assert scalar.shape == ()


@pytest.mark.parametrize(("make", "settings"), CASES)
def test_single_precision_stays_single_and_agrees(make, settings):
    family, eta = made(make, settings)

    def answers(eta):
        value = family.sample(jax.random.key(0), eta)
        numbers = (family.expected(eta), family.log_normalizer(eta), family.entropy(eta), family.described(eta))
        return value, numbers, family.log_prob(eta, value)

    single = jax.tree.map(lambda array: jnp.asarray(array, jnp.float32), eta)
    for x64 in (False, True):
        with jax.enable_x64(x64):
            value, numbers, log_prob = jax.eval_shape(answers, single)
        assert {leaf.dtype for leaf in jax.tree.leaves(numbers)} == {jnp.dtype(jnp.float32)}
        assert value.dtype in (jnp.float32, jnp.int32, jnp.int64)
        assert log_prob.dtype == jnp.float32 or x64
    with jax.enable_x64(False):
        _, (expected, log_normalizer, entropy, _), log_prob = jax.jit(answers)(single)
    assert jnp.isfinite(log_prob)
    np.testing.assert_allclose(log_normalizer, family.log_normalizer(eta), rtol=1e-4, atol=1e-4)
    np.testing.assert_allclose(entropy, family.entropy(eta), rtol=1e-4, atol=1e-4)
    for name, array in family.expected(eta).items():
        np.testing.assert_allclose(expected[name], array, rtol=1e-3, atol=1e-4)


@pytest.mark.parametrize(("make", "settings"), CASES)
def test_compiled_mapped_and_scanned_agree(make, settings):
    family, eta = made(make, settings)
    twice = jax.tree.map(lambda array: jnp.stack([array, array]), eta)
    entropy = family.entropy(eta)
    np.testing.assert_allclose(jax.jit(family.entropy)(eta), entropy, rtol=1e-10)
    np.testing.assert_allclose(jax.vmap(family.entropy)(twice), [entropy] * 2, rtol=1e-10)
    _, scanned = jax.lax.scan(lambda carry, eta: (carry, family.entropy(eta)), 0, twice)
    np.testing.assert_allclose(scanned, [entropy] * 2, rtol=1e-10)
    as_argument = jax.jit(lambda family, eta: family.entropy(eta))(family, eta)
    np.testing.assert_allclose(as_argument, entropy, rtol=1e-10)


@pytest.mark.parametrize(("make", "settings"), CASES)
def test_what_is_not_a_number_is_improper(make, settings):
    family, eta = made(make, settings)
    assert family.proper(eta)
    # A chain of one step has no pairs.
    for name in (name for name in eta if eta[name].size):
        for bad in (np.nan, np.inf):
            index = (0,) * eta[name].ndim
            assert not jax.jit(family.proper)({**eta, name: eta[name].at[index].set(bad)}), (name, bad)


@pytest.mark.parametrize(("make", "settings"), CASES)
def test_gradients_of_the_entropy_are_finite(make, settings):
    family, eta = made(make, settings)
    gradient = jax.grad(family.entropy)(eta)
    assert all(bool(jnp.all(jnp.isfinite(leaf))) for leaf in jax.tree.leaves(gradient))


@pytest.mark.parametrize(("make", "settings"), CASES)
def test_settings_cannot_be_changed(make, settings):
    family, _ = made(make, settings)
    name = dataclasses.fields(family)[0].name
    with pytest.raises(dataclasses.FrozenInstanceError):
        setattr(family, name, None)


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
