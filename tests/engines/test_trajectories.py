"""The loop that all exact methods share: what it gives is a function of the seed, however it is cut into chunks."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import langevin as lv
from langevin.engines import trajectories
from langevin.engines.trajectories import Goal, Harvest, Record, Trajectories
from langevin.kernels import Diagonal
from langevin.run.compilation import Programs
from langevin.run.seeds import Seed

NUM_CHAINS = 3
METHODS = {"nuts": lv.NUTS(), "hmc": lv.HMC(), "mala": lv.MALA(), "rwm": lv.RWM()}
METRIC = Diagonal(np.array([1.0, 0.1], np.float32))
STARTS = np.array([[0.0, 0.1], [1.0, -0.1], [-1.0, 0.0]])
STEP_SIZE = 0.5 * 2**-0.25


def log_density(x):
    return -0.5 * jnp.sum(x**2 * jnp.array([1.0, 25.0])) - jnp.sum(x) ** 4 / 50


@pytest.fixture(scope="module")
def posterior():
    return lv.Density(log_density, init=jnp.zeros(2)).posterior()


def make(posterior, method=METHODS["nuts"], seed=0):
    return Trajectories(method, posterior, np.zeros(2, "f"), NUM_CHAINS, Seed.of(seed), Programs(lambda: None))


def advance(chains, state, goal, limits=(2**30,)):
    """The state at the goal, and what each chain drew on the way there, in chunks of at most `limits` steps."""
    parts, calls, targets = [], 0, np.full(NUM_CHAINS, trajectories.FOREVER) if goal.targets is None else goal.targets
    while state["drawn"].sum() < goal.total and (state["drawn"] < targets).any():
        limit = limits[calls % len(limits)]
        state, harvests, steps = chains.advance(state, goal, limit)
        assert 1 <= steps <= limit
        parts.append(harvests)
        calls += 1
    return state, [Harvest(*map(np.concatenate, zip(*one, strict=True))) for one in zip(*parts, strict=True)]


def run(chains, limits=(2**30,)):
    """Warm-up to 60 draws, another metric, and 25 draws of each chain: every draw, and its record."""
    state = chains.begin(STARTS, STEP_SIZE)
    state, first = advance(chains, state, Goal(METRIC, total=60, adapting=True), limits)
    state = chains.idled(state)
    goal = Goal(Diagonal(np.array([0.9, 0.05], np.float32)), targets=state["drawn"] + 25)
    return first, advance(chains, state, goal, limits)[1]


@pytest.mark.parametrize("method", METHODS)
def test_the_draws_do_not_depend_on_the_chunks(posterior, method):
    expected = run(make(posterior, METHODS[method]))
    for limits in ((1,), (7, 64, 2), (300,)):
        found = run(make(posterior, METHODS[method]), limits)
        jax.tree.map(np.testing.assert_array_equal, found, expected)


def test_the_streams_may_run_out_anywhere(posterior, monkeypatch):
    """Random numbers come in blocks of as many as a chunk can have at most: this has 40 steps, and 10 trajectories."""
    monkeypatch.setattr(trajectories, "MOST_STEPS_A_CHUNK", 40)
    expected = run(make(posterior))
    for limits in ((1,), (7, 64, 2)):
        jax.tree.map(np.testing.assert_array_equal, run(make(posterior), limits), expected)


def test_the_same_seed_gives_the_same_bits_and_another_does_not(posterior):
    one, same, other = (run(make(posterior, seed=seed)) for seed in (0, 0, 1))
    jax.tree.map(np.testing.assert_array_equal, one, same)
    assert (one[0][0].position[5] != other[0][0].position[5]).all()


def test_a_state_is_left_as_it_was(posterior):
    chains = make(posterior)
    state, _ = advance(chains, chains.begin(STARTS, STEP_SIZE), Goal(METRIC, total=60, adapting=True))
    before = jax.tree.map(np.array, state)
    goal = Goal(METRIC, targets=state["drawn"] + 25)
    first, again = (advance(chains, state, goal, limits)[1] for limits in ((2**30,), (5,)))
    jax.tree.map(np.testing.assert_array_equal, first, again)
    jax.tree.map(np.testing.assert_array_equal, state, before)


def draws_from_zero(method, log_density):
    """What each of three chains that all start at zero draws, at least 40 times."""
    chains = make(lv.Density(log_density, init=jnp.zeros(2)).posterior(), method)
    goal = Goal(None, targets=np.full(NUM_CHAINS, 40))
    return advance(chains, chains.begin(np.zeros((NUM_CHAINS, 2)), STEP_SIZE), goal)[1]


def flat(x):
    """On a flat density everything is accepted."""
    return -1e-6 * jnp.sum(jnp.abs(x))


def test_chains_have_noise_of_their_own():
    one, two, three = (harvest.position[:40] for harvest in draws_from_zero(lv.HMC(num_steps=3, jitter=0.0), flat))
    assert (one != two).all()
    assert (two != three).all()


def test_chains_decide_by_themselves():
    """On lengths of trajectories, which have nothing to do with their noise; and whether to move."""
    harvests = draws_from_zero(lv.HMC(num_steps=10, jitter=0.5), flat)
    one, two, three = (Record(*harvest.record.T).n_steps[:40] for harvest in harvests)
    assert (one != two).mean() > 0.5
    assert (two != three).mean() > 0.5
    moves = [
        np.diff(harvest.position[:40], axis=0).any(axis=1) for harvest in draws_from_zero(lv.RWM(), lambda x: -x @ x)
    ]
    assert 0.1 < np.mean(moves[0]) < 0.9
    assert (moves[0] != moves[1]).any()
    assert (moves[1] != moves[2]).any()


def test_records_are_of_their_draws(posterior):
    """Also those of a chain that is ahead of the others."""
    chains = make(posterior)
    goal = Goal(METRIC, targets=np.array([5, 20, 50]))
    for harvest in advance(chains, chains.begin(STARTS, STEP_SIZE), goal)[1]:
        columns = Record(*harvest.record.T)
        assert (columns.done == 1).all()
        expected = [log_density(x) for x in harvest.position]
        np.testing.assert_allclose(columns.log_density, expected, rtol=1e-4, atol=1e-5)
        assert ((columns.acceptance_rate > 0) & (columns.acceptance_rate <= 1)).all()
        np.testing.assert_allclose(columns.step_size, STEP_SIZE, rtol=1e-5)


@pytest.mark.parametrize("method", METHODS)
def test_one_gradient_a_step(posterior, method):
    """The steps of the loop are those of the trajectories: a chain never waits for another."""
    chains = make(posterior, METHODS[method])
    goal = Goal(METRIC, targets=np.full(NUM_CHAINS, 30))
    state, gathered = advance(chains, chains.begin(STARTS, STEP_SIZE), goal)
    taken = [Record(*one.record.T).n_steps.sum() for one in gathered]
    # One step finds the log-density at the start; a last trajectory may be on its way.
    assert max(taken) <= state["step"] - 1
    assert max(taken) > 0.8 * state["step"]
    assert (state["drawn"] >= 30).all()


def test_some_chains_are_put_elsewhere_and_the_others_go_on(posterior):
    """An engine does that with chains that cannot start where they are."""
    chains = make(posterior)
    state, _, _ = chains.advance(chains.begin(STARTS, STEP_SIZE), Goal(METRIC), 1)
    moved = chains.idled(state, np.full((NUM_CHAINS, 2), 9.0), np.array([False, True, False]))
    np.testing.assert_array_equal(moved["idle"], [False, True, False])
    after, _, _ = chains.advance(moved, Goal(METRIC), 1)
    np.testing.assert_array_equal(after["positions"], np.where(np.array([[0], [1], [0]]), 9.0, STARTS.astype("f")))
    assert chains.stepper(after).ready.all()
    np.testing.assert_allclose(chains.stepper(after).draw.position[1], [9.0, 9.0])


def test_a_chain_without_density_is_not_ready():
    posterior = lv.Density(lambda x: jnp.where(x[0] > 2, jnp.nan, -0.5 * x @ x), init=jnp.zeros(2)).posterior()
    chains = make(posterior)
    state = chains.begin(np.array([[0.0, 0.0], [3.0, 0.5], [0.0, 0.0]]), STEP_SIZE)
    state, _, _ = chains.advance(state, Goal(METRIC), 1)
    np.testing.assert_array_equal(chains.stepper(state).ready, [True, False, True])
    np.testing.assert_array_equal(state["positions"][1], [3.0, 0.5])
