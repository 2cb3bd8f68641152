"""Evidence -> finding, meaning, remedy: whether a result can be trusted.

An engine brings its evidence by name, with numbers; `FINDERS` has what each name means.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
import xarray as xr

from langevin.diagnostics.findings import Finding, Result
from langevin.diagnostics.mixing import mixing

MOST_NOISE_RATIO = 2.5
MOST_WIDTH = 1.2
MOST_DEEP = 0.01
LEAST_BFMI = 0.2
MOST_KHAT = 0.7
LEAST_EFFICIENCY = 0.9
LEAST_DRAWS_FOR_ENERGY = 20
MOST_AT_ONCE = 5_000_000


def judge(result: Result, evidence: Mapping[str, Mapping[str, Any]]) -> tuple[Finding, ...]:
    """What stands in the way of trusting these draws; nothing if they look right.

    Args:
        result: The draws.
        evidence: For each kind of evidence that the engine brought, its numbers. Each has its finder in `FINDERS`,
            and they are asked in the order of these.
    """
    findings: list[Finding] = []
    for name, finder in FINDERS.items():
        if name in evidence:
            findings += finder(result, **evidence[name])
    # Chains that have not mixed have no width yet.
    unmixed = any(finding.code in ("not mixed", "few draws") for finding in findings)
    return tuple(finding for finding in findings if not (unmixed and finding.code == "too wide"))


def _interrupted(result: Result, asked: int) -> list[Finding]:
    count = result.posterior.sizes["draw"]
    what = f"there are {count} of {asked} draws a chain" if count < asked else "the draws are from where it had come to"
    meaning = "What is here is right as far as it goes." if count < asked else "It had not come to its end."
    remedy = "Run again; with `store=`, an interrupted run can be continued."
    return [Finding("interrupted", f"The run was interrupted: {what}.", meaning, remedy)]


def _out_of_time(result: Result, asked: int, seconds: float) -> list[Finding]:
    count = result.posterior.sizes["draw"]
    what = f"there are {count} of {asked} draws a chain" if count < asked else "the draws are from where it had come to"
    meaning = "What is here is right as far as it goes." if count < asked else "It had not come to its end."
    remedy = "Give it more time; with `store=`, lv.resume goes on where it stopped."
    return [Finding("out of time", f"The run was over after {seconds:g} s: {what}.", meaning, remedy)]


def _point(result: Result) -> list[Finding]:
    del result
    return [Finding("point", "This is a single point.", "It says nothing of uncertainty.", "Use a sampler for that.")]


def _points(result: Result, names: Sequence[str]) -> list[Finding]:
    del result
    return [
        Finding(
            "point",
            f"The guide gives a single value to {', '.join(map(repr, names))}.",
            "That says nothing of its uncertainty.",
            "Give it a distribution with a width.",
        )
    ]


def _ratios(result: Result, khat: float | None, efficiency: float, count: int) -> list[Finding]:
    """Where ratios are nearly all the same, the shape of their tail says nothing of what is left of it."""
    del result
    # What can be told from so many ratios (Vehtari et al. 2024, section 3.2.4).
    most = min(1 - 1 / np.log10(max(count, 11)), MOST_KHAT)
    if khat is None or khat <= most or efficiency >= LEAST_EFFICIENCY:
        return []
    return [
        Finding(
            "far off",
            f"The approximation is far from the posterior: the importance ratios of its draws have a tail of shape "
            f"k = {khat:.2f} (it should be below {most:.2g}), and their efficiency is {efficiency:.2f}.",
            "It misses part of the posterior, commonly by being too narrow: sds and intervals cannot be trusted.",
            "Try family='fullrank', 'lowrank' or 'flow'; noncentred=True; or method='nuts', started from this fit by "
            "`init=fit`.",
        )
    ]


def _optimisation(result: Result, settled: bool, skipped: int, error: float | None) -> list[Finding]:
    del result
    found = []
    if not settled:
        what = "The bound was still rising when the fit ended, or there were too few steps to tell"
        known = (
            "" if error is None else f", or its parameters still wander: a mean is known to {error:.2g} of its scale"
        )
        found.append(
            Finding(
                "not settled",
                f"{what}{known}.",
                "The approximation is not the best of its family yet.",
                "Raise num_steps or learning_rate, take more rows or particles in a step, or leave num_steps out.",
            )
        )
    if skipped:
        found.append(
            Finding(
                "skipped",
                f"At {skipped} steps the bound was not finite.",
                "These steps were left out, so q is fitted as if it had no draws there.",
                "Look for sites whose parameters overflow; take more particles or a smaller learning_rate.",
            )
        )
    return found


def _finite(result: Result, density: bool = True) -> list[Finding]:
    """Every draw is looked at, piece by piece: the draws may be on disk."""
    found = []
    fine = result.stopped < 0
    for name, values in result.posterior.items():
        share = _share_not_finite(values, fine)
        if share > 0:
            found.append(
                Finding(
                    "not finite",
                    f"{100 * share:.3g} % of the values of {str(name)!r} are not finite.",
                    "Its summaries are meaningless.",
                    "Look at how the program computes it.",
                )
            )
    outside = _share_not_finite(result.stats["lp"], fine) if density else 0.0
    if outside > 0:
        found.append(
            Finding(
                "not finite",
                f"The log-density is not finite at {100 * outside:.3g} % of the draws.",
                "The chains step over the edge of the support, where there is no gradient to bring them back.",
                "Give the site a distribution whose support is that region, so that it is mapped to the real line.",
            )
        )
    return found


def _share_not_finite(values: xr.DataArray, chains: np.ndarray) -> float:
    num_draws = values.sizes["draw"]
    length = max(MOST_AT_ONCE * num_draws // max(values.size, 1), 1)
    count = total = 0
    for start in range(0, num_draws, length):
        piece = values.isel(draw=slice(start, start + length)).values[chains]
        count, total = count + int((~np.isfinite(piece)).sum()), total + piece.size
    return count / max(total, 1)


def _width(result: Result, value: float, error: float) -> list[Finding]:
    del result
    if value < MOST_WIDTH + 3 * error:
        return []
    return [
        Finding(
            "too wide",
            f"The draws are about {np.sqrt(value):.2f} times as wide as the posterior, by Stein's identity.",
            "The step is too long for its gradient noise or curvature: sds and intervals are too large.",
            "Take a smaller step_size or larger minibatches, or leave the step to warm-up.",
        )
    ]


def _stopped(result: Result) -> list[Finding]:
    stopped = result.stopped
    lost = np.flatnonzero(stopped >= 0)
    if not len(lost):
        return []
    where = ", ".join(f"chain {chain} at step {stopped[chain]}" for chain in lost)
    return [
        Finding(
            "stopped",
            f"{len(lost)} of {len(stopped)} chains blew up: {where}.",
            "Their draws up to there are kept; the step was too long for where they went.",
            "Take a smaller step_size, or leave it to warm-up.",
        )
    ]


def _noise(result: Result, ratio: float) -> list[Finding]:
    del result
    if 1 / MOST_NOISE_RATIO < ratio < MOST_NOISE_RATIO:
        return []
    return [
        Finding(
            "noise",
            f"The gradient noise at the draws is {ratio:.2g} times what warm-up measured around the mode.",
            "The step was chosen for another noise, so the draws are wider or narrower than they should be.",
            "Take larger minibatches or a smaller step_size; away from the mode, estimator='minibatch' is safer.",
        )
    ]


def _stuck(result: Result) -> list[Finding]:
    numbers, posterior = np.flatnonzero(result.stopped < 0), result.running().posterior
    if posterior.sizes["draw"] < 2 or not len(numbers):
        return []
    still = np.ones(posterior.sizes["chain"], bool)
    for values in posterior.values():
        still &= (values.values == values.values[:, :1]).reshape(len(still), -1).all(axis=1)
    if not still.any():
        return []
    return [
        Finding(
            "stuck",
            f"Chain{'s' if still.sum() > 1 else ''} {', '.join(map(str, numbers[still]))} never moved.",
            "Every draw is where it started.",
            "Take a smaller step_size if proposals are rejected, or a larger one if steps vanish in rounding.",
        )
    ]


def _trajectories(result: Result) -> list[Finding]:
    found, stats = [], result.stats
    diverging = int(stats["diverging"].values.sum()) if "diverging" in stats else 0
    if diverging:
        share = 100 * diverging / stats["diverging"].size
        found.append(
            Finding(
                "diverging",
                f"{diverging} trajectories diverged ({share:.2g} %).",
                "There is a region of strong curvature that the chains cannot enter: what is near it may be missed.",
                "Non-centre sites whose scale is unknown, or raise target_accept (0.95, 0.99).",
            )
        )
    deep = float(stats["reached_max_treedepth"].values.mean()) if "reached_max_treedepth" in stats else 0.0
    if deep > MOST_DEEP:
        found.append(
            Finding(
                "depth",
                f"{100 * deep:.2g} % of the trajectories were cut off at the largest depth.",
                "The draws are right, but each costs much and moves little.",
                "Standardise columns, try metric='dense' or 'lowrank', or raise max_depth.",
            )
        )
    if "energy" in stats and stats.sizes["draw"] > LEAST_DRAWS_FOR_ENERGY and "n_steps" in stats:
        energy = stats["energy"].values
        spread = np.var(energy, axis=1)
        fraction = np.mean(np.diff(energy, axis=1) ** 2, axis=1) / np.where(spread > 0, spread, 1.0)
        worst = int(np.argmin(np.where(spread > 0, fraction, np.inf)))
        if stats["n_steps"].values.max() > 1 and spread[worst] > 0 and fraction[worst] < LEAST_BFMI:
            found.append(
                Finding(
                    "energy",
                    f"The energy changes slowly: the BFMI of chain {worst} is {fraction[worst]:.2f} (it should be "
                    f"above {LEAST_BFMI}).",
                    "New velocities do not reach all the energies of the posterior, so its tails are explored slowly.",
                    "Non-centre sites whose scale is unknown; replace priors with very heavy tails.",
                )
            )
    return found


FINDERS: dict[str, Callable[..., list[Finding]]] = {
    "interrupted": _interrupted,
    "out of time": _out_of_time,
    "stopped": _stopped,
    "noise": _noise,
    "trajectories": _trajectories,
    "finite": _finite,
    "stuck": _stuck,
    "mixing": mixing,
    "width": _width,
    "ratios": _ratios,
    "optimisation": _optimisation,
    "points": _points,
    "point": _point,
}
