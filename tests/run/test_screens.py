"""Progress below a cell of a notebook."""

import builtins
import sys
import types
import warnings

import pytest

from langevin.contracts import Chunk
from langevin.run import progress, screens
from langevin.run.progress import Bars

CHUNK = Chunk("warm-up", 100, 200, 1000, {"acceptance": 0.8})


class ZMQInteractiveShell:
    """By the name of its class, Rich knows the shell of a kernel."""


@pytest.fixture
def outputs(monkeypatch):
    """What a front end would have shown, in its order; every output has a place."""
    shown = []

    class Handle:
        def update(self, data, raw):
            assert raw
            shown.append(("update", data))

    def display(data, raw, display_id):
        assert raw
        assert display_id
        shown.append(("display", data))
        return Handle()

    module = types.ModuleType("IPython.display")
    module.display = display
    monkeypatch.setitem(sys.modules, "IPython", types.ModuleType("IPython"))
    monkeypatch.setitem(sys.modules, "IPython.display", module)
    monkeypatch.setattr(builtins, "get_ipython", ZMQInteractiveShell, raising=False)
    monkeypatch.setattr(screens, "SECONDS_BETWEEN", 0.0)
    return shown


def test_one_output_is_replaced_as_the_run_goes_on(outputs, capfd):
    with warnings.catch_warnings():
        # Rich warns here, many times a second, that ipywidgets are missing.
        warnings.simplefilter("error")
        with Bars() as watch:
            watch(CHUNK)
            watch(CHUNK._replace(done=500))
            watch(Chunk("sampling", 100, 1000, 1000))
    assert [kind for kind, _ in outputs].count("display") == 1
    said = [data["text/plain"] for _, data in outputs]
    assert "20%" in said[1]
    assert "50%" in said[2]
    assert "acceptance 0.8" in said[2]
    last = said[-1].splitlines()
    assert [line.split()[0] for line in last if line.strip()] == ["warm-up", "sampling"]
    assert "100%" in last[1]
    pages = [data["text/html"] for _, data in outputs]
    assert all(page.startswith("<pre") and "http" not in page and "<script" not in page for page in pages)
    out, err = capfd.readouterr()
    assert out + err == ""


def test_a_long_run_is_told_of_there_too(outputs, monkeypatch):
    monkeypatch.setattr(progress, "SECONDS_TO_TELL", 0.0)
    with Bars() as watch:
        watch(CHUNK._replace(seconds_left=90.0))
        watch(CHUNK._replace(done=300, seconds_left=80.0))
    last = " ".join(outputs[-1][1]["text/plain"].split())
    assert last.count("will take about 90 s more") == 1
    assert "80 s left" in last


def test_it_is_not_shown_more_often_than_a_person_can_see(outputs, monkeypatch):
    monkeypatch.setattr(screens, "SECONDS_BETWEEN", 3600.0)
    with Bars() as watch:
        for done in range(200, 1000, 10):
            watch(CHUNK._replace(done=done))
    # The first look, at most one in between, and the last.
    assert len(outputs) <= 3
    assert "99%" in outputs[-1][1]["text/plain"]


def test_a_fit_in_a_notebook(outputs):
    import langevin as lv

    lv.fit(lv.Density(lambda x: -(x**2) / 2, init=0.0), num_draws=200, num_warmup=200)
    last = outputs[-1][1]["text/plain"]
    assert "sampling" in last
    assert "100%" in last
