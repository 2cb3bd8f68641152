"""What a finding is, and the result that it is about."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import xarray as xr

MOST_NUMBERS = 2_000_000
LEAST_LOOKED_AT = 1000


class Finding(NamedTuple):
    """One thing to know about a run.

    Attributes:
        code: A short name: "stopped", "noise", "diverging", "depth", "energy", "not finite", "stuck", "not mixed",
            "few draws", "too wide", "point", "interrupted"; of an approximation "far off", "not settled", "skipped".
        finding: What was seen, with names and numbers.
        meaning: What follows for the user.
        remedy: What to try.
    """

    code: str
    finding: str
    meaning: str
    remedy: str

    def __str__(self) -> str:
        return f"{self.finding} {self.meaning} {self.remedy}"


class Result(NamedTuple):
    """What findings are made from, besides the numbers of the evidence.

    Attributes:
        posterior: The draws.
        stats: What was told at each draw: `weight`, zero after a chain stopped, and `lp`.
    """

    posterior: xr.Dataset
    stats: xr.Dataset

    @property
    def stopped(self) -> np.ndarray:
        """For each chain the step at which it blew up, or -1."""
        if "stopped" in self.stats:
            return np.asarray(self.stats["stopped"].values)
        return np.full(self.posterior.sizes["chain"], -1)

    def running(self) -> Result:
        """The chains that did not stop; of very many draws, evenly spread ones."""
        fine = self.stopped < 0
        numbers = sum(values.size for values in self.posterior.values())
        every = int(np.clip(numbers // MOST_NUMBERS, 1, max(self.posterior.sizes["draw"] // LEAST_LOOKED_AT, 1)))
        chosen = {"chain": fine, "draw": slice(None, None, every)}
        return Result(self.posterior.isel(chosen), self.stats.isel(chosen))
