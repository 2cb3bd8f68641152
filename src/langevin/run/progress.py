"""What a person sees while a run goes on: rate, time left, log-density, acceptance."""

from __future__ import annotations

import time
import warnings
from collections.abc import Callable
from types import TracebackType

from langevin.contracts import Chunk
from langevin.errors import LangevinWarning

Watch = Callable[[Chunk], None]

# A run that takes longer than this says so on the terminal; and without bars, in a warning, if it takes very long.
LONG, VERY_LONG = 60.0, 600.0
# By then, warm-up has seen more than its first, short trajectories.
SECONDS_TO_TELL = 5.0


def silent(chunk: Chunk) -> None:
    """A watcher that shows nothing."""
    del chunk


class Patience:
    """A watcher without bars: it warns, once, of a run that will take very long."""

    def __init__(self, most: float = VERY_LONG) -> None:
        self._most, self._began, self._said = most, time.perf_counter(), False

    def __call__(self, chunk: Chunk) -> None:
        """Looks at a chunk."""
        sentence = self.sentence(chunk)
        if sentence:
            warnings.warn(sentence, LangevinWarning, stacklevel=2)

    def sentence(self, chunk: Chunk) -> str:
        """How long the run will take, and why, the first time that it is known to be long; else nothing."""
        early = time.perf_counter() - self._began < SECONDS_TO_TELL
        if self._said or early or chunk.seconds_left is None or chunk.seconds_left < self._most:
            return ""
        self._said = True
        shown = ", ".join(f"{name} {_short(value)}" for name, value in chunk.shown.items())
        return (
            f"The run will take about {_duration(chunk.seconds_left)} more: {chunk.phase} is at {chunk.done:,} of "
            f"{chunk.total:,}{f' ({shown})' if shown else ''}. `max_seconds` limits it; with `store=` it can be "
            "continued."
        )


class Bars:
    """A bar for each phase of a run, on the terminal or in a notebook.

    Example:
        with Bars() as watch:
            watch(chunk)
    """

    def __init__(self) -> None:
        from rich.progress import BarColumn, TextColumn

        from langevin.run.screens import screen_of

        self._screen = screen_of(
            TextColumn("{task.description:<8}"),
            BarColumn(bar_width=12),
            TextColumn("{task.percentage:>3.0f}%"),
            TextColumn("{task.fields[rate]}"),
            TextColumn("{task.fields[left]}"),
            TextColumn("{task.fields[state]}"),
        )
        self._phase, self._patience = "", Patience(LONG)
        self._task = self._began = self._first = None

    def __enter__(self) -> Watch:
        self._screen.start()
        return self._show

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._screen.stop()

    def _show(self, chunk: Chunk) -> None:
        now, progress = time.perf_counter(), self._screen.progress
        if chunk.phase != self._phase or self._task is None or self._first is None or self._began is None:
            self._phase, self._began, self._first = chunk.phase, now, chunk.done
            self._task = progress.add_task(chunk.phase, total=chunk.total, rate="", left="", state="")
        taken = chunk.done - self._first
        # The first chunk compiles, so its time says nothing of the rate.
        rate = f"{taken / max(now - self._began, 1e-9):,.0f}/s" if taken > 0 else ""
        state = ", ".join(f"{name} {_short(value)}" for name, value in chunk.shown.items())
        left = "" if chunk.seconds_left is None else f"{_duration(chunk.seconds_left)} left"
        if chunk.done >= chunk.total:
            left = _duration(now - self._began)
        progress.update(self._task, completed=chunk.done, total=chunk.total, rate=rate, left=left, state=state)
        sentence = self._patience.sentence(chunk)
        if sentence:
            self._screen.say(sentence)
        self._screen.refresh()


def _duration(seconds: float) -> str:
    """Seconds as a person says them."""
    if seconds < 100:
        return f"{seconds:.0f} s"
    return f"{seconds / 60:.0f} min" if seconds < 6000 else f"{seconds / 3600:.1f} h"


def _short(value: float) -> str:
    return f"{value:,.1f}" if abs(value) >= 10 else f"{value:.2g}"
