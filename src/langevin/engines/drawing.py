"""Draws from a fitted approximation, in blocks, each of which is the same whatever else is asked for."""

from __future__ import annotations

import math
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from langevin import ratios
from langevin.contracts import Draws, Group, Plan
from langevin.run.compilation import Programs
from langevin.run.keep import Keep, leaf_name
from langevin.variational.objective import Objective

# How many numbers of data may be read to judge q.
MOST_READ = 1_000_000_000
LEAST_JUDGED = 300
MOST_JUDGED = 100_000
MOST_AT_ONCE = 1_000_000
MOST_LOCAL = 50_000_000
DRAWS_A_BLOCK = 250
MOST_BYTES_A_BLOCK = 64_000_000


class Blocks:
    """Makes blocks of draws. Their programs compile in another thread while the fit goes on.

    Args:
        objective: The approximation and its target.
        plan: What was asked of the run.
        example: Parameters, for their shapes.
        programs: The compiled programs of the run.
    """

    def __init__(self, objective: Objective, plan: Plan, example: Any, programs: Programs) -> None:
        self._objective, self._plan = objective, plan
        self._dtype = jnp.result_type(*jax.tree.leaves(example))
        total = plan.num_chains * plan.num_draws
        widths = [math.prod(leaf.shape[1:]) for leaf in jax.tree.leaves(objective.data)]
        size = max(objective.num_data * sum(widths), 1)
        local = sum(objective.local.values())
        one = objective.noise(np.random.default_rng(0), (1,), self._dtype)
        bytes_of_noise = sum(leaf.nbytes for leaf in jax.tree.leaves(one))
        bytes_a_draw = 4 * local + max(bytes_of_noise, self._dtype.itemsize * objective.draw_size)
        self._most_judged = int(np.clip(MOST_READ // size, LEAST_JUDGED, MOST_JUDGED))
        # Where rows are many, a draw of a guide, or its log-density, takes its time.
        affordable = self._most_judged if objective.has_ratios else MOST_READ // size
        most = min(MOST_BYTES_A_BLOCK // bytes_a_draw, affordable) // plan.num_chains
        self._length = int(np.clip(most, 1, DRAWS_A_BLOCK))
        at_once = int(np.clip(MOST_AT_ONCE // max(size, objective.draw_size), 1, 256))
        shapes = jax.tree.map(lambda leaf: jax.ShapeDtypeStruct(np.shape(leaf), leaf.dtype), example)
        kinds = {objective.has_ratios, objective.has_ratios and total <= self._most_judged}
        whats = {is_judged: _What(is_judged, at_once, local * total <= MOST_LOCAL) for is_judged in kinds}
        self._reports = {
            is_judged: programs.aside(_report, (what, plan.keep), objective, shapes, self._noise(0))
            for is_judged, what in whats.items()
        }

    def draw(self, objective: Objective, parameters: Any, drawn: int) -> tuple[int, tuple[Draws, ...], np.ndarray]:
        """The rest of a block.

        Args:
            objective: The approximation, as it is now.
            parameters: Of q.
            drawn: How many draws each chain has.

        Returns:
            How many it has then, the draws of each chain, and log p and log q of them, (2, draws), if they are judged.
        """
        num_chains, length = self._plan.num_chains, self._length
        number, first = divmod(drawn, length)
        last = min(length, self._plan.num_draws - number * length)
        is_judged = self._objective.has_ratios and number * length * num_chains < self._most_judged
        out = self._reports[is_judged](objective, parameters, self._noise(number))
        position, reported, *terms = jax.tree.map(np.asarray, out)
        if not is_judged:
            terms = [np.full(length * num_chains, np.nan, self._dtype)] * 2
        stats = dict(zip(("log_density", "log_q"), terms, strict=True))

        def shaped(leaf: np.ndarray) -> np.ndarray:
            return leaf.reshape(length, num_chains, *leaf.shape[1:])[first:last]

        recorded = jax.tree.map(shaped, (reported, position, stats))
        draws = tuple(
            self._plan.keep.grouped(*jax.tree.map(lambda leaf, c=chain: leaf[:, c], recorded))
            for chain in range(num_chains)
        )
        known = np.stack([shaped(term).ravel() for term in terms]).astype(np.float64)
        return number * length + last, draws, known if is_judged else known[:, :0]

    def _noise(self, number: int) -> Any:
        generator = self._plan.seed.child("draws").generator(number)
        return self._objective.noise(generator, (self._length * self._plan.num_chains,), self._dtype)


def ratios_of(judged: np.ndarray) -> dict[str, dict[str, Any]]:
    """The evidence that log p and log q of draws, (2, draws), are; nothing if there are none."""
    log_ratios = judged[0] - judged[1]
    if not log_ratios.size:
        return {}
    khat, efficiency = math.inf, 0.0
    if np.isfinite(log_ratios).all():
        khat, efficiency = ratios.smoothed(log_ratios)[1], ratios.efficiency(log_ratios)
    return {"ratios": {"khat": khat, "efficiency": efficiency, "count": len(log_ratios)}}


def parameter_group(parameters: Any) -> Group:
    """The parameters of q, by name."""
    paths = jax.tree_util.tree_flatten_with_path(parameters)[0]
    named = {leaf_name(path): np.asarray(leaf) for path, leaf in paths}
    return Group(
        {name: (tuple(f"{name}_dim_{axis}" for axis in range(leaf.ndim)), leaf) for name, leaf in named.items()}
    )


class _What(NamedTuple):
    """What is computed of draws.

    Attributes:
        judged: Whether log p and log q are computed.
        at_once: How many draws go side by side.
        with_local: Whether sites are reported that every row has its own of.
    """

    judged: bool
    at_once: int
    with_local: bool


def _report(static: tuple[_What, Keep], objective: Any, parameters: Any, noise: Any) -> Any:
    """Positions and what is kept of the sites of draws; and log p and log q of them."""
    what, keep = static
    batch = None if what.with_local else jax.tree.map(lambda a: a[: objective.rows_a_call], objective.data)

    def one(noise: Any) -> Any:
        reported, position = objective.values(parameters, noise, batch)
        if not what.with_local:
            reported, position = (
                {name: value for name, value in values.items() if name not in objective.local}
                for values in (reported, position)
            )
        terms = objective.log_terms(parameters, noise) if what.judged else (jnp.zeros(()), jnp.zeros(()))
        return position, keep.reported(reported), *terms

    return jax.lax.map(one, noise, batch_size=what.at_once)
