"""Fit: one result for every method."""

from __future__ import annotations

import functools
import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import xarray as xr

from langevin.diagnostics import summaries
from langevin.diagnostics.evidence import judge
from langevin.diagnostics.findings import Result, Verdict
from langevin.diagnostics.mixing import coordinates
from langevin.errors import SettingError
from langevin.pictures import Pictures
from langevin.predictions import Predictions

if TYPE_CHECKING:
    import pandas as pd

    from langevin.models.source import Source
    from langevin.posterior import Posterior
    from langevin.variational.fitted import Guide


class Fit(Predictions, Pictures):
    """The draws of a run, with their weights, and whether they can be trusted.

    Attributes:
        tree: All that is known: groups `posterior`, `sample_stats` (with `weight`), `unconstrained_posterior`.
        target: The posterior that was sampled; None for a fit that was loaded, and for a guide's.
        source: The model and the rows, to predict with; None for a fit that was loaded without its model.
    """

    def __init__(
        self,
        tree: xr.DataTree,
        target: Posterior | None = None,
        guide: Guide | None = None,
        source: Source | None = None,
    ) -> None:
        self.tree = tree
        self.target = target
        self.source = source
        self._guide = guide

    @functools.cached_property
    def data_tree(self) -> xr.DataTree:
        """What ArviZ reads: `tree`, where all draws have the same weight, and with the groups that ArviZ expects.

        ArviZ knows no weights. Where they differ, the draws of these groups are taken from each chain as often as their
        weights ask, in their order, and the weighted ones are in `weighted_posterior` and its like.

        The groups `observed_data`, `constant_data`, `log_likelihood`, `log_prior`, `posterior_predictive`, `prior` and
        `prior_predictive` are computed when their values are read, and up to 50 million numbers at once; they belong to
        the draws of `posterior`. They need the model: see `with_groups` to have them in a fit that is stored.
        """
        from langevin.criticism.groups import with_lazy_groups

        tree = self.tree
        if np.ptp(self.weights.values) > 0:
            from langevin.resampling import unweighted

            tree = unweighted(tree)
        return with_lazy_groups(self, tree)

    def with_groups(self, *names: str, data: Any = None, most_values: int = 50_000_000, seed: int | None = None) -> Fit:
        """The same fit with groups that ArviZ reads computed and in memory: they are stored with it.

        Args:
            names: Of "observed_data", "constant_data", "log_likelihood" (one number a draw and observed value),
                "log_prior", "posterior_predictive", "prior" and "prior_predictive"; all that the model has by default.
            data: For a fit that was loaded with its model: the rows that it was fitted to.
            most_values: How many numbers a variable may have, so that memory is not filled by mistake.
            seed: Of what is simulated; by default the one of the fit.

        Raises:
            SettingError: If a group cannot be computed, and why.

        Example:
            >>> import langevin as lv
            >>> normal = lv.Density(lambda m: -m**2 / 2, lambda m, rows: -(rows["x"] - m)**2 / 2, init=0.0)
            >>> fit = lv.fit(normal, {"x": [1.0, 2.0, 3.0]}, progress=False)
            >>> dict(fit.with_groups("log_likelihood").tree["log_likelihood"].sizes)
            {'chain': 4, 'draw': 1000, 'rows': 3}
        """
        from langevin.criticism.groups import with_groups

        return with_groups(self, names, data, most_values, seed)

    @property
    def posterior(self) -> xr.Dataset:
        """The draws, with `weights`: dimensions chain, draw, then the site's own."""
        return self.tree["posterior"].to_dataset()

    @property
    def stats(self) -> xr.Dataset:
        """What the sampler told at each draw: dimensions chain, draw."""
        return self.tree["sample_stats"].to_dataset()

    @property
    def weights(self) -> xr.DataArray:
        """The weight of each draw, 1 on average: dimensions chain, draw. Every summary uses it."""
        return self.stats["weight"]

    @property
    def settings(self) -> dict[str, Any]:
        """How the run was made: the method, the arguments, and what warm-up chose."""
        return json.loads(self.tree.attrs["settings"])

    @property
    def levels(self) -> dict[str, list[Any]]:
        """For each column of names, its levels in the order of their codes."""
        return self.settings.get("levels", {})

    @property
    def guide(self) -> Guide:
        """The fitted approximation (VI only), to sample and to evaluate; it is not stored with a fit."""
        if self._guide is None:
            raise SettingError(
                "`guide` is for variational inference, and for a fit that was just made. The parameters of a loaded "
                "one are in data_tree['parameters']."
            )
        return self._guide

    @property
    def elbo(self) -> xr.DataArray:
        """The bound at each step of the best restart, as it was estimated there (VI only)."""
        if "optimisation" not in self.tree:
            raise SettingError(
                f"`elbo` is for variational inference; this fit is by {self.settings['method']['name']}."
            )
        found = self.tree["optimisation"].to_dataset()
        return found["elbo"].isel(restart=found.attrs["best"])

    def resampled(self, num_draws: int | None = None, seed: int = 0) -> Fit:
        """Draws of an approximation drawn again with their importance ratios, Pareto-smoothed: nearer the posterior.

        As good as the ratios are: see k in the verdict.

        Args:
            num_draws: Draws of each chain; as many as there are by default.
            seed: The same seed gives the same bits.
        """
        from langevin.resampling import resampled

        return resampled(self, num_draws, seed)

    @property
    def stopped(self) -> np.ndarray:
        """For each chain, the step at which it blew up, or -1."""
        return Result(self.posterior, self.stats).stopped

    @property
    def _together(self) -> int:
        """How many chains in a row started at one place."""
        return self.settings["evidence"].get("mixing", {}).get("together", 1)

    @functools.cached_property
    def verdict(self) -> Verdict:
        """What stands in the way of trusting this result; empty if nothing was found.

        `verdict.word` is "trustworthy", "doubtful" or "wrong".
        """
        unconstrained = "unconstrained_posterior"
        draws = self.tree[unconstrained].to_dataset() if unconstrained in self.tree else None
        settings = self.settings
        judged_by = tuple(settings.get("judged_by", ()))
        return judge(Result(self.posterior, self.stats, draws, settings["method"], judged_by), settings["evidence"])

    @property
    def shown(self) -> list[str]:
        """The names that summaries and pictures show: of a network not its weights, which mean nothing one by one."""
        judged_by = [name for name in self.settings.get("judged_by", ()) if name in self.posterior]
        return judged_by or [str(name) for name in self.posterior]

    def summary(self, names: list[str] | None = None, probability: float = 0.89) -> pd.DataFrame:
        """Weighted mean, sd, equal-tailed interval, effective size, Monte Carlo error and R-hat, one row a coordinate.

        Args:
            names: The sites to show; all by default, but of a network its predictions at some rows, not its weights.
            probability: Of the interval.
        """
        import pandas as pd

        if not 0 < probability < 1:
            raise SettingError(f"`summary`: `probability` must be between 0 and 1; got {probability}. Try 0.89.")
        for name in names or ():
            if name not in self.posterior:
                raise SettingError(f"`summary`: there is no {name!r}; there are {', '.join(map(str, self.posterior))}.")
        weights = self.weights.values
        tables = []
        for name in names or self.shown:
            site = self.posterior[name]
            draws = site.values
            if draws.dtype.kind == "b":
                draws = draws.astype(np.float64)
            columns = summaries.columns(draws, weights, probability, self._together)
            table = {key: np.ravel(value) for key, value in columns.items()}
            tables.append(pd.DataFrame(table, index=coordinates(site)))
        return pd.concat(tables)

    def kernel_stein_discrepancy(self, batch_size: int | None = None, most_draws: int = 2000, seed: int = 0) -> float:
        """The squared kernel Stein discrepancy of the draws (see `langevin.diagnostics.stein`).

        Args:
            batch_size: Rows for the gradient at each draw; all rows by default. With minibatches the estimate is
                unbiased and may be below 0.
            most_draws: Evenly spread draws to use; the cost grows with their square.
            seed: For the minibatches.
        """
        from langevin.discrepancy import discrepancy_of_fit

        return discrepancy_of_fit(self, batch_size, most_draws, seed)

    def save(self, path: str | Path) -> None:
        """Writes the fit to a Zarr folder, which `lv.load` reads. No code is stored."""
        from langevin.store import save

        save(self, path)

    def __copy__(self) -> Fit:
        """A fit with the same arrays, and the same program."""
        other = object.__new__(type(self))
        other.__dict__.update(self.__dict__)
        return other

    def __deepcopy__(self, memo: dict[int, Any]) -> Fit:
        """A fit with its own arrays, and the same program."""
        other = self.__copy__()
        # What was computed from the arrays is computed anew.
        for name in ("verdict", "_unweighted"):
            other.__dict__.pop(name, None)
        other.tree = self.tree.copy(deep=True)
        return other

    def __getstate__(self) -> dict[str, Any]:
        """What is sent to another process: the data that `save` writes, and no program."""
        from langevin.copies import as_plain

        return as_plain(self.tree)

    def __setstate__(self, state: dict[str, Any]) -> None:
        from langevin.copies import from_plain

        self.__init__(from_plain(state))

    def __repr__(self) -> str:
        sizes = self.posterior.sizes
        method = self.settings["method"]["name"]
        lines = [f"Fit by {method}: {sizes['chain']} chains x {sizes['draw']} draws of {', '.join(self.shown)}"]
        lines += [f"  {line}" for line in repr(self.verdict).splitlines()]
        if self.settings.get("rows_left_out"):
            lines.append(f"  {self.settings['rows_left_out']}")
        if self.settings["approximation"]:
            lines.append(f"  Approximate: {self.settings['approximation']}")
        summed_out = self.settings.get("summed_out", ())
        if summed_out:
            shown = ", ".join(summed_out[:5]) + (", ..." if len(summed_out) > 5 else "")
            lines.append(f"  Summed out: {shown} (fit.infer_discrete() draws them)")
        left_out = self.settings.get("left_out", ())
        if left_out:
            lines.append(
                f"  Left out: {', '.join(left_out)}, which depend on the rows: a minibatch has only some of them. Fit "
                "with all rows to have them."
            )
        return "\n".join(lines)
