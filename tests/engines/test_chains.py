"""Chains of a kernel: what they give is a function of the seed, however their steps are cut into chunks."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import langevin as lv
from langevin.data.batches import Layout
from langevin.engines.chains import Chains, Recorded
from langevin.methods import SGLD
from langevin.run.compilation import Programs
from langevin.run.keep import Keep
from langevin.run.seeds import Seed
from langevin.tuning import Tuning

DENSITY = lv.Density(lambda m: -0.5 * m**2, lambda m, rows: -0.5 * (rows["x"] - m) ** 2, init=0.0)
DATA = {"x": np.linspace(-1, 1, 30)}


class Started:
    """Chains and their state, which begin at these positions."""

    def __init__(self, posterior, batches, method=SGLD(step_size=0.01), positions=(0.0, 0.0, 0.0), seed=0):
        rows = None if batches is None else (batches, Layout(batches, posterior.data, Seed.of(7)))
        self.chains = Chains(method, posterior, rows, Keep(), Seed.of(seed), Programs(lambda: None))
        self.state = self.chains.begin(jnp.asarray(positions), Tuning())

    @property
    def carry(self):
        return self.chains.carry(self.state, Tuning())

    def run(self, num_draws, stride, limits=(2**30,)):
        """So many further draws, with so many steps to a draw, of which at most `limits` are taken at a time."""
        until, parts, calls = self.state["drawn"] + num_draws, [], 0
        while self.state["drawn"] < until:
            limit = limits[calls % len(limits)]
            before = self.state["step"]
            self.state, recorded = self.chains.advance(self.state, Tuning(), limit, lambda _: stride, until)
            assert 1 <= self.state["step"] - before <= limit
            parts += [] if recorded is None else [recorded]
            calls += 1
            assert calls <= num_draws * stride
        return Recorded(*jax.tree.map(lambda *arrays: np.concatenate(arrays), *map(tuple, parts)))


@pytest.fixture(scope="module")
def posterior():
    return DENSITY.posterior(DATA)


@pytest.fixture(scope="module")
def batches():
    return lv.Batches(7, order="sweep")


@pytest.mark.parametrize("limits", [(1,), (4, 11, 100, 3), (1000,)])
def test_the_draws_do_not_depend_on_the_chunks(posterior, batches, limits):
    """In 3,300 steps, with another order of the rows after every thousand."""
    whole = Started(posterior, batches)
    cut = Started(posterior, batches)
    expected = whole.run(300, 11)
    parts = [cut.run(100, 11, limits), cut.run(1, 11, limits), cut.run(199, 11, limits)]
    for name in ("position", "stats"):
        found = jax.tree.map(lambda *arrays: np.concatenate(arrays), *(getattr(part, name) for part in parts))
        jax.tree.map(np.testing.assert_array_equal, found, getattr(expected, name))
    jax.tree.map(np.testing.assert_array_equal, cut.state, whole.state)


def test_a_state_is_all_that_a_run_knows(posterior, batches):
    """Other chains of the same settings go on with it; and it is left as it was."""
    first, other = Started(posterior, batches), Started(posterior, batches)
    first.run(5, 3)
    before = jax.tree.map(np.array, first.state)
    fresh = Started(posterior, batches)
    fresh.chains._structure, fresh.state = None, first.state
    other.run(5, 3)
    np.testing.assert_array_equal(fresh.run(10, 3).position, other.run(10, 3).position)
    jax.tree.map(np.testing.assert_array_equal, first.state, before)


def test_the_same_seed_gives_the_same_bits_and_another_does_not(posterior, batches):
    a, b, c = (Started(posterior, batches, seed=seed).run(20, 3).position for seed in (0, 0, 1))
    np.testing.assert_array_equal(a, b)
    assert (a != c).all()


def test_thinning_keeps_every_so_manieth_step(posterior, batches):
    every = Started(posterior, batches).run(30, 1).position
    third = Started(posterior, batches).run(10, 3).position
    np.testing.assert_array_equal(every[2::3], third)


def test_chains_differ_and_shared_minibatches_are_shared(posterior):
    seen = {}
    for shared in (False, True):
        batches = lv.Batches(7, order="sweep", shared=shared)
        nearly_still = SGLD(step_size=lambda step: jnp.float32(1e-6))
        seen[shared] = Started(posterior, batches, nearly_still).run(5, 1).stats["log_density"]
    assert len(np.unique(seen[False][0])) == 3
    np.testing.assert_allclose(seen[True][:, 0], seen[True][:, 1], atol=0.1)


def test_a_chain_that_blows_up_stops_and_the_others_go_on():
    """The density of a cubic falls off a cliff on one side: a chain started there runs away."""
    density = lv.Density(lambda m: jnp.where(m < 10, -0.5 * m**2, m**4), init=0.0).posterior()
    run = Started(density, None, SGLD(step_size=0.1), positions=(0.0, 50.0, 0.0))
    draws = run.run(40, 2)
    stopped = np.asarray(run.carry.stopped)
    assert (stopped[[0, 2]] == -1).all()
    assert 0 <= stopped[1] < 10
    assert draws.stats["valid"][:, 0].all()
    assert not draws.stats["valid"][-1, 1]
    assert np.isfinite(draws.position).all()
    # Also where a stride is cut between the step that was lost and the draw that is not kept.
    cut = Started(density, None, SGLD(step_size=0.1), positions=(0.0, 50.0, 0.0))
    np.testing.assert_array_equal(cut.run(40, 2, limits=(1,)).position, draws.position)
    np.testing.assert_array_equal(cut.carry.stopped, stopped)


def test_the_fit_says_which_chain_stopped_and_where():
    values = jnp.array([0.0, 50.0])
    density = lv.Density(
        lambda m: jnp.where(m < 10, -0.5 * m**2, m**4),
        init=lambda key: values[jax.random.key_data(key)[1] % 2],
    )
    with pytest.warns(lv.LangevinWarning, match="blew up: chain"):
        fit = lv.fit(density, None, lv.SGLD(step_size=0.1), num_chains=8, num_warmup=0, thin=20, progress=False)
    lost = fit.stopped >= 0
    assert 0 < lost.sum() < 8
    assert (fit.weights.values[lost] == 0).any()
    assert (fit.weights.values[~lost] > 0).all()
    assert abs(fit.summary()["mean"].item()) < 0.2
    assert "blew up" in repr(fit)


def test_all_chains_lost_is_an_error():
    density = lv.Density(lambda m: m**4, init=10.0)
    with pytest.raises(lv.SamplingError, match="blew up before its first draw.*step_size"):
        lv.fit(density, None, lv.SGLD(step_size=0.5), num_warmup=0, thin=50, num_draws=10, progress=False)


def test_cycles_keep_only_the_sampling_phase():
    method = lv.CyclicalSGLD(step_size=0.05, num_cycles=4, explore=0.5)
    settings = {"num_chains": 2, "num_warmup": 10, "num_draws": 40, "thin": 5, "progress": False}
    with pytest.warns(lv.LangevinWarning):
        fit = lv.fit(DENSITY, DATA, method, batch_size=10, **settings)
    steps = fit.stats["step_size"].values[0].reshape(4, 10)
    np.testing.assert_allclose(steps, np.broadcast_to(steps[0], (4, 10)), rtol=1e-5)
    # A cycle has 100 steps, 50 of which explore; the draws are after steps 55, 60, ..., 100.
    expected = 0.025 * (np.cos(np.pi * (np.arange(55, 101, 5) - 1) / 100) + 1)
    np.testing.assert_allclose(steps[0], expected, rtol=1e-3)
    with pytest.raises(lv.SettingError, match="multiple of the 4 cycles"):
        lv.fit(DENSITY, {"x": np.ones(30)}, method, num_warmup=10, num_draws=41, progress=False)


def test_the_acceptance_is_the_mean_over_the_steps_behind_a_draw(posterior):
    method = SGLD(step_size=0.2, accept="full")
    every = Started(posterior, None, method).run(30, 1)
    some = Started(posterior, None, method)
    third = some.run(10, 3, limits=(2,))
    means = every.stats["acceptance_rate"].reshape(10, 3, 3).mean(axis=1)
    np.testing.assert_allclose(third.stats["acceptance_rate"], means, rtol=1e-5)
    # The room that a short chunk leaves takes no steps, and leaves what the last one told.
    np.testing.assert_allclose(some.carry.info.acceptance_rate, means[-1], rtol=1e-5)
    assert 0 < means.min() < 1
