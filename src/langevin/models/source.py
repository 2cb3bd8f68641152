"""What a fit knows of its model, so that the model can be called again."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

from langevin.data.table import Table


class Source(NamedTuple):
    """A model as it was fitted. It lives as long as the fit does, and is not stored.

    Attributes:
        model: A NumPyro program, or an `lv.Density`.
        constants: Arguments of the program that are passed whole.
        table: The rows that it was fitted to; None for a fit that was loaded.
    """

    model: Any
    constants: Mapping[str, Any]
    table: Table | None = None
