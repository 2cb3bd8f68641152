"""The only loop in the house: it owns the clock, the progress, the interrupt, the sink and the checkpoint.

An engine takes at most so many steps in a call. How many make about a third of a second is told from the calls before.
That, when to write a checkpoint and when to stop are decided here and nowhere else, by the clock of one process: the
others learn of it (`_agreed`), since all must take the same steps together.
"""

from __future__ import annotations

import time
from typing import NamedTuple

import jax
import numpy as np

from langevin.contracts import Chunk, Engine, Outcome, Sink, State
from langevin.errors import SamplingError
from langevin.run.progress import Watch, silent
from langevin.run.remaining import Remaining

SECONDS_A_CHUNK = 0.3
SECONDS_A_CHECKPOINT = 2.0
# The time between two checkpoints is at least so many times that of making one.
CALMER = 20.0
FIRST_STEPS = 8
SHORT_STEPS = 4
MOST_STEPS = 2**30


class Ran(NamedTuple):
    """How a run ended.

    Attributes:
        state: The last state.
        outcome: What the engine says of it; None if it was interrupted before its first draw.
        interrupted: Whether it was cut short.
        out_of_time: Whether it was cut short by its own limit.
    """

    state: State
    outcome: Outcome | None
    interrupted: bool
    out_of_time: bool = False


def drive(
    engine: Engine,
    sink: Sink,
    watch: Watch = silent,
    state: State | None = None,
    max_seconds: float | None = None,
) -> Ran:
    """Runs an engine to its end, until its time is over, or until it is interrupted.

    Args:
        engine: The engine.
        sink: Takes the draws.
        watch: Shows progress.
        state: Where to go on; None to begin.
        max_seconds: After so long it ends with what there is; None for no limit.

    Raises:
        SamplingError: If the time is over before the first draw, and the engine has nothing to show; says in which
            phase that was, and how long the rest would have taken.
    """
    run = _Run(engine, sink, watch, engine.begin() if state is None else state)
    interrupted = False
    try:
        run.to_the_end(max_seconds)
    except KeyboardInterrupt:
        # A checkpoint only at the end: the interrupt may have come between the state of a chunk and its draws.
        interrupted = not run.finished
        if run.finished:
            sink.checkpoint(run.state)
        if not run.has_draws and not sink.durable:
            shortened = engine.cut_short(run.state)
            if shortened is not None:
                run.state = shortened
                run.to_the_end()
    out_of_time = not (run.finished or interrupted)
    if out_of_time and not run.has_draws:
        shortened = None if sink.durable else engine.cut_short(run.state)
        if shortened is None:
            raise SamplingError(run.too_late(max_seconds))
        run.state = shortened
        run.to_the_end()
    return Ran(run.state, engine.finish(run.state) if run.has_draws else None, interrupted, out_of_time)


class _Run:
    """An engine on its way."""

    def __init__(self, engine: Engine, sink: Sink, watch: Watch, state: State) -> None:
        self._engine, self._sink, self._watch = engine, sink, watch
        self.state, self.finished = state, False
        self._last: Chunk | None = None

    @property
    def has_draws(self) -> bool:
        """Whether every chain has brought a draw; of an engine that is finished, whether any has."""
        counts = self._sink.counts
        return min(counts, default=0) > 0 or (self.finished and max(counts, default=0) > 0)

    def to_the_end(self, max_seconds: float | None = None) -> None:
        """Calls the engine until it is finished, or the time is over."""
        clock, remaining = _Clock(), Remaining()
        while not (self.finished or clock.is_over(max_seconds)):
            phase = str(self.state["phase"])
            limit, due = clock.decide(phase)
            if due:
                began = time.perf_counter()
                self._sink.checkpoint(self.state)
                clock.saved(time.perf_counter() - began)
            began = time.perf_counter()
            # The state first: an interrupt may leave it ahead of the sink, but never behind.
            self.state, chunk = self._engine.advance(self.state, limit)
            clock.note(phase, chunk, time.perf_counter() - began)
            self._sink.add(chunk.draws)
            self.finished = chunk.finished
            remaining.note(chunk, time.perf_counter())
            self._last = chunk._replace(seconds_left=remaining.left(chunk))
            self._watch(self._last)
        self._sink.checkpoint(self.state)

    def too_late(self, max_seconds: float | None) -> str:
        """Says of a run without draws where its time was over."""
        chunk, where, rest = self._last, f" in the phase {self.state['phase']!r}", ""
        if chunk is not None and chunk.phase == self.state["phase"]:
            where += f", at {chunk.done:,} of {chunk.total:,}"
            if chunk.seconds_left is not None:
                rest = f" The rest would have taken about {chunk.seconds_left:,.0f} s."
        remedy = "Continue it with lv.resume" if self._sink.durable else "Give it more time, or less to do"
        return f"`max_seconds`: {max_seconds:g} s were over{where}, before the first draw.{rest} {remedy}."


class _Clock:
    """How many steps a chunk should have, by the speed of the chunks before it in the same phase."""

    def __init__(self) -> None:
        self._seconds_a_step: dict[str, float] = {}
        self._latest = SECONDS_A_CHUNK / (2 * FIRST_STEPS)
        self._began = self._saved = time.perf_counter()
        self._saving = 0.0

    def is_over(self, max_seconds: float | None) -> bool:
        """Whether the run has had so many seconds."""
        if max_seconds is None:
            return False
        return bool(_agreed(int(time.perf_counter() - self._began >= max_seconds))[0])

    def decide(self, phase: str) -> tuple[int, bool]:
        """How many steps to take at most, and whether a checkpoint is due."""
        # Of a new phase it is only known how fast the one before was.
        seconds_a_step = self._seconds_a_step.get(phase, 2 * self._latest)
        due = time.perf_counter() - self._saved > max(SECONDS_A_CHECKPOINT, CALMER * self._saving)
        limit, due = _agreed(int(np.clip(round(SECONDS_A_CHUNK / seconds_a_step), 1, MOST_STEPS)), int(due))
        if due:
            self._saved = time.perf_counter()
        return limit, bool(due)

    def saved(self, seconds: float) -> None:
        """Learns how long a checkpoint takes: of a large model it is made less often."""
        self._saved, self._saving = time.perf_counter(), seconds

    def note(self, phase: str, chunk: Chunk, seconds: float) -> None:
        """Learns from a chunk. The first one of a phase may have compiled: if it took long, a short one follows."""
        if phase in self._seconds_a_step or seconds < 2 * SECONDS_A_CHUNK:
            self._latest = max(seconds / max(chunk.steps, 1), 1e-9)
            self._seconds_a_step[phase] = self._latest
        else:
            self._seconds_a_step[phase] = SECONDS_A_CHUNK / SHORT_STEPS


def _agreed(*numbers: int) -> tuple[int, ...]:
    """The numbers of the first process, in all of them."""
    if jax.process_count() == 1:
        return numbers
    from jax.experimental import multihost_utils

    return tuple(int(number) for number in multihost_utils.broadcast_one_to_all(np.asarray(numbers)))
