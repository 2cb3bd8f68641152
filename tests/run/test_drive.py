"""The only loop: how long its chunks are, when it writes checkpoints, and what an interrupt leaves."""

import jax
import numpy as np
import pytest
from jax.experimental import multihost_utils

from langevin.contracts import Chunk, Outcome
from langevin.errors import SamplingError
from langevin.run import drive
from langevin.run.drive import FIRST_STEPS, MOST_STEPS, SECONDS_A_CHECKPOINT, SECONDS_A_CHUNK, SHORT_STEPS
from langevin.run.memory import Memory

# Steps of the chunks of an engine with the usual speed, after the first.
USUAL = 100


class Time:
    """A clock that goes on only where something is said to take time."""

    def __init__(self):
        self.now = 100.0

    def perf_counter(self):
        return self.now


@pytest.fixture
def time(monkeypatch):
    monkeypatch.setattr(drive, "time", Time())
    return drive.time


class Counting:
    """An engine of two chains: so many steps of warm-up, and then a draw in every step, which is its number."""

    num_chains = 2

    def __init__(self, time, num_draws=1000, num_warmup=0, seconds_a_step=SECONDS_A_CHUNK / USUAL, **more):
        self.time, self.num_draws, self.num_warmup, self.seconds_a_step = time, num_draws, num_warmup, seconds_a_step
        self.compiling, self.shortened = more.get("compiling", 0.0), more.get("shortened")
        self.limits, self.steps = {"warm-up": [], "sampling": []}, []

    def begin(self):
        return {"phase": "warm-up" if self.num_warmup else "sampling", "warm": 0, "drawn": 0}

    def advance(self, state, limit):
        phase, total = state["phase"], self.num_warmup if state["phase"] == "warm-up" else self.num_draws
        name = "warm" if phase == "warm-up" else "drawn"
        steps = min(limit, total - state[name])
        self.time.now += steps * self.seconds_a_step + (0.0 if self.limits[phase] else self.compiling)
        self.limits[phase].append(limit)
        self.steps.append(steps)
        done = state[name] + steps
        if phase == "warm-up":
            return state | {name: done, "phase": phase if done < total else "sampling"}, Chunk(
                phase, steps, done, total
            )
        draws = {"posterior": {"x": np.arange(state[name], done)}, "sample_stats": {}}
        return state | {name: done}, Chunk(phase, steps, done, total, draws=(draws, draws), finished=done == total)

    def finish(self, state):
        return Outcome({}, {"drawn": state["drawn"]})

    def cut_short(self, state):
        return None if self.shortened is None else state | self.shortened


class Sink(Memory):
    """Memory that takes notes: the state and the draws at every checkpoint."""

    def __init__(self, durable=False):
        super().__init__(2)
        self.durable, self.checkpoints = durable, []

    def checkpoint(self, state):
        self.checkpoints.append((dict(state), self.counts))

    @property
    def draws(self):
        return self.arrays(min(self.counts))["posterior"]["x"]


def interrupt_after(number):
    """A watcher that interrupts after so many chunks."""
    seen = []

    def watch(chunk):
        seen.append(chunk)
        if len(seen) == number:
            raise KeyboardInterrupt

    return watch


def test_every_draw_arrives_in_order(time):
    engine, sink, seen = Counting(time, num_draws=500, num_warmup=100), Sink(), []
    ran = drive.drive(engine, sink, seen.append)
    np.testing.assert_array_equal(sink.draws, [np.arange(500)] * 2)
    assert ran == ({"phase": "sampling", "warm": 100, "drawn": 500}, Outcome({}, {"drawn": 500}), False, False)
    assert [chunk.steps for chunk in seen] == engine.steps
    assert [chunk.finished for chunk in seen] == [False] * (len(seen) - 1) + [True]
    assert sink.checkpoints[-1] == (ran.state, (500, 500))


def test_a_run_goes_on_from_its_state(time):
    engine, sink = Counting(time, num_draws=500, num_warmup=100), Sink()
    engine.begin = None
    drive.drive(engine, sink, state={"phase": "sampling", "warm": 100, "drawn": 490})
    np.testing.assert_array_equal(sink.draws, [np.arange(490, 500)] * 2)
    assert engine.limits["warm-up"] == []


