"""The pictures of a fit, one call each, and how it shows itself in a notebook."""

from __future__ import annotations

import functools
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, cast

if TYPE_CHECKING:
    from matplotlib.figure import Figure

    from langevin.result import Fit

Names = str | Sequence[str] | None


class Pictures:
    """What a `Fit` can draw. Every picture is a Matplotlib figure, with `savefig`, that no global state knows of.

    Where a fit has more coordinates than a picture can hold, those with the smallest effective sizes are shown, and the
    picture says so. Weights are honoured. Matplotlib comes with `pip install 'langevin[plots]'`.
    """

    def plot_forest(
        self, names: Names = None, *, probability: float = 0.89, most: int = 40, path: str | Path | None = None
    ) -> Figure:
        """Mean, 50 % interval and outer interval of each coordinate, one below the other, as `summary` has them.

        Sites of very different scale have an axis each. What has not mixed is red.

        Args:
            names: Sites ("theta") or coordinates ("theta[3]"); all by default.
            probability: Of the outer, equal-tailed interval.
            most: Rows at most; of more coordinates, the worst mixed are shown.
            path: Where to write the picture, if anywhere: .png, .svg or .pdf.

        Example:
            >>> import langevin as lv
            >>> fit = lv.fit(lv.Density(lambda x: -(x**2) / 2, init=0.0), progress=False)
            >>> [text.get_text() for text in fit.plot_forest().axes[0].get_yticklabels()]
            ['position']
        """
        from langevin.plots.forest import forest

        return forest(_fit(self), names, probability=probability, most=most, path=path)

    def plot_trace(self, names: Names = None, *, most: int = 6, path: str | Path | None = None) -> Figure:
        """The draws of each chain in their order, and beside them how their ranks are spread, for the worst mixed.

        The ranks of chains that have mixed are spread evenly (Vehtari et al. 2021): the lines are 1 up to chance, for
        which there is a grey band.

        Args:
            names: As in `plot_forest`.
            most: Rows at most, of two panels each.
            path: As in `plot_forest`.
        """
        from langevin.plots.trace import trace

        return trace(_fit(self), names, most=most, path=path)

    def plot_pairs(self, names: Names = None, *, most: int = 4, path: str | Path | None = None) -> Figure:
        """Draws of each pair of coordinates, for the worst mixed, in red where trajectories diverged.

        Args:
            names: As in `plot_forest`.
            most: Coordinates at most.
            path: As in `plot_forest`.
        """
        from langevin.plots.pairs import pairs

        return pairs(_fit(self), names, most=most, path=path)

    def plot_run(self, *, path: str | Path | None = None) -> Figure:
        """How the run went.

        For variational inference the bound over the steps; for samplers the log-density and the step size over the
        draws, and for HMC and NUTS the energies, of which a draw must be able to reach all.

        Args:
            path: As in `plot_forest`.
        """
        from langevin.plots.history import run

        return run(_fit(self), path)

    def plot_bands(
        self,
        column: str,
        data: Any = None,
        *,
        over: tuple[float, float] | None = None,
        parts: bool = False,
        name: str | None = None,
        num_draws: int | None = None,
        seed: int = 0,
        path: str | Path | None = None,
    ) -> Figure:
        """Predictions over one column: the mean, 50 % and 90 % bands of new observations, and what was observed.

        Rows with the same value of the column are taken together. Where the model has other columns too, so are rows
        with similar values, in at most 30 groups; of more than 2,000 rows, evenly spread ones are predicted.

        Args:
            column: A numeric column that the model is called with; "x[2]" for one of a matrix.
            data: Rows, as in `predict`; by default those of the fit.
            over: Two values of the column: between these it is predicted at evenly spaced ones, with the other columns
                at their medians (whole numbers: at the most frequent), in place of the rows.
            parts: Bands of two sds in place of quantiles: of the mean, which is what the posterior does not know
                (epistemic), and of new observations, which have noise too (aleatoric).
            name: The observed site, if there are several.
            num_draws: As in `predict`.
            seed: As in `predict`.
            path: As in `plot_forest`.
        """
        from langevin.plots.bands import bands

        options: dict[str, Any] = {"name": name, "num_draws": num_draws, "seed": seed, "path": path}
        return bands(_fit(self), column, data, over=over, parts=parts, **options)

    def plot_reliability(
        self,
        data: Any = None,
        *,
        name: str | None = None,
        bins: int = 10,
        num_draws: int | None = None,
        path: str | Path | None = None,
    ) -> Figure:
        """How often what was given a probability came true, for a site with classes: a reliability diagram.

        Rows are in bins of equal width by their predicted probability (`predict`); below is the share of rows in each.
        Of two classes the second is shown; of more, each against the others.

        Args:
            data: Rows with what was observed, best such as the fit has not seen; by default those of the fit.
            name: The observed site, if there are several.
            bins: How many.
            num_draws: As in `predict`.
            path: As in `plot_forest`.
        """
        from langevin.plots.reliability import reliability

        return reliability(_fit(self), data, name=name, bins=bins, num_draws=num_draws, path=path)

    def plot_boundary(
        self,
        columns: tuple[str, str] | None = None,
        data: Any = None,
        *,
        over: tuple[tuple[float, float], tuple[float, float]] | None = None,
        epistemic: bool = False,
        name: str | None = None,
        num_draws: int | None = None,
        path: str | Path | None = None,
    ) -> Figure:
        """The decision boundary of a site with classes over two columns: probabilities as colours, rows on top.

        Of two classes the probability of the second, with lines at 10, 25, 50, 75 and 90 %; of up to six, the colour of
        the most probable one, the paler the less probable it is. Other columns are at their medians (whole numbers: at
        the most frequent).

        Args:
            columns: Two numeric columns that the model is called with, "x[2]" for one of a matrix. May be left out
                where there are two.
            data: Rows to show, as in `predict`; by default those of the fit.
            over: The two ranges to show; by default a little more than the rows have.
            epistemic: Whether a second panel shows the sd, over draws, of the probability of the most probable class.
            name: The observed site, if there are several.
            num_draws: As in `predict`.
            path: As in `plot_forest`.
        """
        from langevin.plots.boundary import boundary

        options: dict[str, Any] = {"name": name, "num_draws": num_draws, "path": path}
        return boundary(_fit(self), columns, data, over=over, epistemic=epistemic, **options)

    def plot_out_of_distribution(
        self,
        others: Any,
        data: Any = None,
        *,
        measure: Literal["entropy", "confidence", "epistemic"] | None = None,
        name: str | None = None,
        bins: int = 30,
        num_draws: int | None = None,
        path: str | Path | None = None,
    ) -> Figure:
        """How sure the fit is of rows like its own, and of others: two histograms, and the AUROC between them.

        Args:
            others: Rows that are not like those of the fit.
            data: Rows that are, best such as the fit has not seen; by default those of the fit.
            measure: The entropy of the prediction (by default, of classes), the probability of the most probable class
                ("confidence"), or of a number the sd of its mean over draws ("epistemic").
            name: The observed site, if there are several.
            bins: How many.
            num_draws: As in `predict`.
            path: As in `plot_forest`.
        """
        from langevin.plots.novelty import out_of_distribution

        options: dict[str, Any] = {"name": name, "bins": bins, "num_draws": num_draws, "path": path}
        return out_of_distribution(_fit(self), others, data, measure=measure, **options)

    @functools.cached_property
    def _html(self) -> str:
        from langevin.plots.notebook import page

        return page(_fit(self))

    def _repr_html_(self) -> str | None:
        """The verdict, the table and small pictures, for a notebook."""
        try:
            return self._html
        except Exception:
            # A notebook that shows a fit must not fail because of how it is shown: it falls back to the text.
            return None


def _fit(pictures: Pictures) -> Fit:
    return cast(Any, pictures)
