import jax
import jax.numpy as jnp
import numpy as np
import pytest
from machinery import banana, gaussian, metric_and_root
from recursion import ENDINGS, Stan, check_trajectories
from scipy import stats

import langevin as lv
from langevin.kernels.nuts import nuts_stepper
from langevin.kernels.steppers import NUM_UNIFORMS, Inputs, evaluator

CASES = {
    "gaussian, 2": (gaussian(2), "unit", (0.05, 0.2, 0.5, 0.9)),
    "gaussian, 5": (gaussian(5), "dense", (0.05, 0.15, 0.4, 0.8)),
    "banana": (banana(), "diagonal", (0.02, 0.1, 0.5, 5.0)),
}


@pytest.mark.parametrize(
    ("name", "max_depth"),
    [*(("gaussian, 2", depth) for depth in range(1, 7)), ("gaussian, 5", 4), ("gaussian, 5", 6), ("banana", 6)],
)
def test_trajectories_by_hand(name, max_depth):
    target, kind, step_sizes = CASES[name]
    metric, root = metric_and_root(kind, len(target.draws(np.random.default_rng(0), 1)[0]))
    seen = check_trajectories(target, metric, root, step_sizes, max_depth)
    assert seen.total() > 200
    if max_depth in (4, 5):
        assert set(seen) == ENDINGS


def test_draws_are_chosen_in_proportion_to_their_weight():
    """One trajectory with many other decisions: the choice is multinomial in a part, and prefers the newer part."""
    target, step_size, max_depth, count = gaussian(2), 0.6, 3, 100_000
    stepper = nuts_stepper(max_depth)
    posterior = lv.Density(target.log_density, init=jnp.zeros(2)).posterior()
    evaluate = evaluator(stepper, posterior, lambda flat: flat, None)
    start, noise = np.array([0.1, 2.4]), np.array([-1.1, -1.0])
    coins = np.array([0.2, 0.7, 0.2, 0.7, 0.7, 0.7, 0.7, 0.7])

    def draw(uniforms):
        step = lambda state, u: stepper.step(state, Inputs(evaluate, step_size, None, noise, u))  # noqa: E731
        reports = jax.lax.scan(step, stepper.idle(jnp.asarray(start)), uniforms)[1]
        return reports.draw.position[-1], reports.done

    with jax.enable_x64(True):
        uniforms = jax.random.uniform(jax.random.key(0), (count, 8, NUM_UNIFORMS)).at[:, :, 2].set(coins)
        positions, done = jax.tree.map(np.asarray, jax.jit(jax.vmap(draw))(uniforms))
    assert (done == [False] * 7 + [True]).all()
    stan = Stan(target, np.eye(2), step_size, max_depth)
    decisions = np.stack([np.ones(8), np.ones(8), coins], axis=1)
    assert stan.transition(start, noise, decisions[1:], direction=1).depth == 3
    weights = np.exp(stan.start_energy - np.array([leaf.energy for leaf in stan.leaves]))
    chances, total = np.array([1.0]), 1.0
    for part in (weights[:1], weights[1:3], weights[3:7]):
        taken = min(1.0, part.sum() / total)
        chances = np.concatenate([(1 - taken) * chances, taken * part / part.sum()])
        total += part.sum()
    places = np.stack([start, *(leaf.position for leaf in stan.leaves)])
    nearest = np.argmin(np.abs(positions[:, None] - places).sum(axis=2), axis=1)
    np.testing.assert_allclose(positions, places[nearest], atol=1e-9)
    counts = np.bincount(nearest, minlength=8)
    assert count * chances.min() > 100
    assert stats.chisquare(counts, count * chances).pvalue > 0.001
