"""A run of variational inference: the fit of q, draws from it, and how far it is from the posterior."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from langevin import ratios
from langevin.data.batches import Batches
from langevin.drivers.chains import Draws
from langevin.drivers.optimise import MOST_STEPS, Optimised, optimise
from langevin.errors import SettingError
from langevin.methods import VI
from langevin.models.joint import Joint
from langevin.posterior import Posterior
from langevin.programs import compiled, import_beside
from langevin.progress import Watch
from langevin.variational import families
from langevin.variational.flow import flow, is_flow
from langevin.variational.guide import Guide
from langevin.variational.guided import Guided
from langevin.variational.guides import guided, per_site
from langevin.variational.markov import markov
from langevin.variational.objective import OfPositions

# How many numbers of data may be read to judge q.
MOST_READ = 200_000_000
LEAST_JUDGED = 100
MOST_AT_ONCE = 1_000_000
MOST_LOCAL = 50_000_000


class Approximated(NamedTuple):
    """What a run brings.

    Attributes:
        draws: Independent draws from q, as if from several chains.
        guide: q.
        optimised: How it was found.
        khat: The shape of the importance ratios' tail; None if they were not computed.
        efficiency: How many draws of the posterior a draw of q is worth by these ratios; None if not computed.
        scored: The sites whose gradient is by the score function.
    """

    draws: Draws
    guide: Guide
    optimised: Optimised
    khat: float | None
    efficiency: float | None
    scored: tuple[str, ...]


def objective_of(method: VI, target: Posterior | Joint, batches: Batches | None) -> OfPositions | Guided:
    """The approximation that the settings ask for, of this target.

    Raises:
        SettingError: If the settings do not go with the target.
        ModelError: If a guide does not.
    """
    if isinstance(target, Posterior):
        if not (isinstance(method.family, str) or is_flow(method.family)) or method.local is not None:
            raise SettingError(
                "`VI`: guides and distributions by site are for NumPyro programs, not for an lv.Density."
            )
        example = target.start(np.random.default_rng(0))
        shapes = tuple(np.shape(leaf) for leaf in jax.tree.leaves(example))
        family = family_of(method, shapes)
        found = OfPositions(target, example, family, method.gradient, closed_forms=method.bound == "elbo")
        return _checked(method, found, batches)
    rows_a_call = target.num_data if batches is None else batches.size
    guide, make = method.local, None
    if isinstance(method.family, Mapping):
        if guide is not None:
            raise SettingError("`VI`: give a site's distribution in the guide `local`, or in `family`, but not both.")
        guide = per_site(target, method.family, rows_a_call)
        make = lambda shapes: family_of(dataclasses.replace(method, family="meanfield"), shapes)  # noqa: E731
    elif isinstance(method.family, str) or is_flow(method.family):
        make = lambda shapes: family_of(method, shapes)  # noqa: E731
    elif guide is None:
        guide = method.family
    else:
        raise SettingError("`VI`: `family` is a guide already, and `local` another. Put both into one.")
    found = guided(target, guide, make, method.gradient, rows_a_call, closed_forms=method.bound == "elbo")
    return _checked(method, found, batches)


def _checked(method: VI, objective: Any, batches: Batches | None) -> Any:
    wiring = objective.wiring
    if method.bound == "importance" and wiring.scored:
        raise SettingError(
            f"`VI(bound='importance')`: the gradient of site {wiring.scored[0]!r} is by the score function, which goes "
            "with bound='elbo' only."
        )
    if method.bound == "importance" and batches is not None and wiring.row_scale is None:
        raise SettingError(
            "`VI(bound='importance')` with minibatches needs every latent site to be one of a row: the logarithm of an "
            "estimate is not an estimate of the logarithm. Leave `batch_size` out."
        )
    return objective


def family_of(method: VI, shapes: tuple[tuple[int, ...], ...]) -> families.Family:
    """The family, for a position made of arrays of these shapes."""
    size = sum(math.prod(shape) for shape in shapes)
    if not isinstance(method.family, str):
        return flow(size, method.family)
    makers: dict[str, Callable[[], families.Family]] = {
        "meanfield": lambda: families.MeanField(size),
        "fullrank": lambda: families.FullRank(size),
        "lowrank": lambda: families.LowRank(size, min(method.rank, families.identified_rank(size))),
        "markov": lambda: markov(shapes),
        "flow": lambda: flow(size),
    }
    return makers[method.family]()


def approximate(
    method: VI,
    objective: OfPositions | Guided,
    batches: Batches | None,
    seed: np.random.SeedSequence,
    counts: tuple[int, int],
    watch: Watch,
) -> Approximated:
    """Fits q and draws from it.

    Args:
        method: The settings.
        objective: The approximation and its target.
        batches: How minibatches are drawn.
        seed: Everything random is a function of it.
        counts: Chains and draws of each.
        watch: Shows progress.
    """
    import_beside()
    fit_seed, draw_seed = seed.spawn(2)
    generators = tuple(np.random.Generator(np.random.Philox(one)) for one in draw_seed.spawn(2))
    num_chains, num_draws = counts
    total = num_chains * num_draws
    dtype = jnp.result_type(float)
    noise = objective.noise(generators, (total,), dtype)  # ty: ignore[invalid-argument-type]
    parameters = objective.init(np.random.default_rng(0))
    parameters = jax.tree.map(lambda leaf: jax.ShapeDtypeStruct(np.shape(leaf), leaf.dtype), parameters)
    plan = _plan(objective, total)
    with ThreadPoolExecutor(1) as aside:
        double = jax.config.values["jax_enable_x64"] or dtype == np.float64
        report = aside.submit(_compile, double, plan, objective, parameters, noise)
        on_chunk = watch("fitting", method.num_steps or MOST_STEPS)
        optimised = optimise(method, objective, batches, fit_seed, on_chunk)
        position, reported, log_p, log_q = report.result()(objective, optimised.parameters, noise)
    shape = (num_chains, num_draws)
    position, reported = jax.tree.map(lambda leaf: _shaped(leaf, shape), (position, reported))
    info = {
        "log_density": np.full(total, np.nan),
        "log_q": np.full(total, np.nan),
        "step_size": np.ones(total),
    }
    info["log_density"][: len(log_p)] = log_p
    info["log_q"][: len(log_q)] = log_q
    draws = Draws(
        position=position,
        reported=reported,
        info={name: column.reshape(shape) for name, column in info.items()},
        stopped=np.full(num_chains, -1),
        valid=np.ones(shape, bool),
    )
    log_ratios = np.asarray(log_p, np.float64) - np.asarray(log_q, np.float64)
    khat, efficiency = judged(log_ratios) if plan.judged else (None, None)
    guide = Guide(objective, optimised.parameters)
    return Approximated(draws, guide, optimised, khat, efficiency, objective.wiring.scored)


def judged(log_ratios: np.ndarray) -> tuple[float | None, float]:
    """The shape of the tail of importance ratios, infinite where they are not finite, and how efficient they are."""
    if not np.isfinite(log_ratios).all():
        return math.inf, 0.0
    return ratios.smoothed(log_ratios)[1], ratios.efficiency(log_ratios)


class _Plan(NamedTuple):
    """What is computed of the draws.

    Attributes:
        judged: Of how many draws log p and log q are computed.
        at_once: How many draws go side by side.
        with_local: Whether sites are reported that every row has its own of.
    """

    judged: int
    at_once: int
    with_local: bool


def _plan(objective: OfPositions | Guided, total: int) -> _Plan:
    widths = [math.prod(leaf.shape[1:]) for leaf in jax.tree.leaves(objective.data)]
    size = max(objective.num_data * sum(widths), 1)
    judged = int(min(total, max(MOST_READ // size, LEAST_JUDGED)))
    at_once = int(np.clip(MOST_AT_ONCE // size, 1, 256))
    if isinstance(objective, OfPositions):
        return _Plan(judged, at_once, True)
    structure = objective.joint.structure
    local = sum(math.prod(structure.shapes[name]) for name in structure.local) * total
    # A single value has no density, so its ratio says nothing.
    return _Plan(0 if structure.local or objective.points else judged, at_once, local <= MOST_LOCAL)


def _shaped(leaf: Any, shape: tuple[int, int]) -> np.ndarray:
    leaf = np.asarray(leaf)
    return leaf.reshape(*shape, *leaf.shape[1:])


def _compile(double: bool, *arguments: Any) -> Any:
    """Compiles in another thread, in which the precision that a context manager set is not known."""
    with jax.enable_x64(double):
        return compiled(_report, *arguments)


def _report(plan: _Plan, objective: OfPositions | Guided, parameters: Any, noise: Any) -> Any:
    """Positions and reported sites of all draws, and log p and log q of some."""
    some = jax.tree.map(lambda leaf: leaf[: plan.judged], noise)
    if isinstance(objective, OfPositions):
        x, log_q = jax.vmap(lambda one: objective.family.draw(parameters, one))(noise)
        position = jax.vmap(objective.unravel)(x)
        reported = jax.vmap(objective.posterior.constrain)(position)
        log_p = jax.lax.map(
            lambda one: objective.posterior.log_density(objective.unravel(one)),
            x[: plan.judged],
            batch_size=plan.at_once,
        )
        return position, reported, log_p, log_q[: plan.judged]
    structure = objective.joint.structure
    batch = None if plan.with_local else jax.tree.map(lambda a: a[: objective.rows_a_call], objective.data)
    reported, position = jax.lax.map(
        lambda one: objective.values(parameters, one, batch), noise, batch_size=plan.at_once
    )
    if not plan.with_local:
        reported, position = (
            {name: value for name, value in values.items() if name not in structure.local}
            for values in (reported, position)
        )
    if not plan.judged:
        return position, reported, jnp.zeros(0), jnp.zeros(0)
    sampled = dataclasses.replace(objective, closed=())

    def terms(one: Any) -> tuple[jax.Array, jax.Array]:
        found = sampled.sample(parameters, one, None)
        log_p, log_q = (sum(map(jnp.sum, part.values()), jnp.zeros(())) for part in (found.log_p, found.log_q))
        return log_p, log_q

    log_p, log_q = jax.lax.map(terms, some, batch_size=plan.at_once)
    return position, reported, log_p, log_q
