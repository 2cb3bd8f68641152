"""Chains, against a dense Gaussian and against all the paths there are."""

import functools
import itertools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import scipy.special
import scipy.stats

from langevin.conjugacy import families


@pytest.fixture(autouse=True)
def double_precision():
    with jax.enable_x64(True):
        yield


@jax.jit
def answers(family, eta, values):
    """All that the tests ask of a chain, in one program."""
    return {
        "log_prob": jax.vmap(family.log_prob, in_axes=(None, 0))(eta, values),
        "statistics": jax.vmap(family.statistics)(values),
        "log_normalizer": family.log_normalizer(eta),
        "slope": jax.grad(family.log_normalizer)(eta),
        "entropy": family.entropy(eta),
        "expected": family.expected(eta),
        "described": family.described(eta),
        "proper": family.proper(eta),
    }


@functools.partial(jax.jit, static_argnames="count")
def draws_of(family, eta, count):
    return jax.vmap(family.sample, in_axes=(0, None))(jax.random.split(jax.random.key(1), count), eta)


def gaussian_chain(length, size):
    """A chain with its dense precision and linear term, from x_{t+1} = F x_t + noise."""
    rng = np.random.default_rng(length + size)
    onward = 0.7 * rng.normal(size=(size, size))
    x, xx = rng.normal(size=(length, size)), np.zeros((length, size, size))
    cross = np.broadcast_to(onward.T, (length - 1, size, size))
    xx -= np.eye(size) / 2
    xx[:-1] -= onward.T @ onward / 2
    precision = np.zeros((length, size, length, size))
    for t in range(length):
        precision[t, :, t] = -2 * xx[t]
    for t in range(length - 1):
        precision[t, :, t + 1], precision[t + 1, :, t] = -cross[t], -cross[t].T
    eta = {"x": jnp.asarray(x), "xx": jnp.asarray(xx), "cross": jnp.asarray(cross)}
    return families.GaussianChain((), length, size), eta, precision.reshape(length * size, -1), x.ravel()


@pytest.mark.parametrize(("length", "size"), [(1, 2), (6, 1), (5, 2), (3, 7)])
def test_a_gaussian_chain_is_a_gaussian(length, size):
    family, eta, precision, linear = gaussian_chain(length, size)
    covariance = np.linalg.inv(precision)
    mean = covariance @ linear
    peer = scipy.stats.multivariate_normal(mean, covariance)
    value = np.random.default_rng(0).normal(size=(length, size))
    says = answers(family, eta, value[None])
    np.testing.assert_allclose(says["log_prob"][0], peer.logpdf(value.ravel()), rtol=1e-9)
    np.testing.assert_allclose(says["entropy"], peer.entropy(), rtol=1e-9)
    second = (covariance + np.outer(mean, mean)).reshape(length, size, length, size)
    expected = says["expected"]
    np.testing.assert_allclose(expected["x"].ravel(), mean, rtol=1e-8)
    for t in range(length):
        np.testing.assert_allclose(expected["xx"][t], second[t, :, t], rtol=1e-8, atol=1e-12)
    for t in range(length - 1):
        np.testing.assert_allclose(expected["cross"][t], second[t, :, t + 1], rtol=1e-8, atol=1e-12)
        lagged = covariance.reshape(length, size, length, size)[t, :, t + 1]
        np.testing.assert_allclose(says["described"]["lagged_covariance"][t], lagged, rtol=1e-8, atol=1e-12)


def test_draws_of_a_gaussian_chain_are_white_when_whitened():
    family, eta, precision, linear = gaussian_chain(4, 2)
    draws = np.asarray(draws_of(family, eta, 10_000)).reshape(10_000, -1)
    white = (draws - np.linalg.solve(precision, linear)) @ np.linalg.cholesky(precision)
    error = np.sqrt((1 + np.eye(8)) / 10_000)
    assert np.all(np.abs(white.T @ white / 10_000 - np.eye(8)) < 5 * error)
    assert np.all(np.abs(white.mean(0)) < 5 / 100)