@pytest.mark.parametrize("seconds_a_step", [1e-5, 1e-3, 0.015])
def test_a_chunk_takes_a_third_of_a_second(time, seconds_a_step):
    """Of a new phase it is only known how fast the one before was: its first chunk has half of the steps."""
    a_chunk = int(SECONDS_A_CHUNK / seconds_a_step)
    engine = Counting(time, 5 * a_chunk, 50 + 5 * a_chunk, seconds_a_step)
    drive.drive(engine, Sink())
    warm_up, sampling = engine.limits.values()
    assert warm_up[0] == FIRST_STEPS
    np.testing.assert_allclose(warm_up[1:], a_chunk, atol=1)
    assert sampling[0] == pytest.approx(a_chunk / 2, abs=1)
    np.testing.assert_allclose(sampling[1:], a_chunk, atol=1)
    assert min(len(warm_up), len(sampling)) > 4


def test_the_time_of_a_chunk_that_compiles_says_nothing(time):
    engine = Counting(time, 1000, 1000, compiling=20.0)
    drive.drive(engine, Sink())
    warm_up, sampling = engine.limits.values()
    assert warm_up[:2] == [FIRST_STEPS, SHORT_STEPS]
    np.testing.assert_allclose(warm_up[2:], USUAL, atol=1)
    assert sampling[0] == pytest.approx(USUAL / 2, abs=1)
    assert sampling[1] == SHORT_STEPS
    np.testing.assert_allclose(sampling[2:], USUAL, atol=1)


def test_chunks_follow_the_speed(time):
    """Also where it changes on the way."""
    engine, sink = Counting(time, 10_000, seconds_a_step=1e-3), Sink()

    def slower(chunk):
        if chunk.done > 5000:
            engine.seconds_a_step = 1e-2

    drive.drive(engine, sink, slower)
    assert engine.limits["sampling"][10] == pytest.approx(300, abs=1)
    assert engine.limits["sampling"][-1] == pytest.approx(30, abs=1)


@pytest.mark.parametrize(("seconds_a_step", "expected"), [(1000.0, 1), (0.0, SECONDS_A_CHUNK / 1e-9)])
def test_a_chunk_has_a_step_at_least_and_never_too_many(time, seconds_a_step, expected):
    engine = Counting(time, 200, seconds_a_step=seconds_a_step)
    drive.drive(engine, Sink())
    assert engine.limits["sampling"][-1] == pytest.approx(expected, rel=1e-6)
    assert max(engine.limits["sampling"]) <= MOST_STEPS


def test_checkpoints_are_written_after_a_time_and_at_the_end(time):
    """Each with the state that belongs to the draws that the sink has."""
    engine, sink = Counting(time, num_draws=5000, num_warmup=5000, seconds_a_step=1e-2), Sink()
    began = time.now
    drive.drive(engine, sink)
    assert all(counts == (state["drawn"],) * 2 for state, counts in sink.checkpoints)
    done = [state["warm"] + state["drawn"] for state, _ in sink.checkpoints]
    between = 1e-2 * np.diff([0, *done])
    assert (between[:-1] > SECONDS_A_CHECKPOINT).all()
    assert (between < SECONDS_A_CHECKPOINT + 2 * SECONDS_A_CHUNK).all()
    assert done[-1] == 10_000
    assert time.now - began == pytest.approx(100)


def test_a_long_chunk_is_followed_by_a_checkpoint(time):
    engine, sink = Counting(time, num_draws=120, seconds_a_step=10.0), Sink()
    drive.drive(engine, sink)
    # The time of the first chunk is not believed: it may have compiled.
    second = FIRST_STEPS + SHORT_STEPS
    assert [state["drawn"] for state, _ in sink.checkpoints] == [FIRST_STEPS, *range(second, 121)]


