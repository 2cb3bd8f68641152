"""A run of an exact method: starts, warm-up, draws."""

from __future__ import annotations

import functools
from concurrent.futures import ThreadPoolExecutor
from typing import Any, NamedTuple

import jax
import numpy as np
from jax.flatten_util import ravel_pytree

from langevin.drivers import mass
from langevin.drivers.adaptation import adapt, find_starts
from langevin.drivers.chains import Draws
from langevin.drivers.gist import gist
from langevin.drivers.trajectories import Record, Trajectories, flattened, unflattened
from langevin.drivers.warmup import no_start
from langevin.kernels import dual_averaging
from langevin.methods import Exact
from langevin.posterior import Position, Posterior
from langevin.programs import compiled
from langevin.progress import Watch

MOST_DENSE = 128


class Counts(NamedTuple):
    """How many chains, warm-up draws, draws, machine draws to a draw, and chains that start at one place."""

    num_chains: int
    num_warmup: int
    num_draws: int
    thin: int
    together: int


def sample(
    method: Exact,
    posterior: Posterior,
    seed: np.random.SeedSequence,
    counts: Counts,
    watch: Watch,
    known: np.ndarray | None = None,
) -> tuple[Draws, float]:
    """Runs chains of an exact method. Returns their draws and the step size.

    Args:
        method: The method.
        posterior: The target.
        seed: Everything random is a function of it.
        counts: Of chains and draws.
        watch: Shows progress.
        known: Flat positions (draws, size) of an earlier fit, whose shape gives the first metric.

    Raises:
        SamplingError: If no start with a finite log-density is found.
    """
    start_seed, chain_seed = seed.spawn(2)
    generator = np.random.default_rng(start_seed)
    example = posterior.start(generator)
    flat = flattened(example)
    kind = _metric_kind(method.metric, flat.size)
    rank = min(method.rank, flat.size)
    if known is None:
        metric = mass.round_metric(kind, flat.size, rank, flat.dtype)
    else:
        metric = mass.metric_from(kind, [known], None, rank, flat.dtype)
    chains = Trajectories(method, posterior, example, counts.num_chains, metric, chain_seed)
    if method.step_size != "auto":
        chains.adaptation = dual_averaging.begin(method.step_size, counts.num_chains, chains.dtype)

    def propose() -> np.ndarray:
        starts = [flattened(posterior.start(generator)) for _ in range(-(-counts.num_chains // counts.together))]
        return np.repeat(np.stack(starts), counts.together, axis=0)[: counts.num_chains]

    with ThreadPoolExecutor(1) as aside:
        # What is reported of a draw compiles while the chains run.
        shape = jax.ShapeDtypeStruct((counts.num_chains * counts.num_draws, flat.size), flat.dtype)
        lost = find_starts(chains, propose)
        if lost is not None:
            raise no_start(posterior, unflattened(example, lost))
        double = jax.config.values["jax_enable_x64"] or flat.dtype == np.float64
        report = aside.submit(_compile_report, double, posterior, example, shape)
        chains.adapting = method.step_size == "auto" and counts.num_warmup > 0
        on_chunk = watch("warm-up", counts.num_warmup * counts.num_chains)
        adapt(chains, kind, rank, counts.num_warmup, on_chunk, known=known is not None)
        begun = np.maximum(chains.drawn, counts.num_warmup)
        ahead = chains.drawn - begun
        on_chunk = watch("sampling", counts.num_draws * counts.thin * counts.num_chains)
        gathered = chains.run(targets=begun + counts.num_draws * counts.thin, on_chunk=on_chunk)
        kept = [_kept(parts, -int(behind), counts) for parts, behind in zip(gathered, ahead, strict=True)]
        flat_draws = np.stack([positions for positions, _ in kept])
        reported = report.result()(posterior, example, flat_draws.reshape(-1, flat.size))
    records = Record(*np.moveaxis(np.stack([record for _, record in kept]), -1, 0))
    shape = (counts.num_chains, counts.num_draws)
    draws = Draws(
        position=unflattened(example, flat_draws),
        reported=jax.tree.map(lambda leaf: np.asarray(leaf).reshape(*shape, *leaf.shape[1:]), reported),
        info=_info(method, records),
        stopped=np.full(counts.num_chains, -1),
        valid=np.ones(shape, bool),
    )
    return draws, float(records.step_size[0, 0])


def _metric_kind(metric: str, size: int) -> str:
    if metric == "auto":
        return "dense" if size <= MOST_DENSE else "diagonal"
    return metric


def _kept(parts: list[Any], behind: int, counts: Counts) -> tuple[np.ndarray, np.ndarray]:
    """The draws after a chain's own warm-up, of which it was so many behind."""
    last = behind + counts.num_draws * counts.thin
    positions, records = (np.concatenate([getattr(part, name) for part in parts]) for name in ("position", "record"))
    chosen = slice(behind + counts.thin - 1, last, counts.thin)
    return positions[chosen], records[chosen]


def _compile_report(double: bool, *arguments: Any) -> Any:
    """Compiles in another thread, in which the precision that a context manager set is not known."""
    with jax.enable_x64(double):
        model = functools.partial(gist, lambda posterior, example: posterior.constrain(example), *arguments[:2])
        return compiled(_report, None, *arguments, model=model, largest=0)


def _report(_: None, posterior: Posterior, example: Position, flat: jax.Array) -> dict[str, jax.Array]:
    unravel = ravel_pytree(example)[1]
    return jax.vmap(lambda row: posterior.constrain(unravel(row)))(flat)


def _info(method: Exact, records: Record) -> dict[str, np.ndarray]:
    info = {name: column for name, column in records._asdict().items() if name != "done"}
    info["n_steps"] = info["n_steps"].astype(np.int32)
    info["diverging"] = info["diverging"] > 0
    depth = info.pop("tree_depth").astype(np.int32)
    if hasattr(method, "max_depth"):
        info["tree_depth"] = depth
        info["reached_max_treedepth"] = depth >= method.max_depth
    return info
