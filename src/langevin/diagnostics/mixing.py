"""Whether chains have mixed, and whether there are enough draws."""

from __future__ import annotations

import itertools
from collections.abc import Hashable, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
import xarray as xr

from langevin.diagnostics import weighted
from langevin.diagnostics.findings import Finding, Result

MOST_RHAT = 1.01
LEAST_A_CHAIN = 100
MOST_NEEDED = 400
LEAST_SHARE = 0.05
LEAST_DRAWS = 4
MOST_JUDGED = 200
CHANCE = 1e-4
# The variance of the logarithm of an estimated effective size, times that size: 9 for autoregressions.
SIZE_NOISE = 9.0
MOST_SIZE_ERRORS = 3.0


class Worst(NamedTuple):
    """The coordinates that look worst.

    Attributes:
        rhat: The largest R-hat, in excess of what chance explains.
        most: What chance explains, at least 1.01.
        of_rhat: The coordinate that has it.
        size: The smallest effective size, of bulk and tails.
        of_size: The coordinate that has it.
    """

    rhat: float = 1.0
    most: float = MOST_RHAT
    of_rhat: str = ""
    size: float = np.inf
    of_size: str = ""


def mixing(result: Result, exact: bool, together: int = 1) -> list[Finding]:
    """Whether R-hat or the effective size of any coordinate tells of chains that have not mixed.

    The limits are those of Vehtari et al. (2021): R-hat below 1.01, and bulk and tail effective sizes of 100 a chain,
    400 at most. R-hat may be above by as much as chance explains, and a size below by three of its own errors.

    Args:
        result: The draws.
        exact: Whether the method is exact, which decides what to try.
        together: How many chains in a row started at one place; if several, nested R-hat compares the groups.
    """
    result = result.running()
    weights = result.stats["weight"].values
    num_chains, num_draws = weights.shape
    if not num_chains:
        return []
    alone = [_one_chain()] if num_chains == 1 else []
    needed = _needed(num_chains)
    if num_draws < LEAST_DRAWS:
        return [_few(Worst(size=0.0, of_size="every site"), needed), *alone]
    worst = _worst(result, weights, together)
    if worst.rhat > worst.most or worst.size < _least_size(weights):
        return [
            Finding(
                "not mixed",
                f"The chains are not mixed: {_seen(worst, weights.size)}.{_compared(result)}",
                "Parts of a chain, or the chains, have seen different places: means and intervals cannot be trusted.",
                _MIX_EXACT if exact else _mix_stochastic(result.method),
            ),
            *alone,
        ]
    if worst.size * (1 + MOST_SIZE_ERRORS * np.sqrt(SIZE_NOISE / worst.size)) < needed:
        return [_few(worst, needed, _compared(result)), *alone]
    return alone


def most_rhat(within: np.ndarray, num_chains: int, together: int, num_coordinates: int) -> np.ndarray:
    """The largest R-hat that chance explains, at least 1.01.

    Means of `m` parts of chains, each worth `n` draws, differ by `chi2 / (m - 1) / n` of the variance, where `chi2` has
    `m - 1` degrees of freedom; R-hat is the root of 1 more than that.

    Args:
        within: For each coordinate how many draws all chains are worth, by the autocorrelation within them.
        num_chains: How many chains there are.
        together: How many chains in a row are compared as one; 1 if each is compared in halves.
        num_coordinates: Among how many coordinates the largest is sought.
    """
    from scipy.special import chdtri

    parts = 2 * num_chains if together == 1 else num_chains // together
    largest = chdtri(parts - 1, CHANCE / max(num_coordinates, 1)) / (parts - 1)
    return np.fmax(np.sqrt(1 + largest * parts / within), MOST_RHAT)


def not_mixed(draws: np.ndarray, weights: np.ndarray, together: int, num_coordinates: int) -> np.ndarray:
    """For each coordinate, whether `mixing` would say by it alone that the chains are not mixed.

    Args:
        draws: Of shape (chains, draws, coordinates).
        weights: Of shape (chains, draws).
        together: How many chains in a row started at one place.
        num_coordinates: Of how many coordinates these are some.
    """
    if draws.shape[1] < LEAST_DRAWS:
        return np.zeros(draws.shape[2:], bool)
    together = _groups(len(weights), together)
    sizes = weighted.sizes(draws, weights)
    most = most_rhat(sizes.within, len(weights), together, num_coordinates)
    slow = np.fmin(sizes.bulk, sizes.tail) < _least_size(weights)
    return (rhat(draws, weights, together) > most) | slow


def _needed(num_chains: int) -> int:
    """The effective size that is enough."""
    return min(LEAST_A_CHAIN * num_chains, MOST_NEEDED)


def _least_size(weights: np.ndarray) -> float:
    """The effective size below which chains have hardly moved."""
    return min(_needed(len(weights)) / 4, LEAST_SHARE * weights.size)


