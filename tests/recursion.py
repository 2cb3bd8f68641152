"""Stan's NUTS as the recursion it is, in NumPy, with momenta and a mass matrix instead of whitened velocities."""

from collections import Counter
from typing import Any, NamedTuple

import numpy as np
from machinery import Target, run

from langevin.kernels.nuts import nuts_stepper

NEVER = np.inf
MOST_ERROR = 1000.0
# Why a trajectory ends.
ENDINGS = {"depth", "whole", "old and neighbour", "new and neighbour", "part", "early", "diverging"}


class Leaf(NamedTuple):
    position: np.ndarray
    momentum: np.ndarray
    step: int
    energy: float


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

    Stan checks a half with its neighbour only when both halves are there. The stepper does so at the neighbour, and
    stops some steps earlier with the same draw: `fails_at` is the step at which all that Stan compares was known.
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
            return Subtree(leaf, leaf, leaf.momentum, leaf.step if lost else NEVER)
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
        draw, total, rho, depth, why = start, 1.0, start.momentum, 0, "depth"
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


def check_trajectories(
    target: Target, metric: Any, root: np.ndarray, step_sizes: tuple[float, ...], max_depth: int
) -> Counter:
    """Every trajectory of the stepper must be the recursion's; returns how many ended for each reason."""
    ran = run(nuts_stepper(max_depth), target, metric, step_sizes, num_steps=300)
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
    return seen
