"""The pictures of a fit, one call each, and how it shows itself in a notebook."""

from __future__ import annotations

import functools
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

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
