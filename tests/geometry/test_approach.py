"""The way from far starts, on log-densities in NumPy."""

import numpy as np
import pytest

from langevin.geometry import approach, mass

SCALES = np.array([1e-6, 1.0, 1e4])


def steep(positions):
    """A Gaussian whose mean is 3 units, and many sds, away in every coordinate."""
    distance = (positions - 3) / SCALES
    return -0.5 * np.sum(distance**2, axis=1), -distance / SCALES


def climb(log_density, starts, dtype=np.float64):
    """Climbs to the end. Returns the last state, and the log-density at every step."""
    state = approach.begin(starts, *log_density(starts))
    values = []
    while state is not None and state["going"].any():
        value, gradients = log_density(state["trial"].astype(dtype))
        state = approach.advance(state, value.astype(dtype), gradients.astype(dtype))
        values.append(state["log_density"])
    return state, np.array(values)


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_it_comes_from_far_off_to_where_trajectories_find_their_way(dtype):
    starts = np.random.default_rng(0).normal(size=(4, 3))
    assert (steep(starts)[0] < -1e11).all()
    state, values = climb(steep, starts, dtype)
    assert (state["log_density"] > -approach.NATS_A_COORDINATE * 13).all()
    assert (np.diff(values, axis=0) >= 0).all()
    assert len(values) < 100
    np.testing.assert_allclose(state["best"][:, 0], 3, atol=1e-3)


def test_most_starts_are_left_where_they_are():
    """A chain that need not climb stays while others do."""
    starts = np.random.default_rng(0).normal(size=(4, 3))
    starts[0] = 3 + SCALES * [1e-3, 1, 1]
    assert approach.begin(starts[:1], *steep(starts[:1])) is None
    state, _ = climb(steep, starts)
    assert list(state["climbed"]) == [False, True, True, True]
    np.testing.assert_array_equal(state["best"][0], starts[0])
    assert [len(part) for part in approach.path(state)] == [3, 3]


def test_a_hierarchy_is_not_climbed_to_its_top():
    """There the density is infinite: the scale is zero, and chains that start there do not come back."""

    def funnel(positions):
        v, x = positions[:, :1], positions[:, 1:]
        value = -(v[:, 0] ** 2) / 18 - 4.5 * v[:, 0] - 0.5 * np.sum(x**2, axis=1) * np.exp(-v[:, 0])
        slope = -v / 9 - 4.5 + 0.5 * np.sum(x**2, axis=1, keepdims=True) * np.exp(-v)
        return value, np.concatenate([slope, -x * np.exp(-v)], axis=1)

    starts = np.random.default_rng(1).uniform(-2, 2, size=(8, 10))
    assert approach.begin(starts, *funnel(starts)) is None
    starts[:, 0] = -12
    state, _ = climb(funnel, starts)
    assert (state["best"][:, 0] > -13).all()


def test_points_that_are_not_finite_are_taken_back():
    def walled(positions):
        value, gradients = steep(positions)
        return np.where(positions[:, 1] > 2.5, np.nan, value), gradients

    state, values = climb(walled, np.zeros((2, 3)))
    assert np.isfinite(values).all()
    assert (state["best"][:, 1] <= 2.5).all()
    assert (state["log_density"] > steep(np.zeros((2, 3)))[0]).all()


def test_the_way_tells_the_first_metric():
    """Near the end of the way, where the log-density is quadratic, its scales are known."""
    state, _ = climb(steep, np.random.default_rng(0).normal(size=(4, 3)))
    metric = mass.metric_from("diagonal", *approach.path(state), 1, np.float64)
    np.testing.assert_allclose(np.sqrt(metric.variance)[0], SCALES[0], rtol=0.1)


def test_it_ends_also_where_there_is_no_top():
    state, values = climb(lambda x: (1e9 * np.sum(x, axis=1), np.full(x.shape, 1e9)), np.zeros((1, 2)))
    assert len(values) == approach.MOST_STEPS
    assert np.isfinite(state["best"]).all()
