"""What a stochastic-gradient method needs of a posterior's shape."""

import numpy as np

from langevin.geometry.measuring import SLOW, UNUSUAL, evened
from langevin.kernels.metrics import Dense, Diagonal


def test_coordinates_with_unusual_noise_get_a_smaller_metric():
    """Their noise, which is in its units, falls by the same factor."""
    rng = np.random.default_rng(0)
    variance, noise = rng.uniform(1, 2, size=200), rng.uniform(1, 1.5, size=200)
    noise[:10] = 100.0
    metric, evener, slower = evened(Diagonal(variance), noise)
    level = UNUSUAL * np.median(noise)
    np.testing.assert_allclose(evener[:10], level)
    np.testing.assert_allclose(metric.variance[:10], variance[:10] * level / 100)
    np.testing.assert_array_equal(evener[10:], noise[10:])
    np.testing.assert_array_equal(metric.variance[10:], variance[10:])
    assert SLOW * len(noise) < 10
    np.testing.assert_allclose(slower, level / 100)


def test_noise_that_is_small_or_a_dense_metric_is_left_as_it_is():
    noise = np.array([1e-6, 0.1, 1e-3])
    metric, same, slower = evened(Diagonal(np.ones(3)), noise)
    np.testing.assert_array_equal(metric.variance, np.ones(3))
    np.testing.assert_array_equal(same, noise)
    assert slower == 1.0
    dense = Dense(np.eye(3))
    assert evened(dense, 1e6 * noise)[0] is dense
