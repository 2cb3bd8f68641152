"""What a person sees while a run goes on: rate, time left, log-density, acceptance."""

from __future__ import annotations

import time
from collections.abc import Callable
from types import TracebackType
from typing import Any

import numpy as np

OnChunk = Callable[[int, Any], None]
Watch = Callable[[str, int], OnChunk]


def silent(phase: str, total: int) -> OnChunk:
    """A watcher that shows nothing."""
    del phase, total
    return lambda steps, info: None


class Bars:
    """A bar for each phase of a run, on the terminal.

    Example:
        with Bars() as watch:
            on_chunk = watch("sampling", 10_000)
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

    def __enter__(self) -> Watch:
        self._progress.start()
        return self._phase

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._progress.stop()

    def _phase(self, phase: str, total: int) -> OnChunk:
        task = self._progress.add_task(phase, total=total, rate="", state="compiling")
        began: list[float] = []
        taken = [0]

        def on_chunk(steps: int, info: Any) -> None:
            now = time.perf_counter()
            if began:
                taken[0] += steps
                rate = f"{taken[0] / max(now - began[0], 1e-9):,.0f}/s"
            else:
                began.append(now)
                rate = ""
            self._progress.update(task, advance=steps, rate=rate, state=_describe(info))

        return on_chunk


def _describe(info: Any) -> str:
    if hasattr(info, "elbo"):
        return f"bound {info.elbo:,.1f}, learning rate {info.learning_rate:.1g}"
    parts = [f"log-density {float(np.mean(info.log_density)):,.1f}"]
    if hasattr(info, "acceptance_rate") and float(np.mean(info.acceptance_rate)) < 1:
        parts.append(f"acceptance {float(np.mean(info.acceptance_rate)):.2f}")
    return ", ".join(parts)
