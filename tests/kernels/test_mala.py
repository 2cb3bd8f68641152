"""The Metropolis-adjusted Langevin algorithm, with the proposal's density q written out."""

import numpy as np
import pytest
from machinery import banana, gaussian, metric_and_root, run
from scipy import stats

from langevin.kernels.mala import mala_stepper


@pytest.mark.parametrize("kind", ["unit", "diagonal", "dense", "lowrank"])
def test_steps_by_hand(kind):
    """alpha = min(1, p(x') q(x | x') / (p(x) q(x' | x))), with q(x' | x) = N(x' | x + eps^2/2 G grad, eps^2 G)."""
    target = gaussian(3) if kind == "dense" else banana()
    metric, root = metric_and_root(kind, 3 if kind == "dense" else 2)
    cov = root @ root.T
    ran = run(mala_stepper(), target, metric, (0.2, 0.7, 1.5), num_steps=30)
    reports, chances, moves = ran.reports, [], []
    for case, begun, end in ran.trajectories():
        eps, x = ran.step_sizes[case], reports.draw.position[case, begun]

        def log_q(to, start, eps=eps):
            mean = start + eps**2 / 2 * cov @ target.gradient(start)
            return stats.multivariate_normal(mean, eps**2 * cov).logpdf(to)

        proposal = x + eps**2 / 2 * cov @ target.gradient(x) + eps * root @ ran.noise[case, begun]
        ratio = target.log_density(proposal) - target.log_density(x) + log_q(x, proposal) - log_q(proposal, x)
        accepted = ran.uniforms[case, end, 0] < np.exp(ratio)
        expected = proposal if accepted else x
        np.testing.assert_allclose(reports.draw.position[case, end], expected, rtol=1e-9, atol=1e-9)
        np.testing.assert_allclose(reports.acceptance_rate[case, end], np.exp(min(ratio, 0)), rtol=1e-6, atol=1e-9)
        np.testing.assert_allclose(reports.energy_error[case, end], -ratio, rtol=1e-6, atol=1e-6)
        assert reports.n_steps[case, end] == end - begun == 1
        chances.append(np.exp(min(ratio, 0)))
        moves.append(accepted)
    assert 0.2 < np.mean(moves) < 0.95
    assert np.min(chances) < 0.5 < np.max(chances)
