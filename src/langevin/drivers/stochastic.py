"""A run of a stochastic-gradient method, or a climb to the mode."""

from __future__ import annotations

import math

import jax
import numpy as np

from langevin.data.batches import Batches
from langevin.drivers import landscape
from langevin.drivers.chains import Chains, Draws
from langevin.drivers.scrutiny import Scrutiny, scrutinise
from langevin.drivers.warmup import start_positions, warm_up
from langevin.errors import SamplingError
from langevin.keys import derive
from langevin.methods import MAP, CyclicalSGHMC, CyclicalSGLD, Sampler
from langevin.posterior import Key, Posterior
from langevin.programs import import_beside
from langevin.progress import Watch
from langevin.tuning import Tuning

# A chain should forget this often, so that four chains give an effective size of about 500.
TIMES_TO_FORGET = 150
MOST_THIN = 10_000


def sample(
    method: Sampler,
    posterior: Posterior,
    batches: Batches | None,
    key: Key,
    counts: tuple[int, int, int, int | None],
    watch: Watch,
) -> tuple[Draws, Tuning, int, Scrutiny]:
    """Runs chains of a stochastic-gradient method.

    Args:
        method: The method.
        posterior: The target; with minibatches, its data laid out by `batches`.
        batches: How minibatches are drawn; None for all rows.
        key: Everything random is a function of it.
        counts: Chains, warm-up steps, draws, and steps to a draw (None: chosen here).
        watch: Shows progress.

    Returns:
        The draws, what warm-up found, the steps to a draw, and what the draws say of the step.
    """
    import_beside()
    num_chains, num_warmup, num_draws, thin = counts
    warm_key, chain_key, check_key = derive(key, 3)
    ready = warm_up(method, posterior, batches, warm_key, num_chains, num_warmup, watch)
    if thin is None:
        thin = 1
        if ready.steps_to_forget is not None:
            thin = math.ceil(min(TIMES_TO_FORGET / num_draws, 1) * ready.steps_to_forget)
            thin = min(max(thin, 1), MOST_THIN)
    strides, cycle = _strides(method, num_draws, thin)
    tuning = ready.tuning._replace(cycle=cycle)
    chains = Chains(method, posterior, batches, tuning, chain_key, ready.positions)
    draws = chains.run(strides, watch("sampling", int(strides.sum())))
    if not draws.valid.any():
        steps = ", ".join(str(step) for step in draws.stopped)
        raise SamplingError(
            f"Every chain blew up before its first draw, at steps {steps}. The step is too long: take a smaller "
            "step_size, or leave it to warm-up with step_size='auto'."
        )
    return draws, tuning, thin, scrutinise(method, posterior, batches, tuning, draws, check_key)


def climb(
    method: MAP, posterior: Posterior, batches: Batches | None, key: Key, num_chains: int, watch: Watch
) -> tuple[Draws, Tuning, int]:
    """Climbs from every start, and keeps the highest point."""
    start_key, climb_key = derive(key, 2)
    positions = start_positions(posterior, start_key, num_chains)
    climbers = Chains(method, posterior, batches, Tuning(), climb_key, positions)
    strides = np.diff(np.linspace(0, method.num_steps, 11).astype(int))
    draws = climbers.run(strides, watch("climbing", method.num_steps))
    heights = np.asarray(landscape.heights(posterior, climbers.positions))
    heights = np.where((draws.stopped < 0) & np.isfinite(heights), heights, -np.inf)
    if not np.isfinite(heights).any():
        raise SamplingError(
            f"Every climb left the finite numbers, the last at step {draws.stopped.max()}. Try a `learning_rate` below "
            f"{method.learning_rate}."
        )
    best = int(np.argmax(heights))
    last = jax.tree.map(lambda leaf: leaf[best : best + 1, -1:], draws._asdict() | {"stopped": draws.stopped[:, None]})
    last["info"]["log_density"] = np.full((1, 1), heights[best])
    return Draws(**last | {"stopped": last["stopped"][:, 0]}), Tuning(), method.num_steps


def _strides(method: Sampler, num_draws: int, thin: int) -> tuple[np.ndarray, tuple[int, int]]:
    """How many steps lead to each draw; for a cyclical method, also the steps of a cycle and of its exploration."""
    strides = np.full(num_draws, thin)
    if not isinstance(method, CyclicalSGLD | CyclicalSGHMC):
        return strides, (1, 0)
    draws_a_cycle = num_draws // method.num_cycles
    sampling = draws_a_cycle * thin
    exploring = round(sampling * method.explore / (1 - method.explore))
    strides[::draws_a_cycle] += exploring
    return strides, (sampling + exploring, exploring)
