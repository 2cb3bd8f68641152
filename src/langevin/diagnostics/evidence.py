"""Evidence -> finding, meaning, remedy: whether a result can be trusted.

An engine brings its evidence by name, with numbers; `FINDERS` has what each name means.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np
import xarray as xr

from langevin.diagnostics.approximation import ascent, far_off, optimisation, points, tilted, unchecked
from langevin.diagnostics.ensembles import agreement, by_member, parts
from langevin.diagnostics.findings import Finding, Result, Verdict
from langevin.diagnostics.mixing import mixing
from langevin.diagnostics.modal import modal

MOST_NOISE_RATIO = 2.5
# As squares of ratios of sds: of all coordinates together, and of one.
MOST_WIDTH, MOST_WIDEST, MOST_WIDTH_ERROR = 1.1, 1.2, 0.5
# In sds, and as a logarithm, beyond what may be chance.
MOST_DRIFT_OF_MEAN, MOST_DRIFT_OF_SD = 0.06, 0.06
# How much wider the posterior may be than the draws, as far as a look beyond them can tell.
MOST_MISSED = 1.4
MOST_DEEP = 0.01
LEAST_BFMI = 0.2
# The sd of draws, in units of what their precision can tell apart at their size.
LEAST_RESOLVED = 8.0
# Chains that stand still do so by rounding where steps of this size are lost, and else by rejections.
LEAST_LOST = 0.01
LEAST_DRAWS_FOR_ENERGY = 20
MOST_AT_ONCE = 5_000_000
# Of the positions, to see whether any coordinate cannot move: how many numbers, and at least how many draws.
MOST_LOOKED_AT = 50_000_000
LEAST_LOOKED_AT = 25


def judge(result: Result, evidence: Mapping[str, Mapping[str, Any]]) -> Verdict:
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
    codes = {finding.code for finding in findings}
    # Chains that have not mixed have no width yet; and those that never moved are not compared.
    hidden = {"too wide", "drifting"} if codes & {"not mixed", "few draws"} else set()
    hidden |= {"not mixed", "few draws", "too wide", "drifting"} if "stuck" in codes else set()
    hidden |= {"drifting"} if "too wide" in codes else set()
    # A q that is too narrow everywhere is said to be so: that the posterior is wider is the same again.
    hidden |= {"elsewhere"} if "far off" in codes else set()
    return Verdict(finding for finding in findings if finding.code not in hidden)


def _interrupted(result: Result, asked: int) -> list[Finding]:
    count = result.posterior.sizes["draw"]
    what = f"there are {count} of {asked} draws a chain" if count < asked else "the draws are from where it had come to"
    meaning = "What is here is judged as it is." if count < asked else "It had not come to its end."
    remedy = "Run again; with `store=`, an interrupted run can be continued."
    return [Finding("interrupted", f"The run was interrupted: {what}.", meaning, remedy)]


def _out_of_time(result: Result, asked: int, seconds: float) -> list[Finding]:
    count = result.posterior.sizes["draw"]
    what = f"there are {count} of {asked} draws a chain" if count < asked else "the draws are from where it had come to"
    meaning = "What is here is right as far as it goes." if count < asked else "It had not come to its end."
    remedy = "Give it more time; with `store=`, lv.resume goes on where it stopped."
    return [Finding("out of time", f"The run was over after {seconds:g} s: {what}.", meaning, remedy)]


def _on_the_way(result: Result, phase: str) -> list[Finding]:
    del result
    return [
        Finding(
            "not mixed",
            f"The chains were in the phase {phase!r}: of each there is the point where it was.",
            "These are no draws from the posterior, and how far apart they are says nothing of its width.",
            "Give it more time, or take lv.MAP or lv.Ensemble, which need less.",
        )
    ]


def _point(result: Result) -> list[Finding]:
    del result
    return [
        Finding(
            "point",
            "This is a single point, a mode.",
            "It says nothing of uncertainty, and a mode need not be near the mean.",
            "Use a sampler or VI for that.",
        )
    ]


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
    count = total = 0
    for piece in _pieces(values):
        piece = piece[chains]
        count, total = count + int((~np.isfinite(piece)).sum()), total + piece.size
    return count / max(total, 1)


def _width(result: Result, value: float, error: float, widest: float) -> list[Finding]:
    # Draws of the posterior have an error of about 0.1; a large one is itself of draws far outside.
    error = min(error, MOST_WIDTH_ERROR)
    if value < MOST_WIDTH + 3 * error and widest < MOST_WIDEST:
        return []
    what = f"The draws are about {np.sqrt(value):.2f} times as wide as the posterior"
    if value < MOST_WIDTH + 3 * error:
        what = f"In some coordinate the draws are at least {np.sqrt(widest):.2f} times as wide as the posterior"
    return [
        Finding(
            "too wide",
            f"{what}, by Stein's identity.",
            "The step is too long for its gradient noise or curvature: sds and intervals are too large.",
            f"Take larger minibatches, or {_shorter(result.method)}.",
        )
    ]


def _drift(result: Result, mean: float, sd: float, acceptance: float) -> list[Finding]:
    del acceptance
    if mean < MOST_DRIFT_OF_MEAN and sd < MOST_DRIFT_OF_SD:
        return []
    what = f"a mean moves on by at least {mean:.2g} sds" if mean >= MOST_DRIFT_OF_MEAN else ""
    if sd >= MOST_DRIFT_OF_SD:
        what += f"{' and ' if what else ''}an sd changes by at least {100 * math.expm1(sd):.0f} %"
    return [
        Finding(
            "drifting",
            f"The draws are not the posterior's: after some exact steps from them, {what}.",
            "The step is too long for its gradient noise or curvature: means, sds and intervals are biased.",
            f"Take larger minibatches, or {_shorter(result.method)}; or method='nuts'.",
        )
    ]


def _elsewhere(result: Result, missed: float, modes: int = 0, starts: int = 0) -> list[Finding]:
    del result
    if not modes and missed < MOST_MISSED:
        return []
    what = f"{modes} of {starts} starts climbed to modes of similar mass that are far from its draws"
    if missed >= MOST_MISSED:
        what = f"a wider look found that an sd of the posterior is at least {missed:.2g} times that of the draws"
    return [
        Finding(
            "elsewhere",
            f"The posterior is also elsewhere: {what}.",
            "The draws are from a part of it: means, sds and intervals are those of that part.",
            "Try method='nuts' with more chains, whose starts differ; order the labels of a mixture; start in the part "
            "that you mean, by `init=`, and say so.",
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
            f"For a rerun, {_shorter(result.method)}.",
        )
    ]


def _shorter(method: Mapping[str, Any]) -> str:
    """A remedy for steps that are too long, by whether the step was given."""
    if method.get("step_size") == "auto":
        return "give a step_size below the one in `fit.settings`"
    return "take a smaller step_size, or leave it to warm-up (step_size='auto')"


def _noise(result: Result, ratio: float) -> list[Finding]:
    if 1 / MOST_NOISE_RATIO < ratio < MOST_NOISE_RATIO:
        return []
    elsewhere = "" if result.method.get("estimator") == "minibatch" else "; far from a mode, estimator='minibatch'"
    return [
        Finding(
            "noise",
            f"The gradient noise at the draws is {ratio:.2g} times what warm-up measured around the mode.",
            "The step was chosen for another noise, so the draws are wider or narrower than they should be.",
            f"Take larger minibatches or a smaller step_size{elsewhere}.",
        )
    ]


def _stuck(result: Result) -> list[Finding]:
    numbers, running = np.flatnonzero(result.stopped < 0), result.running()
    posterior = running.posterior
    if posterior.sizes["draw"] < 2 or not len(numbers):
        return []
    still = np.ones(posterior.sizes["chain"], bool)
    # Few draws tell of most chains that they moved; only of the others all are read.
    for number in (posterior.sizes["draw"] - 1, None):
        for values in posterior.values():
            if still.any():
                still[still] = _never_moves(values.isel(chain=still), number)
    frozen = _frozen(running, LEAST_LOST if still.any() else 0.0)
    if still.any() and not frozen:
        return [
            Finding(
                "stuck",
                f"Chain{'s' if still.sum() > 1 else ''} {', '.join(map(str, numbers[still]))} never moved.",
                "Every draw is where it started.",
                "Take a smaller step_size if proposals are rejected, or a larger one if steps vanish in rounding.",
            )
        ]
    return frozen


def _never_moves(values: xr.DataArray, number: int | None) -> np.ndarray:
    """For each chain, whether the draw of this number (None for every one) is the first again."""
    if number is not None:
        ends = values.isel(draw=[0, number]).values
        return (ends[:, 0] == ends[:, 1]).reshape(len(ends), -1).all(axis=1)
    first, same = values.isel(draw=[0]).values, np.ones(values.sizes["chain"], bool)
    for piece in _pieces(values):
        same &= (piece == first).reshape(len(same), -1).all(axis=1)
    return same


def _pieces(values: xr.DataArray) -> Iterator[np.ndarray]:
    """The draws, some at a time: they may be on disk."""
    num_draws = values.sizes["draw"]
    length = max(MOST_AT_ONCE * num_draws // max(values.size, 1), 1)
    for start in range(0, num_draws, length):
        yield values.isel(draw=slice(start, start + length)).values


def _frozen(result: Result, least: float) -> list[Finding]:
    """Of unconstrained positions: there, every coordinate has a width. What is reported may be constant.

    Args:
        result: The draws of chains that did not stop.
        least: Only what is so large that steps of this size vanish in rounding.
    """
    if result.unconstrained is None:
        return []
    worst = []
    for name, values in result.unconstrained.items():
        if values.dtype.kind != "f" or values.size == 0:
            continue
        spread, size = _spread(values)
        # Half precision may be how draws are kept, and not how they were computed.
        resolution = np.spacing(size.astype(np.result_type(values.dtype, np.float32)))
        if ((spread < LEAST_RESOLVED * resolution) & (resolution > least)).any():
            worst.append(str(name))
    if not worst:
        return []
    return [
        Finding(
            "frozen",
            f"{', '.join(map(repr, worst))} cannot move: the sd of its draws is below what numbers of this precision "
            "can tell apart at that size.",
            "Its steps vanish in rounding: its sd and intervals are meaningless, and so may be others'.",
            "Subtract an offset and rescale, so that it is of the order of 1, or enable 64 bits with "
            "jax.config.update('jax_enable_x64', True).",
        )
    ]


def _spread(values: xr.DataArray) -> tuple[np.ndarray, np.ndarray]:
    """The sd within chains of each coordinate, the largest of all chains, and its largest size.

    Of very many numbers, evenly spread draws are looked at, and some coordinates at a time.
    """
    num_draws = values.sizes["draw"]
    every = int(np.clip(values.size // MOST_LOOKED_AT, 1, max(num_draws // LEAST_LOOKED_AT, 1)))
    draws = values.isel(draw=slice(None, None, every)).values
    draws = draws.reshape(*draws.shape[:2], -1)
    width = max(MOST_AT_ONCE // max(draws.shape[0] * draws.shape[1], 1), 1)
    parts = [draws[:, :, start : start + width] for start in range(0, draws.shape[2], width)]
    spread = [np.std(part, axis=1, dtype=np.float64).max(axis=0) for part in parts]
    return np.concatenate(spread), np.concatenate([np.abs(part).max(axis=(0, 1)) for part in parts])


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
                "Each draw costs much and moves little.",
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


def _ensemble(result: Result, asked: int, members: Sequence[Mapping[str, Mapping[str, Any]]]) -> list[Finding]:
    """What is to be said of each member, and how far they agree.

    Args:
        result: The draws: a chain for each member.
        asked: How many members were asked for.
        members: The evidence of each.
    """
    verdicts = [judge(part, evidence) for part, evidence in zip(parts(result), members, strict=True)]
    return [*by_member(verdicts), *agreement(result, asked, members)]


FINDERS: dict[str, Callable[..., list[Finding]]] = {
    "interrupted": _interrupted,
    "out of time": _out_of_time,
    "on the way": _on_the_way,
    "stopped": _stopped,
    "noise": _noise,
    "trajectories": _trajectories,
    "finite": _finite,
    "stuck": _stuck,
    "mixing": mixing,
    "width": _width,
    "drift": _drift,
    "elsewhere": _elsewhere,
    "ratios": far_off,
    "nested": tilted,
    "unchecked": unchecked,
    "optimisation": optimisation,
    "ascent": ascent,
    "laplace": modal,
    "points": points,
    "point": _point,
    "ensemble": _ensemble,
}
