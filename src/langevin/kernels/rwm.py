"""Random-walk Metropolis, as a stepper of one log-density a step.

    proposal = position + eps R noise,    noise ~ N(0, I)

is accepted with probability min(1, p(proposal) / p(position)). No gradient is taken, so the log-density need not have
one. The targeted density is the posterior, exactly (Metropolis et al. 1953).
"""

from __future__ import annotations

import jax.numpy as jnp

from langevin.kernels import metrics
from langevin.kernels.base import Kernel
from langevin.kernels.mala import Walk, idle_walk, metropolis
from langevin.kernels.metrics import Metric
from langevin.kernels.steppers import Inputs, Report, Stepper, as_kernel
from langevin.posterior import Posterior


def rwm(posterior: Posterior, step_size: float, metric: Metric | None = None) -> Kernel:
    """Random-walk Metropolis as a bare kernel.

    Args:
        posterior: The target.
        step_size: The sd of a proposal, in units of the metric. About `2.4 / sqrt(size)` is best (Roberts, Gelman &
            Gilks 1997).
        metric: G; None for the identity.
    """
    return as_kernel(rwm_stepper(), posterior, step_size, metric)


def rwm_stepper() -> Stepper:
    """The stepper: see the top of this module."""

    def step(state: Walk, inputs: Inputs) -> tuple[Walk, Report]:
        here = state.draw
        move = jnp.where(state.ready, inputs.step_size, 0.0) * state.noise
        position = here.position + metrics.unwhiten(inputs.metric, move)
        log_density, gradient = inputs.evaluate(position)
        return metropolis(state, inputs, position, gradient, log_density, log_density - here.log_density)

    return Stepper(idle_walk, step, needs_gradient=False)
