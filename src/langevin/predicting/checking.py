"""Posterior predictive checks: data that the model would replicate, against the data that it was fitted to.

    p = P(T(replicated) > T(observed)) + P(T(replicated) = T(observed)) / 2

over the weighted draws, for a few statistics T. A p near 0 or 1 says that the model does not make such data; one near
1/2 does not say that the model is right, because the data was used to fit it (Gelman, Meng & Stern 1996, Posterior
predictive assessment of model fitness. Statistica Sinica 6).
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import numpy as np
import pandas as pd

from langevin.data.table import Table
from langevin.errors import SettingError
from langevin.predicting import quantiles
from langevin.predicting.draws import drawn_of
from langevin.predicting.observed import observed_values
from langevin.predicting.predictor import predictor_of, source_of
from langevin.predicting.sites import Site

if TYPE_CHECKING:
    from langevin.result import Fit

MOST_ROWS = 2000
MOST_SHARES = 10
SURPRISING = 0.02
Statistic = Callable[[np.ndarray], np.ndarray]


@dataclasses.dataclass(frozen=True)
class PredictiveCheck:
    """The statistics of replicated data, against those of the observed.

    Attributes:
        table: One row a site and statistic: `observed`, the `mean` and the 90 % interval (`low`, `high`) of the
            replicated ones, and `p_value`.
        num_rows: How many rows were looked at.
        num_data: Of how many.
    """

    table: pd.DataFrame
    num_rows: int
    num_data: int

    def __repr__(self) -> str:
        some = f"{self.num_rows:,} of {self.num_data:,}" if self.num_rows < self.num_data else f"{self.num_rows:,}"
        lines = [f"Predictive check of {some} rows:"]
        surprising = self.table[(self.table["p_value"] < SURPRISING) | (self.table["p_value"] > 1 - SURPRISING)]
        for (site, statistic), row in surprising.iterrows():
            side = "above" if row["p_value"] < 0.5 else "below"
            share = 1 - row["p_value"] if side == "above" else row["p_value"]
            lines.append(
                f"  The {statistic} of {site!r} is {row['observed']:.4g}, {side} {100 * share:.1f} % of what the model "
                f"replicates (90 % of it between {row['low']:.4g} and {row['high']:.4g})."
            )
        others = self.table.index.difference(surprising.index, sort=False)
        fine = [f"{statistic} of {site!r}" for site, statistic in others]
        if fine:
            lines.append(f"  As the model replicates them: {', '.join(fine)}.")
        return "\n".join(lines)


def checked(fit: Fit, most_rows: int, num_draws: int | None, seed: Any) -> PredictiveCheck:
    """See `Fit.predictive_check`."""
    source = source_of(fit, "predictive_check")
    if source.table is None:
        raise SettingError(
            "`predictive_check` needs the rows that were fitted, and this fit was loaded. Use `evaluate(data)`, or fit "
            "it again."
        )
    options = {"num_draws": num_draws, "seed": seed, "who": "predictive_check"}
    predictor = predictor_of(fit, **options)
    num_data = predictor.columns.num_rows
    # Of sites that each row has its own of, there are values for all rows together only.
    if predictor.by_rows and not predictor.own and num_data > most_rows:
        index = np.linspace(0, num_data - 1, most_rows).astype(int)
        table = Table({name: column[index] for name, column in source.table.columns.items()}, most_rows)
        predictor = predictor_of(fit, table, **options)
    observed = observed_values(predictor, "predictive_check")
    replicated: dict[str, list[np.ndarray]] = {site.name: [] for site in predictor.asked}
    for drawn in drawn_of(predictor):
        for name, values in drawn.draws.items():
            replicated[name].append(values)
    tables = {}
    for site in predictor.asked:
        values = np.concatenate(replicated[site.name], axis=1 if site.row_axis is not None else 0)
        for name, row in _rows(site, values, observed[site.name], predictor.chosen.shares).items():
            tables[site.name, name] = row
    table = pd.DataFrame.from_dict(tables, orient="index")
    table.index = pd.MultiIndex.from_tuples(table.index, names=["site", "statistic"])
    return PredictiveCheck(table, predictor.columns.num_rows, num_data)


def _rows(site: Site, replicated: np.ndarray, observed: np.ndarray, shares: np.ndarray) -> dict[str, dict[str, float]]:
    """The statistics of one site, by their name."""
    count = len(replicated)
    replicated, observed = replicated.reshape(count, -1).astype(np.float64), observed.reshape(1, -1).astype(np.float64)
    rows = {}
    for name, statistic in _statistics(site, replicated, shares).items():
        of_draws, seen = statistic(replicated), float(statistic(observed)[0])
        ordered, in_order = quantiles.ordered(of_draws, shares)
        low, high = quantiles.at(ordered, in_order, (0.05, 0.95))
        # A share computed from rows is the same number up to rounding, or another.
        ties = np.isclose(of_draws, seen, rtol=1e-6, atol=1e-12)
        p_value = float(np.sum(shares * np.where(ties, 0.5, of_draws > seen)))
        mean = float(np.sum(shares * of_draws))
        rows[name] = {"observed": seen, "mean": mean, "low": float(low), "high": float(high), "p_value": p_value}
    return rows


def _statistics(site: Site, replicated: np.ndarray, shares: np.ndarray) -> dict[str, Statistic]:
    """What is looked at: of classes, how often each comes; of numbers, moments, extremes, and how many are inside."""
    if site.classes:
        shown = range(1, 2) if site.classes == 2 else range(min(site.classes, MOST_SHARES))
        return {f"share of class {k}": lambda x, k=k: (x == k).mean(axis=1) for k in shown}
    statistics: dict[str, Statistic] = {
        "mean": lambda x: x.mean(axis=1),
        "sd": lambda x: x.std(axis=1),
        "min": lambda x: x.min(axis=1),
        "max": lambda x: x.max(axis=1),
    }
    if site.discrete:
        statistics["share of zeros"] = lambda x: (x == 0).mean(axis=1)
    values, in_order = quantiles.ordered(np.ascontiguousarray(replicated.T), shares)
    for width in (0.5, 0.9):
        tails = ((1 - width) / 2, (1 + width) / 2)
        low, high = quantiles.at(values, in_order, tails, discrete=site.discrete)
        inside = lambda x, low=low, high=high: ((low <= x) & (x <= high)).mean(axis=1)  # noqa: E731
        statistics[f"share inside the {100 * width:g} % intervals"] = inside
    return statistics
