"""Where coordinate ascent begins: the best of several short ascents, on a sample of the rows where these are many.

1. "seeding": labels of every other start are chosen as `langevin.conjugacy.seeding` says; of the rest they are random.
2. "search": a few sweeps from every start. The one with the highest bound goes on.

A maximum that a sample does not find, sweeps over all rows seldom do, and they take as much longer as there are rows.
A sample serves where rows are independent given sites that it knows as well: what it says of these is where the ascent
on all rows, or on minibatches, begins.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from langevin.conjugacy import ascent, seeding, starting
from langevin.conjugacy.ascent import Blocked, Climb
from langevin.conjugacy.conditionals import Conditionals
from langevin.contracts import Plan
from langevin.engines.double import as_double
from langevin.errors import LangevinError
from langevin.models.joint import Joint
from langevin.posterior import num_rows as num_rows_of
from langevin.run.compilation import Programs
from langevin.run.seeds import key_of

if TYPE_CHECKING:
    from langevin.methods.conjugate import CAVI

# Rows in a sample; for each number that is told of what is not of the rows there are as many more.
LEAST_SAMPLE, ROWS_A_NUMBER, MOST_SAMPLE = 10_000, 20, 200_000
SWEEPS, SWEEPS_ON_SAMPLE = 20, 100
# Starts where labels can be exchanged: so many, as far as their statistics do not become larger than this.
RESTARTS, RESTARTS_ON_SAMPLE, LEAST_RESTARTS, MOST_SEARCHED = 30, 10, 2, 4_000_000
MOST_SIDE_BY_SIDE = 4_000_000


class Search:
    """The starts of one ascent. In double precision.

    Args:
        method: The settings.
        target: The program and its rows.
        plan: What was asked of the run.
        whole: The conditionals of the ascent: on all rows, or on minibatches.
        spread: The variance of what is observed.

    Attributes:
        conditionals: Those of the search, on the sample if there is one.
        num_restarts: From how many starts.
        num_sweeps: Of each start.
        on_sample: Whether it is on some of the rows.
        has_labels: Whether there is anything to seed.
    """

    def __init__(self, method: CAVI, target: Joint, plan: Plan, whole: Conditionals, spread: float) -> None:
        self._method, self._plan, self._whole, self._spread = method, plan, whole, spread
        self.has_labels = any(block.values for block in whole.blocks)
        self._rows = target.rows
        self.conditionals, self.on_sample = self._sampled(target)
        self.num_restarts = self._restarts()
        self.num_sweeps = SWEEPS_ON_SAMPLE if self.on_sample else SWEEPS

    def begin(self) -> Climb:
        """All starts side by side, not yet seeded."""
        starts = [self._begun(kind) for kind in range(self.num_restarts)]
        return jax.tree.map(lambda *leaves: np.stack(leaves), *starts)

    def seeded(self, programs: Programs, climb: Climb) -> Climb:
        """Every other start with its labels chosen."""
        words = np.stack([self._plan.seed.child("labels", kind).key_words() for kind in range(self.num_restarts)])
        chosen = np.arange(self.num_restarts) % 2 == 0
        statistics = programs(_seeded, self._static, self._rows, climb.statistics, words, chosen)
        return climb._replace(statistics=jax.tree.map(np.asarray, statistics))

    def searched(self, programs: Programs, climb: Climb, count: int, tolerance: float) -> tuple[Climb, np.ndarray]:
        """At most so many sweeps of every start, and the bounds after them: NaN where a start has settled."""
        arguments = self._rows, climb, np.asarray(count, np.int32), tolerance
        climb, bounds, _ = jax.tree.map(np.asarray, programs(_searched, self._static, *arguments))
        return climb, bounds[:, :count]

    def taken_over(self, programs: Programs, climb: Climb, rows: Any) -> Climb:
        """An ascent on all rows from where one on the sample has come to."""
        shared = {block.name: climb.naturals[block.name] for block in self._whole.blocks if not block.local}
        begun = ascent.begun({}, self._whole)
        found = jax.tree.map(np.asarray, programs(_widened, self._whole, rows, shared))
        return begun._replace(naturals=begun.naturals | shared, statistics=found)

    # What it is made of.

    @property
    def _static(self) -> _Starts:
        return _Starts(self.conditionals, self._side_by_side, self.num_sweeps)

    def _sampled(self, target: Joint) -> tuple[Conditionals, bool]:
        """The conditionals on a sample, if one is wanted, and what is not of the rows is the same there."""
        batches, num_rows = self._plan.batches, num_rows_of(self._rows) if target.num_data else 0
        known = {block.name: block.family.like() for block in self._whole.blocks if not block.local}
        numbers = sum(int(np.prod(leaf.shape)) for like in known.values() for leaf in like.values())
        count = max(LEAST_SAMPLE, ROWS_A_NUMBER * numbers)
        if batches is not None:
            count = min(count, max(MOST_SAMPLE, batches.size), num_rows)
        elif 2 * count > num_rows or not self._wants_sample(target):
            return self._whole, False
        try:
            found = Conditionals(target, count, None, self._method.blocks, self._method.logistic)
        except LangevinError:
            if batches is not None:
                raise
            return self._whole, False
        if known != {block.name: block.family.like() for block in found.blocks if not block.local}:
            return self._whole, False
        places = np.sort(self._plan.seed.child("sample").generator().choice(num_rows, count, replace=False))
        self._rows = jax.tree.map(lambda leaf: np.asarray(leaf)[places], self._rows)
        return found, True

    def _wants_sample(self, target: Joint) -> bool:
        labels = [block for block in self._whole.blocks if block.values]
        by_rows = bool(target.structure.row_plates) and all(block.local for block in labels)
        return by_rows and (bool(labels) or (self._method.num_restarts or 1) > 1)

    def _restarts(self) -> int:
        if self._method.num_restarts is not None:
            return self._method.num_restarts
        if not self.has_labels:
            return 1
        most = RESTARTS_ON_SAMPLE if self.on_sample else RESTARTS
        return int(np.clip(MOST_SEARCHED // max(self._elements, 1), LEAST_RESTARTS, most))

    @property
    def _elements(self) -> int:
        likes = [block.family.like() for block in self.conditionals.blocks]
        return sum(int(np.prod(leaf.shape)) for like in likes for leaf in like.values())

    @property
    def _side_by_side(self) -> bool:
        return self.num_restarts * self._elements <= MOST_SIDE_BY_SIDE

    def _begun(self, kind: int) -> Climb:
        generator = self._plan.seed.child("starts").generator(kind)
        return ascent.begun(starting.statistics(self.conditionals, self._spread, generator), self.conditionals)


class _Starts(NamedTuple):
    conditionals: Conditionals
    side_by_side: bool
    most: int

    def each(self, function: Any, *stacked: Any) -> Any:
        """A function of every start."""
        if self.side_by_side:
            return jax.vmap(function)(*stacked)
        return jax.lax.map(lambda arguments: function(*arguments), stacked)


def _seeded(static: _Starts, rows: Any, statistics: Blocked, words: Any, chosen: Any) -> Blocked:
    blocks, equations = static.conditionals.blocks, static.conditionals.at(as_double(rows), as_all=True)

    def one(statistics: Blocked, words: Any, chosen: Any) -> Blocked:
        made = seeding.seeded(blocks, equations, statistics, key_of(words))
        return jax.tree.map(lambda new, old: jnp.where(chosen, new, old), made, statistics)

    return static.each(one, statistics, words, chosen)


def _searched(static: _Starts, rows: Any, climbs: Climb, count: Any, tolerance: Any) -> Any:
    equations = static.conditionals.at(as_double(rows), as_all=True)

    def one(climb: Climb) -> Any:
        return ascent.climbed(static.conditionals, climb, equations, count, static.most, tolerance)

    return static.each(one, climbs)


def _widened(conditionals: Conditionals, rows: Any, shared: Blocked) -> Blocked:
    """The statistics of all blocks: those of the rows at their optimum given the others."""
    equations, statistics = conditionals.at(as_double(rows)), {}
    for block in conditionals.blocks:
        neutral = ascent.neutral(block) if block.local else block.family.expected(shared[block.name])
        statistics[block.name] = as_double(neutral)
    return ascent.local_optimum(conditionals, equations, statistics, 1.0)[1]