def _worst(result: Result, weights: np.ndarray, together: int) -> Worst:
    worst = Worst()
    sites = [values for values in result.judged.values() if values.dtype.kind == "f"]
    num_coordinates = sum(values[0, 0].size for values in sites)
    together = _groups(len(weights), together)
    for values in sites:
        chosen = suspects(values.values, weights)
        draws = values.values.reshape(*values.shape[:2], -1)[:, :, chosen]
        if not len(chosen):
            continue
        sizes = weighted.sizes(draws, weights)
        found, size = np.asarray(rhat(draws, weights, together)), np.fmin(sizes.bulk, sizes.tail)
        most = most_rhat(sizes.within, len(weights), together, num_coordinates)
        excess = np.where(np.isnan(found), -np.inf, found - most)
        i, j = int(np.argmax(excess)), int(np.argmin(np.where(np.isnan(size), np.inf, size)))
        if excess[i] > worst.rhat - worst.most or (not worst.of_rhat and np.isfinite(excess[i])):
            worst = worst._replace(rhat=float(found[i]), most=float(most[i]), of_rhat=coordinate(values, chosen[i]))
        if size[j] < worst.size:
            worst = worst._replace(size=float(size[j]), of_size=coordinate(values, chosen[j]))
    return worst


def _seen(worst: Worst, num_draws: int) -> str:
    """R-hat, the effective size, or both, whichever is bad."""
    parts = []
    if worst.rhat > worst.most:
        parts.append(
            f"the largest R-hat is {worst.rhat:.3g}, for {worst.of_rhat} (it should be below {MOST_RHAT}; for so many "
            f"draws, chance explains up to {worst.most:.3g})"
            if worst.most > MOST_RHAT
            else f"the largest R-hat is {worst.rhat:.3g}, for {worst.of_rhat} (it should be below {MOST_RHAT})"
        )
    if np.isfinite(worst.size):
        parts.append(f"the effective size of {num_draws} draws is {worst.size:.0f}, for {worst.of_size}")
    return ", and ".join(parts)


def _compared(result: Result) -> str:
    """Says so, where something else than all draws was compared."""
    chosen = [str(name) for name in result.judged]
    if len(chosen) == len(result.posterior):
        return ""
    return (
        f" What was compared is {' and '.join(map(repr, chosen))}: predictions, and not the weights, which may trade "
        "places."
    )


def _few(worst: Worst, needed: int, compared: str = "") -> Finding:
    return Finding(
        "few draws",
        f"The effective size is only {worst.size:.0f}, for {worst.of_size} (it should be at least {needed}).{compared}",
        "Means are rough and intervals rougher, and whether the chains have mixed cannot be told.",
        "Take more draws, or thin more.",
    )


def _one_chain() -> Finding:
    return Finding(
        "one chain",
        "There is one chain alone.",
        "There is nothing to compare it with: a part of the posterior that it never saw would not be missed.",
        "Run four chains.",
    )


def _mix_stochastic(method: Mapping[str, Any]) -> str:
    """A remedy that does not name the method in use."""
    name = str(method.get("name", ""))
    momentum = "" if name.endswith(("SGHMC", "SGNHT")) else "use momentum (SGHMC), "
    cycles = "more cycles" if name.startswith("Cyclical") else "cyclical steps"
    return f"Run longer, {momentum}or thin more; where modes are far apart, take {cycles}."


_MIX_EXACT = (
    "Run longer; look for modes that are far apart, for parameters that the data cannot tell from one another, and for "
    "scales that other sites depend on (non-centre these)."
)


def label(name: str, index: tuple[Any, ...]) -> str:
    """The name of one coordinate of a site, by its place or by the labels of its place."""
    return f"{name}[{', '.join(map(str, index))}]" if index else name


def rhat(values: np.ndarray, weights: np.ndarray, together: int) -> np.ndarray:
    """R-hat, nested where several chains in a row started at one place."""
    together = _groups(len(values), together)
    return weighted.rhat(values, weights) if together == 1 else weighted.nested_rhat(values, together)


def _groups(num_chains: int, together: int) -> int:
    """How many chains are compared as one: 1 where the groups are not whole."""
    return 1 if num_chains % together else together


def coordinate(values: xr.DataArray, flat_index: int | np.integer) -> str:
    """The name of the coordinate with this number."""
    index = np.unravel_index(flat_index, values.shape[2:]) if values.ndim > 2 else ()
    places = tuple(_labels(values, dim)[int(i)] for dim, i in zip(values.dims[2:], index, strict=True))
    return label(str(values.name), places)


def coordinates(values: xr.DataArray) -> list[str]:
    """The names of all coordinates of a site."""
    axes = (_labels(values, dim) for dim in values.dims[2:])
    return [label(str(values.name), index) for index in itertools.product(*axes)]


def _labels(values: xr.DataArray, dim: Hashable) -> Sequence[Any]:
    """The labels of a dimension, or numbers where there are none."""
    return values.coords[dim].values if dim in values.coords else range(values.sizes[dim])


def suspects(values: np.ndarray, weights: np.ndarray) -> np.ndarray:
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
