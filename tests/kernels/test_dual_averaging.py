import jax
import numpy as np
import pytest

from langevin.kernels.dual_averaging import DELAY, FORGETTING, MOST_A_ROUND, SHRINKAGE, begin, step_size, update

TARGET = 0.8


def algorithm_5(start, acceptances):
    """Hoffman & Gelman 2014, algorithm 5, with mu = log(eps_0): the latest step and the average after every round."""
    t0, gamma, kappa = DELAY, SHRINKAGE, FORGETTING
    h, log_average, steps = 0.0, 0.0, []
    for t, a in enumerate(acceptances, start=1):
        h = (1 - 1 / (t + t0)) * h + (TARGET - a) / (t + t0)
        log_step = np.log(start) - np.sqrt(t) / gamma * h
        log_average = t**-kappa * log_step + (1 - t**-kappa) * log_average
        steps.append((np.exp(log_step), np.exp(log_average)))
    return np.array(steps)


def test_one_chain_follows_algorithm_5():
    acceptances = np.random.default_rng(0).uniform(size=50)
    state, found = begin(0.3, 1, np.float32), []
    for a in acceptances:
        state = update(state, np.array([True]), np.array([a], np.float32), TARGET)
        found.append([step_size(state, adapting) for adapting in (True, False)])
    np.testing.assert_allclose(found, algorithm_5(0.3, acceptances), rtol=1e-3)


def rounds(done, acceptance):
    """The mean acceptance of each round, in plain Python."""
    sums, found = [[] for _ in done[0]], []
    for now, rates in zip(done, acceptance, strict=True):
        for chain in np.flatnonzero(now):
            sums[chain].append(rates[chain])
        if all(sums) or max(map(len, sums)) == MOST_A_ROUND:
            found.append(np.mean([np.mean(one) if one else rates[c] for c, one in enumerate(sums)]))
            sums = [[] for _ in sums]
    return found


def test_chains_share_a_step_and_none_is_heard_more_than_the_others():
    """A fifth chain seldom ends a trajectory: rounds are also over when another has ended three."""
    generator = np.random.default_rng(1)
    done = generator.uniform(size=(300, 5)) < [0.6, 0.5, 0.4, 0.3, 0.03]
    acceptance = generator.uniform(size=(300, 5)).astype(np.float32)
    state, counts = begin(0.3, 5, np.float32), []
    for now, rates in zip(done, acceptance, strict=True):
        state = update(state, now, rates, TARGET)
        counts.append(int(state.numbers[3]))
    expected = algorithm_5(0.3, rounds(done, acceptance))
    assert counts[-1] == len(expected)
    assert np.diff(counts).max() == 1
    np.testing.assert_allclose([step_size(state, True), step_size(state, False)], expected[-1], rtol=1e-3)


@pytest.mark.parametrize("start", [1e-3, 1.0, 50.0])
def test_the_step_reaches_the_acceptance_that_was_asked_for(start):
    """From steps that are a thousand times off."""
    generator = np.random.default_rng(2)
    move = jax.jit(update)
    state = begin(start, 4, np.float32)
    for _ in range(500):
        chance = np.exp(-2.0 * step_size(state, True))
        state = move(state, np.ones(4, bool), np.clip(chance + 0.1 * generator.normal(size=4), 0, 1), TARGET)
    assert float(np.exp(-2.0 * step_size(state, False))) == pytest.approx(TARGET, abs=0.05)
