"""What a run of a large network takes of memory, in a process of its own."""

import json
import subprocess
import sys
import warnings
from pathlib import Path

import equinox as eqx
import jax
import numpy as np
import pytest

import langevin as lv
from langevin import runs

HERE = Path(__file__).parent


def run(*arguments, script="large.py"):
    done = subprocess.run(
        [sys.executable, str(HERE / script), *map(str, arguments)], capture_output=True, text=True, check=True
    )
    return json.loads(done.stdout)


def test_predictions_that_are_kept_leave_memory_flat():
    """The 800 draws more are 390 MB of weights: with them, memory would grow by at least that."""
    few, many = (run(300, num_draws, "predictions") for num_draws in (50, 850))
    assert few["weights"] == 120_901
    assert many["peak"] - few["peak"] < 200


@pytest.mark.skipif(not Path("/proc/self/statm").exists(), reason="resident memory is read from /proc")
@pytest.mark.slow
def test_predictions_of_many_images_take_bounded_memory():
    """Of one layer alone, all rows at 100 draws are 1,600 MB; two blocks are stated, of at most 200 MB."""
    seen = run(400, 10_000, 100, script="many_images.py")
    assert seen["rows"] == 10_000
    assert seen["grown"] < 500


def test_draws_that_would_fill_the_memory_are_told_of_before(monkeypatch):
    network = lv.Network(eqx.nn.Linear(2, 1, key=jax.random.key(0)))
    x = np.random.default_rng(0).normal(size=(20, 2)).astype(np.float32)
    data = {"x": x, "y": x[:, 0]}
    # 3 weights, the noise and 20 predictions, in 4 bytes each.
    needed = 2 * 10 * 4 * 24
    settings = {"num_chains": 2, "num_warmup": 5, "num_draws": 10, "progress": False}
    monkeypatch.setattr(runs, "MOST_IN_MEMORY", needed - 1)
    with pytest.warns(lv.LangevinWarning) as seen:
        lv.fit(network, data, lv.SGLD(step_size=1e-4), **settings)
    assert any("20 draws will take 0.0 GB of memory" in str(one.message) for one in seen)
    for limit, keep in ((needed, None), (needed - 1, lv.Keep(precision="half"))):
        monkeypatch.setattr(runs, "MOST_IN_MEMORY", limit)
        with warnings.catch_warnings(record=True) as seen:
            warnings.simplefilter("always")
            lv.fit(network, data, lv.SGLD(step_size=1e-4), keep=keep, **settings)
        assert not any("of memory" in str(one.message) for one in seen)
    # A point is one draw.
    monkeypatch.setattr(runs, "MOST_IN_MEMORY", 4 * 24)
    lv.fit(network, data, lv.MAP(num_steps=10), **settings)
