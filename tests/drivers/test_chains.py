import jax
import jax.numpy as jnp
import numpy as np
import pytest

import langevin as lv
from langevin.drivers import chains
from langevin.drivers.chains import Chains
from langevin.methods import SGLD
from langevin.tuning import Tuning


@pytest.fixture(scope="module")
def posterior():
    density = lv.Density(lambda m: -0.5 * m**2, lambda m, rows: -0.5 * (rows["x"] - m) ** 2, init=0.0)
    return density.posterior({"x": np.linspace(-1, 1, 30)})


def make(posterior, batches, positions=None, step_size=0.01, seed=0):
    positions = jnp.zeros(3) if positions is None else positions
    return Chains(SGLD(step_size=step_size), posterior, batches, Tuning(), jax.random.key(seed), positions)


@pytest.fixture(scope="module")
def batches(posterior):
    return lv.Batches(7, order="sweep")


@pytest.fixture(scope="module")
def laid_out(posterior, batches):
    import dataclasses

    columns = {"x": np.asarray(posterior.data["x"])}
    return dataclasses.replace(posterior, data=batches.lay_out(columns, 30, 0))


def test_the_draws_do_not_depend_on_the_chunks(laid_out, batches, monkeypatch):
    strides = np.full(300, 11)
    whole = make(laid_out, batches).run(strides)
    monkeypatch.setattr(chains, "SECONDS_A_CHUNK", 1e-4)
    cut = make(laid_out, batches)
    parts = [cut.run(strides[:100]), cut.run(strides[100:101]), cut.run(strides[101:])]
    np.testing.assert_array_equal(whole.position, np.concatenate([part.position for part in parts], axis=1))


def test_the_same_seed_gives_the_same_bits_and_another_does_not(laid_out, batches):
    strides = np.full(20, 3)
    a, b, c = (make(laid_out, batches, seed=seed).run(strides).position for seed in (0, 0, 1))
    np.testing.assert_array_equal(a, b)
    assert (a != c).all()


def test_thinning_keeps_every_so_manieth_step(laid_out, batches):
    every = make(laid_out, batches).run(np.full(30, 1)).position
    third = make(laid_out, batches).run(np.full(10, 3)).position
    np.testing.assert_array_equal(every[:, 2::3], third)


def test_chains_differ_and_shared_minibatches_are_shared(laid_out):
    seen = {}
    for shared in (False, True):
        batches = lv.Batches(7, order="sweep", shared=shared)
        kernel_noise_free = SGLD(step_size=lambda step: jnp.float32(1e-6))
        run = Chains(kernel_noise_free, laid_out, batches, Tuning(), jax.random.key(0), jnp.zeros(3))
        seen[shared] = run.run(np.full(5, 1)).info["log_density"]
    assert len(np.unique(seen[False][:, 0])) == 3
    np.testing.assert_allclose(seen[True][0], seen[True][1], atol=0.1)


def test_a_chain_that_blows_up_stops_and_the_others_go_on(posterior):
    """The density of a cubic falls off a cliff on one side: a chain started there runs away."""
    density = lv.Density(lambda m: jnp.where(m < 10, -0.5 * m**2, m**4), init=0.0).posterior()
    draws = make(density, None, jnp.array([0.0, 50.0, 0.0]), step_size=0.1).run(np.full(40, 2))
    assert (draws.stopped[[0, 2]] == -1).all()
    assert 0 <= draws.stopped[1] < 10
    assert draws.valid[0].all()
    assert not draws.valid[1, -1]
    assert np.isfinite(draws.position).all()


def test_the_fit_says_which_chain_stopped_and_where():
    starts = iter([0.0, 50.0])
    values = jnp.array([next(starts), next(starts)])
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
    density = lv.Density(lambda m: -0.5 * m**2, lambda m, rows: -0.5 * (rows["x"] - m) ** 2, init=0.0)
    method = lv.CyclicalSGLD(step_size=0.05, num_cycles=4, explore=0.5)
    settings = {"num_chains": 2, "num_warmup": 10, "num_draws": 40, "thin": 5, "progress": False}
    with pytest.warns(lv.LangevinWarning):
        fit = lv.fit(density, {"x": np.linspace(-1, 1, 30)}, method, batch_size=10, **settings)
    steps = fit.stats["step_size"].values[0].reshape(4, 10)
    np.testing.assert_allclose(steps, np.broadcast_to(steps[0], (4, 10)), rtol=1e-5)
    # A cycle has 100 steps, 50 of which explore; the draws are after steps 55, 60, ..., 100.
    expected = 0.025 * (np.cos(np.pi * (np.arange(55, 101, 5) - 1) / 100) + 1)
    np.testing.assert_allclose(steps[0], expected, rtol=1e-3)
    with pytest.raises(lv.SettingError, match="multiple of the 4 cycles"):
        lv.fit(density, {"x": np.ones(30)}, method, num_warmup=10, num_draws=41, progress=False)


def test_the_acceptance_is_the_mean_over_the_steps_behind_a_draw(laid_out):
    method = SGLD(step_size=0.2, accept="full")
    make = lambda: Chains(method, laid_out, None, Tuning(), jax.random.key(0), jnp.zeros(3))  # noqa: E731
    every = make().run(np.full(30, 1))
    some = make()
    third = some.run(np.full(10, 3))
    means = every.info["acceptance_rate"].reshape(3, 10, 3).mean(axis=2)
    np.testing.assert_allclose(third.info["acceptance_rate"], means, rtol=1e-5)
    # Padding a short chunk takes no steps, and leaves what the last one told.
    np.testing.assert_allclose(some.carry.info.acceptance_rate, means[:, -1], rtol=1e-5)
    assert 0 < means.min() < 1
