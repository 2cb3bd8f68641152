"""Names as codes: the levels of a column of categories, in order, and codes 0, 1, ... that stand for them."""

from __future__ import annotations

import numbers
import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Literal

import numpy as np

from langevin.errors import DataError

Label = str | int | float | bool
"""A level: what JSON can hold."""

MOST_LISTED = 5
_NUMBER = re.compile(r"\s*[-+]?(\d+([.,]\d*)?|[.,]\d+|\d{1,3}(,\d{3})+(\.\d*)?)([eE][-+]?\d+)?\s*")
_LEADING_ZERO = re.compile(r"\s*0\d+\s*")
_NOTHING = {"", "na", "n/a", "nan", "null", "none", "?", "-", "."}


def plain(value: Any) -> Label:
    """A label as JSON can hold it: numbers and text as they are, all else (intervals, dates) by its text."""
    if isinstance(value, bool | np.bool_):
        return bool(value)
    if isinstance(value, numbers.Integral):
        return int(value)
    return float(value) if isinstance(value, numbers.Real) else str(value)


def coded(values: np.ndarray) -> tuple[np.ndarray, tuple[str, ...]]:
    """Codes of text, and the levels in alphabetical order.

    Example:
        >>> codes, levels = coded(np.array(["UA", "AA", "UA"], object))
        >>> codes.tolist(), levels
        ([1, 0, 1], ('AA', 'UA'))
    """
    # By hashing: sorting millions of strings takes seconds.
    import pandas as pd

    codes, found = pd.factorize(values)
    names = [str(name) for name in found]
    order = sorted(range(len(names)), key=names.__getitem__)
    place = np.empty(len(names), np.int32)
    place[order] = np.arange(len(names), dtype=np.int32)
    return place[codes], tuple(names[i] for i in order)


def pruned(codes: np.ndarray, levels: Sequence[Label]) -> tuple[np.ndarray, tuple[Label, ...]]:
    """The codes of the levels that occur, and these levels."""
    occurs = np.bincount(codes.ravel(), minlength=len(levels)) > 0
    if occurs.all():
        return codes, tuple(levels)
    place = (np.cumsum(occurs) - 1).astype(np.int32)
    return place[codes], tuple(level for level, there in zip(levels, occurs, strict=True) if there)


def recoded(
    name: str,
    codes: np.ndarray,
    own: Sequence[Label],
    levels: Sequence[Label],
    there: np.ndarray,
    unseen: Literal["error", "draw"],
) -> tuple[np.ndarray, int]:
    """Codes by the levels of an earlier fit.

    Args:
        name: The column.
        codes: By the column's own levels.
        own: Its own levels.
        levels: Those of the fit.
        there: Where the column has a value.
        unseen: What becomes of levels that the fit did not see: "error", or "draw" for codes beyond its own.

    Returns:
        The codes, and how many levels the fit did not see.

    Raises:
        DataError: Names the levels that were not seen.
    """
    place = {level: code for code, level in enumerate(levels)}
    used = np.bincount(codes[there], minlength=len(own)) > 0
    new = [level for level, is_used in zip(own, used, strict=True) if is_used and level not in place]
    if new and unseen == "error":
        raise DataError(
            f"`data[{name!r}]` has {'levels' if len(new) > 1 else 'a level'} that the fit did not see: {listed(new)}. "
            f"It saw {listed(levels)}. Leave those rows out; or, for groups whose effects have a distribution of their "
            "own, draw from it with unseen='draw'."
        )
    place |= {level: len(levels) + i for i, level in enumerate(new)}
    # Levels that no row has need no code.
    codes_of_own = np.array([place.get(level, 0) for level in own], np.int32)
    return (codes_of_own[codes] if len(own) else codes), len(new)


def listed(labels: Iterable[Any]) -> str:
    """A few labels, and how many more there are."""
    shown = list(labels)
    more = len(shown) - MOST_LISTED
    text = ", ".join(map(repr, shown[:MOST_LISTED]))
    return f"{text} and {more} more" if more > 0 else text


def check_names(name: str, levels: Sequence[Label]) -> None:
    """Raises a DataError if a column of text is one of numbers: its codes would be taken for them."""
    texts = [str(level) for level in levels]
    values = [text for text in texts if text.strip().lower() not in _NOTHING]
    if not values or any(_LEADING_ZERO.fullmatch(text) or not _NUMBER.fullmatch(text) for text in values):
        return
    odd = [text for text in texts if text not in values]
    beside = f" (and {listed(odd)} where there is none)" if odd else ""
    raise DataError(
        f"`data[{name!r}]` holds numbers as text, such as {values[0]!r}{beside}. Make numbers of them, for instance "
        "with pd.to_numeric(x, errors='coerce'); or, if they are names, say so: pd.Categorical(x)."
    )


def as_labels(levels: Mapping[str, Sequence[Any]]) -> dict[str, tuple[Label, ...]]:
    """Labels by name, as JSON can hold them."""
    return {name: tuple(plain(label) for label in labels) for name, labels in levels.items()}
