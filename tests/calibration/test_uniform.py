import numpy as np
import pytest

from langevin.calibration import uniform


@pytest.mark.parametrize("count", [20, 150])
def test_the_test_has_its_level(count):
    """Of uniform numbers, one in ten has a p-value up to 0.1, and a tenth leaves the 90 % band."""
    generator = np.random.default_rng(count)
    numbers = generator.random((500, count))
    p_values = np.array([uniform.uniformity(each).p_value for each in numbers])
    # Counts are whole numbers, so that the test is a little careful.
    assert np.mean(p_values <= 0.1) == pytest.approx(0.09, abs=4 * np.sqrt(0.09 / 500))
    band = uniform.band(count, 0.9)
    inside = [np.searchsorted(np.sort(each), band.points, side="right") / count for each in numbers]
    held = np.mean([((band.low <= each) & (each <= band.high)).all() for each in inside])
    assert held == pytest.approx(0.9, abs=0.06)


@pytest.mark.parametrize(
    ("shape", "sign"), [((2.0, 2.0), ("spread", -1)), ((0.5, 0.5), ("spread", 1)), ((2.0, 1.0), ("centre", 1))]
)
def test_what_is_not_uniform_is_found(shape, sign):
    numbers = np.random.default_rng(0).beta(*shape, 150)
    test = uniform.uniformity(numbers)
    assert test.p_value < 0.001
    assert getattr(test, sign[0]) * sign[1] > 3
