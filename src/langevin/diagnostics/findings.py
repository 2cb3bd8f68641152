"""What a finding is, the result that it is about, and the verdict that findings add up to."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import Any, Literal, NamedTuple

import numpy as np
import xarray as xr

MOST_NUMBERS = 2_000_000
LEAST_LOOKED_AT = 1000

Severity = Literal["doubtful", "wrong"]

# "wrong": means or intervals are known to be off. "doubtful": they may be, or nothing is known of that.
SEVERITIES: dict[str, Severity] = {
    "interrupted": "doubtful",
    "out of time": "doubtful",
    "stopped": "wrong",
    "noise": "doubtful",
    "diverging": "doubtful",
    "depth": "doubtful",
    "energy": "doubtful",
    "not finite": "wrong",
    "stuck": "wrong",
    "frozen": "wrong",
    "not mixed": "wrong",
    "few draws": "doubtful",
    "one chain": "doubtful",
    "too wide": "wrong",
    "drifting": "wrong",
    "elsewhere": "wrong",
    "far off": "wrong",
    "unchecked": "doubtful",
    "not settled": "doubtful",
    "falling": "doubtful",
    "skipped": "doubtful",
    "curvature": "doubtful",
    "point": "doubtful",
    "ensemble": "doubtful",
}

# These follow from what was asked for: the verdict has them, but no warning is given.
UNSURPRISING = ("point", "one chain", "unchecked", "ensemble")


class Finding(NamedTuple):
    """One thing to know about a run.

    Attributes:
        code: A short name: "stopped", "noise", "diverging", "depth", "energy", "not finite", "stuck", "frozen",
            "not mixed", "few draws", "one chain", "too wide", "drifting", "elsewhere", "point", "interrupted",
            "out of time"; of an approximation "far off", "unchecked", "not settled", "falling", "skipped",
            "curvature"; and "ensemble".
        finding: What was seen, with names and numbers.
        meaning: What follows for the user.
        remedy: What to try.
    """

    code: str
    finding: str
    meaning: str
    remedy: str

    @property
    def severity(self) -> Severity:
        """Whether the result is "wrong" by this finding, or only "doubtful"."""
        return SEVERITIES[self.code]

    def __str__(self) -> str:
        return f"{self.finding} {self.meaning} {self.remedy}"


class Verdict(tuple[Finding, ...]):
    """The findings about a result, and the word that they add up to. Empty if nothing was found.

    Example:
        >>> Verdict().word
        'trustworthy'
        >>> Verdict([Finding("point", "This is a single point.", "It says nothing of uncertainty.", "Sample.")])
        Doubtful.
          ! This is a single point. It says nothing of uncertainty. Sample.
    """

    __slots__ = ()

    @property
    def word(self) -> Literal["trustworthy", "doubtful", "wrong"]:
        """The word: "wrong" if any finding says so, "doubtful" if there is any finding, else "trustworthy"."""
        if any(finding.severity == "wrong" for finding in self):
            return "wrong"
        return "doubtful" if self else "trustworthy"

    def __repr__(self) -> str:
        if not self:
            return "Trustworthy: no fault found."
        return "\n".join([f"{self.word.capitalize()}.", *(f"  ! {finding}" for finding in self)])


class Result(NamedTuple):
    """What findings are made from, besides the numbers of the evidence.

    Attributes:
        posterior: The draws.
        stats: What was told at each draw: `weight`, zero after a chain stopped, and `lp`.
        unconstrained: The unconstrained draws, if they were kept.
        method: The description of the method: its name and settings.
        judged_by: The names by which it is judged whether chains have mixed; empty for all.
    """

    posterior: xr.Dataset
    stats: xr.Dataset
    unconstrained: xr.Dataset | None = None
    method: Mapping[str, Any] = MappingProxyType({})
    judged_by: tuple[str, ...] = ()

    @property
    def judged(self) -> xr.Dataset:
        """The draws by which mixing is judged: of a network its predictions, since weights may trade places."""
        chosen = [name for name in self.judged_by if name in self.posterior]
        return self.posterior[chosen] if chosen else self.posterior

    @property
    def stopped(self) -> np.ndarray:
        """For each chain the step at which it blew up, or -1."""
        if "stopped" in self.stats:
            return np.asarray(self.stats["stopped"].values)
        return np.full(self.posterior.sizes["chain"], -1)

    def running(self) -> Result:
        """The chains that did not stop; of very many draws, evenly spread ones."""
        fine = self.stopped < 0
        numbers = sum(values.size for values in self.judged.values())
        every = int(np.clip(numbers // MOST_NUMBERS, 1, max(self.posterior.sizes["draw"] // LEAST_LOOKED_AT, 1)))
        chosen = {"chain": fine, "draw": slice(None, None, every)}
        unconstrained = None if self.unconstrained is None else self.unconstrained.isel(chosen)
        return self._replace(
            posterior=self.posterior.isel(chosen), stats=self.stats.isel(chosen), unconstrained=unconstrained
        )
