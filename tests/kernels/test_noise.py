"""Many normal numbers at once, by a hash of their places."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy import stats

from langevin.kernels.base import MANY, many_normals, standard_normal
from langevin.keys import at_step

COUNT = 200_000


def steps(number):
    key = jax.random.fold_in(jax.random.key(0), 1)
    return [np.asarray(many_normals(at_step(key, jnp.uint32(step)), COUNT), np.float64) for step in range(number)]


def test_they_are_standard_normal():
    for values in steps(3):
        assert stats.kstest(values, "norm").pvalue > 1e-3
        # The standard errors of moments of so many normal numbers are 1, 1.4, 3.9 and 9.8 over the root of the count.
        moments = [np.mean(values**power) for power in (1, 2, 3, 4)]
        errors = np.sqrt([1, 2, 15, 96]) / np.sqrt(COUNT)
        np.testing.assert_array_less(np.abs(np.array(moments) - [0, 1, 0, 3]) / errors, 4)
        assert 4.2 < np.abs(values).max() < 5.6


def test_places_and_steps_know_nothing_of_each_other():
    first, second, third = steps(3)
    error = 1 / np.sqrt(COUNT)
    for lag in (1, 2, 3, 16, 400, 784):
        assert abs(np.mean(first[lag:] * first[:-lag])) < 4 * error
        assert abs(np.mean(first[lag:] * second[:-lag])) < 4 * error
    assert abs(np.mean(first * second)) < 4 * error
    assert abs(np.mean(first * third)) < 4 * error
    # Squares too: two numbers may be uncorrelated and have their size in common.
    assert abs(np.corrcoef(first[1:] ** 2, first[:-1] ** 2)[0, 1]) < 4 * error
    # 2^24 values: of 200,000 about 1,200 are there twice.
    assert len(np.unique(np.concatenate([first, second]))) > 0.98 * 2 * COUNT


@pytest.mark.parametrize("shapes", [[(MANY,)], [(MANY // 2, 2), (7,)]])
def test_a_position_with_many_numbers_gets_them(shapes):
    like = {str(index): np.zeros(shape, np.float32) for index, shape in enumerate(shapes)}
    key, count = jax.random.key(3), sum(np.prod(shape) for shape in shapes)
    found = np.concatenate([np.ravel(leaf) for leaf in jax.tree.leaves(standard_normal(key, like))])
    np.testing.assert_array_equal(found, many_normals(key, int(count)))
