"""Metrics from draws and gradients, on Gaussians whose covariance they should find."""

import jax
import numpy as np
import pytest
from machinery import metric_and_root
from scipy.linalg import hadamard

from langevin.geometry import mass
from langevin.kernels import Dense, Diagonal, metrics

KINDS = ["unit", "diagonal", "dense", "lowrank"]


def draws_of(covariance, num_draws, num_chains=1, spread=0.0, seed=0):
    """For each chain, draws around a place of its own, and the gradients there."""
    generator = np.random.default_rng(seed)
    root, size = np.linalg.cholesky(covariance), len(covariance)
    x = generator.normal(size=(num_chains, num_draws, size)) @ root.T
    centres = spread * generator.normal(size=(num_chains, 1, size))
    return list(x + centres), list(-x @ np.linalg.inv(covariance))


def covariance_of(size, seed=1):
    """Sds from 0.01 to 100, and correlations."""
    generator = np.random.default_rng(seed)
    factor = generator.normal(size=(size, size)) / np.sqrt(size) + np.eye(size)
    sds = 10.0 ** np.linspace(-2, 2, size)
    covariance = factor @ factor.T
    return covariance / np.sqrt(np.outer(np.diag(covariance), np.diag(covariance))) * np.outer(sds, sds)


def dense(metric, size):
    """R R^T."""
    root = np.asarray(jax.vmap(lambda v: metrics.unwhiten(metric, v))(np.eye(size))).T.astype(np.float64)
    return root @ root.T


def stretch(metric, covariance):
    """The narrowest and the widest sd of the posterior in whitened units; both 1 if the metric is the covariance."""
    root = np.linalg.inv(np.linalg.cholesky(dense(metric, len(covariance))))
    return np.sqrt(np.linalg.eigvalsh(root @ covariance @ root.T)[[0, -1]])


def test_dense_is_the_covariance_itself_with_more_draws_than_coordinates(monkeypatch):
    """Gradients know what draws alone could not: 12 of them in 10 dimensions give the covariance to rounding."""
    covariance = covariance_of(10)
    draws, gradients = draws_of(covariance, 12)
    found = stretch(mass.metric_from("dense", draws, gradients, 1, np.float64), covariance)
    assert 0.4 < found[0] < found[1] < 2.5
    monkeypatch.setattr(mass, "PRIOR_DRAWS", 1e-9)
    with jax.enable_x64(True):
        exact = dense(mass.metric_from("dense", draws, gradients, 1, np.float64), 10)
    sds = np.sqrt(np.diag(covariance))
    np.testing.assert_allclose(exact / np.outer(sds, sds), covariance / np.outer(sds, sds), atol=1e-5)
    alone = stretch(mass.metric_from("dense", draws, None, 1, np.float64), covariance)
    assert alone[1] > 3


@pytest.mark.parametrize("kind", KINDS[1:])
def test_every_kind_finds_the_covariance_that_it_can_hold(kind):
    size, sds = 20, 10.0 ** np.linspace(-2, 2, 20)
    vector = np.ones(size) / np.sqrt(size)
    correlation = np.eye(size) + {"diagonal": 0, "dense": 24, "lowrank": 24}[kind] * np.outer(vector, vector)
    covariance = correlation * np.outer(sds, sds)
    draws, gradients = draws_of(covariance, 200, num_chains=2)
    narrow, wide = stretch(mass.metric_from(kind, draws, gradients, 2, np.float32), covariance)
    # A metric of low rank leaves weak directions as they are.
    most = mass.LEAST_STRETCH if kind == "lowrank" else 1.1
    assert 1 / most < narrow < wide < most


