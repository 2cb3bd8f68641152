"""Numbers -> finding, meaning, remedy: whether a result can be trusted."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import xarray as xr

from langevin.diagnostics import weighted

MOST_RHAT = 1.05
LEAST_ESS = 100
LEAST_SHARE = 0.05
MOST_NOISE_RATIO = 2.5


class Finding(NamedTuple):
    """One thing to know about a run.

    Attributes:
        code: A short name: "stopped", "noise", "stuck", "not mixed", "few draws", "point".
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
    posterior: xr.Dataset, weights: xr.DataArray, stopped: np.ndarray, noise_ratio: float | None = None
) -> tuple[Finding, ...]:
    """What stands in the way of trusting these draws; nothing if they look right.

    Args:
        posterior: The draws.
        weights: Their weights; zero after a chain stopped.
        stopped: For each chain the step at which it blew up, or -1.
        noise_ratio: The gradient noise at the draws, as a multiple of what the step was chosen for; None if unknown.
    """
    if posterior.sizes["draw"] * posterior.sizes["chain"] == 1:
        return (
            Finding(
                "point",
                "This is a single point.",
                "It says nothing about uncertainty.",
                "Use a sampler for that.",
            ),
        )
    found = [*_stopped(stopped), *_noise(noise_ratio)]
    running = stopped < 0
    if running.any():
        alive, w = posterior.isel(chain=running), weights.values[running]
        found += [*_stuck(alive, np.flatnonzero(running)), *_mixing(alive, w)]
    return tuple(found)


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
        still &= np.ptp(values.values.reshape(*values.shape[:2], -1), axis=1).max(axis=1, initial=0) == 0
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


def _mixing(posterior: xr.Dataset, weights: np.ndarray) -> list[Finding]:
    worst_rhat, worst_ess = ("", 1.0), ("", np.inf)
    for name, values in posterior.items():
        if values.dtype.kind != "f":
            continue
        rhat = np.asarray(weighted.rhat(values.values, weights))
        ess = np.asarray(weighted.effective_size(values.values, weights))
        if np.isfinite(rhat).any() and np.nanmax(rhat) > worst_rhat[1]:
            worst_rhat = (_label(str(name), rhat, np.nanargmax(rhat)), float(np.nanmax(rhat)))
        if np.isfinite(ess).any() and np.nanmin(ess) < worst_ess[1]:
            worst_ess = (_label(str(name), ess, np.nanargmin(ess)), float(np.nanmin(ess)))
    num_draws = weights.size
    slow = worst_ess[1] < min(LEAST_ESS, LEAST_SHARE * num_draws)
    if worst_rhat[1] > MOST_RHAT or slow:
        return [
            Finding(
                "not mixed",
                f"The chains are not mixed: the largest R-hat is {worst_rhat[1]:.2f}{_for(worst_rhat[0])} (it should "
                f"be below {MOST_RHAT}), and the effective size of {num_draws} draws is only {worst_ess[1]:.0f}, for "
                f"{worst_ess[0]}.",
                "Parts of a chain, or the chains, have seen different places: means and intervals cannot be trusted.",
                "Run longer, thin more, or use momentum (SGHMC); where modes are far apart, cyclical steps.",
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


def _for(name: str) -> str:
    return f", for {name}" if name else ""


def _label(name: str, values: np.ndarray, flat_index: np.integer) -> str:
    if values.ndim == 0:
        return name
    return f"{name}[{', '.join(str(i) for i in np.unravel_index(flat_index, values.shape))}]"
