"""Whether a Gaussian is around a mode, and how much of its width is made up."""

from __future__ import annotations

from collections.abc import Sequence

from langevin.diagnostics.findings import Finding, Result

# In sds, the root mean square over the coordinates.
MOST_DISTANCE = 0.2


def modal(result: Result, flat: int, distance: float, size: int, fixed: Sequence[str], judged: bool) -> list[Finding]:
    """What stands in the way of a Gaussian around a mode.

    Args:
        result: The draws.
        flat: In how many directions there was no curvature, or a negative one.
        distance: How far the mode is, in sds: the root mean square over the coordinates.
        size: How many coordinates have a width.
        fixed: The weights that stay at the mode.
        judged: Whether draws were compared with the posterior.
    """
    del result
    findings = []
    if distance > MOST_DISTANCE:
        findings.append(
            Finding(
                "not settled",
                f"The climb ended before the mode, which is {distance:.2g} sds away in each coordinate, as a root mean "
                "square.",
                "The Gaussian is around another point, and as wide as the curvature there says.",
                "Climb for longer: climb=lv.MAP(num_steps=...); or with structure='dense', which goes on to the mode.",
            )
        )
    if flat:
        findings.append(
            Finding(
                "curvature",
                f"In {flat} of {size:,} directions the density does not fall from where the climb ended, or not so "
                "that it could be told from rounding.",
                "There the width of the Gaussian is made up: its sds cannot be trusted.",
                "Give every unknown a proper prior, standardise columns, or climb for longer; else method='nuts' or "
                "'vi', which need no mode.",
            )
        )
    if fixed:
        findings.append(
            Finding(
                "point",
                f"{len(fixed)} arrays of weights are at the mode ({fixed[0]!r}, ...): only the last layer has a width.",
                "Predictions are as sure of what these weights say far from the data as near it.",
                "structure='kronecker' gives all weights a width.",
            )
        )
    if not judged:
        findings.append(
            Finding(
                "unchecked",
                "The distance of this approximation from the posterior was not computed: that takes a pass over all "
                "rows for each draw, and tells nothing with so many weights.",
                "Nothing is known of how right its means and sds are.",
                "Score its predictions on rows that it has not seen: fit.evaluate(data).",
            )
        )
    return findings
