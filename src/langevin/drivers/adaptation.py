"""Warm-up of the exact methods: starts, metric and step size, by the very program that then draws.

1. Every chain looks for a start with a finite log-density. The gradients there give the first metric.
2. The metric is made anew from the later half of the draws so far and the gradients at them, at first often, then
   seldom; chains are pooled, each around its own mean. The step size adapts all the time, by dual averaging.
3. After 85 % of the warm-up the metric stays, and at its end the step size. At first, trajectories are kept short.
"""

from __future__ import annotations

import functools
from collections.abc import Callable

import numpy as np
from threadpoolctl import ThreadpoolController

from langevin.drivers import mass
from langevin.drivers.trajectories import Trajectories
from langevin.drivers.warmup import MOST_TRIES
from langevin.kernels import dual_averaging
from langevin.kernels.machines import MOST_STEPS
from langevin.progress import OnChunk

# When the metric is made anew, in parts of the warm-up.
UPDATES = (0.01, 0.02, 0.03, 0.045, 0.06, 0.08, 0.1, 0.13, 0.16, 0.2, 0.25, 0.3, 0.4, 0.5, 0.6, 0.7, 0.85)
# Until then trajectories are cut off after so many steps: with a poor metric, longer ones are not worth their price.
CUT_OFF = ((0.1, 63), (0.3, 255))
LEAST_WINDOW = 5
MOST_BYTES_A_WINDOW = 500_000_000


def find_starts(chains: Trajectories, propose: Callable[[], np.ndarray]) -> np.ndarray | None:
    """Puts every chain at a start with a finite log-density.

    Args:
        chains: The chains.
        propose: `() -> (chains, size)`: a start for every chain.

    Returns:
        A position that was tried in vain, if a chain found no start in `MOST_TRIES`.
    """
    starts = propose()
    chains.rest(starts)
    for _ in range(MOST_TRIES):
        chains.find_log_density()
        lost = ~chains.ready
        if not lost.any():
            return None
        starts = np.where(lost[:, None], propose(), starts)
        chains.rest(starts, lost)
    return starts[int(np.argmax(lost))]


def adapt(
    chains: Trajectories, kind: str, rank: int, num_warmup: int, on_chunk: OnChunk, *, known: bool = False
) -> None:
    """Warms up chains that have found their starts.

    Args:
        chains: The chains. If they adapt, their step size is made to fit.
        kind: Of the metric: "unit", "diagonal", "dense" or "lowrank".
        rank: Of a metric of low rank.
        num_warmup: Draws of each chain, on average.
        on_chunk: Told of each chunk.
        known: Whether the chains have a metric to begin with.
    """
    num_chains = chains.num_chains
    if kind != "unit" and chains.needs_gradient and num_warmup > 0 and not known:
        chains.metric = mass.first_metric(kind, mass.plain_gradient(chains.metric, chains.gradients), rank)
        chains.rest(chains.positions)
    most = max(MOST_BYTES_A_WINDOW // (2 * chains.size * num_chains * chains.dtype.itemsize), LEAST_WINDOW)
    windows = [_Window(most) for _ in range(num_chains)]
    for part in () if kind == "unit" else UPDATES:
        when = round(part * num_warmup)
        if when < 2 * LEAST_WINDOW:
            continue
        chains.most_steps_a_trajectory = next((most for until, most in CUT_OFF if part <= until), MOST_STEPS)
        for window, harvests in zip(windows, chains.run(when * num_chains, on_chunk=on_chunk), strict=True):
            for harvest in harvests:
                window.add(harvest.position, mass.plain_gradient(chains.metric, harvest.gradient))
        halves = [window.later_half() for window in windows if window.count >= 2 * LEAST_WINDOW]
        if halves:
            draws, gradients = map(list, zip(*halves, strict=True))
            slopes = gradients if chains.needs_gradient else None
            # BLAS with more threads than idle cores is slower by an order of magnitude than with one.
            with _blas().limit(limits=1, user_api="blas"):
                chains.metric = mass.metric_from(kind, draws, slopes, rank, chains.dtype, chains.metric)
            if chains.adapting:
                step_size = float(np.exp(np.asarray(chains.adaptation.numbers)[1]))
                chains.adaptation = dual_averaging.begin(step_size, num_chains, chains.dtype)
            chains.rest(chains.positions)
    chains.most_steps_a_trajectory = MOST_STEPS
    chains.run(num_warmup * num_chains, on_chunk=on_chunk)
    chains.adapting = False


@functools.cache
def _blas() -> ThreadpoolController:
    return ThreadpoolController()


class _Window:
    """The latest draws of a chain, and the gradients at them."""

    def __init__(self, most: int) -> None:
        self._most = most
        self._positions: list[np.ndarray] = []
        self._gradients: list[np.ndarray] = []
        self.count = 0

    def add(self, positions: np.ndarray, gradients: np.ndarray) -> None:
        """Adds draws at the end, but none at the edge of the support, where the gradient is not finite."""
        good = np.isfinite(gradients).all(axis=1)
        self.count += int(good.sum())
        self._positions.append(positions[good])
        self._gradients.append(gradients[good])

    def later_half(self) -> tuple[np.ndarray, np.ndarray]:
        """The later half of all draws so far (or as many of them as there is room for); forgets the others."""
        keep = min(self.count - self.count // 2, self._most)
        self._positions = [np.concatenate(self._positions)[-keep:]]
        self._gradients = [np.concatenate(self._gradients)[-keep:]]
        return self._positions[0], self._gradients[0]
