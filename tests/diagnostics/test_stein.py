import jax
import jax.numpy as jnp
import numpy as np
import pytest

import langevin as lv
from langevin.diagnostics import kernel_stein_discrepancy


def test_the_stein_kernel_by_automatic_differentiation():
    generator = np.random.default_rng(0)
    x, s = generator.normal(size=(6, 3)), generator.normal(size=(6, 3))
    scale = x.std(axis=0)
    z, t = jnp.asarray(x / scale), jnp.asarray(s * scale)

    def base(a, b):
        return (1 + jnp.sum((a - b) ** 2)) ** -0.5

    def stein(a, b, sa, sb):
        cross = jax.jacfwd(jax.grad(base, 1), 0)(a, b)
        return sa @ sb * base(a, b) + sa @ jax.grad(base, 1)(a, b) + sb @ jax.grad(base, 0)(a, b) + jnp.trace(cross)

    pairs = [[float(stein(z[i], z[j], t[i], t[j])) for j in range(6)] for i in range(6)]
    assert kernel_stein_discrepancy(x, s) == pytest.approx(np.mean(pairs), rel=1e-4)


@pytest.fixture(scope="module")
def draws():
    return np.random.default_rng(1).normal(size=(1500, 2))


def test_it_tells_right_from_wrong(draws):
    right = kernel_stein_discrepancy(draws, -draws)
    for wrong in (-draws / 1.3**2, -(draws - 0.3)):
        assert kernel_stein_discrepancy(draws, wrong) > 3 * right


def test_stochastic_gradients_leave_it_unbiased(draws):
    generator = np.random.default_rng(2)
    exact = kernel_stein_discrepancy(draws, -draws, stochastic=True)
    gradients = [-draws + 3 * generator.normal(size=draws.shape) for _ in range(20)]
    noisy, naive = ([kernel_stein_discrepancy(draws, g, stochastic=s) for g in gradients] for s in (True, False))
    assert np.mean(noisy) == pytest.approx(exact, abs=3 * np.std(noisy) / np.sqrt(20))
    # With the terms i = j, noise of variance 9 in two coordinates adds 18 / 1500.
    excess = 18 / 1500
    assert np.mean(naive) - kernel_stein_discrepancy(draws, -draws) == pytest.approx(
        excess, abs=3 * np.std(naive) / np.sqrt(20)
    )


def test_weights_correct_draws_from_another_density():
    wide = np.random.default_rng(3).normal(size=(2000, 1)) * 1.5
    weights = np.exp(-0.5 * wide[:, 0] ** 2 * (1 - 1 / 1.5**2))
    plain = kernel_stein_discrepancy(wide, -wide, stochastic=True)
    assert kernel_stein_discrepancy(wide, -wide, weights, stochastic=True) < plain / 5


def test_of_a_fit():
    density = lv.Density(lambda m: -0.5 * m**2, lambda m, rows: -0.5 * (rows["x"] - m) ** 2, init=0.0)
    data = {"x": np.random.default_rng(0).normal(size=50)}
    fit = lv.fit(density, data, "sghmc", batch_size=10, progress=False)
    assert abs(fit.kernel_stein_discrepancy()) < 0.05
    assert abs(fit.kernel_stein_discrepancy(batch_size=10)) < 0.3
    with pytest.raises(lv.SettingError, match="batch_size"):
        fit.kernel_stein_discrepancy(batch_size=51)
