import jax.numpy as jnp
import numpy as np
import optax
import pytest

import langevin as lv
from langevin.kernels.schedules import as_schedule


def test_polynomial_is_equation_13():
    steps = np.arange(5)
    found = [float(lv.Polynomial(0.2, 3.0, 0.7)(step)) for step in steps]
    np.testing.assert_allclose(found, 0.2 * (3.0 + steps) ** -0.7, rtol=1e-6)


@pytest.mark.parametrize(("gamma", "why"), [(0.5, "bias stays"), (0.3, "bias stays"), (1.2, "never arrive")])
def test_polynomial_warns_where_robbins_monro_fails(gamma, why):
    with pytest.warns(lv.LangevinWarning, match=why):
        lv.Polynomial(0.1, 1.0, gamma)


@pytest.mark.parametrize(("a", "b", "name"), [(0.0, 1.0, "`a`"), (-1.0, 1.0, "`a`"), (1.0, 0.0, "`b`")])
def test_polynomial_refuses_nonsense(a, b, name):
    with pytest.raises(lv.SettingError, match=name):
        lv.Polynomial(a, b)


def test_cosine_cycles_fall_from_the_peak_and_start_again():
    schedule = lv.CosineCycles(0.4, 10)
    values = [float(schedule(step)) for step in range(20)]
    assert values[0] == pytest.approx(0.4)
    assert values[5] == pytest.approx(0.2)
    assert np.diff(values[:10]).max() < 0
    np.testing.assert_allclose(values[:10], values[10:], rtol=1e-6)


def test_numbers_and_optax_schedules_are_schedules():
    assert as_schedule(0.1)(jnp.array(3)) == 0.1
    decay = optax.exponential_decay(0.1, 10, 0.5)
    assert float(as_schedule(decay)(10)) == pytest.approx(0.05)
