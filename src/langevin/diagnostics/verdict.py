"""Numbers -> finding, meaning, remedy: whether a result can be trusted."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import xarray as xr

from langevin.diagnostics import weighted

MOST_RHAT = 1.05
LEAST_ESS = 100
LEAST_SHARE = 0.05
LEAST_DRAWS = 4
MOST_NOISE_RATIO = 2.5
MOST_WIDTH = 1.2
MOST_DEEP = 0.01
MOST_JUDGED = 200
LEAST_BFMI = 0.2
MOST_KHAT = 0.7
LEAST_EFFICIENCY = 0.9
LEAST_DRAWS_FOR_ENERGY = 20


class Finding(NamedTuple):
    """One thing to know about a run.

    Attributes:
        code: A short name: "stopped", "noise", "diverging", "depth", "energy", "not finite", "stuck", "not mixed",
            "few draws", "too wide", "point"; of an approximation "far off", "not settled", "skipped".
        finding: What was seen, with names and numbers.
        meaning: What follows for the user.
        remedy: What to try.
    """

    code: str
    finding: str
    meaning: str
    remedy: str

    def __str__(self) -> str:
        return f"{self.finding} {self.meaning} {self.remedy}"


def judge(
    posterior: xr.Dataset,
    stats: xr.Dataset,
    stopped: np.ndarray,
    noise_ratio: float | None = None,
    width: float | None = None,
    width_error: float | None = None,
    together: int = 1,
    khat: float | None = None,
    efficiency: float | None = None,
    settled: bool = True,
    skipped: int = 0,
    parameter_error: float | None = None,
    points: Sequence[str] = (),
) -> tuple[Finding, ...]:
    """What stands in the way of trusting these draws; nothing if they look right.

    Args:
        posterior: The draws.
        stats: `weight`, zero after a chain stopped, and `lp`; of an exact method also `diverging`, `energy` and
            `reached_max_treedepth`.
        stopped: For each chain the step at which it blew up, or -1.
        noise_ratio: The gradient noise at the draws, as a multiple of what the step was chosen for; None if unknown.
        width: How wide the draws are by Stein's identity, squared; None if unknown.
        width_error: Its standard error.
        together: How many chains in a row started at one place; if several, nested R-hat compares the groups.
        khat: Of an approximation, the shape of the tail of its importance ratios; None if unknown.
        efficiency: Of an approximation, how many draws of the posterior one of its own is worth; None if unknown.
        settled: Of an approximation, whether its bound stopped rising, and its parameters are known well enough.
        skipped: Of an approximation, how many of its steps were left out.
        parameter_error: Of an approximation, the largest error of its parameters, of a mean in scales; None if unknown.
        points: Of an approximation, the sites to which it gives a single value.
    """
    if "log_q" in stats:
        judged = int(np.isfinite(stats["log_q"].values).sum())
        return (
            *_not_finite(posterior, np.zeros(1)),
            *_far_off(khat, efficiency, judged),
            *_unsettled(settled, skipped, parameter_error),
            *_points(points),
        )
    if posterior.sizes["draw"] * posterior.sizes["chain"] == 1:
        point = Finding(
            "point", "This is a single point.", "It says nothing of uncertainty.", "Use a sampler for that."
        )
        return (*_stopped(stopped), point)
    found = [*_stopped(stopped), *_noise(noise_ratio), *_trajectories(stats)]
    running = stopped < 0
    if running.any():
        alive, weights = posterior.isel(chain=running), stats["weight"].values[running]
        found += _not_finite(alive, stats["lp"].values[running])
        if posterior.sizes["draw"] > 1:
            found += _stuck(alive, np.flatnonzero(running))
        mixing = _mixing(alive, weights, together, exact="energy" in stats)
        found += mixing or _too_wide(width, width_error)
    return tuple(found)


def _points(names: Sequence[str]) -> list[Finding]:
    if not names:
        return []
    return [
        Finding(
            "point",
            f"The guide gives a single value to {', '.join(map(repr, names))}.",
            "That says nothing of its uncertainty.",
            "Give it a distribution with a width.",
        )
    ]


def _far_off(khat: float | None, efficiency: float | None, num_judged: int) -> list[Finding]:
    """Where ratios are nearly all the same, the shape of their tail says nothing of what is left of it."""
    # What can be told from so many ratios (Vehtari et al. 2024, section 3.2.4).
    most = min(1 - 1 / np.log10(max(num_judged, 11)), MOST_KHAT)
    if khat is None or efficiency is None or khat <= most or efficiency >= LEAST_EFFICIENCY:
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


def _unsettled(settled: bool, skipped: int, error: float | None) -> list[Finding]:
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


def label(name: str, index: tuple[int, ...]) -> str:
    """The name of one coordinate of a site."""
    return f"{name}[{', '.join(map(str, index))}]" if index else name


def rhat(values: np.ndarray, weights: np.ndarray, together: int) -> np.ndarray:
    """R-hat, nested where several chains in a row started at one place."""
    if together == 1 or len(values) % together:
        return weighted.rhat(values, weights)
    return weighted.nested_rhat(values, together)


def _not_finite(posterior: xr.Dataset, log_density: np.ndarray) -> list[Finding]:
    found = []
    for name, values in posterior.items():
        share = 1 - np.isfinite(values.values).mean() if values.size else 0.0
        if share > 0:
            found.append(
                Finding(
                    "not finite",
                    f"{100 * share:.3g} % of the values of {str(name)!r} are not finite.",
                    "Its summaries are meaningless.",
                    "Look at how the program computes it.",
                )
            )
    outside = 1 - np.isfinite(log_density).mean()
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


def _too_wide(width: float | None, error: float | None) -> list[Finding]:
    if width is None or error is None or width < MOST_WIDTH + 3 * error:
        return []
    return [
        Finding(
            "too wide",
            f"The draws are about {np.sqrt(width):.2f} times as wide as the posterior, by Stein's identity.",
            "The step is too long for its gradient noise or curvature: sds and intervals are too large.",
            "Take a smaller step_size or larger minibatches, or leave the step to warm-up.",
        )
    ]


def _stopped(stopped: np.ndarray) -> list[Finding]:
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


def _noise(ratio: float | None) -> list[Finding]:
    if ratio is None or 1 / MOST_NOISE_RATIO < ratio < MOST_NOISE_RATIO:
        return []
    return [
        Finding(
            "noise",
            f"The gradient noise at the draws is {ratio:.2g} times what warm-up measured around the mode.",
            "The step was chosen for another noise, so the draws are wider or narrower than they should be.",
            "Take larger minibatches or a smaller step_size; away from the mode, estimator='minibatch' is safer.",
        )
    ]


def _stuck(posterior: xr.Dataset, numbers: np.ndarray) -> list[Finding]:
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


def _mixing(posterior: xr.Dataset, weights: np.ndarray, together: int, exact: bool) -> list[Finding]:
    worst_rhat, worst_ess = ("", 1.0), ("", np.inf)
    for values in posterior.values():
        if values.dtype.kind != "f":
            continue
        chosen = _suspects(values.values, weights)
        draws = values.values.reshape(*values.shape[:2], -1)[:, :, chosen]
        found = np.asarray(rhat(draws, weights, together))
        ess = np.asarray(weighted.effective_size(draws, weights))
        if np.isfinite(found).any() and np.nanmax(found) > worst_rhat[1]:
            worst_rhat = (_coordinate(values, chosen[np.nanargmax(found)]), float(np.nanmax(found)))
        if np.isfinite(ess).any() and np.nanmin(ess) < worst_ess[1]:
            worst_ess = (_coordinate(values, chosen[np.nanargmin(ess)]), float(np.nanmin(ess)))
    num_draws = weights.size
    if weights.shape[1] < LEAST_DRAWS:
        worst_ess = ("every site", 0.0)
        worst_rhat = ("", 1.0)
    slow = 0 < worst_ess[1] < min(LEAST_ESS, LEAST_SHARE * num_draws)
    if worst_rhat[1] > MOST_RHAT or slow:
        return [
            Finding(
                "not mixed",
                f"The chains are not mixed: the largest R-hat is {worst_rhat[1]:.2f}{_for(worst_rhat[0])} (it should "
                f"be below {MOST_RHAT}), and the effective size of {num_draws} draws is only {worst_ess[1]:.0f}, for "
                f"{worst_ess[0]}.",
                "Parts of a chain, or the chains, have seen different places: means and intervals cannot be trusted.",
                _MIX_EXACT if exact else _MIX_STOCHASTIC,
            )
        ]
    if worst_ess[1] < LEAST_ESS:
        return [
            Finding(
                "few draws",
                f"The effective size is only {worst_ess[1]:.0f}, for {worst_ess[0]} (at least {LEAST_ESS} are needed).",
                "Means are rough and intervals rougher.",
                "Take more draws, or thin more.",
            )
        ]
    return []


_MIX_STOCHASTIC = "Run longer, thin more, or use momentum (SGHMC); where modes are far apart, cyclical steps."
_MIX_EXACT = (
    "Run longer; look for modes that are far apart, for parameters that the data cannot tell from one another, and for "
    "scales that other sites depend on (non-centre these)."
)


def _trajectories(stats: xr.Dataset) -> list[Finding]:
    found = []
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


def _for(name: str) -> str:
    return f", for {name}" if name else ""


def _coordinate(values: xr.DataArray, flat_index: np.integer) -> str:
    index = np.unravel_index(flat_index, values.shape[2:]) if values.ndim > 2 else ()
    return label(str(values.name), tuple(int(i) for i in index))


def _suspects(values: np.ndarray, weights: np.ndarray) -> np.ndarray:
    """Of many coordinates those that look worst, which are then judged with care: that takes a millisecond for each.

    By the share of the variance that lies between halves of chains, and by the correlation of successive draws.
    """
    flat = values.reshape(*values.shape[:2], -1)
    num_draws, size = flat.shape[1:]
    if size <= MOST_JUDGED or num_draws < LEAST_DRAWS:
        return np.arange(size)
    centred = flat - weighted.mean(flat, weights)
    halves = np.concatenate(np.split(centred[:, : num_draws // 2 * 2], 2, axis=1))
    variance = np.mean(centred**2, axis=(0, 1))
    with np.errstate(divide="ignore", invalid="ignore"):
        between = np.var(halves.mean(axis=1), axis=0) / variance
        correlation = np.mean(centred[:, 1:] * centred[:, :-1], axis=(0, 1)) / variance
    worst = [np.argsort(-np.nan_to_num(score))[: MOST_JUDGED // 2] for score in (between, correlation)]
    return np.unique(np.concatenate(worst))
