"""Whether chains have mixed, and whether there are enough draws."""

from __future__ import annotations

import numpy as np
import xarray as xr

from langevin.diagnostics import weighted
from langevin.diagnostics.findings import Finding, Result

MOST_RHAT = 1.05
LEAST_ESS = 100
LEAST_SHARE = 0.05
LEAST_DRAWS = 4
MOST_JUDGED = 200


def mixing(result: Result, exact: bool, together: int = 1) -> list[Finding]:
    """Whether R-hat or the effective size of any coordinate tells of chains that have not mixed.

    Args:
        result: The draws.
        exact: Whether the method is exact, which decides what to try.
        together: How many chains in a row started at one place; if several, nested R-hat compares the groups.
    """
    result = result.running()
    posterior, weights = result.posterior, result.stats["weight"].values
    if not len(weights):
        return []
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


def label(name: str, index: tuple[int, ...]) -> str:
    """The name of one coordinate of a site."""
    return f"{name}[{', '.join(map(str, index))}]" if index else name


def rhat(values: np.ndarray, weights: np.ndarray, together: int) -> np.ndarray:
    """R-hat, nested where several chains in a row started at one place."""
    if together == 1 or len(values) % together:
        return weighted.rhat(values, weights)
    return weighted.nested_rhat(values, together)


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
