"""Where progress is shown: on a terminal, or below a cell of a notebook."""

from __future__ import annotations

import importlib
import io
import time
from typing import TYPE_CHECKING, Any, Protocol

if TYPE_CHECKING:
    from rich.progress import Progress, ProgressColumn

WIDTH = 110
SECONDS_BETWEEN = 0.1
FORMAT = '<pre style="white-space:pre;overflow-x:auto;line-height:normal;background:transparent">{code}</pre>'


class Screen(Protocol):
    """What shows bars."""

    @property
    def progress(self) -> Progress:
        """The bars."""
        ...

    def start(self) -> None:
        """Begins to show them."""
        ...

    def refresh(self) -> None:
        """Shows what changed."""
        ...

    def say(self, sentence: str) -> None:
        """Says something that stays."""
        ...

    def stop(self) -> None:
        """Leaves them as they are."""
        ...


def screen_of(*columns: ProgressColumn) -> Screen:
    """The screen of this process, for bars with these columns."""
    from rich.console import Console
    from rich.progress import Progress

    console = Console(stderr=True)
    if console.is_jupyter:
        return _Cell(columns)
    return _Terminal(Progress(*columns, console=console))


class _Terminal:
    """Rich's own display, which draws itself anew from a thread."""

    def __init__(self, progress: Progress) -> None:
        self.progress = progress

    def start(self) -> None:
        self.progress.start()

    def refresh(self) -> None:
        """The thread does."""

    def say(self, sentence: str) -> None:
        self.progress.console.print(sentence)

    def stop(self) -> None:
        self.progress.stop()


class _Cell:
    """One output of a notebook's cell, which is replaced as the run goes on.

    Rich's own display needs ipywidgets there, and warns many times a second where they are missing. IPython's display
    needs nothing, and every front end knows it.
    """

    def __init__(self, columns: tuple[ProgressColumn, ...]) -> None:
        from rich.console import Console
        from rich.progress import Progress

        # It writes into nothing: what it would have written is taken from its record.
        self._console = Console(
            file=io.StringIO(), record=True, force_jupyter=False, force_terminal=True, width=WIDTH, legacy_windows=False
        )
        self.progress = Progress(*columns, console=self._console, auto_refresh=False)
        self._said: list[str] = []
        self._handle: Any = None
        self._last = 0.0

    def start(self) -> None:
        # By its name, since it is no dependency: whoever is in a notebook has it.
        display = importlib.import_module("IPython.display").display
        self._handle = display(self._shown(), raw=True, display_id=True)

    def refresh(self) -> None:
        if time.perf_counter() - self._last >= SECONDS_BETWEEN:
            self._last = time.perf_counter()
            self._handle.update(self._shown(), raw=True)

    def say(self, sentence: str) -> None:
        self._said.append(sentence)

    def stop(self) -> None:
        self._handle.update(self._shown(), raw=True)

    def _shown(self) -> dict[str, str]:
        self._console.print(self.progress.get_renderable())
        for sentence in self._said:
            self._console.print(sentence)
        text = self._console.export_text(clear=False)
        return {"text/plain": text, "text/html": self._console.export_html(code_format=FORMAT, inline_styles=True)}
