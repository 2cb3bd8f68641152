"""Copies of a fit: in this process, and in another."""

import copy
import multiprocessing
import pickle

import joblib
import numpy as np
import numpyro
import numpyro.distributions as dist
import pytest

import langevin as lv
from langevin.result import Fit
from langevin.run.tree import open_tree

# Runs this short have not mixed, and say so.
pytestmark = pytest.mark.filterwarnings("ignore::langevin.LangevinWarning")

Y = np.random.default_rng(0).normal(size=50).astype(np.float32)
SHORT = {"num_warmup": 50, "num_draws": 50, "num_chains": 2, "progress": False}


def model(y):
    scale = numpyro.sample("scale", dist.HalfNormal(1.0))
    with numpyro.plate("groups", 3):
        level = numpyro.sample("level", dist.Normal(0.0, scale))
    with numpyro.plate("rows", y.shape[0]):
        numpyro.sample("y", dist.Normal(level.sum(), 1.0), obs=y)


def fitted(seed=0, method="nuts"):
    return lv.fit(model, {"y": Y}, method, seed=seed, **SHORT)


METHODS = {"nuts": "nuts", "weighted": lv.SGLD(step_size=lv.Polynomial(1e-2, 1.0, 0.55)), "vi": lv.VI(num_steps=100)}


@pytest.fixture(scope="module", params=METHODS)
def fit(request):
    return fitted(method=METHODS[request.param])


def check_same(one, other):
    assert one.tree.identical(other.tree)
    assert list(one.posterior) == list(other.posterior)
    np.testing.assert_array_equal(one.weights, other.weights)
    assert one.settings == other.settings
    assert repr(one.verdict) == repr(other.verdict)
    assert one.summary().equals(other.summary())


def sent(fit):
    return pickle.loads(pickle.dumps(fit))


def test_copies_are_the_same(fit):
    for make in (copy.copy, copy.deepcopy, sent):
        check_same(fit, make(fit))


def test_a_copy_in_this_process_keeps_the_program(fit):
    assert fit.target is not None
    assert copy.copy(fit).target is copy.deepcopy(fit).target is fit.target
    assert copy.copy(fit).tree is fit.tree


def test_a_copy_for_another_process_leaves_the_program_behind(fit):
    other = sent(fit)
    assert other.target is None
    assert b"test_copies" not in pickle.dumps(fit)
    with pytest.raises(lv.SettingError, match="`guide` is for"):
        other.guide  # noqa: B018


def test_a_deep_copy_has_its_own_draws(fit):
    before = fit.posterior["scale"].values.copy()
    other = copy.deepcopy(fit)
    other.verdict  # noqa: B018
    other.tree["posterior"]["scale"].values[:] = 0.0
    np.testing.assert_array_equal(fit.posterior["scale"], before)
    again = copy.deepcopy(other)
    assert again.summary()["sd"]["scale"] == 0.0
    # What was known of the draws before is not taken over.
    assert "verdict" not in vars(again)


def test_a_fit_on_disk_can_be_copied(fit, tmp_path):
    fit.save(tmp_path / "saved")
    for loaded in (lv.load(tmp_path / "saved"), Fit(open_tree(tmp_path / "saved"))):
        for make in (copy.copy, copy.deepcopy, sent):
            check_same(loaded, make(loaded))
    sent(fit).save(tmp_path / "sent")
    check_same(lv.load(tmp_path / "sent"), lv.load(tmp_path / "saved"))


def test_the_weights_are_not_lost():
    weights = sent(fitted(method=METHODS["weighted"])).weights.values
    assert np.ptp(weights) > 0.5


@pytest.mark.slow
def test_other_processes_return_fits():
    expected = fitted(1)
    with multiprocessing.get_context("spawn").Pool(1) as pool:
        check_same(expected, pool.apply(fitted, (1,)))
    check_same(expected, joblib.Parallel(2)([joblib.delayed(fitted)(1)] * 2)[1])
