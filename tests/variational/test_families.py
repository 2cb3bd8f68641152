"""Families: draws, densities and entropies belong together, and the covariance is the one that the parameters say."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from langevin.variational.families import FullRank, LowRankGaussian, MeanField
from langevin.variational.flow import flow
from langevin.variational.markov import markov

SHAPES = ((5, 2), (3,), (5,), ())
FAMILIES = {
    "meanfield": MeanField(4),
    "fullrank": FullRank(4),
    "lowrank": LowRankGaussian(4, 2),
    "markov": markov(SHAPES),
    "only a path": markov(((6,),)),
    "flow": flow(3),
}


def with_parameters(family, seed=0):
    """The family with parameters at random."""
    generator = np.random.default_rng(seed)
    size = family.noise_size - (family.rank if isinstance(family, LowRankGaussian) else 0)
    first = family.init(generator, generator.normal(size=size).astype(np.float32), 0.5)
    return jax.tree.map(lambda leaf: (leaf + 0.3 * generator.normal(size=leaf.shape)).astype(np.float32), first), size


@pytest.mark.parametrize("family", FAMILIES.values(), ids=FAMILIES)
def test_density_of_a_draw(family):
    """Log q of a draw is the noise's density over the determinant of the map, and the same at the draw itself."""
    parameters, size = with_parameters(family)
    noise = jax.random.normal(jax.random.key(0), (family.noise_size,))
    x, log_q = family.draw(parameters, noise)
    np.testing.assert_allclose(log_q, jnp.sum(family.log_parts(parameters, x)), rtol=1e-4, atol=1e-3)
    if family.noise_size > size:
        return
    matrix = np.asarray(jax.jacobian(lambda e: family.draw(parameters, e)[0])(noise), np.float64)
    expected = -0.5 * float(noise @ noise) - size / 2 * np.log(2 * np.pi) - np.linalg.slogdet(matrix)[1]
    np.testing.assert_allclose(log_q, expected, rtol=1e-4, atol=1e-3)


@pytest.mark.parametrize("family", FAMILIES.values(), ids=FAMILIES)
def test_held_density_depends_on_the_draw_alone(family):
    parameters, _ = with_parameters(family)
    noise = jax.random.normal(jax.random.key(0), (family.noise_size,))
    x, log_q = family.draw(parameters, noise)
    np.testing.assert_allclose(family.held(parameters, x, noise), log_q, rtol=1e-4, atol=1e-3)
    found = jax.grad(lambda x: family.held(parameters, x, noise))(x)
    expected = jax.grad(lambda x: jnp.sum(family.log_parts(parameters, x)))(x)
    np.testing.assert_allclose(found, expected, rtol=1e-2, atol=1e-2)
    assert all((leaf == 0).all() for leaf in jax.tree.leaves(jax.grad(family.held)(parameters, x, noise)))


@pytest.mark.parametrize("name", [name for name in FAMILIES if name != "flow"])
def test_entropy_is_that_of_the_gaussian(name):
    family = FAMILIES[name]
    parameters, _ = with_parameters(family)
    noise = jax.random.normal(jax.random.key(0), (20_000, family.noise_size))
    _, log_q = jax.vmap(lambda e: family.draw(parameters, e))(noise)
    error = float(jnp.std(log_q)) / np.sqrt(len(noise))
    assert abs(float(family.entropy(parameters)) + float(jnp.mean(log_q))) < 4 * error
    matrix = np.asarray(jax.jacobian(lambda e: family.draw(parameters, e)[0])(noise[0]), np.float64)
    exact = 0.5 * np.linalg.slogdet(2 * np.pi * np.e * matrix @ matrix.T)[1]
    np.testing.assert_allclose(family.entropy(parameters), exact, rtol=1e-4, atol=1e-3)


def test_flow_has_no_entropy():
    assert FAMILIES["flow"].entropy(with_parameters(FAMILIES["flow"])[0]) is None


def test_low_rank_covariance():
    family = LowRankGaussian(4, 2)
    parameters, _ = with_parameters(family)
    scale, vectors = np.exp(parameters["log_scale"]), np.tril(parameters["vectors"])
    matrix = np.asarray(jax.jacobian(lambda e: family.draw(parameters, e)[0])(jnp.zeros(6)), np.float64)
    expected = scale[:, None] * (np.eye(4) + vectors @ vectors.T) * scale
    np.testing.assert_allclose(matrix @ matrix.T, expected, rtol=1e-4)


def test_precision_of_the_path_is_block_tridiagonal():
    """Given the globals. And the path may be correlated with them."""
    family = markov(SHAPES)
    parameters, size = with_parameters(family)
    matrix = np.asarray(jax.jacobian(lambda e: family.draw(parameters, e)[0])(jnp.zeros(size)), np.float64)
    covariance = matrix @ matrix.T
    path, rest = family._places
    precision = np.linalg.inv(covariance)
    for i in range(5):
        for j in range(5):
            block = precision[np.ix_(path[i], path[j])]
            assert (np.abs(block).max() > 1e-3) == (abs(i - j) <= 1), (i, j)
    assert np.abs(covariance[np.ix_(path.ravel(), rest)]).max() > 0.01
    order = np.concatenate([path.ravel(), rest])
    assert sorted(order) == list(range(size))


def test_recursion_of_the_path():
    family = markov(((4, 2),))
    parameters, size = with_parameters(family)
    noise = np.random.default_rng(1).normal(size=size).astype(np.float32)
    y, expected = np.zeros(2), []
    for t, e in enumerate(noise.reshape(4, 2)):
        push = np.exp(parameters["log_scale"][t]) * (e + np.tril(parameters["below"][t], -1) @ e)
        y = parameters["carry"][t] @ y + push
        expected.append(parameters["mean"][t] + y)
    np.testing.assert_allclose(family.draw(parameters, noise)[0], np.ravel(expected), rtol=1e-4, atol=1e-5)


def test_mean_field_parts_are_the_coordinates():
    parameters, _ = with_parameters(MeanField(4))
    x = jnp.arange(4.0)
    expected = -((x - parameters["mean"]) ** 2) / 2 / np.exp(2 * parameters["log_scale"])
    expected = expected - parameters["log_scale"] - 0.5 * np.log(2 * np.pi)
    np.testing.assert_allclose(MeanField(4).log_parts(parameters, x), expected, rtol=1e-5)
