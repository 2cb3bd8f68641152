"""What the draws of a stochastic-gradient method say of its step: noise, width and drift, at some of them."""

from __future__ import annotations

from collections.abc import Collection
from typing import Any

import jax
import numpy as np

from langevin.contracts import Plan, Position, State
from langevin.data.batches import Batches
from langevin.geometry import beyond, drifting
from langevin.geometry.scrutiny import NUM_WIDTH_DRAWS, mean_and_error, noise_at_draws, noise_ratio, widest, width
from langevin.posterior import Posterior
from langevin.run.compilation import Programs
from langevin.run.seeds import Seed
from langevin.tuning import Tuning

Evidence = dict[str, dict[str, Any]]


def evidence_of(
    programs: Programs,
    plan: Plan,
    target: Posterior,
    tuning: Tuning,
    state: State,
    sample: Position,
    running: np.ndarray,
) -> Evidence:
    """Evidence from a sample of the draws.

    Args:
        programs: The compiled programs of the run.
        plan: What was asked of it.
        target: The posterior, as the run ends with it.
        tuning: What the chains ran with.
        state: Of the engine.
        sample: Draws (chains, draws, ...): of all chains, so that the programs have one shape.
        running: For each chain, whether it counts.
    """
    evidence: Evidence = {}
    seed, batches = plan.seed.child("scrutiny"), plan.batches
    if batches is not None and tuning.gradient_noise is not None:
        static = (batches, state["estimator"])
        noise = noise_at_draws(programs, static, target, tuning, sample, running, seed.child("noise"))
        evidence["noise"] = {"ratio": noise_ratio(noise, tuning)}
    count = jax.tree.leaves(sample)[0].shape[1]
    if count < NUM_WIDTH_DRAWS:
        return evidence
    chosen = np.arange(count - count % 4)
    some = jax.tree.map(lambda leaf: leaf[:, chosen], sample)
    weights = np.swapaxes(state["sample"]["weights"], 0, 1)[:, chosen] * running[:, None].astype(np.float64)
    middle = jax.tree.map(lambda leaf: np.tensordot(weights / weights.sum(), leaf, 2).astype(leaf.dtype), some)
    blocks = width(programs, batches, target, some, middle, seed.child("width"))[running]
    value, error = mean_and_error(blocks)
    evidence["width"] = {"value": value, "error": error, "widest": widest(blocks)}
    if not running.all() or np.ptp(weights) > 0:
        return evidence
    affordable = drifting.affordable(target.num_data, plan.num_chains, len(chosen))
    # Exact steps of a network's weights take long, and need not leave its predictions where they are.
    if affordable and target.model.network is None:
        fewer = np.linspace(0, len(chosen) - 1, affordable).astype(int)
        few = jax.tree.map(lambda leaf: leaf[:, fewer], some)
        known = tuning if state["scene"] is not None else None
        evidence["drift"] = drifting.drift(programs, target, known, few, seed.child("drift"))
    if state["beyond"] is not None:
        evidence["elsewhere"] = {"missed": _missed(state["beyond"], some)}
    return evidence


def width_of(
    programs: Programs,
    sample: State,
    batches: Batches | None,
    target: Posterior,
    example: Position,
    names: Collection[str],
    running: np.ndarray,
    seed: Seed,
) -> Evidence:
    """How wide the draws of some sites are, by Stein's identity; of a sample that is large enough.

    Args:
        programs: The compiled programs of the run.
        sample: Draws of all sites, see `langevin.geometry.scrutiny.add_to_sample`.
        batches: How minibatches are drawn.
        target: The posterior of all sites.
        example: A position.
        names: The sites that are looked at.
        running: For each chain, whether it counts.
        seed: For the minibatches.
    """
    count = len(sample["weights"]) // 4 * 4
    if not names or not running.any() or count < NUM_WIDTH_DRAWS:
        return {}
    leaves = [np.swapaxes(leaf[:count], 0, 1) for leaf in sample["positions"]]
    some = jax.tree.unflatten(jax.tree.structure(example), leaves)
    middle = jax.tree.map(lambda leaf: leaf[running].mean(axis=(0, 1)), some)
    inside = np.concatenate([np.full(np.size(example[name]), name in names) for name in sorted(example)])
    blocks = width(programs, batches, target, some, middle, seed)[running][..., inside]
    value, error = mean_and_error(blocks)
    return {"width": {"value": value, "error": error, "widest": widest(blocks)}}


def _missed(seen: tuple[np.ndarray, np.ndarray, np.ndarray], draws: Position) -> float:
    """How much wider the posterior is than draws, by what a look beyond q saw in its units."""
    moments, centre, factor = seen
    leaves = [
        np.asarray(leaf, np.float64).reshape(leaf.shape[0] * leaf.shape[1], -1) for leaf in jax.tree.leaves(draws)
    ]
    gaps = np.concatenate(leaves, axis=1) - centre
    z = np.linalg.solve(factor, gaps.T).T if factor.ndim == 2 else gaps / factor
    return beyond.missed(moments, np.maximum(np.mean(z**2, axis=0), 1e-12))
