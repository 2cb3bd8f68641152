"""Runs that survive, for EVERY method in the registry: the same bits however a run is cut, killed, stored and loaded."""

import itertools

import jax
import numpy as np
import pytest
from targets import linear_regression

import langevin as lv
from langevin.data.table import as_table
from langevin.methods import BY_NAME, describe, from_description
from langevin.run import drive
from langevin.run.store import Store

# Few draws are flagged, which is right, and not what is tested here.
pytestmark = pytest.mark.filterwarnings("ignore::langevin.LangevinWarning")

TARGET = linear_regression()
SETTINGS = {"num_chains": 2, "num_warmup": 60, "num_draws": 40, "progress": False, "seed": 3}
# Settings of a method that make its run short; all others have their defaults.
SHORT = {"map": lv.MAP(num_steps=150), "vi": lv.VI("fullrank", num_steps=300)}


def method_of(name):
    return SHORT.get(name, BY_NAME[name]())


def batch_size(method):
    return None if method.needs.minibatches == "none" else 50


def fit(name, **more):
    method = method_of(name)
    return lv.fit(TARGET.model, TARGET.data, method, batch_size=batch_size(method), **SETTINGS | more)


def assert_same(a, b):
    assert set(a.data_tree.groups) == set(b.data_tree.groups)
    for group in a.data_tree.groups:
        one, other = a.data_tree[group].to_dataset(), b.data_tree[group].to_dataset()
        assert set(one.variables) == set(other.variables), group
        for name in one.variables:
            np.testing.assert_array_equal(one[name].values, other[name].values, err_msg=f"{group} {name}")
            assert one[name].dtype == other[name].dtype, (group, name)
            assert one[name].dims == other[name].dims, (group, name)
    ours, theirs = a.settings, b.settings
    assert ours == theirs


def cut(monkeypatch, limits):
    """Makes the one loop take so many steps at a time."""
    limits = itertools.cycle(limits)
    monkeypatch.setattr(drive._Clock, "decide", lambda self, phase: (next(limits), True))


@pytest.mark.parametrize("name", BY_NAME)
def test_one_cut_or_many(name, monkeypatch):
    whole = fit(name)
    for limits in ([2**30], [1, 2, 3, 7, 50]):
        with monkeypatch.context() as patch:
            cut(patch, limits)
            assert_same(fit(name), whole)
