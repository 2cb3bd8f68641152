"""The stages of a fit as plain state: its goals, its falling rates, and its end. No model and no gradient is needed."""

import itertools

import jax
import numpy as np
import pytest

from langevin.engines import fitting
from langevin.engines.fitting import FALL, FOREVER, LAST_RATE, LEAST_AVERAGED, MOST_STEPS, Rules

FAMILY = Rules(num_steps=None, first_rate=0.05, identified=True, has_family=True, own_optimizer=False)
GUIDE = FAMILY._replace(identified=False, has_family=False)
SIZE = 3


class Wanderers:
    """Restarts whose parameters are around zero, as far as the learning rate lets them; the best is given."""

    def __init__(self, generator, wander, units=np.ones(SIZE), num_restarts=1, best=0):
        self.generator, self.wander, self.given_units = generator, wander, units
        self.num_restarts, self.given_best = num_restarts, best
        self.state = None

    def best(self):
        return self.given_best

    def units(self):
        return self.given_units

    def stacked(self, which):
        sd = self.wander(self.state["rate"])
        # A mean of independent places over a block.
        count = self.state["step"] - self.state["average_from"] if which == "average" else 1
        return sd / np.sqrt(count) * self.generator.normal(size=(self.num_restarts, SIZE))


def flat(steps, generator):
    return generator.normal(size=len(steps))


def rising(steps, generator):
    return 0.1 * steps + generator.normal(size=len(steps))


def until(last):
    """A bound that rises up to a step."""
    return lambda steps, generator: 0.05 * np.minimum(steps, last) + generator.normal(size=len(steps))


def run(rules, elbo=flat, wander=lambda rate: rate, most=10**6, **restarts):
    """Every state in which something was decided, from the first to the last."""
    generator = np.random.default_rng(0)
    walkers = Wanderers(generator, wander, **restarts)
    state = fitting.begin(rules, walkers.num_restarts)
    states = [state]
    while state["stage"] != "done" and state["step"] < most:
        goal = state["goals"][0]
        assert goal > state["step"]
        bounds = np.stack([elbo(np.arange(state["step"], goal), generator) for _ in range(walkers.num_restarts)])
        state = state | {"step": goal, "elbo": np.concatenate([state["elbo"], bounds], axis=1)}
        walkers.state, before = state, jax.tree.map(np.copy, state)
        state = fitting.reached(rules, walkers, state)
        jax.tree.map(np.testing.assert_array_equal, walkers.state, before)
        states.append(state)
    return states


def stages(states):
    """The rate, its first step and its stage, wherever one of them changes."""
    listed = [(state["stage"], state["rate"], state["began"]) for state in states]
    return [one for one, _ in itertools.groupby(listed)]


# A number of steps.


@pytest.mark.parametrize("num_steps", [1, 4, 130, 1000])
def test_a_fixed_number_of_steps_is_one_goal(num_steps):
    states = run(FAMILY._replace(num_steps=num_steps))
    assert [state["stage"] for state in states] == ["fixed", "done"]
    assert states[0]["goals"] == (num_steps,)
    assert 0 <= states[0]["average_from"] < num_steps
    assert states[0]["average_from"] == pytest.approx(0.75 * num_steps, abs=1)
    assert states[-1]["goals"] == ()
    assert states[-1]["step"] == num_steps


def test_rates_fall_along_a_cosine_however_they_are_asked_for():
    rules = FAMILY._replace(num_steps=1000)
    state = fitting.begin(rules, 1)
    whole = fitting.rates(rules, state, 1000)
    parts = [fitting.rates(rules, state | {"step": step}, count) for step, count in ((0, 7), (7, 600), (607, 393))]
    np.testing.assert_array_equal(whole, np.concatenate(parts))
    assert whole[0] == 0.05
    assert whole[500] == pytest.approx(0.05 * 0.5005)
    assert 0.05 * 1e-3 < whole[-1] < 0.05 * 1.01e-3
    assert (np.diff(whole) < 0).all()


