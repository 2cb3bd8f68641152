"""Coordinate ascent and Gibbs sampling on all rows: the same bits however a run is cut, and nothing compiled twice."""

import itertools

import numpy as np
import pytest
from compilation import compilations
from conjugate import CASES

import langevin as lv
from langevin.run import drive

pytestmark = pytest.mark.filterwarnings("ignore::langevin.LangevinWarning")

CASE = CASES["mixture"]
METHODS = {"cavi": lv.CAVI(tolerance=1e-6), "gibbs": lv.Gibbs()}
SETTINGS = {"num_chains": 2, "num_warmup": 30, "num_draws": 40, "progress": False, "seed": 3}


class Killed(BaseException):
    """Ends a run at once: nothing catches it."""


def killed_at(monkeypatch, number):
    clock = itertools.count()

    def decide(self, phase):
        now = next(clock)
        if now == number:
            raise Killed
        return [1, 3, 7][now % 3], now % 2 == 0

    monkeypatch.setattr(drive._Clock, "decide", decide)


def assert_same(a, b):
    for group in a.tree.groups:
        one, other = a.tree[group].to_dataset(), b.tree[group].to_dataset()
        assert set(one.variables) == set(other.variables)
        for name in one.variables:
            np.testing.assert_array_equal(one[name].values, other[name].values, err_msg=f"{group} {name}")


@pytest.mark.parametrize("name", METHODS)
def test_resumed_to_the_same_bits_and_nothing_compiled_again(name, monkeypatch, tmp_path):
    whole = lv.fit(CASE.model, CASE.data, METHODS[name], **SETTINGS)
    with compilations() as seen:
        again = lv.fit(CASE.model, CASE.data, METHODS[name], **SETTINGS)
    assert not seen
    assert_same(again, whole)
    for number in (1, 4, 9):
        path = tmp_path / str(number)
        with monkeypatch.context() as patch, pytest.raises(Killed):
            killed_at(patch, number)
            lv.fit(CASE.model, CASE.data, METHODS[name], store=path, **SETTINGS)
            raise Killed  # a run that was over before
        assert_same(lv.resume(path, CASE.model, CASE.data, progress=False), whole)
