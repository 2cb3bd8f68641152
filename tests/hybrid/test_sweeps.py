"""Blocks that take turns leave the posterior where it is."""

import jax
import jax.numpy as jnp
import numpy as np
import numpyro
import numpyro.distributions as dist
import pytest
from compilation import compilations, forget
from targets import Target, check_within_errors, linear_regression
from test_runs import Killed, assert_same, cut, killed_at

import langevin as lv
from langevin.engines import sweeping
from langevin.kernels import steppers

pytestmark = pytest.mark.filterwarnings("ignore::langevin.LangevinWarning")

COVARIANCE = np.array([[1.0, 0.8, 0.3], [0.8, 2.0, 0.5], [0.3, 0.5, 0.5]])
PRECISION = np.linalg.inv(COVARIANCE)
SETTINGS = {"num_chains": 4, "num_warmup": 400, "num_draws": 3000, "progress": False, "seed": 1}


def log_density(x):
    v = jnp.concatenate([jnp.atleast_1d(x["a"]), x["b"]]) - 1.0
    return -0.5 * v @ PRECISION @ v


GAUSSIAN = lv.Density(log_density, init={"a": 0.0, "b": jnp.zeros(2)})
SDS = np.sqrt(np.diag(COVARIANCE))
TRUTH = Target(None, {}, {"a": np.ones(()), "b": np.ones(2)}, {"a": SDS[0], "b": SDS[1:]})
BLOCKS = {"a": lv.RWM(), ...: lv.NUTS()}


def check_gaussian(seed=1):
    fit = lv.fit(GAUSSIAN, method=lv.Hybrid(BLOCKS), **SETTINGS | {"seed": seed})
    check_within_errors(fit, TRUTH)
    # The dependence between blocks, which no block sees by itself.
    a, b = fit.posterior["a"].values.ravel(), fit.posterior["b"].values[..., 0].ravel()
    assert np.corrcoef(a, b)[0, 1] == pytest.approx(0.8 / np.sqrt(2), abs=0.05)


def test_a_correlated_gaussian():
    check_gaussian()


def no_refresh(patch):
    """Kernels go on with the gradients and log-densities of where the other block was."""
    real = steppers.as_kernel
    import langevin.methods.exact as exact

    patch.setattr(
        exact, "as_kernel", lambda *arguments: real(*arguments)._replace(refresh=lambda key, state, batch: state)
    )


def same_key(patch):
    patch.setattr(sweeping, "at_step", lambda key, step: jax.random.fold_in(key, 0))


def forget_the_others(patch):
    """A block is moved given where the others began."""
    real = sweeping._kernel

    def kernel(static, target, drive, number, step, scene):
        if static.parts[number].names == ("a",):
            scene = scene._replace(position={**scene.position, "b": jnp.zeros(2)})
        return real(static, target, drive, number, step, scene)

    patch.setattr(sweeping, "_kernel", kernel)


@pytest.mark.parametrize("bug", [no_refresh, same_key, forget_the_others])
def test_the_check_fails_with_the_bug_in(bug, monkeypatch):
    forget()
    bug(monkeypatch)
    with pytest.raises((AssertionError, lv.SamplingError)):
        check_gaussian()
    forget()


def test_a_step_that_is_too_long_says_so():
    """Langevin steps without a correction widen their block, which Stein's identity sees."""
    settings = SETTINGS | {"num_draws": 4000}
    fit = lv.fit(GAUSSIAN, method=lv.Hybrid({"a": lv.NUTS(), "b": lv.SGLD(step_size=0.9)}), **settings)
    ratio = fit.posterior["b"].values[..., 1].std() / SDS[2]
    assert ratio > 1.3
    assert "too wide" in {finding.code for finding in fit.verdict}
    assert fit.settings["step_size"]["b"] == pytest.approx(0.9)
    # The other block is exact, and is not what is looked at.
    assert fit.settings["evidence"]["width"]["value"] > 1.5


REGRESSION = linear_regression()


