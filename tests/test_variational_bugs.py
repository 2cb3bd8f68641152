"""Checks of whole fits must fail when the machine is wrong: each bug is put in on purpose."""

import numpy as np
import pytest
import test_variational
from bugs import drop_the_scaling, forget_the_jacobian
from compilation import forget

from langevin.variational.objective import OfPositions


def double_the_noise(patch):
    real = OfPositions.noise
    patch.setattr(OfPositions, "noise", lambda self, *arguments: np.sqrt(2).astype("f") * real(self, *arguments))


def reuse_the_key(patch):
    """The same few draws come again and again."""
    real = OfPositions.noise

    def noise(self, generator, shape, dtype):
        few = real(self, np.random.default_rng(7), (4, *shape[1:]), dtype)
        return np.resize(few, (*shape, self.family.noise_size))

    patch.setattr(OfPositions, "noise", noise)


def linear_regression(family, batch_size=None):
    return lambda: test_variational.test_linear_regression_to_one_percent(family, "pathwise", batch_size)


BUGS = {
    "noise doubled": (double_the_noise, linear_regression("meanfield")),
    "key reused": (reuse_the_key, linear_regression("fullrank")),
    "N/B dropped": (drop_the_scaling, linear_regression("meanfield", 20)),
    "Jacobian forgotten": (
        forget_the_jacobian,
        test_variational.test_gamma_posterior_by_a_gaussian_of_its_logarithm,
    ),
}


@pytest.fixture
def no_kept_programs():
    """What was compiled without the bug must not be used with it, nor the other way round."""
    forget()
    yield
    forget()


@pytest.mark.usefixtures("no_kept_programs")
@pytest.mark.filterwarnings("ignore::langevin.LangevinWarning")
@pytest.mark.parametrize("bug", BUGS)
def test_the_check_fails_with_the_bug_in(bug, monkeypatch):
    put_in, check = BUGS[bug]
    put_in(monkeypatch)
    with pytest.raises(AssertionError):
        check()
