"""Priors of the weights of an `lv.Network`, frozen weights and starts."""

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from network_cases import (
    NUMBERS,
    X,
    drawn,
    forward,
    gaussian_fixed,
    log_density,
    mlp,
    target,
    weight_prior,
)
from numpyro import distributions as dist
from scipy import stats

import langevin as lv


def test_the_default_prior_by_layer():
    class Net(eqx.Module):
        conv: eqx.nn.Conv2d
        norm: eqx.nn.LayerNorm
        wide_norm: eqx.nn.LayerNorm
        line: eqx.nn.Linear

        def __call__(self, x):
            return self.line(self.norm(jnp.mean(self.wide_norm(self.conv(x)), axis=(1, 2))))

    keys = jax.random.split(jax.random.key(0), 2)
    net = Net(
        eqx.nn.Conv2d(3, 4, 2, key=keys[0]),
        eqx.nn.LayerNorm(4),
        eqx.nn.LayerNorm((4, 2, 2)),
        eqx.nn.Linear(4, 1, key=keys[1]),
    )
    priors = lv.Network(net).priors
    expected = {
        "conv.weight": (0.0, 3 / np.sqrt(3 * 2 * 2)),
        "conv.bias": (0.0, 1.0),
        "norm.weight": (1.0, 1.0),
        "norm.bias": (0.0, 1.0),
        "wide_norm.weight": (1.0, 1.0),
        "wide_norm.bias": (0.0, 1.0),
        "line.weight": (0.0, 3 / 2),
        "line.bias": (0.0, 1.0),
    }
    assert set(priors) == set(expected)
    for name, (mean, sd) in expected.items():
        assert priors[name].batch_shape == ()
        np.testing.assert_allclose(priors[name].mean, mean)
        np.testing.assert_allclose(np.sqrt(priors[name].variance), sd, rtol=1e-6)
    # A gain that was trained is a gain.
    trained = eqx.tree_at(lambda net: net.norm.weight, net, jnp.array([0.5, 2.0, 1.0, 1.0]))
    np.testing.assert_allclose(lv.Network(trained).priors["norm.weight"].mean, 1.0)
    fewer = lv.Network(net, prior=lv.FanIn(1.0, 0.1)).priors
    np.testing.assert_allclose(fewer["line.weight"].variance, 1 / 4)
    np.testing.assert_allclose(np.sqrt(fewer["norm.bias"].variance), 0.1, rtol=1e-6)


def test_the_inputs_of_a_unit_in_a_pair():
    params = {
        "w": np.ones((5, 3), np.float32) * 2,
        "scale": np.ones(3, np.float32) * 1.5,
        "bias": np.zeros(3, np.float32),
    }
    priors = lv.Network((params, lambda p, x: (x @ p["w"] + p["bias"]) * p["scale"]), "categorical").priors
    np.testing.assert_allclose(priors["w"].variance, 9 / 5)
    np.testing.assert_allclose(priors["scale"].mean, 1.0)
    np.testing.assert_allclose(priors["bias"].mean, 0.0)


@pytest.mark.parametrize(
    ("prior", "by_hand"),
    [
        (dist.Laplace(0.0, 0.5), lambda name, value: stats.laplace.logpdf(value, 0, 0.5)),
        (
            lv.ScaleMixture(0.25, 1.0, 0.1),
            lambda name, value: np.log(0.25 * stats.norm.pdf(value) + 0.75 * stats.norm.pdf(value, 0, 0.1)),
        ),
        (
            {"layers.0.*": dist.Normal(1.0, 2.0), "*.bias": dist.Cauchy(0.0, 1.0)},
            lambda name, value: (
                stats.norm.logpdf(value, 1, 2)
                if name.startswith("layers.0")
                else stats.cauchy.logpdf(value)
                if name.endswith("bias")
                else stats.norm.logpdf(value, 0, 3 / np.sqrt(3))
            ),
        ),
        (
            lambda name, shape: dist.Normal(jnp.ones(shape), 3.0) if name == "layers.0.weight" else dist.Normal(0, 1),
            lambda name, value: (
                stats.norm.logpdf(value, 1, 3) if name == "layers.0.weight" else stats.norm.logpdf(value)
            ),
        ),
    ],
    ids=["one", "mixture", "pattern", "function"],
)
def test_priors_by_hand(prior, by_hand):
    network = lv.Network(mlp(), lv.likelihoods.Gaussian(0.3), prior)
    posterior = target(network, {"x": X, "y": NUMBERS})
    position = drawn(posterior)
    expected = sum(by_hand(name, position[name]).sum() for name in network.shapes)
    assert float(posterior.log_prior(position)) == pytest.approx(expected, rel=1e-4)


