"""NUTS against Stan's recursion, written out in NumPy with momenta and a mass matrix instead of whitened velocities."""

import dataclasses
from collections import Counter
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from machinery import banana, gaussian, metric_and_root, run
from scipy import stats

import langevin as lv
from langevin.kernels.machines import NUM_UNIFORMS, Inputs, evaluator
from langevin.kernels.nuts import nuts_machine

NEVER = np.inf
MOST_ERROR = 1000.0


@dataclasses.dataclass
class Leaf:
    position: np.ndarray
    momentum: np.ndarray
    step: int
    energy: float = 0.0

    @property
    def first(self):
        return self

    last = first

    @property
    def rho(self):
        return self.momentum


class Subtree(NamedTuple):
    first: Leaf
    last: Leaf
    rho: np.ndarray
    fails_at: float


class Trajectory(NamedTuple):
    draw: Leaf
    depth: int
    n_steps: int
    diverging: bool
    acceptance: float
    why: str


class Stan:
    """One transition of Stan's `base_nuts`, given the decisions.

    Stan checks a half with its neighbour only when both halves are there. The machine does so at the neighbour, and stops
    some steps earlier with the same draw: `fails_at` is the step at which all that Stan compares was known.
    """

    def __init__(self, target, mass_inverse, step_size, max_depth):
        self.target, self.inverse = target, mass_inverse
        self.step_size, self.max_depth = step_size, max_depth

    def energy(self, position, momentum):
        return 0.5 * momentum @ self.inverse @ momentum - self.target.log_density(position)

    def leapfrog(self, leaf, direction):
        eps = direction * self.step_size
        momentum = leaf.momentum + eps / 2 * self.target.gradient(leaf.position)
        position = leaf.position + eps * self.inverse @ momentum
        momentum = momentum + eps / 2 * self.target.gradient(position)
        self.leaves.append(Leaf(position, momentum, len(self.leaves), self.energy(position, momentum)))
        return self.leaves[-1]

    def turns(self, one, other, rho):
        return bool(min(one.momentum @ self.inverse @ rho, other.momentum @ self.inverse @ rho) <= 0)

    def build(self, start, direction, depth):
        if depth == 0:
            leaf = self.leapfrog(start, direction)
            lost = not leaf.energy - self.start_energy <= MOST_ERROR
            return Subtree(leaf, leaf, leaf.rho, leaf.step if lost else NEVER)
        left = self.build(start, direction, depth - 1)
        if left.fails_at < NEVER:
            return left
        right = self.build(left.last, direction, depth - 1)
        rho = left.rho + right.rho
        fails_at = right.fails_at
        if self.turns(left.first, right.first, left.rho + right.first.momentum):
            fails_at = min(fails_at, right.first.step)
        if right.fails_at == NEVER and (
            self.turns(left.first, right.last, rho) or self.turns(left.last, right.last, left.last.momentum + right.rho)
        ):
            fails_at = min(fails_at, right.last.step)
        return Subtree(left.first, right.last, rho, fails_at)

    def transition(self, position, momentum, uniforms, direction):
        start = Leaf(position, momentum, -1, self.energy(position, momentum))
        self.start_energy, self.leaves = start.energy, []
        draw, total, rho, depth, why = start, 1.0, start.rho, 0, "depth"
        near, far = start, start
        while depth < self.max_depth:
            begun = len(self.leaves)
            part = self.build(near, direction, depth)
            if part.fails_at < NEVER:
                n_steps = int(part.fails_at) + 1
                lost = not self.leaves[n_steps - 1].energy - self.start_energy <= MOST_ERROR
                why = "diverging" if lost else "early" if n_steps < len(self.leaves) else "part"
                return self.result(draw, depth, n_steps, lost, why)
            chosen, weight = self.choose(self.leaves[begun:], uniforms)
            decisions = uniforms[len(self.leaves) - 1]
            draw = chosen if decisions[1] < weight / total else draw
            depth, total = depth + 1, total + weight
            if self.turns(far, part.last, rho + part.rho):
                why = "whole"
            elif self.turns(far, part.first, rho + part.first.momentum):
                why = "old and neighbour"
            elif self.turns(near, part.last, near.momentum + part.rho):
                why = "new and neighbour"
            if why != "depth":
                break
            rho = rho + part.rho
            near = part.last
            if decisions[2] < 0.5:
                near, far, direction = far, near, -direction
        return self.result(draw, depth, len(self.leaves), False, why)

    def choose(self, leaves, uniforms):
        """A leaf in proportion to its weight, one after the other (Stan: half against half, which is the same)."""
        chosen, weight = None, 0.0
        for leaf in leaves:
            own = np.exp(self.start_energy - leaf.energy)
            weight += own
            chosen = leaf if uniforms[leaf.step][0] < own / weight else chosen
        return chosen, weight

    def result(self, draw, depth, n_steps, diverging, why):
        accepted = [np.exp(min(0.0, self.start_energy - leaf.energy)) for leaf in self.leaves[:n_steps]]
        return Trajectory(draw, depth, n_steps, diverging, np.nan_to_num(np.mean(accepted)), why)


ENDINGS = {"depth", "whole", "old and neighbour", "new and neighbour", "part", "early", "diverging"}
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
    ran = run(nuts_machine(max_depth), target, metric, step_sizes, num_steps=300)
    reports, seen = ran.reports, Counter()
    for case, begun, end in ran.trajectories():
        stan = Stan(target, root @ root.T, ran.step_sizes[case], max_depth)
        momentum = np.linalg.solve(root.T, ran.noise[case, begun])
        direction = 1 if ran.uniforms[case, begun, 2] < 0.5 else -1
        start = reports.draw.position[case, begun]
        with np.errstate(over="ignore", invalid="ignore"):
            found = stan.transition(start, momentum, ran.uniforms[case, begun + 1 :], direction)
        assert end - begun == found.n_steps == reports.n_steps[case, end], found
        assert found.depth == reports.tree_depth[case, end], found
        assert found.diverging == reports.diverging[case, end], found
        np.testing.assert_allclose(reports.draw.position[case, end], found.draw.position, rtol=1e-9, atol=1e-9)
        np.testing.assert_allclose(reports.draw.energy[case, end], found.draw.energy, rtol=1e-9, atol=1e-9)
        np.testing.assert_allclose(reports.acceptance_rate[case, end], found.acceptance, rtol=1e-7, atol=1e-9)
        error = found.draw.energy - stan.start_energy
        np.testing.assert_allclose(reports.energy_error[case, end], error, rtol=1e-7, atol=1e-7)
        seen[found.why] += 1
    assert seen.total() > 200
    if max_depth in (4, 5):
        assert set(seen) == ENDINGS


def test_draws_are_chosen_in_proportion_to_their_weight():
    """One trajectory with many other decisions: the choice is multinomial in a part, and prefers the newer part."""
    target, step_size, max_depth, count = gaussian(2), 0.6, 3, 100_000
    machine = nuts_machine(max_depth)
    posterior = lv.Density(target.log_density, init=jnp.zeros(2)).posterior()
    evaluate = evaluator(machine, posterior, lambda flat: flat, None)
    start, noise = np.array([0.1, 2.4]), np.array([-1.1, -1.0])
    coins = np.array([0.2, 0.7, 0.2, 0.7, 0.7, 0.7, 0.7, 0.7])

    def draw(uniforms):
        step = lambda state, u: machine.step(state, Inputs(evaluate, step_size, None, noise, u))  # noqa: E731
        reports = jax.lax.scan(step, machine.rest(jnp.asarray(start)), uniforms)[1]
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
