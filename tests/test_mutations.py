"""The statistical checks must fail when the sampler is wrong: each bug is put in on purpose."""

import importlib

import jax
import jax.numpy as jnp
import pytest
from bugs import drop_the_scaling, forget_the_jacobian
from compilation import forget
from machinery import banana, check_stationary, gaussian
from recursion import check_trajectories
from targets import check_against_exact, check_within_errors, linear_regression, poisson_rate

import langevin as lv
from langevin.engines import chains, trajectories
from langevin.kernels import metrics, steppers
from langevin.run.seeds import Stream

sgld = importlib.import_module("langevin.kernels.sgld")
sghmc = importlib.import_module("langevin.kernels.sghmc")
nuts = importlib.import_module("langevin.kernels.nuts")
hmc = importlib.import_module("langevin.kernels.hmc")
mala = importlib.import_module("langevin.kernels.mala")


def double_the_noise(patch):
    normal = sgld.standard_normal
    double = lambda key, like: jax.tree.map(lambda x: 2**0.5 * x, normal(key, like))  # noqa: E731
    patch.setattr(sgld, "standard_normal", double)


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
    forget()
    yield
    forget()


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


def change_events(patch, **changed):
    """NUTS with other decisions: each is made from the arguments of `_events`."""
    real = nuts._events

    def events(tree, inputs, place, drop, part_log_weight, turns, max_depth):
        found = real(tree, inputs, place, drop, part_log_weight, turns, max_depth)
        return found._replace(**{name: decide(found, tree, inputs) for name, decide in changed.items()})

    patch.setattr(nuts, "_events", events)


def choose_leaves_evenly(patch):
    change_events(patch, take=lambda found, tree, inputs: inputs.uniforms[0] < 1 / (tree.leaf + 1))


def always_take_the_part(patch):
    change_events(patch, take_part=lambda found, tree, inputs: found.joins)


def keep_what_turned_back(patch):
    """A part that turns back, or loses the energy, is joined with the draw that it offers."""
    change_events(patch, take_part=lambda found, tree, inputs: found.take_part | (found.done & ~found.joins))


def only_forwards(patch):
    change_events(patch, heads=lambda found, tree, inputs: ~tree.ready | found.done)


def forget_the_neighbours(patch):
    real = nuts._turns

    def turns(tree, new, max_depth):
        tree, (part, whole, _) = real(tree, new, max_depth)
        return tree._replace(turned=jnp.zeros_like(tree.turned)), (part, whole, jnp.zeros_like(whole))

    patch.setattr(nuts, "_turns", turns)


def check_only_whole_parts(patch):
    """Subtrees within a part may turn back."""
    real = nuts._stretches

    def stretches(leaf, levels):
        slot, checked = real(leaf, levels)
        return slot, checked & (jnp.arange(len(checked)) == 0)

    patch.setattr(nuts, "_stretches", stretches)


def velocities_too_fast(patch):
    real = steppers.Inputs
    fast = lambda evaluate, step_size, metric, noise, uniforms: real(  # noqa: E731
        evaluate, step_size, metric, 2**0.5 * noise, uniforms
    )
    patch.setattr(steppers, "Inputs", fast)


def forget_the_kinetic_energy(patch):
    real = hmc.Point
    cold = lambda position, gradient, log_density, energy: real(position, gradient, log_density, -log_density)  # noqa: E731
    patch.setattr(hmc, "Point", cold)


def forget_the_proposal(patch):
    patch.setattr(mala, "_gain", lambda noise, back: 0.0)


def accept_everything(patch):
    real = mala.metropolis
    always = lambda state, inputs, *rest: real(state, inputs._replace(uniforms=0 * inputs.uniforms), *rest)  # noqa: E731
    patch.setattr(mala, "metropolis", always)


def gradient_of_the_wrong_length(patch):
    """Any kick that depends on the position alone leaves the target as it is: only the recursion tells."""
    real = metrics.whiten
    patch.setattr(metrics, "whiten", lambda metric, gradient: 0.9 * real(metric, gradient))


# Without a bug they pass: see tests/kernels/test_machines.py.
KERNELS = {
    "nuts": lambda posterior: lv.kernels.nuts(posterior, 0.6, max_depth=5),
    "hmc": lambda posterior: lv.kernels.hmc(posterior, 0.6),
    "mala": lambda posterior: lv.kernels.mala(posterior, 0.6),
}
KERNEL_BUGS = {
    "leaves chosen evenly": (choose_leaves_evenly, "nuts"),
    "draws from parts that turned back": (keep_what_turned_back, "nuts"),
    "only forwards in time": (only_forwards, "nuts"),
    "subtrees not checked": (check_only_whole_parts, "nuts"),
    "velocities too fast": (velocities_too_fast, "nuts"),
    "no kinetic energy": (forget_the_kinetic_energy, "hmc"),
    "no density of the proposal": (forget_the_proposal, "mala"),
    "everything accepted": (accept_everything, "mala"),
}
TREE_BUGS = {
    "the part always taken": always_take_the_part,
    "neighbours not checked": forget_the_neighbours,
    "gradient of the wrong length": gradient_of_the_wrong_length,
}


@pytest.mark.parametrize("bug", KERNEL_BUGS)
def test_a_step_changes_the_target_with_the_bug_in(bug, monkeypatch):
    put_in, name = KERNEL_BUGS[bug]
    put_in(monkeypatch)
    with pytest.raises(AssertionError, match="standard errors"):
        check_stationary(KERNELS[name], banana())


@pytest.mark.parametrize("bug", TREE_BUGS)
def test_the_recursion_tells_the_bug(bug, monkeypatch):
    TREE_BUGS[bug](monkeypatch)
    with pytest.raises(AssertionError):
        check_trajectories(gaussian(2), None, jnp.eye(2), (0.2, 0.5), max_depth=5)


def widen_the_noise(patch):
    def wider(seed, block, make):
        by = 1.2 if make.__name__ == "normal" else 1.0
        return Stream(seed, block, lambda generator, rows: by * make(generator, rows))

    patch.setattr(trajectories, "Stream", wider)


FIT_BUGS = {
    "noise too wide": (widen_the_noise, "nuts", linear_regression),
    "Jacobian forgotten": (forget_the_jacobian, "nuts", poisson_rate),
    "no density of the proposal": (forget_the_proposal, "mala", linear_regression),
}


def fit_exactly_and_check(method, target):
    settings = {"num_chains": 16, "num_draws": 2000, "progress": False}
    check_within_errors(lv.fit(target.model, target.data, method, **settings), target)


@pytest.mark.filterwarnings("ignore::langevin.LangevinWarning")
@pytest.mark.parametrize("bug", FIT_BUGS)
def test_the_exact_check_fails_with_the_bug_in(bug, monkeypatch):
    put_in, method, make_target = FIT_BUGS[bug]
    put_in(monkeypatch)
    with pytest.raises(AssertionError, match="Monte Carlo errors off"):
        fit_exactly_and_check(method, make_target())
