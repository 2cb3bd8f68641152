"""Pieces of a long time series in place of all of it."""

from __future__ import annotations

import dataclasses

from langevin import checks, spelling


@dataclasses.dataclass(frozen=True)
class Subsequences:
    """How a long time series is cut: a step sees pieces of it, each with a buffer before it.

    Args:
        length: Steps of time in a piece.
        buffer: Steps before it, from which the state at its beginning is inferred. What was before the buffer is
            forgotten, a bias that falls geometrically with the buffer's length.

    Example:
        >>> Subsequences(length=500, buffer=50).width
        550
    """

    length: int
    buffer: int

    def __post_init__(self) -> None:
        object.__setattr__(self, "length", checks.count("Subsequences", "length", self.length))
        object.__setattr__(self, "buffer", checks.count("Subsequences", "buffer", self.buffer, least=1))

    @property
    def width(self) -> int:
        """Steps that are read for a piece."""
        return self.length + self.buffer


spelling.check_keywords(Subsequences)
