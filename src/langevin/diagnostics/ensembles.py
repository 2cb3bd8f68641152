"""What the members of an ensemble say of themselves, and how far they agree.

Every member is judged by itself. How far the means of members lie apart is measured next to the sd within members; of
points, which have none, by itself.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from langevin.diagnostics.findings import Finding, Result, Verdict
from langevin.diagnostics.mixing import coordinate, mixing

# A member is one chain, or one point, because that was asked for.
ASKED_FOR = ("one chain", "point")


def parts(result: Result) -> list[Result]:
    """The members, each as a result of its own, with the method of a member."""
    member = result._replace(method=result.method.get("method", {}))
    return [
        member._replace(
            posterior=result.posterior.isel(chain=[chain]),
            stats=result.stats.isel(chain=[chain]),
            unconstrained=None if result.unconstrained is None else result.unconstrained.isel(chain=[chain]),
        )
        for chain in range(result.posterior.sizes["chain"])
    ]


def by_member(verdicts: Sequence[Verdict]) -> list[Finding]:
    """For each code the finding of the first member that has it, and which members that are."""
    findings = []
    codes = dict.fromkeys(finding.code for verdict in verdicts for finding in verdict)
    for code in codes:
        having = {number: f for number, verdict in enumerate(verdicts) for f in verdict[::-1] if f.code == code}
        if code in ASKED_FOR:
            continue
        first, *others = having
        also = f" (and {len(others)} of the other {len(verdicts) - 1})" if others else ""
        findings.append(having[first]._replace(finding=f"Member {first}{also}: {having[first].finding}"))
    return findings


def agreement(result: Result, asked: int, members: Sequence[Mapping[str, Any]]) -> list[Finding]:
    """How far the members agree; nothing, if all are chains of a sampler that have mixed.

    Args:
        result: The draws.
        asked: How many members were asked for.
        members: The evidence of each.
    """
    count = len(members)
    if all("mixing" in evidence for evidence in members) and count == asked > 1:
        exact = bool(members[0]["mixing"].get("exact"))
        if "not mixed" not in [finding.code for finding in mixing(result, exact)]:
            return []
    points = result.posterior.sizes["draw"] == 1
    of = f"{count} of the {asked} members" if count < asked else f"{count} members"
    what = f"These are points of {of}" if points else f"These are draws of {of}"
    return [
        Finding(
            "ensemble",
            f"{what}, each from a start of its own{_apart(result, points)}.",
            "They are not draws of one posterior: every member counts the same, and how far they agree is all that "
            "they tell.",
            "Compare predictions on rows that were held out; for a posterior, use a sampler or VI."
            if points
            else "Where members disagree there are several modes, or a member did not find its way: compare their "
            "predictions on rows that were held out.",
        )
    ]


def _apart(result: Result, points: bool) -> str:
    """How far apart members are, in the median coordinate and in the one where they are farthest apart."""
    found, name, largest = [np.zeros(0)], "", -1.0
    for values in result.running().judged.values():
        if values.dtype.kind != "f" or values.sizes["chain"] < 2:
            continue
        flat = values.values.reshape(*values.shape[:2], -1).astype(np.float64)
        apart = np.std(flat.mean(axis=1), axis=0, ddof=1)
        if not points:
            with np.errstate(divide="ignore", invalid="ignore"):
                apart = apart / np.sqrt(np.mean(np.var(flat, axis=1), axis=0))
        known = np.where(np.isfinite(apart), apart, 0.0)
        found.append(known)
        if known.size and known.max() > largest:
            largest, name = float(known.max()), coordinate(values, int(np.argmax(known)))
    if largest < 0:
        return ""
    middle = float(np.median(np.concatenate(found)))
    what = "their sd is {:.2g}" if points else "their means have an sd of {:.2g} sds within a member"
    return f"; {what.format(middle)} in the median coordinate, and {largest:.2g} at most, for {name}"
