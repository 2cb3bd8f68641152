"""What is said of runs that take long."""

import warnings

import pytest

from langevin.contracts import Chunk
from langevin.errors import LangevinWarning
from langevin.run import progress
from langevin.run.progress import Bars, Patience

CHUNK = Chunk("warm-up", 100, 200, 8000, {"gradients a draw": 512.0})


@pytest.fixture(autouse=True)
def at_once(monkeypatch):
    monkeypatch.setattr(progress, "SECONDS_TO_TELL", 0.0)


def test_without_bars_a_very_long_run_warns_once():
    watch = Patience()
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        watch(CHUNK)
        watch(CHUNK._replace(seconds_left=599.0))
    with pytest.warns(LangevinWarning, match=r"about 15 min more: warm-up is at 200 of 8,000 \(gradients a draw 512"):
        watch(CHUNK._replace(seconds_left=900.0))
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        watch(CHUNK._replace(seconds_left=900.0))


def test_nothing_is_said_too_early(monkeypatch):
    monkeypatch.setattr(progress, "SECONDS_TO_TELL", 5.0)
    assert Patience().sentence(CHUNK._replace(seconds_left=900.0)) == ""


def test_bars_show_the_time_left_and_say_that_it_will_be_long(capfd):
    with Bars() as watch:
        watch(CHUNK._replace(seconds_left=30.0))
        watch(CHUNK._replace(done=300, seconds_left=90.0))
        watch(CHUNK._replace(done=400, seconds_left=90.0))
    shown = " ".join(capfd.readouterr().err.split())
    assert shown.count("will take about 90 s more") == 1
    assert "90 s left" in shown


@pytest.mark.parametrize(("seconds", "said"), [(3.2, "3 s"), (99, "99 s"), (600, "10 min"), (9000, "2.5 h")])
def test_durations(seconds, said):
    assert progress._duration(seconds) == said
