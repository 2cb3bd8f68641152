"""The blocks of a sweep that are moved, and what they begin with."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np

from langevin.conjugacy.conditionals import Conditionals
from langevin.contracts import Plan
from langevin.engines import conjugate
from langevin.engines.claims import Block
from langevin.engines.segments import kind_of, number_of
from langevin.geometry import conditional, mass
from langevin.posterior import Posterior
from langevin.tuning import Tuning


class Part(NamedTuple):
    """A block of continuous sites.

    Attributes:
        names: Its sites.
        method: Makes the kernel.
        adapts: Whether its step adapts to an acceptance.
        all_rows: Whether it takes all rows in every step.
        rowless: Whether no row enters its conditional density.
        derived: Its complete conditionals, if it is drawn from these; else None.
    """

    names: tuple[str, ...]
    method: Any
    adapts: bool
    all_rows: bool
    rowless: bool
    derived: Conditionals | None = None


def part_of(block: Block, target: Posterior, plan: Plan) -> Part:
    """A block that is moved, with what is derived of it.

    Raises:
        NotConjugateError: If a block that is drawn from its conditionals has none.
    """
    method = block.method
    if method.role == "conditional":
        derived = conjugate.conditionals_of(method, block.names, target, plan.seed.child("check"))
        return Part(block.names, method, adapts=False, all_rows=True, rowless=False, derived=derived)
    adapts = bool(method.acceptances) and method.step_size == "auto"
    all_rows = plan.batches is None or method.needs.minibatches == "none"
    rowless = target.by_rows and all_rows and conditional.is_rowless(target, block.names)
    if not method.acceptances:
        # Control variates of their own would be around a point that moves with the other blocks.
        method = dataclasses.replace(method, estimator="minibatch")
    return Part(block.names, method, adapts, all_rows, rowless)


def first_tuning(part: Part, size: int, epoch: int, dtype: Any) -> Tuning:
    """The tuning of a block of so many numbers of which nothing is known."""
    if not part.adapts:
        return Tuning(epoch=epoch)
    metric = mass.round_metric(kind_of(part.method.metric, size), size, 1, dtype)
    return Tuning(step_size=np.asarray(0.5 * size**-0.25, dtype), metric=metric, epoch=epoch)


def steps_of(parts: Sequence[Part], adaptations: Sequence[Any], tunings: Sequence[Tuning]) -> dict[str, float | None]:
    """The steps that the blocks came to, by their first sites; None where they change."""

    def step(part: Part, adaptation: Any, tuning: Tuning) -> float | None:
        if part.adapts:
            return float(np.exp(np.asarray(adaptation.numbers)[1]))
        given = part.method.step_size
        return float(given) if isinstance(given, (int, float)) else number_of(tuning)

    return {
        part.names[0]: step(part, adaptation, tuning)
        for part, adaptation, tuning in zip(parts, adaptations, tunings, strict=True)
        if not part.derived
    }
