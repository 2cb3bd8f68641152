"""Which coordinates a picture shows: all of a few; of many, those that mixed worst."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from langevin import checks
from langevin.diagnostics import weighted
from langevin.diagnostics.findings import Result
from langevin.diagnostics.mixing import coordinate, suspects
from langevin.errors import SettingError

if TYPE_CHECKING:
    import xarray as xr

    from langevin.result import Fit

NUMBERS = "fiub"


class Coordinate(NamedTuple):
    """One number of a site.

    Attributes:
        site: The name of the site.
        index: Where in the site.
        label: As a user reads it, with the levels of the site's dimensions where they have any.
    """

    site: str
    index: tuple[int, ...]
    label: str


class Chosen(NamedTuple):
    """What a picture shows.

    Attributes:
        coordinates: These.
        total: Of so many.
        note: By which rule; empty if all are shown.
    """

    coordinates: list[Coordinate]
    total: int
    note: str


class _Part(NamedTuple):
    """Coordinates of one site, by their numbers in it."""

    values: xr.DataArray
    numbers: np.ndarray


def choose(fit: Fit, what: str, names: str | Sequence[str] | None, most: int, *, worst_first: bool = True) -> Chosen:
    """The coordinates to show, at most so many.

    Where there are more, those with the smallest effective sizes are shown: the smaller of bulk and tail, of all chains
    together, which is small too where R-hat is large. Coordinates that never move come last.

    Args:
        fit: The fit.
        what: Who asks, for messages.
        names: Sites ("theta") or coordinates ("theta[3]"); all by default, of a network those of its predictions.
        most: How many at most.
        worst_first: Whether the worst come first where no names are given; else the sites keep their order.

    Raises:
        SettingError: If there is no such site or coordinate, or nothing at all to show.
    """
    checks.count(what, "most", most)
    if not fit.weights.values.sum() > 0:
        raise SettingError(f"`{what}`: no draw of this fit has any weight: every chain blew up. See `fit.verdict`.")
    parts = _of_sites(fit, fit.shown) if names is None else _named(fit, what, names)
    total = sum(len(part.numbers) for part in parts)
    if not total:
        raise SettingError(f"`{what}`: this fit has no numbers to show: it kept no site, or empty ones.")
    order = np.arange(total)
    if total > most or (worst_first and names is None):
        order = np.argsort(_scores(fit, parts), kind="stable")[:most]
    if not worst_first:
        order = np.sort(order)
    starts = np.cumsum([0, *(len(part.numbers) for part in parts)])
    shown = []
    for number in order:
        at = int(np.searchsorted(starts, number, side="right")) - 1
        shown.append(_coordinate(parts[at].values, parts[at].numbers[number - starts[at]]))
    shown = list(dict.fromkeys(shown))
    rule = f"{len(shown)} of {total:,} coordinates: those with the smallest effective sizes"
    return Chosen(shown, total, rule if len(shown) < total else "")


def draws_of(fit: Fit, coordinates: Sequence[Coordinate]) -> np.ndarray:
    """The draws of these coordinates, of shape (chains, draws, coordinates)."""
    posterior = fit.posterior
    columns = [posterior[c.site][(slice(None), slice(None), *c.index)].values for c in coordinates]
    return np.stack(columns, axis=-1).astype(np.float64)


def equal_weights(draws: np.ndarray, weights: np.ndarray) -> np.ndarray:
    """The draws resampled to equal weights within each chain; chains without any weight stay as they are."""
    if np.ptp(weights) == 0:
        return draws
    return np.stack([of_chain[weighted.resampled(w)] for of_chain, w in zip(draws, weights, strict=True)])


def _of_sites(fit: Fit, names: Sequence[str]) -> list[_Part]:
    posterior = fit.posterior
    numbers = [posterior[name] for name in names if posterior[name].dtype.kind in NUMBERS]
    return [_Part(values, np.arange(int(np.prod(values.shape[2:])))) for values in numbers]


def _named(fit: Fit, what: str, names: str | Sequence[str]) -> list[_Part]:
    parts = {str(part.values.name): part for part in _of_sites(fit, list(map(str, fit.posterior)))}
    found = []
    for name in [names] if isinstance(names, str) else names:
        part = parts.get(name) or _one_of(parts.get(name.partition("[")[0]), name)
        if part is None:
            raise SettingError(
                f"`{what}`: there is no {name!r}; there are {', '.join(parts)}, and their coordinates, such as "
                f"{_coordinate(*_last(parts)).label!r}."
            )
        found.append(part)
    return found


def _one_of(part: _Part | None, name: str) -> _Part | None:
    """The coordinate of the part that has this label, if there is one."""
    if part is None:
        return None
    matching = [number for number in part.numbers if _coordinate(part.values, number).label == name]
    return part._replace(numbers=np.asarray(matching)) if matching else None


def _last(parts: dict[str, _Part]) -> tuple[xr.DataArray, int]:
    part = max(parts.values(), key=lambda part: part.values.ndim)
    return part.values, len(part.numbers) - 1


def _coordinate(values: xr.DataArray, number: int | np.integer) -> Coordinate:
    index = np.unravel_index(number, values.shape[2:]) if values.ndim > 2 else ()
    place = tuple(int(i) for i in index)
    return Coordinate(str(values.name), place, coordinate(values, number))


def _scores(fit: Fit, parts: Sequence[_Part]) -> np.ndarray:
    """The effective size of each coordinate, -1 where not all draws are finite, infinite where it never moves.

    Of a site with very many coordinates, those that do not look bad at a glance are taken to be fine.
    """
    sites = list(dict.fromkeys(str(part.values.name) for part in parts))
    running = Result(fit.posterior[sites], fit.stats).running()
    weights = running.stats["weight"].values
    by_site = {}
    for site in sites:
        values = running.posterior[site]
        flat = np.asarray(values.values, np.float64).reshape(*values.shape[:2], -1)
        score = np.full(flat.shape[2], np.inf)
        if flat.size:
            measured = suspects(flat, weights)
            score[measured] = np.nan_to_num(weighted.smallest_size(flat[:, :, measured], weights), nan=np.inf)
            score[~np.isfinite(flat).all(axis=(0, 1))] = -1.0
        by_site[site] = score
    return np.concatenate([by_site[str(part.values.name)][part.numbers] for part in parts])