def test_a_scale_mixture_draws_what_it_says():
    mixture = lv.ScaleMixture(0.3, 2.0, 0.1)
    draws = np.asarray(mixture.sample(jax.random.key(0), (20_000,)))
    kurtosis = 3 * (0.3 * 16 + 0.7 * 1e-4) / float(mixture.variance) ** 2
    error = np.sqrt((kurtosis - 1) / len(draws)) * float(mixture.variance)
    assert abs(np.var(draws) - float(mixture.variance)) < 4 * error
    assert stats.kstest(draws, lambda x: 0.3 * stats.norm.cdf(x, 0, 2) + 0.7 * stats.norm.cdf(x, 0, 0.1)).pvalue > 1e-3


def test_frozen_weights_are_no_part_of_the_position():
    net = mlp()
    network = lv.Network(net, lv.likelihoods.Gaussian(0.3), frozen="layers.0.*")
    assert list(network.shapes) == ["layers.1.weight", "layers.1.bias"]
    assert network.num_weights == 4
    posterior = target(network, {"x": X, "y": NUMBERS})
    position = drawn(posterior)
    held = {f"layers.0.{part}": np.asarray(getattr(net.layers[0], part)) for part in ("weight", "bias")}
    expected = weight_prior(network, position) + gaussian_fixed(forward({**held, **position}), NUMBERS, position)
    assert log_density(posterior, position) == pytest.approx(expected, rel=1e-4)


def test_freezing_at_a_fit():
    class Net(eqx.Module):
        line: eqx.nn.Linear
        norm: eqx.nn.LayerNorm
        last: eqx.nn.Linear

        def __call__(self, x):
            return self.last(jnp.tanh(self.norm(self.line(x))))

    keys = jax.random.split(jax.random.key(0))
    network = lv.Network(Net(eqx.nn.Linear(2, 3, key=keys[0]), eqx.nn.LayerNorm(3), eqx.nn.Linear(3, 1, key=keys[1])))
    fit = lv.fit(network, {"x": X, "y": NUMBERS}, lv.MAP(num_steps=50), num_chains=2, progress=False)
    frozen = network.freeze(fit, "line.*")
    assert list(frozen.shapes) == ["norm.weight", "norm.bias", "last.weight", "last.bias"]
    np.testing.assert_array_equal(frozen.net.first["line.weight"], fit.posterior["line.weight"].values[0, 0])
    # Fitted gains are not ones any more, and their prior is around 1 all the same.
    assert not np.allclose(frozen.net.first["norm.weight"], 1)
    np.testing.assert_allclose(frozen.priors["norm.weight"].mean, 1.0)
    start = target(frozen, {"x": X, "y": NUMBERS}).start(np.random.default_rng(0))
    np.testing.assert_array_equal(start["last.weight"], fit.posterior["last.weight"].values[0, 0])
    twice = frozen.freeze(fit, "norm.*")
    assert list(twice.shapes) == ["last.weight", "last.bias"]
    with pytest.raises(lv.ModelError, match="name the weights to freeze"):
        network.freeze(fit)
    with pytest.raises(lv.ModelError, match="no draws of 'layers.0.weight'"):
        lv.Network(mlp()).freeze(fit, "layers.0.*")


def test_starts():
    data = {"x": X, "y": NUMBERS}
    starts = lambda network: [target(network, data).start(np.random.default_rng(s)) for s in (0, 1)]  # noqa: E731
    net = mlp(width=20)
    one, other = starts(lv.Network(net))
    for name in ("layers.0.weight", "layers.1.weight"):
        assert not np.array_equal(one[name], other[name])
        given = np.asarray(lv.Network(net).net.first[name])
        np.testing.assert_array_equal(np.sort(one[name], axis=None), np.sort(given, axis=None))
    one, other = starts(lv.Network(net, init="given"))
    np.testing.assert_array_equal(one["layers.0.weight"], np.asarray(net.layers[0].weight))
    np.testing.assert_array_equal(one["layers.0.weight"], other["layers.0.weight"])
    one, other = starts(lv.Network(lambda key: eqx.nn.MLP(2, 1, 3, 1, key=key)))
    assert not np.isin(one["layers.0.weight"], other["layers.0.weight"]).any()
    # Constant weights are no initialisation: the units of a layer would stay the same for ever.
    zeros = {"w": np.zeros((2, 4), np.float32), "b": np.zeros(4, np.float32), "v": np.ones((4, 1), np.float32) * 2}
    apply = lambda p, x: jnp.tanh(x @ p["w"] + p["b"]) @ p["v"]  # noqa: E731
    one, other = starts(lv.Network((zeros, apply)))
    assert len(np.unique(one["w"])) == 8
    assert not np.array_equal(one["w"], other["w"])


def test_weights_are_not_noncentred():
    with pytest.raises(lv.SettingError, match="`noncentred` is for sites whose scale is unknown"):
        target(lv.Network(mlp()), {"x": X, "y": NUMBERS}, noncentred=True)
