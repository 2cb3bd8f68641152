import numpy as np
import pytest
from arviz_stats.base import array_stats

from langevin.diagnostics import weighted


@pytest.fixture(scope="module")
def chains():
    """An autoregressive series of coefficient 0.9, four chains, two coordinates."""
    generator = np.random.default_rng(0)
    noise = generator.normal(size=(4, 3000, 2)) * np.sqrt(1 - 0.9**2)
    draws = np.zeros_like(noise)
    draws[:, 0] = generator.normal(size=(4, 2))
    for t in range(1, draws.shape[1]):
        draws[:, t] = 0.9 * draws[:, t - 1] + noise[:, t]
    return draws


def test_uniform_weights_are_the_usual_summaries(chains):
    weights = np.ones(chains.shape[:2])
    np.testing.assert_allclose(weighted.mean(chains, weights), chains.mean(axis=(0, 1)))
    np.testing.assert_allclose(weighted.sd(chains, weights), chains.std(axis=(0, 1), ddof=1), rtol=1e-6)
    expected = array_stats.ess(chains, chain_axis=0, draw_axis=1, method="mean")
    np.testing.assert_allclose(weighted.effective_size(chains, weights), expected, rtol=1e-6)
    np.testing.assert_allclose(weighted.rhat(chains, weights), array_stats.rhat(chains, chain_axis=0, draw_axis=1))
    median = np.quantile(chains.reshape(-1, 2), 0.5, axis=0)
    np.testing.assert_allclose(weighted.quantile(chains, weights, 0.5), median, atol=1e-3)


def test_the_effective_size_of_an_autoregression(chains):
    """(1 - 0.9) / (1 + 0.9) of 12,000 draws is 632."""
    assert weighted.effective_size(chains, np.ones(chains.shape[:2])) == pytest.approx(632, rel=0.25)


def test_weights_act_like_repeated_draws():
    draws = np.array([[[1.0], [2.0], [5.0], [5.0], [5.0]]])
    once = np.array([[[1.0], [2.0], [5.0]]])
    weights = np.array([[1.0, 1.0, 3.0]])
    np.testing.assert_allclose(weighted.mean(once, weights), weighted.mean(draws, np.ones((1, 5))))
    assert weighted.quantile(once, weights, 0.9)[0] == 5.0


def test_the_weighted_error_is_the_spread_over_repetitions():
    """Independent draws with unequal weights: the error of the mean, against many repetitions."""
    generator = np.random.default_rng(1)
    weights = np.broadcast_to(np.linspace(0.2, 3.0, 200), (4, 200))
    means, errors = [], []
    for _ in range(400):
        draws = generator.normal(size=(4, 200, 1))
        means.append(weighted.mean(draws, weights)[0])
        errors.append(weighted.mcse(draws, weights)[0])
    assert np.mean(errors) == pytest.approx(np.std(means), rel=0.12)


def test_stopped_chains_do_not_count(chains):
    weights = np.ones(chains.shape[:2])
    weights[3] = 0
    spoiled = chains.copy()
    spoiled[3] = 1e6
    np.testing.assert_allclose(weighted.mean(spoiled, weights), chains[:3].mean(axis=(0, 1)), atol=1e-6)
    assert (weighted.rhat(spoiled, weights) < 1.1).all()


def test_chains_that_disagree_have_a_large_rhat(chains):
    shifted = chains + np.array([0.0, 0.0, 3.0, 3.0])[:, None, None]
    assert (weighted.rhat(shifted, np.ones(chains.shape[:2])) > 1.5).all()


def test_bulk_and_tail_sizes_are_those_of_arviz(chains):
    weights = np.ones(chains.shape[:2])
    sizes = weighted.sizes(chains, weights)
    bulk = array_stats.ess(chains, chain_axis=0, draw_axis=1, method="bulk")
    tail = array_stats.ess(chains, chain_axis=0, draw_axis=1, method="tail", prob=(0.05, 0.95))
    np.testing.assert_allclose(sizes.bulk, bulk, rtol=0.02)
    np.testing.assert_allclose(sizes.tail, tail, rtol=0.02)
    apart = weighted.sizes(chains + 20.0 * np.arange(4)[:, None, None], weights)
    assert (apart.bulk < 10).all()
    # Within chains, how far apart they are makes no difference; their ranks are those of the chain.
    np.testing.assert_allclose(apart.within, sizes.within, rtol=0.2)
    assert np.isnan(weighted.sizes(np.ones((4, 100)), np.ones((4, 100))).bulk)