def test_a_long_gaussian_chain_in_single_precision():
    with jax.enable_x64(False):
        family = families.GaussianChain((), 5000, 2)
        half = jnp.broadcast_to(-0.5 * 1.81 * jnp.eye(2), (5000, 2, 2))
        eta = {"x": jnp.ones((5000, 2)), "xx": half, "cross": jnp.broadcast_to(0.9 * jnp.eye(2), (4999, 2, 2))}
        mean = jax.jit(family.expected)(eta)["x"]
        np.testing.assert_allclose(mean[2500], 1 / (1.81 - 1.8), rtol=1e-3)


def all_paths(values, length, onehot, pair):
    paths = np.array(list(itertools.product(range(values), repeat=length)))
    at, step = np.arange(length), np.arange(length - 1)
    return paths, onehot[paths, at].sum(1) + pair[paths[:, :-1], paths[:, 1:], step].sum(1)


@pytest.mark.parametrize("impossible", [False, True])
def test_a_categorical_chain_is_its_paths(impossible):
    rng = np.random.default_rng(5)
    onehot, pair = 2 * rng.normal(size=(3, 5)), 2 * rng.normal(size=(3, 3, 4))
    if impossible:
        onehot[0, 2] = onehot[2, 4] = pair[1, 1, 0] = -np.inf
        pair[:, 2, 1] = -np.inf
    paths, log_weights = all_paths(3, 5, onehot, pair)
    probs = scipy.special.softmax(log_weights)
    family, eta = families.CategoricalChain(3, 5, ()), {"onehot": jnp.asarray(onehot), "pair": jnp.asarray(pair)}
    says = answers(family, eta, paths)
    np.testing.assert_allclose(says["log_normalizer"], scipy.special.logsumexp(log_weights), rtol=1e-10)
    np.testing.assert_allclose(says["entropy"], scipy.stats.entropy(probs), rtol=1e-9)
    np.testing.assert_allclose(jnp.exp(says["log_prob"]), probs, rtol=1e-8)
    for name, statistics in says["statistics"].items():
        exact = np.tensordot(probs, statistics, 1)
        np.testing.assert_allclose(says["expected"][name], exact, rtol=1e-9, atol=1e-14)
        np.testing.assert_allclose(says["slope"][name], exact, rtol=1e-9, atol=1e-12)
    assert says["proper"]
    before, onward = says["described"]["probs"], says["described"]["transition_probs"]
    np.testing.assert_allclose(np.einsum("ti,tij->tj", before[:-1], onward), before[1:], rtol=1e-9, atol=1e-14)


def test_draws_of_a_categorical_chain_are_paths_in_proportion():
    rng = np.random.default_rng(6)
    onehot, pair = rng.normal(size=(2, 4)), rng.normal(size=(2, 2, 3))
    paths, log_weights = all_paths(2, 4, onehot, pair)
    family, eta = families.CategoricalChain(2, 4, ()), {"onehot": jnp.asarray(onehot), "pair": jnp.asarray(pair)}
    draws = draws_of(family, eta, 20_000)
    counts = np.bincount(draws @ (2 ** np.arange(3, -1, -1)), minlength=16)
    assert np.all(paths @ (2 ** np.arange(3, -1, -1)) == np.arange(16))
    assert scipy.stats.chisquare(counts, 20_000 * scipy.special.softmax(log_weights)).pvalue > 1e-3


def test_a_long_categorical_chain_in_single_precision():
    with jax.enable_x64(False):
        family = families.CategoricalChain(2, 10_000, ())
        eta = {"onehot": jnp.full((2, 10_000), -3.0), "pair": jnp.zeros((2, 2, 9_999))}
        np.testing.assert_allclose(family.log_normalizer(eta), 10_000 * (np.log(2) - 3), rtol=1e-5)
        np.testing.assert_allclose(family.expected(eta)["onehot"], 0.5, rtol=1e-5)
