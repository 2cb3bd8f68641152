"""Hamiltonian Monte Carlo, one trajectory after the other, with momenta and a mass matrix in NumPy."""

import numpy as np
import pytest
from machinery import banana, gaussian, metric_and_root, run

from langevin.kernels.hmc import hmc_stepper

JITTER = 0.3
STEP_SIZES = (0.1, 0.4, 1.1, 4.0)


def trajectory(target, inverse_mass, start, momentum, step_size, num_steps):
    """The end of a trajectory, how much energy was lost on the way there, and the steps it took."""

    def energy(x, p):
        return 0.5 * p @ inverse_mass @ p - target.log_density(x)

    x, p, taken, lost = start, momentum, 0, 0.0
    while taken < num_steps and lost <= 1000:
        p = p + step_size / 2 * target.gradient(x)
        x = x + step_size * inverse_mass @ p
        p = p + step_size / 2 * target.gradient(x)
        lost, taken = energy(x, p) - energy(start, momentum), taken + 1
    return x, lost, taken


@pytest.mark.parametrize(
    ("kind", "num_steps", "length"),
    [("unit", None, 1.0), ("diagonal", 5, 1.5), ("dense", None, 2.0), ("dense", 4, 1.5), ("lowrank", 3, 1.5)],
)
def test_trajectories_by_hand(kind, num_steps, length):
    target = gaussian(3) if kind == "dense" else banana()
    metric, root = metric_and_root(kind, 3 if kind == "dense" else 2)
    ran = run(hmc_stepper(num_steps, length, JITTER), target, metric, STEP_SIZES, num_steps=100)
    reports, seen = ran.reports, set()
    for case, begun, end in ran.trajectories():
        eps, start = ran.step_sizes[case], reports.draw.position[case, begun]
        # The uniform numbers of the step with which a trajectory begins jitter its length.
        wanted = (num_steps or length / eps) * (1 + JITTER * (2 * ran.uniforms[case, begun, 1] - 1))
        momentum = np.linalg.solve(root.T, ran.noise[case, begun])
        with np.errstate(over="ignore", invalid="ignore"):
            there, lost, taken = trajectory(target, root @ root.T, start, momentum, eps, max(1, int(np.round(wanted))))
        accepted = bool(ran.uniforms[case, end, 0] < np.exp(-lost))
        assert end - begun == taken == reports.n_steps[case, end]
        assert (not lost <= 1000) == reports.diverging[case, end]
        expected = there if accepted else start
        np.testing.assert_allclose(reports.draw.position[case, end], expected, rtol=1e-9, atol=1e-9)
        chance = np.exp(-max(lost, 0)) if np.isfinite(lost) else 0.0
        np.testing.assert_allclose(reports.acceptance_rate[case, end], chance, rtol=1e-7, atol=1e-9)
        seen |= {("accepted", accepted), ("diverging", bool(reports.diverging[case, end])), ("steps", taken)}
    assert seen >= {("accepted", True), ("accepted", False), ("diverging", True), ("diverging", False)}
    assert sum(name == "steps" for name, _ in seen) >= 3


def test_without_jitter_all_trajectories_are_equally_long():
    ran = run(hmc_stepper(4, 1.5, 0.0), gaussian(2), None, (0.1,), num_steps=41)
    assert ran.reports.done.sum(axis=1).tolist() == [10] * 3
    assert set(ran.reports.n_steps[ran.reports.done]) == {4}
