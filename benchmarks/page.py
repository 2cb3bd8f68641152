"""Markdown of the benchmark page."""

from __future__ import annotations


def table(header: list[str], rows: list[list[str]]) -> str:
    """A Markdown table whose columns after the first are right-aligned."""
    rule = ["---"] + ["---:"] * (len(header) - 1)
    return "\n".join(f"| {' | '.join(cells)} |" for cells in [header, rule, *rows])