def two_blocks(x, y=None):
    """The regression with its coefficients in two sites."""
    first = numpyro.sample("first", dist.Normal(0, 1).expand([2]).to_event(1))
    rest = numpyro.sample("rest", dist.Normal(0, 1).expand([1]).to_event(1))
    with numpyro.plate("rows", x.shape[0]):
        numpyro.sample("y", dist.Normal(x @ jnp.concatenate([first, rest]), 1.0), obs=y)


MEANS, WIDTHS = REGRESSION.means["w"], REGRESSION.sds["w"]
IN_BLOCKS = Target(
    two_blocks,
    REGRESSION.data,
    {"first": MEANS[:2], "rest": MEANS[2:]},
    {"first": WIDTHS[:2], "rest": WIDTHS[2:]},
)


def test_an_exact_block_beside_one_of_minibatches():
    """SGLD with a step of its own choice for one block, NUTS on all rows for the other."""
    method = lv.Hybrid({"first": lv.SGLD(), "rest": lv.NUTS()})
    fit = lv.fit(two_blocks, REGRESSION.data, method, batch_size=100, num_chains=8, num_draws=1000, progress=False)
    for name, mean in IN_BLOCKS.means.items():
        draws = fit.posterior[name].values
        assert (np.abs(draws.mean((0, 1)) - mean) < 0.2 * IN_BLOCKS.sds[name]).all()
        assert draws.std((0, 1)) / IN_BLOCKS.sds[name] == pytest.approx(np.ones(len(mean)), abs=0.12)
    assert "in the block of SGLD" in fit.settings["approximation"]


def labelled(x, y=None):
    """Rows of two kinds, with a prior of the sd that is not conjugate."""
    mean = numpyro.sample("mean", dist.Normal(jnp.array([-1.0, 1.0]), 1.0).to_event(1))
    sd = numpyro.sample("sd", dist.HalfNormal(1.0))
    with numpyro.plate("rows", len(y)):
        z = numpyro.sample("z", dist.Bernoulli(0.3))
        numpyro.sample("y", dist.Normal(mean[z], sd), obs=y)


# Of each kind of block, and both ways of rows: model, blocks, minibatches.
COMBINATIONS = {
    "exact beside minibatches": (two_blocks, {"first": lv.HMC(), "rest": lv.SGLD()}, 50),
    "conditionals and labels": (labelled, {"mean": lv.Gibbs(), "z": lv.Enumerate(), "sd": lv.NUTS()}, None),
    "labels of minibatches": (labelled, {"mean": lv.SGLD(), "z": lv.Enumerate(), "sd": lv.RWM()}, 50),
}


def run(name, seed=3, **more):
    model, blocks, batch_size = COMBINATIONS[name]
    settings = {"num_chains": 2, "num_warmup": 60, "num_draws": 40, "progress": False, "seed": seed} | more
    return lv.fit(model, REGRESSION.data, lv.Hybrid(blocks), batch_size=batch_size, **settings)


@pytest.mark.parametrize("name", COMBINATIONS)
def test_one_cut_or_many(name, monkeypatch):
    whole = run(name)
    for limits in ([2**30], [1, 2, 3, 7, 50]):
        with monkeypatch.context() as patch:
            cut(patch, limits)
            assert_same(run(name), whole)
    with compilations() as seen:
        run(name, seed=4)
    assert seen == []


@pytest.mark.parametrize("name", COMBINATIONS)
def test_killed_and_resumed(name, monkeypatch, tmp_path):
    whole = run(name)
    for number in (1, 5):
        path = tmp_path / str(number)
        with monkeypatch.context() as patch, pytest.raises(Killed):
            killed_at(patch, number)
            run(name, store=path)
            raise Killed  # a run that was over before
        with monkeypatch.context() as patch:
            cut(patch, [3, 64, 300])
            resumed = lv.resume(path, COMBINATIONS[name][0], REGRESSION.data, progress=False)
        assert_same(resumed, whole)
