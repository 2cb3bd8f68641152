import jax
import jax.numpy as jnp
import numpy as np
import pytest
from machinery import banana, gaussian, metric_and_root, run

import langevin as lv
from langevin.kernels.rwm import rwm_stepper


@pytest.mark.parametrize("kind", ["unit", "diagonal", "dense", "lowrank"])
def test_steps_by_hand(kind):
    target = gaussian(3) if kind == "dense" else banana()
    metric, root = metric_and_root(kind, 3 if kind == "dense" else 2)
    ran = run(rwm_stepper(), target, metric, (0.3, 1.0, 2.5), num_steps=30)
    reports, moves = ran.reports, []
    for case, begun, end in ran.trajectories():
        x = reports.draw.position[case, begun]
        proposal = x + ran.step_sizes[case] * root @ ran.noise[case, begun]
        ratio = target.log_density(proposal) - target.log_density(x)
        accepted = ran.uniforms[case, end, 0] < np.exp(ratio)
        expected = proposal if accepted else x
        np.testing.assert_allclose(reports.draw.position[case, end], expected, rtol=1e-9, atol=1e-9)
        np.testing.assert_allclose(reports.acceptance_rate[case, end], np.exp(min(ratio, 0)), rtol=1e-7)
        moves.append(accepted)
    assert 0.1 < np.mean(moves) < 0.9


def test_no_gradient_is_taken():
    """A loop of unknown length has no gradient in reverse: to ask for one would be an error."""

    def log_density(x):
        return -jax.lax.while_loop(lambda c: c[1] > 1, lambda c: (c[0] + c[1], c[1] / 2), (0.0, jnp.abs(x)))[0]

    posterior = lv.Density(log_density, init=0.5).posterior()
    with pytest.raises(ValueError, match="Reverse-mode differentiation"):
        lv.kernels.mala(posterior, 1.0).init(jax.random.key(0), jnp.float32(0.5), None)
    kernel = lv.kernels.rwm(posterior, 1.0)
    state = kernel.init(jax.random.key(0), jnp.float32(0.5), None)
    assert np.isfinite(kernel.step(jax.random.key(1), state, None)[1].log_density)
