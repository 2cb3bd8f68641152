"""What is asked of a fit about rows: predictions, scores, checks, labels, cross-validation."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, Literal, cast

if TYPE_CHECKING:
    import pandas as pd
    import xarray as xr
    from arviz_stats import ELPDData

    from langevin.predicting.checking import PredictiveCheck
    from langevin.result import Fit


class Predictions:
    """What a `Fit` can say of rows, its own or new ones. Needs the model, which a loaded fit is given."""

    def predict(
        self,
        data: Any = None,
        *,
        kind: Literal["summary", "draws"] = "summary",
        names: str | list[str] | tuple[str, ...] | None = None,
        quantiles: Sequence[float] = (0.05, 0.5, 0.95),
        num_draws: int | None = None,
        unseen: Literal["error", "draw"] = "error",
        constants: Mapping[str, Any] | None = None,
        batch_size: int | None = None,
        seed: int = 0,
    ) -> xr.Dataset:
        """Predicts what the model observes, on new rows: weighted, in batches of rows, in bounded memory.

        The program is called on the rows without the columns that it observes (so `y=None` must be the default of that
        argument), with its latent sites at the draws of the posterior.

        Args:
            data: A dict of arrays or a frame; by default the rows of the fit. Where it has observed columns too, these
                are held out, and their log predictive density is computed.
            kind: "summary" for `mean`, `sd` and its parts (`sd_aleatoric`, `sd_epistemic`), quantiles (`q5`, ...), for
                classes `probability_0`, ..., `entropy` and `mutual_information` (its epistemic part), and
                `log_predictive_density`, for each row. "draws" for draws: dimensions sample and rows, with the weight
                of each sample.
            names: The sites to predict, deterministic ones too; by default those that were observed. With several, the
                columns of a summary begin with the site's name.
            quantiles: Their probabilities; empty for none, which is faster.
            num_draws: How many evenly spread draws of the posterior; by default all, but at most 1,000. Of fewer than
                there are, those of more weight are taken more often; all that there are count by their weights.
            unseen: Where `constants` has more groups than were fitted: an error, or "draw" for draws of the new ones
                from the site's distribution.
            constants: Arguments of the program to replace those of the fit.
            batch_size: Rows in a batch; by default as many as go into 200 MB with all draws; of a large network with a
                few draws at a time, which are read from where they are. Two batches at most are in memory.
            seed: The same seed gives the same bits.

        Raises:
            SettingError: If the fit was loaded without its model, or an argument makes no sense.
            ModelError: Names the argument or the site that stands in the way, and says what to do.

        Example:
            >>> import langevin as lv, numpyro, numpyro.distributions as dist
            >>> def model(x, y=None):
            ...     slope = numpyro.sample("slope", dist.Normal(0, 1))
            ...     with numpyro.plate("rows", len(x)):
            ...         numpyro.sample("y", dist.Normal(slope * x, 0.1), obs=y)
            >>> fit = lv.fit(model, {"x": [1.0, 2.0], "y": [2.0, 4.0]}, progress=False)
            >>> found = fit.predict({"x": [10.0]}).to_dataframe()
            >>> list(found), float(found["mean"].round().iloc[0])
            (['mean', 'sd', 'sd_aleatoric', 'sd_epistemic', 'q5', 'q50', 'q95'], 20.0)
        """
        from langevin.predicting.requests import predict

        options = {"names": names, "num_draws": num_draws, "unseen": unseen, "constants": constants, "seed": seed}
        return predict(_fit(self), data, kind, quantiles, batch_size, options)

    def evaluate(
        self,
        data: Any = None,
        *,
        names: str | list[str] | tuple[str, ...] | None = None,
        num_draws: int | None = None,
        unseen: Literal["error", "draw"] = "error",
        constants: Mapping[str, Any] | None = None,
        batch_size: int | None = None,
        seed: int = 0,
    ) -> pd.Series | pd.DataFrame:
        """How good the predictions are on rows whose outcome is known (see `langevin.predicting.scores`).

        RMSE, NLL, CRPS and the coverage of 50 % and 90 % intervals of a number; accuracy, NLL, Brier score and ECE of a
        class. On the rows of the fit they flatter the model: give rows that it has not seen.

        Args:
            data: Rows with the observed columns; by default those of the fit.
            names: As in `predict`.
            num_draws: As in `predict`.
            unseen: As in `predict`.
            constants: As in `predict`.
            batch_size: As in `predict`.
            seed: As in `predict`.

        Returns:
            The scores of the observed site; of several sites, one row each.
        """
        from langevin.predicting.scores import evaluated

        options = {"names": names, "num_draws": num_draws, "unseen": unseen, "constants": constants, "seed": seed}
        return evaluated(_fit(self), data, batch_size, options)

    def predictive_check(
        self, *, most_rows: int = 2000, num_draws: int | None = None, seed: int = 0
    ) -> PredictiveCheck:
        """Compares the data with what the fitted model replicates, by a few statistics with their p-values.

        Args:
            most_rows: Of more rows, so many evenly spread ones are looked at.
            num_draws: As in `predict`.
            seed: As in `predict`.

        Returns:
            An object that says so in sentences, with the numbers in its `table`.
        """
        from langevin.predicting.checking import checked

        return checked(_fit(self), most_rows, num_draws, seed)

    def infer_discrete(
        self,
        data: Any = None,
        *,
        kind: Literal["draws", "probabilities"] = "draws",
        batch_size: int | None = None,
        seed: int = 0,
    ) -> xr.Dataset:
        """The discrete sites that were summed out, given the rows and each draw: from their exact distribution.

        Args:
            data: Rows, with the columns of the fit; by default its own. Sites that are not of a row follow from these
                rows and the draws alone.
            kind: "draws" for one joint draw of them with each draw of the fit (dimensions chain, draw, then the site's
                own; `weight` as in the fit); "probabilities" for the probability of each value, averaged over the
                weighted draws, in memory that does not grow with their number.
            batch_size: Rows at a time, for a fit by minibatches; by default as many as go well into memory.
            seed: The same seed gives the same bits.

        Raises:
            SettingError: If nothing was summed out, or the fit was loaded without its model.
            DataError: If the columns are not those of the fit.

        Example:
            >>> import langevin as lv, numpyro, numpyro.distributions as dist
            >>> def model(y):
            ...     m = numpyro.sample("m", dist.Normal(0.0, 1.0))
            ...     with numpyro.plate("rows", len(y)):
            ...         far = numpyro.sample("far", dist.Bernoulli(0.5))
            ...         numpyro.sample("y", dist.Normal(m + 5.0 * far, 1.0), obs=y)
            >>> fit = lv.fit(model, {"y": [-0.2, 0.3, 5.1]}, progress=False)
            >>> fit.infer_discrete(kind="probabilities")["far"].sel(far_value=1).values.round(1).tolist()
            [0.0, 0.0, 1.0]
        """
        from langevin.labelling import infer_discrete

        return infer_discrete(_fit(self), data, kind, batch_size, seed)

    def loo(self, num_rows: int | None = None, *, data: Any = None, seed: int = 0) -> ELPDData:
        """The expected log predictive density of a row that the model has not seen, summed over the rows.

        By leave-one-out cross-validation with Pareto-smoothed importance sampling (see `langevin.criticism.loo`), in
        bounded memory. A row counts with all that was observed in it. Draws of an approximation whose ratios p / q are
        known are corrected by them. `arviz_stats.compare` takes the results of several models; with a sample of the
        rows, take the same seed for all.

        Args:
            num_rows: Rows to leave out, a random sample of them; all by default. With a sample the result has
                `subsampling_se`, the error by the sampling, which is also in `se`.
            data: For a fit that was loaded with its model: the rows that it was fitted to.
            seed: Of the sample.

        Returns:
            ArviZ's ELPDData: `elpd` with its error `se`, `p`, and by row `elpd_i` and `pareto_k`.

        Example:
            >>> import langevin as lv
            >>> normal = lv.Density(lambda m: -m**2 / 2, lambda m, rows: -(rows["x"] - m)**2 / 2, init=0.0)
            >>> fit = lv.fit(normal, {"x": [1.0, 2.0, 3.0]}, progress=False)
            >>> bool(fit.loo().elpd < fit.target.log_likelihood(1.5).sum())
            True
        """
        from langevin.criticism.loo import loo_of_fit

        return loo_of_fit(_fit(self), num_rows, data, seed)


def _fit(predictions: Predictions) -> Fit:
    return cast("Fit", predictions)