@pytest.mark.parametrize(
    ("num_steps", "elbo", "settled"),
    [(1000, flat, True), (1000, rising, False), (1000, until(700), True), (127, flat, False), (200, flat, True)],
)
def test_what_still_rises_or_cannot_be_told_is_not_settled(num_steps, elbo, settled):
    last = run(FAMILY._replace(num_steps=num_steps), elbo)[-1]
    assert last["settled"] == settled
    assert last["error"] is None


# As many steps as it needs.


@pytest.mark.parametrize(("rules", "first"), [(FAMILY, 200), (GUIDE, 1000)])
def test_the_bound_is_looked_at_when_the_steps_of_a_stage_have_doubled(rules, first):
    states = run(rules, rising, most=10 * first)
    looks = [state["step"] for before, state in itertools.pairwise(states) if before["length"] != state["length"]]
    assert looks == [first, 2 * first, 4 * first, 8 * first][: len(looks)]
    assert len(looks) >= 3
    assert {state["rate"] for state in states} == {0.05}
    # On the way to a look, places are gathered.
    assert states[0]["goals"] == tuple(first * np.arange(1, 17) // 16)
    assert [len(state["places"]) for state in states[:17]] == [*range(16), 0]


def test_the_rate_falls_until_the_parameters_wander_little():
    """Their wander is the rate times 20; first, the rate of a family's means is put in scales of q."""
    states = run(FAMILY, wander=lambda rate: 20 * rate)
    seen = stages(states)
    rates = [0.05, 0.05, 0.05 * FALL, 0.05 * FALL**2, 0.05 * FALL**3]
    assert [stage for stage, _, _ in seen] == ["descend"] * 5 + ["average", "done"]
    np.testing.assert_allclose([rate for _, rate, _ in seen[:5]], rates)
    assert [began for _, _, began in seen[:5]] == [0, 200, 400, 600, 800]
    in_units = [state["in_units_from"] for state in states]
    assert set(in_units[:16]) == {FOREVER}
    assert set(in_units[16:]) == {200}
    # The mean of so many steps of a thousandth each.
    assert states[-1]["settled"]
    assert states[-1]["error"] <= fitting.TOLERANCE


def test_parameters_that_are_still_go_on_to_their_average_at_once():
    seen = stages(run(FAMILY, wander=lambda rate: 0.5 * rate))
    assert seen[:2] == [("descend", 0.05, 0), ("average", 0.05, 200)]


def test_a_rate_does_not_fall_while_the_bound_rises():
    seen = stages(run(FAMILY, until(3000), wander=lambda rate: 20 * rate))
    assert seen[1][2] > 3000
    assert len({rate for _, rate, _ in seen}) == 4


def test_without_units_the_rate_falls_to_the_last_one():
    states = run(GUIDE, units=None)
    seen = stages(states)
    average = next(state for state in states if state["stage"] == "average")
    np.testing.assert_allclose([rate for _, rate, _ in seen[:-2]], 0.05 * FALL ** np.arange(len(seen) - 2))
    assert average["rate"] <= LAST_RATE < average["rate"] / FALL
    assert {state["in_units_from"] for state in states} == {FOREVER}
    # As many steps are averaged as were taken before, in blocks whose length doubles.
    steps = states[-1]["step"] - average["step"]
    assert max(average["step"], LEAST_AVERAGED) <= steps < 1.1 * max(average["step"], LEAST_AVERAGED)
    assert states[-1]["error"] is None
    assert states[-1]["settled"]


def test_an_optimiser_of_the_users_own_has_its_own_rate():
    seen = stages(run(GUIDE._replace(own_optimizer=True), units=None))
    assert [(stage, rate) for stage, rate, _ in seen] == [("descend", 0.05), ("average", 0.05), ("done", 0.05)]


def test_blocks_are_averaged_until_the_error_is_small():
    """Of a wander of 0.04, a mean of n steps has the error 0.04 / sqrt(n); it is told from 32 blocks on."""
    states = run(FAMILY, wander=lambda rate: 0.04)
    average = [state for state in states if state["stage"] == "average"]
    assert average[0]["goals"] == (average[0]["step"] + fitting.FIRST_BLOCK,)
    for before, after in itertools.pairwise(average):
        assert after["step"] == before["goals"][0]
        assert after["average_from"] == after["step"]
    last = states[-1]
    assert last["stage"] == "done"
    # Of two looks the larger error counts.
    assert 32 * fitting.FIRST_BLOCK < last["step"] - last["began"] <= 64 * fitting.FIRST_BLOCK
    assert last["error"] <= fitting.TOLERANCE


def test_a_mean_that_is_hard_to_know_takes_longer(monkeypatch):
    """Of a wander of 0.8 units, which is forgiven here, an error of 0.005 takes (0.8 / 0.005)^2 steps."""
    monkeypatch.setattr(fitting, "MOST_WANDER", 10.0)
    last = run(FAMILY, wander=lambda rate: 0.8)[-1]
    steps = last["step"] - last["began"]
    assert (0.8 / fitting.TOLERANCE) ** 2 < steps < 4 * (0.8 / fitting.TOLERANCE) ** 2
    assert fitting.TOLERANCE / 3 < last["error"] <= fitting.TOLERANCE
    assert last["settled"]


def test_a_bound_that_rises_while_the_parameters_are_averaged_is_not_settled():
    def rising_later(steps, generator):
        return 0.1 * np.maximum(steps - 200, 0) + generator.normal(size=len(steps))

    last = run(FAMILY, rising_later, wander=lambda rate: 0.01)[-1]
    assert last["began"] == 200
    assert last["error"] <= fitting.TOLERANCE
    assert not last["settled"]


def test_a_rate_that_proves_too_high_falls_in_the_average_too():
    """What wanders little in a short stage may wander far in a long one."""
    wanders = iter([0.0] * 16)
    states = run(FAMILY, wander=lambda rate: next(wanders, 20 * rate))
    average = [state for state in states if state["stage"] == "average"]
    assert average[0]["rate"] == 0.05
    np.testing.assert_allclose(average[-1]["rate"], 0.05 * FALL**3)
    fell = [after for before, after in itertools.pairwise(average) if after["rate"] < before["rate"]]
    assert all(len(state["blocks"]["means"]) == 0 for state in fell)
    assert states[-1]["settled"]


@pytest.mark.parametrize("rules", [FAMILY, GUIDE])
def test_no_fit_goes_on_forever(rules):
    """Half of the most steps for a bound that always rises, and the other half for a mean that is never known."""
    states = run(rules, rising, wander=lambda rate: 100.0)
    assert min(state["step"] for state in states if state["stage"] == "average") == MOST_STEPS // 2
    assert MOST_STEPS <= states[-1]["step"] < 1.1 * MOST_STEPS
    assert not states[-1]["settled"]
    assert states[-1]["error"] > fitting.MOST_ERROR


def test_a_mean_that_is_not_known_is_not_settled():
    states = run(FAMILY, wander=lambda rate: 100.0)
    assert states[-1]["rate"] < 1e-6
    assert states[-1]["error"] > fitting.MOST_ERROR
    assert not states[-1]["settled"]


def test_the_best_restart_decides():
    """It is chosen when the average begins, and stays; the others may rise as long as they like."""
    states = run(FAMILY, num_restarts=3, best=2)
    assert {state["best"] for state in states if state["stage"] == "descend"} == {-1}
    assert {state["best"] for state in states if state["stage"] != "descend"} == {2}
    assert states[-1]["elbo"].shape == (3, states[-1]["step"])
    assert states[-1]["blocks"]["means"].shape[1] == SIZE


@pytest.mark.parametrize("rules", [FAMILY, GUIDE, FAMILY._replace(num_steps=500)])
def test_a_state_is_plain(rules):
    """Numbers, strings, arrays and None, in dicts and tuples: a checkpoint can hold it."""
    for state in run(rules, units=None if rules is GUIDE else np.ones(SIZE)):
        kinds = {type(leaf) for leaf in jax.tree.leaves(state)}
        assert kinds <= {int, float, str, bool, np.ndarray}