def test_low_rank_takes_the_strongest_directions_wide_or_narrow():
    """Of stretches 20, 1/8, 3 and 1.1 it takes the first two; with more room the third too, but never the fourth."""
    vectors = hadamard(64)[:, 1:5] / 8
    stretches = np.array([20.0, 0.125, 3.0, 1.1])
    root = np.eye(64) + (vectors * (stretches - 1)) @ vectors.T
    draws, gradients = draws_of(root @ root.T, 3000)
    for rank, expected in ((2, 2), (8, 3)):
        metric = mass.metric_from("lowrank", draws, gradients, rank, np.float64)
        assert metric.vectors.shape == (64, rank)
        used = np.abs(metric.vectors).sum(axis=0) > 0
        assert used.sum() == expected
        np.testing.assert_allclose(
            np.sort(np.abs(metric.vectors[:, used].T @ vectors[:, :expected]), axis=0),
            np.sort(np.eye(expected), axis=0),
            atol=0.1,
        )
        # Every coordinate is as wide as any other, so that the scale takes the same part of each stretch.
        found = np.sort(metric.scale.mean() * metric.stretches[used])
        np.testing.assert_allclose(found, np.sort(stretches[:expected]), rtol=0.1)
        assert (metric.stretches[~used] == 1).all()


def test_low_rank_works_in_the_span_of_few_draws_of_many_coordinates():
    """One direction of 1,000 is 19 times as wide as the others."""
    generator, size = np.random.default_rng(3), 1000
    vector = generator.normal(size=size)
    vector /= np.linalg.norm(vector)
    x = generator.normal(size=(200, size)) + np.sqrt(360) * generator.normal(size=(200, 1)) * vector
    gradients = -x + (1 - 1 / 361) * np.outer(x @ vector, vector)
    metric = mass.metric_from("lowrank", [x], [gradients], 4, np.float32)
    narrow, wide = stretch(metric, np.eye(size) + 360 * np.outer(vector, vector))
    assert 0.4 < narrow < wide < 19 / 3


def test_directions_are_not_looked_for_where_there_were_none(monkeypatch):
    draws, gradients = draws_of(covariance_of(4), 600)
    plain = mass.round_metric("lowrank", 4, 2, np.float32)
    monkeypatch.setattr(mass, "_round", None)
    metric = mass.metric_from("lowrank", draws, gradients, 2, np.float32, plain)
    assert (metric.stretches == 1).all()
    with pytest.raises(TypeError):
        mass.metric_from("lowrank", draws, gradients, 2, np.float32)


@pytest.mark.parametrize("kind", KINDS[1:])
@pytest.mark.parametrize("with_gradients", [True, False])
def test_chains_in_different_places_do_not_widen_it(kind, with_gradients):
    covariance = covariance_of(4)
    found = []
    for spread in (0.0, 1000.0):
        draws, gradients = draws_of(covariance, 100, num_chains=4, spread=spread)
        metric = mass.metric_from(kind, draws, gradients if with_gradients else None, 4, np.float32)
        found.append(dense(metric, 4))
    np.testing.assert_allclose(*found, rtol=1e-3, atol=1e-6)


@pytest.mark.parametrize("kind", KINDS[1:])
def test_draws_alone_will_do(kind):
    covariance = covariance_of(3)
    draws, _ = draws_of(covariance, 5000)
    metric = mass.metric_from(kind, draws, None, 3, np.float32)
    np.testing.assert_allclose(np.diag(dense(metric, 3)), np.diag(covariance), rtol=0.1)
    if kind == "dense":
        np.testing.assert_allclose(stretch(metric, covariance), 1, atol=0.05)