@pytest.mark.parametrize("durable", [False, True])
def test_an_interrupt_leaves_the_chunks_that_are_complete(time, durable):
    """Here it comes in the middle of the third, and before that after the second was taken."""
    for watch, broken in ((interrupt_after(2), None), (lambda chunk: None, 3)):
        engine, sink = Counting(time), Sink(durable)
        advance = engine.advance

        def interrupted(state, limit, engine=engine, advance=advance, broken=broken):
            out = advance(state, limit)
            if len(engine.steps) == broken:
                raise KeyboardInterrupt
            return out

        engine.advance = interrupted
        ran = drive.drive(engine, sink, watch)
        assert ran.interrupted
        assert ran.outcome.settings == {"drawn": FIRST_STEPS + USUAL}
        np.testing.assert_array_equal(sink.draws, [np.arange(FIRST_STEPS + USUAL)] * 2)
        # The draws of a chunk may be there without its state, or the other way round.
        assert sink.checkpoints == []


def test_an_interrupt_while_draws_are_taken_leaves_a_state_that_can_be_finished(time):
    """The engine is asked what it says of a state that has draws, whether the sink has the last of them or not."""
    engine, sink = Counting(time), Sink()
    add = sink.add

    def interrupted(draws):
        add(draws)
        if len(engine.steps) == 1:
            raise KeyboardInterrupt

    sink.add = interrupted
    ran = drive.drive(engine, sink)
    assert ran.outcome.settings["drawn"] >= min(sink.counts) == FIRST_STEPS


def test_an_interrupt_after_the_last_chunk_is_none(time):
    engine, sink = Counting(time, num_draws=FIRST_STEPS), Sink(durable=True)
    ran = drive.drive(engine, sink, interrupt_after(1))
    assert not ran.interrupted
    assert sink.checkpoints == [(ran.state, (FIRST_STEPS, FIRST_STEPS))]


def test_an_interrupt_before_the_first_draw_leaves_nothing(time):
    ran = drive.drive(Counting(time, num_warmup=1000), Sink(), interrupt_after(2))
    assert ran == ({"phase": "warm-up", "warm": FIRST_STEPS + USUAL, "drawn": 0}, None, True, False)


def test_what_can_be_cut_short_has_draws(time):
    """Not if it is stored: then it is to be continued."""
    shortened = {"phase": "sampling", "drawn": 0}
    sink = Sink()
    ran = drive.drive(Counting(time, num_warmup=1000, shortened=shortened), sink, interrupt_after(2))
    assert ran.interrupted
    assert ran.outcome.settings == {"drawn": 1000}
    np.testing.assert_array_equal(sink.draws, [np.arange(1000)] * 2)
    stored = Sink(durable=True)
    ran = drive.drive(Counting(time, num_warmup=1000, shortened=shortened), stored, interrupt_after(2))
    assert (ran.outcome, stored.counts, stored.checkpoints) == (None, (0, 0), [])


@pytest.mark.parametrize("durable", [False, True])
def test_a_run_ends_when_its_time_is_over(time, durable):
    """With a checkpoint from which it goes on: here nothing came between a state and its draws."""
    engine, sink, began = Counting(time, num_draws=10_000, num_warmup=1000), Sink(durable), time.now
    ran = drive.drive(engine, sink, max_seconds=6.0)
    assert 6 <= time.now - began < 6 + 2 * SECONDS_A_CHUNK
    assert (ran.interrupted, ran.out_of_time) == (False, True)
    assert ran.outcome.settings == {"drawn": sink.counts[0]}
    assert 0 < sink.counts[0] < 10_000
    assert sink.checkpoints[-1] == (ran.state, sink.counts)
    drive.drive(engine, sink, state=ran.state)
    np.testing.assert_array_equal(sink.draws, [np.arange(10_000)] * 2)


def test_a_run_that_is_done_in_time_says_nothing(time):
    ran = drive.drive(Counting(time, num_draws=100), Sink(), max_seconds=60.0)
    assert (ran.interrupted, ran.out_of_time) == (False, False)


