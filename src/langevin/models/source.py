"""What a fit knows of its model, so that the model can be called again."""

from __future__ import annotations

import dataclasses
from collections import OrderedDict
from collections.abc import Callable, Hashable, Mapping
from typing import Any

from langevin.data.table import Table

MOST_KNOWN = 16


@dataclasses.dataclass(frozen=True, eq=False)
class Source:
    """A model as it was fitted. It lives as long as the fit does, and is not stored.

    Attributes:
        model: A NumPyro program, or an `lv.Density`.
        constants: Arguments of the program that are passed whole.
        table: The rows that it was fitted to; None for a fit that was loaded.
        is_own: `(columns, num_rows) -> bool`: whether rows are those that the fit knows, where they alone can be
            predicted; None where any can.
        why_own: Why, in a sentence.
        known: What was found out about it or compiled of it, to be used again.
    """

    model: Any
    constants: Mapping[str, Any]
    table: Table | None = None
    is_own: Callable[[Mapping[str, Any], int], bool] | None = None
    why_own: str = ""
    known: OrderedDict[Hashable, Any] = dataclasses.field(default_factory=OrderedDict)

    def once(self, key: Hashable, make: Callable[[], Any]) -> Any:
        """What `make` makes, made once for each key; the oldest is forgotten."""
        if key not in self.known:
            self.known[key] = make()
            while len(self.known) > MOST_KNOWN:
                self.known.popitem(last=False)
        return self.known[key]
