import jax
import jax.numpy as jnp
import numpy as np
import pytest
from machinery import low_rank, metric_and_root

from langevin.kernels import Dense, Diagonal, metrics

KINDS = ["unit", "diagonal", "dense", "lowrank", "wheel"]


@pytest.mark.parametrize("kind", KINDS)
def test_whiten_is_the_transpose_of_unwhiten(kind):
    metric, root = metric_and_root(kind, 4)
    columns = jax.vmap(lambda vector: metrics.unwhiten(metric, vector))(jnp.eye(4)).T
    np.testing.assert_allclose(columns, root, atol=1e-6)
    columns = jax.vmap(lambda vector: metrics.whiten(metric, vector))(jnp.eye(4)).T
    np.testing.assert_allclose(columns, root.T, atol=1e-6)


@pytest.mark.parametrize("kind", KINDS)
def test_pytrees_are_flat_vectors_in_the_order_of_their_leaves(kind):
    metric, root = metric_and_root(kind, 4)
    if kind == "diagonal":
        metric = Diagonal({"b": metric.variance[:1], "w": metric.variance[1:]})
    vector = {"w": jnp.array([1.0, -2.0, 0.5]), "b": jnp.array([3.0])}
    flat = np.array([3.0, 1.0, -2.0, 0.5])
    for function, matrix in ((metrics.unwhiten, root), (metrics.whiten, root.T)):
        moved = function(metric, vector)
        np.testing.assert_allclose(np.concatenate([moved["b"], moved["w"]]), matrix @ flat, rtol=1e-5)


def test_low_rank_stretches_its_vectors_alone():
    vectors = np.linalg.qr(np.random.default_rng(0).normal(size=(5, 5)))[0]
    metric = low_rank(np.ones(5), vectors[:, :2], np.array([3.0, 0.5]))
    moved = np.stack([metric.unwhiten(jnp.asarray(vectors[:, i])) for i in range(5)], axis=1)
    np.testing.assert_allclose(moved, vectors * [3.0, 0.5, 1.0, 1.0, 1.0], atol=1e-6)
    nothing = low_rank(np.ones(5), np.zeros((5, 3)), np.array([7.0, 0.1, 1.0]))
    np.testing.assert_array_equal(nothing.unwhiten(jnp.arange(5.0)), np.arange(5.0))


def test_noise_has_the_covariance_of_the_metric():
    factor = np.array([[1.0, 0.0], [0.8, 0.6]])
    noise = jax.random.normal(jax.random.key(0), (20_000, 2))
    found = np.cov(np.asarray(jax.vmap(Dense(jnp.asarray(factor)).unwhiten)(noise)).T)
    np.testing.assert_allclose(found, factor @ factor.T, atol=0.04)


def test_metrics_are_pytrees():
    """They are arguments of compiled programs, so that another metric of the same shape needs no new one."""
    traces = []

    @jax.jit
    def move(metric, vector):
        traces.append(1)
        return metrics.unwhiten(metric, vector)

    for scale in (1.0, 2.0):
        np.testing.assert_allclose(move(Diagonal(scale**2 * jnp.ones(2)), jnp.ones(2)), scale)
    assert len(traces) == 1


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("size", [2, 3, 7, 16])
def test_many_vectors_at_once_in_a_loop(kind, size):
    """XLA 0.10 overwrites what it still reads, if a product is a fused sum over the last axis of 2^15 numbers."""
    metric, root = metric_and_root(kind, size)
    vectors = np.random.default_rng(0).normal(size=(60_000 // size, size)).astype(np.float32)
    metric = jax.tree.map(lambda leaf: leaf if leaf.dtype.kind == "i" else jnp.float32(leaf), metric)
    for function, matrix in ((metrics.unwhiten, root), (metrics.whiten, root.T)):
        move = lambda v, function=function: jax.lax.fori_loop(0, 3, lambda _, v: function(metric, v) / 2, v)  # noqa: E731
        expected = vectors @ np.linalg.matrix_power(matrix / 2, 3).T
        np.testing.assert_allclose(jax.jit(jax.vmap(move))(vectors), expected, rtol=1e-3, atol=1e-4)


@pytest.mark.parametrize("kind", KINDS)
def test_a_metric_survives_as_plain_arrays(kind):
    metric, root = metric_and_root(kind, 4)
    again = metrics.from_plain(metrics.as_plain(metric), jnp.zeros(4))
    columns = jax.vmap(lambda vector: metrics.unwhiten(again, vector))(jnp.eye(4)).T
    np.testing.assert_allclose(columns, root, atol=1e-6)


def test_a_wheel_is_narrowed_by_columns():
    metric, root = metric_and_root("wheel", 4)
    share = np.array([0.5, 0.8, 1.0, 0.25])
    columns = jax.vmap(metric.narrowed(share).unwhiten)(jnp.eye(4)).T
    np.testing.assert_allclose(columns, root * share, atol=1e-6)
