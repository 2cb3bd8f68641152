"""What an `lv.Network` is made of: pairs and modules of Flax."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from network_cases import NUMBERS, RNG, X, drawn, gaussian, gaussian_fixed, log_density, target
from scipy import stats

import langevin as lv


def test_pairs():
    def apply(params, x):
        return jnp.tanh(x @ params["first"][0] + params["first"][1]) @ params["last"] * params["sign"]

    params = {
        "first": (RNG.normal(size=(2, 3)).astype(np.float32), np.zeros(3, np.float32)),
        "last": RNG.normal(size=(3, 1)).astype(np.float32),
        # Whole numbers are no weights.
        "sign": np.array(-1),
    }
    network = lv.Network((params, apply), lv.likelihoods.Gaussian(0.3))
    assert network.shapes == {"first.0": (2, 3), "first.1": (3,), "last": (3, 1)}
    posterior = target(network, {"x": X, "y": NUMBERS})
    position = drawn(posterior)
    output = -np.tanh(X @ position["first.0"] + position["first.1"]) @ position["last"]
    prior = sum(
        stats.norm.logpdf(position[name], 0, 3 / np.sqrt(fan_in) if fan_in else 1.0).sum()
        for name, fan_in in {"first.0": 2, "first.1": 0, "last": 3}.items()
    )
    assert log_density(posterior, position) == pytest.approx(
        prior + gaussian_fixed(output, NUMBERS, position), rel=1e-4
    )
    made = lv.Network((lambda key: {"w": jax.random.normal(key, (2, 1))}, lambda p, x: x @ p["w"]))
    starts = [target(made, {"x": X, "y": NUMBERS}).start(np.random.default_rng(s))["w"] for s in (0, 1)]
    assert not np.array_equal(*starts)


def test_flax_linen():
    nn = pytest.importorskip("flax.linen")

    class Net(nn.Module):
        @nn.compact
        def __call__(self, x):
            return nn.Dense(1)(jnp.tanh(nn.LayerNorm()(nn.Dense(3)(x))))

    module = Net()
    params = module.init(jax.random.key(0), X)["params"]
    network = lv.Network((params, lambda params, x: module.apply({"params": params}, x)))
    assert network.shapes["Dense_1.kernel"] == (2, 3)
    np.testing.assert_allclose(network.priors["Dense_1.kernel"].variance, 9 / 2)
    np.testing.assert_allclose(network.priors["LayerNorm_0.scale"].mean, 1.0)
    posterior = target(network, {"x": X, "y": NUMBERS})
    assert np.isfinite(log_density(posterior, drawn(posterior)))
    with pytest.raises(lv.ModelError, match="goes as a pair"):
        lv.Network(module)


def test_flax_nnx():
    nnx = pytest.importorskip("flax.nnx")
    module = nnx.Linear(2, 1, rngs=nnx.Rngs(0))
    graph, params, rest = nnx.split(module, nnx.Param, ...)
    network = lv.Network((nnx.to_pure_dict(params), lambda params, x: nnx.merge(graph, params, rest)(x)))
    assert network.shapes == {"bias": (1,), "kernel": (2, 1)}
    posterior = target(network, {"x": X, "y": NUMBERS})
    position = drawn(posterior)
    output = X @ position["kernel"] + position["bias"]
    prior = stats.norm.logpdf(position["kernel"]).sum() + stats.norm.logpdf(position["bias"]).sum()
    assert log_density(posterior, position) == pytest.approx(prior + gaussian(output, NUMBERS, position), rel=1e-4)
    with pytest.raises(lv.ModelError, match="goes as a pair"):
        lv.Network(module)