def test_time_that_is_over_before_the_first_draw(time):
    """What can be cut short has draws; else it is said where it was, and how long the rest would have taken."""
    shortened = {"phase": "sampling", "drawn": 0}
    ran = drive.drive(Counting(time, 50, num_warmup=10_000, shortened=shortened), Sink(), max_seconds=6.0)
    assert (ran.out_of_time, ran.outcome.settings) == (True, {"drawn": 50})
    engine = Counting(time, num_draws=5000, num_warmup=10_000)
    advance = engine.advance

    def foretelling(state, limit):
        state, chunk = advance(state, limit)
        return state, chunk._replace(later=5000)

    engine.advance = foretelling
    # 15,000 steps take 45 s, of which 6 are over.
    with pytest.raises(SamplingError, match=r"6 s were over in the phase 'warm-up', at .* about 39 s.*more time"):
        drive.drive(engine, Sink(), max_seconds=6.0)
    stored = Sink(durable=True)
    with pytest.raises(SamplingError, match=r"lv\.resume"):
        drive.drive(Counting(time, num_warmup=10_000, shortened=shortened), stored, max_seconds=6.0)
    assert stored.checkpoints[-1][0]["warm"] > 1000


def test_the_time_left_is_that_of_the_whole_run(time):
    engine, seen = Counting(time, num_draws=5000, num_warmup=5000), []
    advance = engine.advance

    def foretelling(state, limit):
        state, chunk = advance(state, limit)
        return state, chunk._replace(later=5000 if chunk.phase == "warm-up" else None)

    def watch(chunk):
        seen.append((time.now, chunk.seconds_left))

    engine.advance = foretelling
    drive.drive(engine, Sink(), watch)
    known = [(now, left) for now, left in seen if left is not None]
    assert len(known) > 0.7 * len(seen)
    for now, left in known:
        assert now + left == pytest.approx(time.now, abs=0.5)


def test_the_time_left_is_unknown_where_phases_follow_of_which_nothing_is_said(time):
    seen = []
    drive.drive(Counting(time, num_draws=5000, num_warmup=5000), Sink(), seen.append)
    assert {chunk.phase for chunk in seen if chunk.seconds_left is not None} == {"sampling"}


def test_a_second_interrupt_ends_it(time):
    def impatient(chunk):
        raise KeyboardInterrupt

    engine = Counting(time, num_warmup=1000, shortened={"phase": "sampling"})
    with pytest.raises(KeyboardInterrupt):
        drive.drive(engine, Sink(), impatient)


def test_errors_are_not_interrupts(time):
    def broken(chunk):
        raise ValueError("broken")

    with pytest.raises(ValueError, match="broken"):
        drive.drive(Counting(time), Sink(), broken)


def test_all_processes_do_what_the_first_decides(time, monkeypatch):
    """Whatever their own clocks say: a process that takes other steps than the others would wait for them forever."""
    said = []

    def broadcast(numbers):
        said.append(numbers)
        return numbers

    monkeypatch.setattr(jax, "process_count", lambda: 2)
    monkeypatch.setattr(multihost_utils, "broadcast_one_to_all", broadcast)
    first, first_sink = Counting(time, 5000, 5000, seconds_a_step=1e-2), Sink()
    drive.drive(first, first_sink, max_seconds=80.0)
    sums = iter(said.copy())
    monkeypatch.setattr(multihost_utils, "broadcast_one_to_all", lambda numbers: next(sums))
    other, other_sink = Counting(time, 5000, 5000, seconds_a_step=0.5), Sink()
    drive.drive(other, other_sink, max_seconds=80.0)
    assert first_sink.counts == other_sink.counts < (5000, 5000)
    assert other.limits == first.limits
    assert other_sink.checkpoints == first_sink.checkpoints
    assert len(first_sink.checkpoints) > 10
    assert next(sums, None) is None


def test_one_process_asks_nobody(monkeypatch):
    monkeypatch.setattr(multihost_utils, "broadcast_one_to_all", None)
    assert drive._agreed(3, 1) == (3, 1)


def test_numbers_that_are_agreed_are_whole(monkeypatch):
    monkeypatch.setattr(jax, "process_count", lambda: 2)
    monkeypatch.setattr(multihost_utils, "broadcast_one_to_all", lambda numbers: jax.numpy.asarray(numbers))
    agreed = drive._agreed(MOST_STEPS, 1)
    assert agreed == (MOST_STEPS, 1)
    assert all(type(number) is int for number in agreed)
