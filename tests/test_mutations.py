"""The statistical checks must fail when the sampler is wrong: each bug is put in on purpose."""

import importlib

import jax
import numpyro
import pytest
from targets import check_against_exact, linear_regression, poisson_rate

import langevin as lv
from langevin.drivers import chains
from langevin.kernels import metrics
from langevin.models import program
from langevin.posterior import Posterior

sgld = importlib.import_module("langevin.kernels.sgld")
sghmc = importlib.import_module("langevin.kernels.sghmc")


def double_the_noise(patch):
    normal = sgld.standard_normal
    double = lambda key, like: jax.tree.map(lambda x: 2**0.5 * x, normal(key, like))  # noqa: E731
    patch.setattr(sgld, "standard_normal", double)


def drop_the_scaling(patch):
    def log_density(self, position, batch=None):
        log_prior, log_likelihood = self.terms(position, self.rows if batch is None else batch)
        return log_prior + log_likelihood.sum()

    patch.setattr(Posterior, "log_density", log_density)


def forget_the_jacobian(patch):
    class Forgetful:
        def __getattr__(self, name):
            return getattr(numpyro, name)

        def factor(self, name, value):
            return None

    patch.setattr(program, "numpyro", Forgetful())


def flip_the_momentum(patch):
    class Flipped:
        unwhiten = staticmethod(metrics.unwhiten)

        @staticmethod
        def whiten(metric, gradient):
            return jax.tree.map(lambda g: -g, metrics.whiten(metric, gradient))

    patch.setattr(sghmc, "metrics", Flipped)


def reuse_the_key(patch):
    real = chains._for_each_chain
    same = lambda function, batches, posterior, keys, *rest: real(  # noqa: E731
        function, batches, posterior, jax.vmap(lambda k: jax.random.key(0))(keys), *rest
    )
    patch.setattr(chains, "_for_each_chain", same)


BUGS = {
    "noise variance doubled": (double_the_noise, "sgld", linear_regression),
    "N/B dropped": (drop_the_scaling, "sgld", linear_regression),
    "Jacobian forgotten": (forget_the_jacobian, "sgld", poisson_rate),
    "momentum sign flipped": (flip_the_momentum, "sghmc", linear_regression),
    "key reused": (reuse_the_key, "sgld", linear_regression),
}


def fit_and_check(method, target):
    settings = {"num_chains": 32, "num_warmup": 500, "num_draws": 300, "progress": False}
    check_against_exact(lv.fit(target.model, target.data, method, batch_size=10, **settings), target, sd_tolerance=0.08)


@pytest.fixture(autouse=True)
def _fresh_caches():
    jax.clear_caches()
    yield
    jax.clear_caches()


@pytest.mark.filterwarnings("ignore::langevin.LangevinWarning")
@pytest.mark.parametrize("bug", BUGS)
def test_the_check_fails_with_the_bug_in(bug, monkeypatch):
    put_in, method, make_target = BUGS[bug]
    put_in(monkeypatch)
    with pytest.raises((AssertionError, lv.SamplingError)):
        fit_and_check(method, make_target())


@pytest.mark.parametrize(("method", "make_target"), [("sgld", poisson_rate), ("sghmc", linear_regression)])
def test_the_same_check_passes_without_it(method, make_target):
    fit_and_check(method, make_target())
