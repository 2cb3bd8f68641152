"""What is measured of chains without knowing the answer: their width, their gradient noise, and a sample that grows."""

import jax
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import langevin as lv
from langevin.geometry import scrutiny
from langevin.run.compilation import Programs
from langevin.run.seeds import Seed
from langevin.tuning import Tuning

NUM_CHAINS, NUM_ROWS, SIZE = 16, 400, 20
ROWS = np.random.default_rng(3).normal(size=NUM_ROWS)
DENSITY = lv.Density(lambda m: -(m**2) / 2, lambda m, rows: -((rows["x"] - m) ** 2) / 2, init=0.0)
# The posterior is N(mean, sd).
MEAN, SD = ROWS.sum() / (NUM_ROWS + 1), (NUM_ROWS + 1) ** -0.5


def posterior_of(batches):
    posterior = DENSITY.posterior({"x": ROWS})
    return posterior if batches is None else posterior.with_data(batches.lay_out({"x": ROWS}, NUM_ROWS, 0))


def draws(wider):
    noise = np.random.default_rng(0).normal(size=(NUM_CHAINS, scrutiny.NUM_WIDTH_DRAWS))
    return (MEAN + wider * SD * noise).astype(np.float32)


@pytest.mark.parametrize("batches", [None, lv.Batches(SIZE, order="rows"), lv.Batches(SIZE, order="slices")])
@pytest.mark.parametrize("wider", [1.0, 1.5])
@pytest.mark.parametrize("centre", [MEAN, MEAN + 2 * SD])
def test_the_width_is_that_of_the_draws(batches, wider, centre):
    """1 for right draws, and its square for wider ones, from all rows or minibatches, around any centre."""
    arguments = (batches, posterior_of(batches), draws(wider), np.float32(centre), Seed.of(0))
    blocks = scrutiny.width(Programs(lambda: None), *arguments)
    assert blocks.shape == (NUM_CHAINS, 4, 1)
    value, error = scrutiny.mean_and_error(blocks)
    assert abs(value - wider**2) < 4 * error
    # Of 640 draws: the variance of a chi-square, the centre's distance, and the noise of (N/B) sum of B rows.
    noise = 0.0 if batches is None else NUM_ROWS**2 / SIZE * ROWS.var() * SD**2
    gap = wider**2 + ((centre - MEAN) / SD) ** 2
    expected = np.sqrt((2 * wider**4 + wider**2 * ((centre - MEAN) / SD) ** 2 + gap * noise) / 640)
    assert 0.6 < error / expected < 1.5


def test_what_is_not_finite_is_infinitely_wide():
    wild = draws(1.0)
    wild[2, :2] = [np.inf, -np.inf]
    blocks = scrutiny.width(Programs(lambda: None), None, posterior_of(None), wild, np.float32(0.0), Seed.of(0))
    assert scrutiny.mean_and_error(blocks) == (np.inf, 0.0)
    assert scrutiny.widest(blocks) == np.inf
    good = np.arange(NUM_CHAINS) != 2
    assert np.isfinite(scrutiny.mean_and_error(blocks[good])[0])


@pytest.mark.parametrize(("expected", "ratio"), [(1.0, 1.0), (0.1, 5.5), (10.0, 0.1089)])
def test_the_noise_at_draws_is_compared_with_what_was_expected(expected, ratio):
    """With a curvature of a tenth of the noise: (0.1 + 1) / (0.1 + expected), in units of the true noise."""
    batches = lv.Batches(SIZE, order="rows")
    noise = NUM_ROWS**2 / SIZE * ROWS.var()
    tuning = Tuning(gradient_noise=np.float32(expected * noise), stiffest=0.1 * noise, centre=np.float32(MEAN))
    static = (batches, "minibatch")
    arguments = (posterior_of(batches), tuning, draws(1.0), np.ones(NUM_CHAINS, bool), Seed.of(0))
    found = scrutiny.noise_ratio(scrutiny.noise_at_draws(Programs(lambda: None), static, *arguments), tuning)
    assert found == pytest.approx(ratio, rel=0.03)


@settings(max_examples=30, deadline=None)
@given(st.lists(st.integers(0, 150), min_size=1, max_size=12))
def test_a_sample_grows_the_same_however_draws_come(counts):
    """Every draw, every other, ...: 200 to 400 of them once there are as many, evenly spread."""
    total, sample, seen = sum(counts), scrutiny.begin_sample(), 0
    numbers = np.arange(total, dtype=np.float32)
    position, weights = np.stack([numbers, -numbers], axis=1)[..., None], np.stack([numbers, 2 * numbers], axis=1)
    for count in counts:
        part = slice(seen, seen + count)
        sample = scrutiny.add_to_sample(sample, [position[part]], weights[part])
        seen += count
    every = 1
    while -(-total // every) > scrutiny.MOST_SAMPLED:
        every *= 2
    np.testing.assert_array_equal(sample["positions"][0], position[::every])
    np.testing.assert_array_equal(sample["weights"], weights[::every])
    assert total < scrutiny.NUM_WIDTH_DRAWS or len(sample["weights"]) >= scrutiny.NUM_WIDTH_DRAWS


def test_a_sample_of_large_draws_is_small(monkeypatch):
    monkeypatch.setattr(scrutiny, "MOST_BYTES", 10 * 4 * 1001)
    sample = scrutiny.begin_sample()
    for _ in range(30):
        sample = scrutiny.add_to_sample(sample, [np.zeros((5, 1, 1000), "f")], np.ones((5, 1), "f"))
    assert 5 <= len(sample["weights"]) <= 10
    assert jax.tree.leaves(sample["positions"])[0].shape[1:] == (1, 1000)


def test_one_wide_coordinate_of_many_is_found():
    """Its mean over all hardly changes; and with none, chance finds none."""
    generator = np.random.default_rng(1)
    for number in range(20):
        x = generator.normal(size=(4, scrutiny.NUM_WIDTH_DRAWS, 50))
        right = (x**2).reshape(4, 4, -1, 50).mean(axis=2)
        assert scrutiny.widest(right) < 1.2, number
        wide = right.copy()
        wide[..., 7] *= 4
        assert scrutiny.mean_and_error(wide)[0] < 1.2
        assert scrutiny.widest(wide) > 1.2
