"""What a person sees while a run goes on: rate, time left, log-density, acceptance."""

from __future__ import annotations

import time
from collections.abc import Callable
from types import TracebackType

from langevin.contracts import Chunk

Watch = Callable[[Chunk], None]


def silent(chunk: Chunk) -> None:
    """A watcher that shows nothing."""
    del chunk


class Bars:
    """A bar for each phase of a run, on the terminal.

    Example:
        with Bars() as watch:
            watch(chunk)
    """

    def __init__(self) -> None:
        from rich.console import Console
        from rich.progress import BarColumn, Progress, TextColumn, TimeRemainingColumn

        self._progress = Progress(
            TextColumn("{task.description:<8}"),
            BarColumn(bar_width=12),
            TextColumn("{task.percentage:>3.0f}%"),
            TextColumn("{task.fields[rate]}"),
            TimeRemainingColumn(compact=True, elapsed_when_finished=True),
            TextColumn("{task.fields[state]}"),
            console=Console(stderr=True),
        )
        self._phase = ""
        self._task = self._began = self._first = None

    def __enter__(self) -> Watch:
        self._progress.start()
        return self._show

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._progress.stop()

    def _show(self, chunk: Chunk) -> None:
        now = time.perf_counter()
        if chunk.phase != self._phase or self._task is None or self._first is None or self._began is None:
            self._phase, self._began, self._first = chunk.phase, now, chunk.done
            self._task = self._progress.add_task(chunk.phase, total=chunk.total, rate="", state="")
        taken = chunk.done - self._first
        # The first chunk compiles, so its time says nothing of the rate.
        rate = f"{taken / max(now - self._began, 1e-9):,.0f}/s" if taken > 0 else ""
        state = ", ".join(f"{name} {_short(value)}" for name, value in chunk.shown.items())
        self._progress.update(self._task, completed=chunk.done, total=chunk.total, rate=rate, state=state)


def _short(value: float) -> str:
    return f"{value:,.1f}" if abs(value) >= 10 else f"{value:.2g}"
