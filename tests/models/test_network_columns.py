"""The columns of an `lv.Network`: standardised, side by side, named."""

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from network_cases import CLASSES, NUMBERS, N, X, categorical, drawn, forward, log_density, mlp, target, weight_prior

import langevin as lv


def test_standardised_columns_are_those_standardised_by_hand():
    rng = np.random.default_rng(3)
    years = (2000 + 10 * rng.normal(size=N)).astype(np.float32)
    dollars = np.float32(5e4) + np.float32(2e4) * rng.normal(size=N).astype(np.float32)
    price = np.float32(3e5) + np.float32(1e5) * rng.normal(size=N).astype(np.float32)
    raw = {"years": years, "dollars": dollars, "price": price}
    settings = {"inputs": ["years", "dollars"], "outcome": "price"}
    network = lv.Network(mlp(), standardise=raw, **settings)
    by_hand = {name: ((v - v.mean(dtype=float)) / v.std(dtype=float)).astype(np.float32) for name, v in raw.items()}
    plain = lv.Network(mlp(), **settings)
    position = drawn(target(plain, by_hand))
    # Densities of the outcome differ by its unit alone.
    unit = N * np.log(price.std(dtype=float))
    assert log_density(target(network, raw), position) + unit == pytest.approx(
        log_density(target(plain, by_hand), position), rel=1e-4
    )
    reported = target(network, raw).constrain({name: jnp.asarray(v, jnp.float32) for name, v in position.items()})
    standard = target(plain, by_hand).constrain({name: jnp.asarray(v, jnp.float32) for name, v in position.items()})
    np.testing.assert_allclose(
        reported["prediction"], price.mean(dtype=float) + price.std(dtype=float) * standard["prediction"], rtol=1e-5
    )
    with pytest.warns(lv.LangevinWarning, match=r"'years' is far from standardised .* standardise=data"):
        target(lv.Network(mlp(), **settings), raw | {"price": by_hand["price"]} | {"dollars": by_hand["dollars"]})
    with pytest.warns(lv.LangevinWarning, match="'price' is far from standardised"):
        target(lv.Network(mlp(), **settings), by_hand | {"price": price})
    with pytest.warns(lv.LangevinWarning, match="'x' is far from standardised"):
        target(lv.Network(mlp()), {"x": X * 1e-4, "y": NUMBERS})


def test_numbers_of_words_are_not_standardised():
    class Words(eqx.Module):
        words: eqx.nn.Embedding
        line: eqx.nn.Linear

        def __call__(self, x):
            return self.line(jnp.mean(jax.vmap(self.words)(x), axis=0))

    keys = jax.random.split(jax.random.key(0))
    network = lv.Network(Words(eqx.nn.Embedding(500, 2, key=keys[0]), eqx.nn.Linear(2, 1, key=keys[1])))
    posterior = target(network, {"x": np.arange(2 * N).reshape(N, 2) * 20, "y": NUMBERS})
    assert np.isfinite(log_density(posterior, drawn(posterior)))


def test_columns_side_by_side_and_one_alone():
    pd = pytest.importorskip("pandas")
    frame = pd.DataFrame({"a": X[:, 0], "b": X[:, 1], "other": ["text"] * N, "y": NUMBERS})
    network = lv.Network(mlp(), inputs=["a", "b"])
    whole = lv.Network(mlp())
    position = drawn(target(network, frame))
    expected = log_density(target(whole, {"x": X, "y": NUMBERS}), position)
    assert log_density(target(network, frame), position) == pytest.approx(expected, rel=1e-6)
    alone = lv.Network(mlp(in_size=1))
    one = target(alone, {"x": X[:, 0], "y": NUMBERS})
    two = target(alone, {"x": X[:, :1], "y": NUMBERS})
    position = drawn(one)
    assert log_density(one, position) == log_density(two, position)
    named = frame.assign(b=["red", "blue"] * (N // 2))
    with pytest.raises(lv.DataError, match=r"'b'\]` holds names.*get_dummies"):
        target(network, named)


def test_names_of_classes_are_codes():
    names = np.array(["cat", "ant", "bee"])[CLASSES]
    posterior = target(lv.Network(mlp(3), "categorical"), {"x": X, "y": names})
    position = drawn(posterior)
    codes = np.unique(names, return_inverse=True)[1]
    expected = weight_prior(lv.Network(mlp(3)), position) + categorical(forward(position), codes, position)
    assert log_density(posterior, position) == pytest.approx(expected, rel=1e-4)
