"""The Gaussian that is nearest to a target: exact where the target is Gaussian, and at its optimum where it is not."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from langevin.geometry import climbing, gaussian

PRECISION = np.array([[4.0, 1.5, 0.0], [1.5, 2.0, -0.3], [0.0, -0.3, 1.0]])
MEAN = np.array([3.0, -1.0, 10.0])


def look(q, log_density, generator):
    rows = gaussian.directions(generator, len(q["centre"]))
    at = jnp.asarray(gaussian.points(q, rows))
    return gaussian.improved(q, rows, jax.vmap(jax.value_and_grad(log_density))(at))


def log_gaussian(x):
    return -0.5 * (x - MEAN) @ jnp.asarray(PRECISION) @ (x - MEAN)


def test_directions_are_orthogonal_and_as_long_as_noise():
    rows = gaussian.directions(np.random.default_rng(0), 12)
    np.testing.assert_allclose(rows.T @ rows / len(rows), np.eye(12), atol=1e-9)


def test_one_look_finds_a_gaussian():
    """From a q that is one and a half times too wide, and a scale off."""
    factor = 1.5 * np.linalg.cholesky(np.linalg.inv(PRECISION))
    q = gaussian.begin(MEAN + factor @ np.array([0.5, -1.0, 0.3]), factor)
    q = look(q, log_gaussian, np.random.default_rng(0))
    np.testing.assert_allclose(q["centre"], MEAN, atol=1e-4)
    np.testing.assert_allclose(q["factor"] @ q["factor"].T, np.linalg.inv(PRECISION), rtol=1e-4, atol=1e-5)


def test_independent_coordinates_have_the_reciprocals_of_the_precision():
    q, generator = gaussian.begin(np.zeros(3), np.ones(3)), np.random.default_rng(0)
    while not gaussian.is_found(q):
        q = look(q, log_gaussian, generator)
    np.testing.assert_allclose(q["centre"], MEAN, atol=1e-3)
    np.testing.assert_allclose(q["factor"], 1 / np.sqrt(np.diag(PRECISION)), rtol=1e-3)
    assert gaussian.error(q) < 0.01


def test_the_optimum_on_a_skewed_target():
    """Of log p = -exp(x) + 2 x, the bound is -exp(m + s^2 / 2) + 2 m + log s: s^2 = 1/2, m = log 2 - 1/4."""
    q, generator = gaussian.begin(np.zeros(1), np.ones((1, 1))), np.random.default_rng(0)
    for _ in range(60):
        q = look(q, lambda x: jnp.sum(-jnp.exp(x) + 2 * x), generator)
    error = gaussian.error(q)
    assert abs(q["centre"][0] - (np.log(2) - 0.25)) / np.sqrt(0.5) < max(3 * error, 0.02)
    assert abs(q["factor"][0, 0] / np.sqrt(0.5) - 1) < max(3 * error, 0.02)


def test_a_step_to_where_nothing_is_finite_is_taken_back():
    q = gaussian.begin(np.zeros(2), np.eye(2))
    rows = gaussian.directions(np.random.default_rng(0), 2)
    first = look(q, lambda x: -0.5 * x @ x, np.random.default_rng(0))
    lost = gaussian.improved(first, rows, (np.full(2 * len(rows), np.nan), np.zeros((2 * len(rows), 2))))
    assert lost["caution"] == 1
    np.testing.assert_allclose(lost["centre"], (first["centre"] + first["before"][0]) / 2)


@pytest.mark.parametrize("scale", [1.0, 1e-6, 1e6])
def test_climbs_are_the_same_in_any_units(scale):
    def derivatives(x):
        z = x / scale
        value = -np.sum(z**4 / 4 + z**2 / 2 - z, axis=1)
        return value, -(z**3 + z - 1) / scale, np.stack([np.diag(3 * row**2 + 1) for row in z]) / scale**2

    climb = climbing.begin(scale * np.array([[5.0, -3.0], [0.1, 20.0]]))
    while not climb["arrived"].all() and climb["count"] < climbing.MOST_CLIMBS:
        climb = climbing.climbed(climb, derivatives(climb["tried"]))
    np.testing.assert_allclose(climb["here"] / scale, 0.6823, atol=1e-2)


def test_a_climb_never_goes_down():
    heights = []
    climb = climbing.begin(np.array([[0.6]]))
    for _ in range(30):
        x = np.clip(climb["tried"][:, 0], -9, 9)
        # Newton's own steps on this one go astray.
        value, slope, curvature = -np.log(np.cosh(3 * x)), -3 * np.tanh(3 * x), 9 / np.cosh(3 * x) ** 2
        climb = climbing.climbed(climb, (value, slope[:, None], curvature[:, None, None]))
        heights.append(float(climb["height"][0]))
    assert (np.diff(heights) >= -1e-9).all()
    assert heights[-1] > -1e-3
