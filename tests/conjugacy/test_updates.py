"""Coordinate ascent on nine ordinary programs, against updates that were derived by hand."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from by_hand import BY_HAND, updated
from compilation import forget
from conjugate import CASES

import langevin as lv
from langevin.conjugacy.conditionals import Equations
from langevin.conjugacy.families import Gaussian, PoweredGamma

# An ascent that is stopped after so many sweeps says so, which is right, and not what is tested here.
pytestmark = pytest.mark.filterwarnings("ignore::langevin.LangevinWarning")

SWEEPS = {"factorisation": 1500, "state_space": 300, "topics": 400}


def fitted(name, **settings):
    case = CASES[name]
    with jax.enable_x64(True):
        return lv.fit(
            case.model,
            case.data,
            lv.CAVI(**settings),
            constants=case.constants,
            num_chains=1,
            num_draws=2,
            progress=False,
        )


def arguments_of(name):
    data = {key: np.asarray(value) for key, value in (CASES[name].data or {}).items()}
    return {**data, **(CASES[name].constants or {})}


def q_of(fit):
    return {name: array.values for name, array in fit.data_tree["parameters"].data_vars.items()}


def blocks_of(fit):
    return ["+".join(sites) for sites in fit.settings["blocks"]]


def bounds_of(fit):
    return fit.data_tree["optimisation"]["elbo"].values[0]


def assert_close(ours, theirs, tolerance, atol=1e-9):
    assert set(ours) <= set(theirs)
    for key, value in ours.items():
        np.testing.assert_allclose(theirs[key], value, rtol=tolerance, atol=atol, err_msg=key)


@pytest.fixture(scope="module", params=CASES)
def settled(request):
    name = request.param
    return name, fitted(name, num_sweeps=SWEEPS.get(name, 200))


def test_derived_update_of_each_factor_returns_the_fitted_q(settled):
    name, fit = settled
    q = q_of(fit)
    seen = set()
    for block in blocks_of(fit):
        own = updated(name, block, q, arguments_of(name))
        assert_close(own, q, 1e-5)
        seen |= set(own)
    assert seen == set(q)


def test_bound_is_that_derived_by_hand(settled):
    name, fit = settled
    if not hasattr(BY_HAND[name], "bound"):
        pytest.skip("not derived")
    value = BY_HAND[name].bound(q_of(fit), **arguments_of(name))
    np.testing.assert_allclose(bounds_of(fit)[-1], value, rtol=1e-9)


def test_bound_never_falls(settled):
    bounds = bounds_of(settled[1])
    assert len(bounds) > 2
    assert np.all(np.diff(bounds) >= -1e-10 * np.abs(bounds[1:]))


@pytest.mark.parametrize("name", CASES)
def test_sweeps_are_those_derived_by_hand(name):
    """From the q after one sweep, three more; each factor in turn, as the library does it."""
    fit = fitted(name, num_sweeps=1, num_restarts=1)
    q, arguments = q_of(fit), arguments_of(name)
    for _ in range(3):
        for block in blocks_of(fit):
            q |= updated(name, block, q, arguments)
    later = fitted(name, num_sweeps=4, num_restarts=1)
    assert_close(q_of(later), q, 1e-7)
    if hasattr(BY_HAND[name], "bound"):
        np.testing.assert_allclose(bounds_of(later)[-1], BY_HAND[name].bound(q, **arguments), rtol=1e-9)


def wrong_sign(patch):
    own = Equations.natural
    patch.setattr(Equations, "natural", lambda self, name, t: _with(own(self, name, t), "x", lambda leaf: -leaf))


def forgotten_half(patch):
    own = Equations.natural
    patch.setattr(Equations, "natural", lambda self, name, t: _with(own(self, name, t), "xx", lambda leaf: 2 * leaf))


def _with(eta, key, change):
    return {name: change(leaf) if name == key else leaf for name, leaf in eta.items()}


def forgotten_variance(patch):
    """E x^2 is taken for (E x)^2."""
    own = Gaussian.expected

    def expected(self, eta):
        mean = own(self, eta)["x"]
        return {"x": mean, "xx": mean[..., :, None] * mean[..., None, :]}

    patch.setattr(Gaussian, "expected", expected)


@pytest.mark.parametrize("bug", [wrong_sign, forgotten_half, forgotten_variance])
def test_wrong_updates_are_seen(bug, monkeypatch):
    forget()
    bug(monkeypatch)
    try:
        q = q_of(fitted("regression", num_sweeps=20))
        with pytest.raises(AssertionError):
            for block in ("intercept+slopes", "noise"):
                assert_close(updated("regression", block, q, arguments_of("regression")), q, 1e-5)
    finally:
        monkeypatch.undo()
        forget()


def test_forgotten_entropy_is_seen(monkeypatch):
    forget()
    monkeypatch.setattr(PoweredGamma, "entropy", lambda self, eta: jnp.zeros(()))
    try:
        # Of the block that is updated last the bound has the normaliser; the entropy is that of the others.
        fit = fitted("mixture", num_sweeps=20, num_restarts=1)
        value = BY_HAND["mixture"].bound(q_of(fit), **arguments_of("mixture"))
        assert abs(bounds_of(fit)[-1] - value) > 0.1
    finally:
        monkeypatch.undo()
        forget()


def test_blocks_of_one_site_reach_a_lower_bound():
    """Dependence between the intercept and the slopes is lost, and with it some of the bound."""
    together, apart = (bounds_of(fitted("regression", blocks=blocks))[-1] for blocks in ("auto", "sites"))
    assert apart < together
    named = fitted("regression", blocks=(("slopes", "intercept"),))
    np.testing.assert_allclose(bounds_of(named)[-1], together, rtol=1e-6)