@pytest.mark.parametrize("kind", KINDS)
def test_the_plain_gradient_comes_back(kind):
    metric, _ = metric_and_root(kind, 5)
    gradients = np.random.default_rng(0).normal(size=(7, 5))
    whitened = np.asarray(jax.vmap(lambda gradient: metrics.whiten(metric, gradient))(gradients))
    np.testing.assert_allclose(mass.plain_gradient(metric, whitened), gradients, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("kind", KINDS)
def test_the_round_metric_is_the_identity(kind):
    np.testing.assert_allclose(dense(mass.round_metric(kind, 4, 2, np.float32), 4), np.eye(4))


def test_the_first_metric_is_narrow_where_the_gradient_is_steep():
    """For a Gaussian of sd s, a unit of s away, the gradient is 1 / s; its inverse is between s and s^2."""
    steep = mass.first_metric("diagonal", np.array([[100.0, 1.0, 0.0], [-100.0, -1.0, 0.0]]), 1)
    assert isinstance(steep, Diagonal)
    np.testing.assert_allclose(steep.variance, [0.01, 1.0, 1000.0])
    assert isinstance(mass.first_metric("dense", np.ones((2, 3)), 1), Dense)


@pytest.mark.parametrize("kind", KINDS[1:])
def test_draws_that_never_moved_do_no_harm(kind):
    still = [np.ones((10, 3))] * 2
    metric = mass.metric_from(kind, still, [0 * one for one in still], 2, np.float32)
    assert np.isfinite(dense(metric, 3)).all()
    assert np.isfinite(mass.plain_gradient(metric, np.ones((1, 3)))).all()


@pytest.mark.parametrize("kind", KINDS[1:])
@pytest.mark.parametrize("size", [1e6, 1e12, 1e16, 1e30])
def test_gradients_of_a_far_start_do_no_harm(kind, size):
    """A tenth of the draws are of a chain on its way; the metric is that of the others."""
    covariance = covariance_of(6)
    draws, gradients = draws_of(covariance, 100, num_chains=2)
    expected = dense(mass.metric_from(kind, [one[10:] for one in draws], [one[10:] for one in gradients], 4, float), 6)
    for one in gradients:
        one[:10] *= size * np.random.default_rng(0).normal(size=(10, 1))
    metric = mass.metric_from(kind, draws, gradients, 4, np.float32)
    np.testing.assert_allclose(dense(metric, 6), expected, rtol=1e-3, atol=1e-5)


@pytest.mark.parametrize("kind", KINDS[1:])
@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize("seed", range(5))
def test_no_gradients_make_linear_algebra_fail(kind, dtype, seed):
    """Of any size, in a direction of one sign (so that the covariance is singular), also with no bulk at all."""
    generator = np.random.default_rng(seed)
    sizes = np.exp(generator.normal(20, 15, size=(40, 1)))
    gradients = sizes * (generator.normal(size=4) + 1e-9 * generator.normal(size=(40, 4)))
    draws = generator.normal(size=(40, 4)) * 10.0 ** generator.integers(-8, 8, 4)
    metric = mass.metric_from(kind, [draws], [gradients], 4, dtype)
    assert all(np.isfinite(leaf).all() for leaf in jax.tree.leaves(metric))
    assert np.isfinite(mass.plain_gradient(metric, gradients)).all()


def test_without_a_finite_scale_the_metric_stays():
    bad = [np.full((10, 3), np.inf)]
    previous = mass.first_metric("dense", np.ones((2, 3)), 1)
    with np.errstate(invalid="ignore"):
        assert mass.metric_from("dense", bad, None, 1, np.float32, previous) is previous
        fresh = mass.metric_from("dense", bad, None, 1, np.float32)
    np.testing.assert_allclose(dense(fresh, 3), np.eye(3))


def test_a_metric_that_single_precision_cannot_hold_is_not_singular():
    """Sds of 1 and 1e-9 along the diagonals: the narrow one is as wide as single precision can tell."""
    vectors = np.array([[1.0, 1.0], [1.0, -1.0]]) / np.sqrt(2)
    x = np.random.default_rng(0).normal(size=(200, 2))
    draws, gradients = (x * [1, 1e-9]) @ vectors, (-x / [1, 1e-9]) @ vectors
    metric = mass.metric_from("dense", [draws], [gradients], 1, np.float32)
    assert np.linalg.cond(np.asarray(metric.factor, np.float64)) < 1e7
    assert np.isfinite(mass.plain_gradient(metric, np.ones((1, 2)))).all()
