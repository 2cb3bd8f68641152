"""What Laplace's method says of itself, and what it refuses."""

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import numpyro.distributions as dist
import pytest
from laplace_cases import QUICK, quiet, two_layers

import langevin as lv


def finding(fit, code):
    return next(str(found) for found in fit.verdict if found.code == code)


class Shared(eqx.Module):
    part: eqx.nn.Linear

    def __call__(self, x):
        return jax.vmap(self.part)(x.reshape(2, 2)).sum(axis=0)


class Tied(eqx.Module):
    part: eqx.nn.Linear

    def __call__(self, x):
        return self.part.weight.T @ jnp.tanh(self.part(x))


def test_a_skewed_posterior_is_said_to_be_far():
    skewed = lv.Density(lambda x: 0.3 * x - jnp.exp(x), init=0.0)
    with pytest.warns(lv.LangevinWarning, match="far from the posterior.*method='vi'"):
        fit = lv.fit(skewed, method="laplace", progress=False)
    assert fit.verdict.word == "wrong"


@quiet
def test_a_direction_without_curvature_is_said():
    flat = lv.Density(lambda x: -0.5 * x["a"] ** 2 - 0.5 * (x["b"] - x["c"]) ** 2, init={"a": 1.0, "b": 0.0, "c": 0.0})
    fit = lv.fit(flat, method="laplace", **QUICK)
    assert "In 1 of 3 directions the density does not fall" in finding(fit, "curvature")


@quiet
def test_a_saddle_is_said_and_a_curvature_that_is_not_finite_is_refused():
    saddle = lv.Density(lambda x: -0.5 * x[0] ** 2 + 0.5 * x[1] ** 2 - x[1] ** 4, init=np.zeros(2, np.float32))
    fit = lv.fit(saddle, method=lv.Laplace(climb=None), **QUICK)
    assert "In 1 of 2 directions" in finding(fit, "curvature")
    kink = lv.Density(lambda x: -(jnp.abs(x) ** 1.5), init=np.float32(0.0))
    with pytest.raises(lv.SamplingError, match="the curvature at the mode is not finite"):
        lv.fit(kink, method=lv.Laplace(climb=None), **QUICK)


@quiet
def test_a_climb_that_ended_early_is_said():
    network, data = two_layers(lv.likelihoods.Gaussian(0.1), rows=50)
    fit = lv.fit(network, data, lv.Laplace("kronecker", climb=lv.MAP(num_steps=2)), **QUICK)
    assert "ended before the mode" in finding(fit, "not settled")


def test_what_a_network_lacks_is_said():
    class Normed(eqx.Module):
        first: eqx.nn.Linear
        norm: eqx.nn.LayerNorm

        def __call__(self, x):
            return self.norm(self.first(x))

    keys = jax.random.split(jax.random.key(0))
    network = lv.Network(Normed(eqx.nn.Linear(4, 3, key=keys[0]), eqx.nn.LayerNorm(3)), "categorical")
    data = two_layers()[1]
    with pytest.raises(lv.SettingError, match=r"'norm.weight' is not"):
        lv.fit(network, data, lv.Laplace("kronecker"), progress=False)
    shared = lv.Network(lambda key: Shared(eqx.nn.Linear(2, 3, key=key)), "categorical")
    with pytest.raises(lv.SettingError, match="no layer can be told"):
        lv.fit(shared, data, lv.Laplace("last_layer"), progress=False)
    tied = lv.Network(lambda key: Tied(eqx.nn.Linear(4, 4, key=key)), "categorical")
    with pytest.raises(lv.SettingError, match="no layer can be told"):
        lv.fit(tied, data, lv.Laplace("kronecker"), progress=False)
    wide = lv.Network(eqx.nn.MLP(4, 3, 400, 2, key=keys[1]), "categorical")
    with pytest.raises(lv.SettingError, match="would take .* GB"):
        lv.fit(wide, data, lv.Laplace("dense"), progress=False)
    tied = lv.Network(
        eqx.nn.Linear(4, 3, use_bias=False, key=keys[0]),
        "categorical",
        lambda name, shape: dist.MultivariateNormal(np.zeros((3, 4)), np.eye(4) + 0.5),
    )
    with pytest.raises(lv.SettingError, match="independent in their prior"):
        lv.fit(tied, data, lv.Laplace("kronecker"), progress=False)
    for settings, message in (
        ({"structure": "full"}, "`structure` must be one of"),
        ({"climb": "adam"}, "`climb` must be 'auto', an lv.MAP or None"),
        ({"num_starts": 0}, "`num_starts` must be a whole number"),
    ):
        with pytest.raises(lv.SettingError, match=message):
            lv.Laplace(**settings)
