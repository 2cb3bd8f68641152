"""Starts: at random, until every chain has one with a finite log-density; and what is said where there is none."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.flatten_util import ravel_pytree

import langevin as lv
from langevin.contracts import Plan
from langevin.engines.climb import ClimbEngine
from langevin.engines.exact import ExactEngine
from langevin.engines.stochastic import StochasticEngine
from langevin.geometry import starts
from langevin.run.keep import Keep
from langevin.run.seeds import Seed

PLAN = Plan(num_chains=8, num_warmup=20, num_draws=20, thin=1, batches=None, seed=Seed.of(0), keep=Keep())
ENGINES = {
    "nuts": (ExactEngine, lv.NUTS()),
    "rwm": (ExactEngine, lv.RWM()),
    "sgld": (StochasticEngine, lv.SGLD(step_size=0.01)),
    "map": (ClimbEngine, lv.MAP(num_steps=20)),
}


def in_quadrant(x):
    return jnp.where((x > 0).all(), -0.5 * x @ x, -jnp.inf)


def target(log_density=in_quadrant):
    return lv.Density(log_density, init=lambda key: jax.random.normal(key, (2,))).posterior()


def positions_of(state):
    return np.asarray(state["chains"]["positions"] if "positions" not in state else state["positions"][0])


def test_positions_are_flattened_as_jax_does():
    position = {"b": np.arange(6.0).reshape(2, 3), "a": (np.float32(7.0), np.arange(2, dtype="f"))}
    flat = starts.flattened(position)
    np.testing.assert_array_equal(flat, ravel_pytree(position)[0])
    several = starts.unflattened(position, np.stack([flat, flat + 1]))
    assert jax.tree.structure(several) == jax.tree.structure(position)
    jax.tree.map(lambda x, two: np.testing.assert_array_equal(two, np.stack([x, x + 1])), position, several)
    assert jax.tree.map(lambda x: x.dtype, several) == jax.tree.map(lambda x: x.dtype, position)


def test_proposals_follow_the_seed_and_the_attempt():
    one, again, later = (starts.proposed(target(), PLAN, attempt) for attempt in (0, 0, 1))
    np.testing.assert_array_equal(one, again)
    assert (one != later).all()
    assert len(np.unique(one)) == one.size
    together = starts.proposed(target(), PLAN, 0, together=4)
    np.testing.assert_array_equal(together, np.repeat(one[:2], 4, axis=0))


def test_good_starts_stay_and_others_are_tried_for_the_rest():
    old, new = {"x": np.zeros((3, 2)), "y": np.zeros(3)}, {"x": np.ones((3, 2)), "y": np.ones(3)}
    asked = []

    def propose(attempt):
        asked.append(attempt)
        return new

    found = starts.retried(old, np.array([True, False, True]), propose, 5, failure=None)
    np.testing.assert_array_equal(found["x"], [[0, 0], [1, 1], [0, 0]])
    np.testing.assert_array_equal(found["y"], [0, 1, 0])
    assert asked == [5]
    with pytest.raises(KeyError, match="chain 1"):
        starts.retried(
            old, np.array([True, False, False]), propose, starts.MOST_TRIES, lambda c: KeyError(f"chain {c}")
        )


@pytest.mark.parametrize("name", ENGINES)
def test_starts_without_density_are_left_for_others(name):
    """Only the first quadrant has any: three of four starts are in vain."""
    make, method = ENGINES[name]
    engine = make(method, target(), PLAN)
    state, seen = engine.begin(), []
    while state["phase"] == "start":
        seen.append(positions_of(state))
        state, chunk = engine.advance(state, 1)
        assert chunk.phase == "start"
        assert chunk.draws == ()
    assert len(seen) > 1
    assert (seen[0] <= 0).any()
    good = (seen[0] > 0).all(axis=1)
    assert good.any()
    np.testing.assert_array_equal(seen[-1][good], seen[0][good])
    assert (seen[-1] > 0).all()


@pytest.mark.parametrize("name", ENGINES)
def test_the_start_that_was_tried_in_vain_is_named(name):
    make, method = ENGINES[name]
    posterior = target(lambda x: jnp.where(x[0] > -9.0, jnp.nan, -0.5 * x @ x))
    engine = make(method, posterior, PLAN)
    with pytest.raises(lv.SamplingError, match=r"not finite at any of 100 starts: .*nan.* at position=\["):
        state = engine.begin()
        while state["phase"] == "start":
            state, _ = engine.advance(state, 1)


def test_chains_start_at_given_positions():
    given = np.arange(10, dtype="f").reshape(5, 2)
    found = starts.proposed(starts.starting_at(target(), given), PLAN, 0)
    assert {tuple(row) for row in found} <= {tuple(row) for row in given}
    assert len({tuple(row) for row in found}) > 1
