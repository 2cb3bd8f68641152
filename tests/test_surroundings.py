"""Fits in threads, beside NumPyro's own inference, and in forks."""

import subprocess
import sys
import threading
from concurrent.futures import ThreadPoolExecutor

import jax
import numpy as np
import numpyro
import numpyro.distributions as dist
import pytest
from numpyro import primitives
from numpyro.infer import MCMC, NUTS

import langevin as lv
from langevin.models import stack

# Runs this short have not mixed, and say so.
pytestmark = pytest.mark.filterwarnings("ignore::langevin.LangevinWarning")

Y = np.random.default_rng(0).normal(size=20).astype(np.float32)
SHORT = {"num_warmup": 20, "num_draws": 20, "num_chains": 1, "progress": False}


def model(y):
    m = numpyro.sample("m", dist.Normal(0.0, 1.0))
    with numpyro.plate("rows", y.shape[0]):
        numpyro.sample("y", dist.Normal(m, 1.0), obs=y)


def ours(seed):
    return lv.fit(model, {"y": Y}, seed=seed, **SHORT).posterior["m"].values


def theirs(seed):
    sampler = MCMC(NUTS(model), num_warmup=20, num_samples=20, progress_bar=False)
    sampler.run(jax.random.key(seed), Y)
    return np.asarray(sampler.get_samples()["m"])


def test_threads_give_the_same_bits_as_one_after_the_other():
    expected = [ours(seed) for seed in range(3)]
    with ThreadPoolExecutor(3) as pool:
        np.testing.assert_array_equal(list(pool.map(ours, range(3))), expected)


def test_fits_beside_numpyros_own_inference():
    expected = [*(ours(seed) for seed in range(2)), *(theirs(seed) for seed in range(2))]
    with ThreadPoolExecutor(4) as pool:
        found = [*[pool.submit(ours, seed) for seed in range(2)], *[pool.submit(theirs, seed) for seed in range(2)]]
        for future, draws in zip(found, expected, strict=True):
            np.testing.assert_array_equal(future.result(timeout=120), draws)


def test_a_program_in_one_thread_does_not_see_the_handlers_of_another():
    """Each program waits for the other in the middle, which mixes two on one stack for certain."""
    barrier = threading.Barrier(2, timeout=20)

    def waits():
        numpyro.sample("first", dist.Normal(0.0, 1.0))
        barrier.wait()
        numpyro.sample("second", dist.Normal(0.0, 1.0))
        barrier.wait()

    def run(seed):
        return list(numpyro.handlers.trace(numpyro.handlers.seed(waits, seed)).get_trace())

    with ThreadPoolExecutor(2) as pool:
        assert list(pool.map(run, range(2))) == [["first", "second"]] * 2


def test_the_stack_is_a_list_to_numpyro():
    assert isinstance(primitives._PYRO_STACK, stack.ThreadStack)
    assert numpyro.handlers._PYRO_STACK is primitives._PYRO_STACK
    assert stack.stack() is primitives._PYRO_STACK
    own = stack.ThreadStack([1, 2, 3])
    own.append(4)
    own[0] = 0
    assert (own[-1], own[1:], list(reversed(own)), own.index(3), 2 in own) == (4, [2, 3, 4], [4, 3, 2, 0], 2, True)
    assert (own.pop(), len(own), bool(stack.ThreadStack())) == (4, 3, False)
    del own[0]
    assert own[::-1] == [3, 2]


def test_a_stack_in_use_is_left_alone(monkeypatch):
    used = ["a handler"]
    monkeypatch.setattr(primitives, "_PYRO_STACK", used)
    monkeypatch.setattr(stack, "MOST_WAITS", 1)
    assert stack.stack() is used
    monkeypatch.delattr(primitives, "_PYRO_STACK")
    assert list(stack.stack()) == []


FORK = """
import os, sys, warnings
warnings.simplefilter("ignore")
import jax.numpy as jnp
import langevin as lv

def fit():
    return lv.fit(lv.Density(lambda m: -m**2, init=0.0), num_warmup=20, num_draws=20, num_chains=1, progress=False)

{before}
if os.fork() == 0:
    try:
        print("draws", fit().posterior["position"].size, flush=True)
    except lv.SettingError as error:
        print(error, flush=True)
    os._exit(0)
os.wait()
"""


@pytest.mark.skipif(sys.platform == "win32", reason="Windows has no forks")
@pytest.mark.parametrize(
    ("before", "said"),
    [
        ("fit()", "This process is a fork of one that had used JAX"),
        ("jnp.ones(3).sum()", "This process is a fork of one that had used JAX"),
        ("", "draws 20"),
    ],
    ids=["after a fit", "after JAX", "before"],
)
def test_forks(before, said):
    code = FORK.format(before=before)
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=120, check=True)
    assert run.stdout.startswith(said)
    if before:
        assert "get_context('spawn')" in run.stdout
