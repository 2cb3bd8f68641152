"""The loop that all exact methods share: what it gives is a function of the seed, however it is cut into chunks."""

import jax.numpy as jnp
import numpy as np
import pytest

import langevin as lv
from langevin.drivers import trajectories
from langevin.drivers.adaptation import find_starts
from langevin.drivers.trajectories import Record, Trajectories
from langevin.kernels import Diagonal

NUM_CHAINS = 3
METHODS = {"nuts": lv.NUTS(), "hmc": lv.HMC(), "mala": lv.MALA(), "rwm": lv.RWM()}


def log_density(x):
    return -0.5 * jnp.sum(x**2 * jnp.array([1.0, 25.0])) - jnp.sum(x) ** 4 / 50


@pytest.fixture(scope="module")
def posterior():
    return lv.Density(log_density, init=jnp.zeros(2)).posterior()


def make(posterior, method="nuts", most_steps=64, seed=0):
    chains = Trajectories(
        METHODS[method],
        posterior,
        jnp.zeros(2),
        NUM_CHAINS,
        Diagonal(np.array([1.0, 0.1], np.float32)),
        np.random.SeedSequence(seed),
        most_steps,
    )
    chains.rest(np.array([[0.0, 0.1], [1.0, -0.1], [-1.0, 0.0]]))
    return chains


def run(chains):
    """Warm-up to 60 draws, another metric, and 25 draws of each chain: every draw, and its record."""
    chains.adapting = True
    first = chains.run(total=60)
    chains.metric = Diagonal(np.array([0.9, 0.05], np.float32))
    chains.rest(chains.positions)
    chains.adapting = False
    second = chains.run(targets=chains.drawn + 25)
    return [
        np.concatenate([getattr(harvest, name) for part in (first[c], second[c]) for harvest in part])
        for c in range(NUM_CHAINS)
        for name in ("position", "gradient", "record")
    ]


@pytest.mark.parametrize("method", METHODS)
def test_the_draws_do_not_depend_on_the_chunks(posterior, method, monkeypatch):
    expected = run(make(posterior, method))
    for most_steps, seconds in ((7, 0.3), (2048, 0.3), (64, 1e-9)):
        monkeypatch.setattr(trajectories, "SECONDS_A_CHUNK", seconds)
        chains = make(posterior, method, most_steps)
        for found, wanted in zip(run(chains), expected, strict=True):
            np.testing.assert_array_equal(found, wanted)


def test_the_same_seed_gives_the_same_bits_and_another_does_not(posterior):
    one, same, other = (run(make(posterior, seed=seed)) for seed in (0, 0, 1))
    for a, b in zip(one, same, strict=True):
        np.testing.assert_array_equal(a, b)
    assert (one[0][5] != other[0][5]).all()


def draws_from_zero(method, log_density):
    """40 draws of each of three chains that all start at zero."""
    posterior = lv.Density(log_density, init=jnp.zeros(2)).posterior()
    chains = Trajectories(method, posterior, jnp.zeros(2), NUM_CHAINS, None, np.random.SeedSequence(0), 64)
    chains.rest(np.zeros((NUM_CHAINS, 2)))
    gathered = chains.run(targets=np.full(NUM_CHAINS, 40))
    return [np.concatenate([h.position for h in one])[:40] for one in gathered]


def test_chains_have_noise_of_their_own():
    """On a flat density everything is accepted, so that the draws show the noise alone."""
    one, two, three = draws_from_zero(lv.HMC(num_steps=3, jitter=0.0), lambda x: -1e-6 * jnp.sum(jnp.abs(x)))
    assert (one != two).all()
    assert (two != three).all()


def test_chains_decide_by_themselves():
    draws = draws_from_zero(lv.RWM(), lambda x: -x @ x)
    one, two, three = ((np.diff(draw, axis=0) != 0).any(axis=1) for draw in draws)
    assert 0.1 < one.mean() < 0.9
    assert (one != two).any()
    assert (two != three).any()


def test_records_are_of_their_draws(posterior):
    """Also those of a chain that is ahead of the others."""
    for harvests in make(posterior).run(targets=np.array([5, 20, 50])):
        positions, records = (np.concatenate([getattr(h, n) for h in harvests]) for n in ("position", "record"))
        columns = Record(*records.T)
        assert (columns.done == 1).all()
        np.testing.assert_allclose(columns.log_density, [log_density(x) for x in positions], rtol=1e-4, atol=1e-5)
        assert ((columns.acceptance_rate > 0) & (columns.acceptance_rate <= 1)).all()
        np.testing.assert_allclose(columns.step_size, 0.5 * 2**-0.25, rtol=1e-5)


@pytest.mark.parametrize("method", METHODS)
def test_one_gradient_a_step(posterior, method):
    """The steps of the loop are those of the trajectories: a chain never waits for another."""
    chains = make(posterior, method)
    gathered = chains.run(targets=np.full(NUM_CHAINS, 30))
    taken = [sum(Record(*h.record.T).n_steps.sum() for h in one) for one in gathered]
    # One step finds the log-density at the start; a last trajectory may be on its way.
    assert max(taken) <= chains.steps - 1
    assert max(taken) > 0.8 * chains.steps
    assert (chains.drawn >= 30).all()


def test_starts_without_density_are_left_for_others():
    """Only the first quadrant has any: three of four starts are in vain."""
    posterior = lv.Density(lambda x: jnp.where((x > 0).all(), -0.5 * x @ x, -jnp.inf), init=jnp.ones(2)).posterior()
    chains = make(posterior)
    generator, tried = np.random.default_rng(0), []

    def propose():
        tried.append(generator.normal(size=(NUM_CHAINS, 2)))
        return tried[-1]

    assert find_starts(chains, propose) is None
    assert len(tried) > 1
    assert chains.ready.all()
    gathered = chains.run(targets=chains.drawn + 20)
    assert min(h.position.min() for one in gathered for h in one if len(h.position)) > 0


def test_a_start_that_was_tried_in_vain_comes_back():
    posterior = lv.Density(lambda x: jnp.where(x[0] > 2, jnp.nan, -0.5 * x @ x), init=jnp.zeros(2)).posterior()
    chains = make(posterior)
    lost = find_starts(chains, lambda: np.array([[0.0, 0.0], [3.0, 0.5], [0.0, 0.0]]))
    np.testing.assert_array_equal(lost, [3.0, 0.5])
    np.testing.assert_array_equal(chains.ready, [True, False, True])
