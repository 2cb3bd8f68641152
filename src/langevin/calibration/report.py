"""What a calibration found: a sentence, a table, and a picture."""

from __future__ import annotations

import dataclasses
import functools
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from langevin.calibration.uniform import Test, band, uniformity
from langevin.errors import SettingError

if TYPE_CHECKING:
    import pandas as pd

# The chance that a right method is called wrong.
FALSE_ALARM = 0.01
NUM_BINS = 10
MOST_PANELS = 24
MOST_NAMED = 5
BLUE, RED, GREY = "#2a6f97", "#c1121f", "#9aa5b1"


@dataclasses.dataclass(frozen=True, repr=False)
class Calibration:
    """What simulation-based calibration found.

    Attributes:
        places: For each parameter, where it is among its draws, from 0 to 1, in each simulation: uniform if the method
            is right.
        method: The name of the method.
        asked: How many simulations were asked for.
        failures: The messages of the fits that failed.
        words: How many fits had which verdict of their own.
        interrupted: Whether it was interrupted.
    """

    places: dict[str, np.ndarray]
    method: str
    asked: int
    failures: tuple[str, ...] = ()
    words: dict[str, int] = dataclasses.field(default_factory=dict)
    interrupted: bool = False

    @property
    def num_simulations(self) -> int:
        """How many simulations count."""
        return len(next(iter(self.places.values())))

    @functools.cached_property
    def tests(self) -> dict[str, Test]:
        """For each parameter, how far it is from uniform."""
        return {name: uniformity(values) for name, values in self.places.items()}

    @property
    def miscalibrated(self) -> list[str]:
        """The parameters that are further from uniform than chance allows, the furthest first.

        All are tested at once: a right method has one in a run with probability 0.01.
        """
        level = FALSE_ALARM / len(self.tests)
        found = [name for name, test in self.tests.items() if test.p_value < level]
        return sorted(found, key=lambda name: (self.tests[name].p_value, -_distance(self.tests[name])))

    @property
    def is_calibrated(self) -> bool:
        """Whether no parameter is further from uniform than chance allows."""
        return not self.miscalibrated

    @property
    def verdict(self) -> str:
        """What was found, in sentences."""
        count, wrong = len(self.tests), self.miscalibrated
        among = f"{self.num_simulations} simulations by {self.method}"
        if wrong:
            named = ", ".join(f"{name} (p {self._p(name)}: {_how(self.tests[name])})" for name in wrong[:MOST_NAMED])
            more = f" and {len(wrong) - MOST_NAMED} more" if len(wrong) > MOST_NAMED else ""
            first = f"Not calibrated: in {among}, {len(wrong)} of {count} parameters are not where their draws are: "
            sentences = [f"{first}{named}{more}."]
        else:
            least = min(self.tests, key=lambda name: self.tests[name].p_value)
            sentences = [
                f"Calibrated: in {among}, all {count} parameters are among their draws as often as they should be "
                f"(smallest p {self._p(least)}, of {least})."
            ]
        if self.failures:
            sentences.append(
                f"{len(self.failures)} of {self.asked} fits failed and do not count, which may hide what is wrong. The "
                f"last: {self.failures[-1]}"
            )
        doubted = sum(number for word, number in self.words.items() if word != "trustworthy")
        if doubted:
            sentences.append(f"{doubted} of {sum(self.words.values())} fits doubt themselves (`fit.verdict`).")
        if self.interrupted:
            sentences.append(f"It was interrupted: {self.asked} simulations were asked for.")
        return " ".join(sentences)

    def summary(self) -> pd.DataFrame:
        """One row a parameter: p-values by the distribution function and by a histogram, and how the draws are off.

        The columns `centre` and `spread` are standard errors: draws are too low where the first is above 0, and too
        narrow where the second is.
        """
        import pandas as pd
        from scipy import stats

        rows = {}
        for name, test in self.tests.items():
            counts = np.histogram(self.places[name], NUM_BINS, (0, 1))[0]
            p_histogram = float(stats.chisquare(counts).pvalue)
            rows[name] = {"p_value": test.p_value, "p_histogram": p_histogram, "centre": test.centre}
            rows[name] |= {"spread": test.spread, "calibrated": name not in self.miscalibrated}
        return pd.DataFrame.from_dict(rows, orient="index")

    def plot(self, path: str | Path | None = None, names: list[str] | None = None, probability: float = 0.95) -> Any:
        """The difference of each empirical distribution function to that of a uniform one, with its simultaneous band.

        A hill or a valley: the draws are too high or too low. First above, then below: too narrow; the other way
        round: too wide.

        Args:
            path: A file to write the picture to.
            names: The parameters to show; by default the first 24, the furthest from uniform first.
            probability: That of the band, for each parameter.

        Returns:
            A Matplotlib figure.
        """
        try:
            from matplotlib.backends.backend_agg import FigureCanvasAgg
            from matplotlib.figure import Figure
        except ImportError as error:
            raise SettingError("Pictures need Matplotlib: pip install 'langevin[plots]'.") from error
        shown = sorted(self.tests, key=lambda name: self.tests[name].p_value)[:MOST_PANELS] if names is None else names
        for name in shown:
            if name not in self.places:
                raise SettingError(f"`plot`: there is no parameter {name!r}; there are {', '.join(self.places)}.")
        columns = min(len(shown), 4)
        rows = -(-len(shown) // columns)
        figure = Figure(figsize=(2.6 * columns, 2.2 * rows), dpi=120, layout="constrained")
        FigureCanvasAgg(figure)
        panels = figure.subplots(rows, columns, sharex=True, sharey=True, squeeze=False).ravel()
        edges = band(self.num_simulations, probability)
        for axes, name in zip(panels, shown, strict=False):
            colour = RED if name in self.miscalibrated else BLUE
            below = np.searchsorted(np.sort(self.places[name]), edges.points, side="right") / self.num_simulations
            axes.fill_between(edges.points, edges.low - edges.points, edges.high - edges.points, color=GREY, alpha=0.4)
            axes.axhline(0.0, color=GREY, linewidth=0.8)
            axes.step(edges.points, below - edges.points, where="post", color=colour, linewidth=1.3)
            axes.set_title(f"{name}  (p {self._p(name)})", fontsize=9)
        for axes in panels[len(shown) :]:
            axes.set_visible(False)
        figure.supxlabel("place of the parameter among its draws", fontsize=9)
        figure.supylabel("distribution - uniform", fontsize=9)
        if path is not None:
            figure.savefig(path)
        return figure

    def _p(self, name: str) -> str:
        p_value = self.tests[name].p_value
        return f"= {p_value:.2g}" if p_value >= 1e-4 else "< 0.0001"

    def __repr__(self) -> str:
        return self.verdict


def _distance(test: Test) -> float:
    return max(abs(test.centre), abs(test.spread))


def _how(test: Test) -> str:
    """In which way draws are off, as far as two numbers can tell."""
    if _distance(test) < 2:
        return "its draws have another shape"
    # Draws that are all on one side are also further from one half than they should be.
    if abs(test.centre) > max(abs(test.spread) / 2, 2):
        return "its draws are too low" if test.centre > 0 else "its draws are too high"
    return "its draws are too narrow" if test.spread > 0 else "its draws are too wide"
