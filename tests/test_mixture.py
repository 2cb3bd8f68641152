"""Experiment 1: both modes, in the right balance, and a plain chain that says it is not mixed."""

import numpy as np
import pytest

import langevin as lv
from langevin.demos import mixture


@pytest.fixture(scope="module")
def rows():
    return mixture.make_data()


def test_the_grid_gives_the_known_answer(rows):
    truth = mixture.exact(rows)[0]
    assert np.allclose(truth.means, (0.490, 0.059), atol=0.0015)
    assert np.allclose(truth.sds, (0.770, 1.510), atol=0.0015)
    assert abs(truth.negative - 0.481) < 0.0015


@pytest.mark.slow
@pytest.mark.parametrize("seed", [0, 1, 2])
def test_the_best_setting_finds_both_modes_in_balance(rows, seed):
    truth = mixture.exact(rows, points=401)[0]
    fit = mixture.best(rows, seed=seed)
    found = mixture.answer_of("best", fit)
    assert np.abs(np.subtract(found.means, truth.means)).max() < 0.1
    assert abs(found.negative - truth.negative) < 0.1
    assert np.abs(np.divide(found.sds, truth.sds) - 1).max() < 0.1
    assert fit.verdict == ()


@pytest.mark.slow
@pytest.mark.parametrize("batch_size", [1, 10, 100])
def test_sgld_with_decreasing_steps_is_flagged_as_not_mixed(rows, batch_size):
    with pytest.warns(lv.LangevinWarning, match="not mixed"):
        fit = mixture.decreasing_sgld(rows, batch_size, seed=batch_size)
    assert [finding.code for finding in fit.verdict] == ["not mixed", "one chain"]
    assert np.ptp(fit.weights.values) > 0


def test_map_finds_the_higher_mode(rows):
    fit = lv.fit(mixture.model, {"x": rows}, "map", num_chains=8, progress=False)
    assert np.allclose(fit.posterior["t1"].values.item(), -0.252, atol=0.005)
    assert np.allclose(fit.posterior["t2"].values.item(), 1.548, atol=0.005)
    assert [finding.code for finding in fit.verdict] == ["point"]
