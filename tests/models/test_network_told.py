"""What is no network, and rows that a network cannot have, are refused with a reason."""

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from network_cases import CLASSES, NUMBERS, PAIRS, N, X, mlp, target
from numpyro import distributions as dist

import langevin as lv


class Dropped(eqx.Module):
    line: eqx.nn.Linear
    dropout: eqx.nn.Dropout

    def __call__(self, x):
        return self.dropout(self.line(x))


class Normed(eqx.Module):
    line: eqx.nn.Linear
    norm: eqx.nn.BatchNorm

    def __call__(self, x, state):
        return self.norm(self.line(x), state)


LINE = eqx.nn.Linear(2, 1, key=jax.random.key(0))


@pytest.mark.filterwarnings("ignore::UserWarning")
def test_networks_that_are_no_function_of_a_row_are_refused():
    with pytest.raises(lv.ModelError, match=r"has dropout.*inference_mode"):
        lv.Network(Dropped(LINE, eqx.nn.Dropout(0.5)))
    calm = lv.Network(eqx.nn.inference_mode(Dropped(LINE, eqx.nn.Dropout(0.5))))
    assert list(calm.shapes) == ["line.weight", "line.bias"]
    with pytest.raises(lv.ModelError, match=r"has state \(as BatchNorm has\).*LayerNorm"):
        lv.Network(Normed(LINE, eqx.nn.BatchNorm(1, axis_name="rows", mode="ema")))
    with pytest.raises(lv.ModelError, match="'batch_stats'"):
        lv.Network(({"params": {"w": np.ones(2)}, "batch_stats": {"m": np.ones(2)}}, lambda p, x: x))


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: lv.Network(3), "a network is an Equinox module.* got int"),
        (lambda: lv.Network(lambda key: 3), "got int"),
        (lambda: lv.Network(lambda: 3), r"is taken for a function of a key .* raised TypeError"),
        (lambda: lv.Network(({}, lambda p, x: x)), "no weights"),
        (lambda: lv.Network(({"w": "text"}, lambda p, x: x)), "'w' is a str"),
        (lambda: lv.Network(LINE, frozen="*"), "all weights are frozen"),
        (lambda: lv.Network(LINE, frozen="wieght"), r"`frozen` has 'wieght'.* weight, bias"),
        (lambda: lv.Network(LINE, prior={"lines.*": dist.Normal()}), r"`prior` has 'lines.\*'"),
        (lambda: lv.Network(LINE, prior=dist.HalfNormal()), "'weight' must be over all real numbers"),
        (lambda: lv.Network(LINE, prior=lambda name, shape: dist.HalfNormal(jnp.ones(shape))), "all real numbers"),
        (lambda: lv.Network(LINE, prior=dist.Normal(jnp.zeros(7))), r"shape of these weights, \(1, 2\).*\(7,\)"),
        (lambda: lv.Network(LINE, prior=3.0), "must be a NumPyro distribution or FanIn; got 3.0"),
        (lambda: lv.Network(LINE, "gausian"), "'gaussian', 'student_t'"),
        (lambda: lv.Network(LINE, 3), "must be a name"),
        (lambda: lv.Network(LINE, dist.Normal(0, 1)), "must be a name"),
        (lambda: lv.Network(LINE, inputs="bias"), "a weight is called 'bias'"),
        (lambda: lv.Network(LINE, init="gven"), "'redrawn', 'given'"),
        (lambda: lv.Network(LINE, temperature=0), "`temperature` must be > 0"),
        (lambda: lv.Network(LINE, standardise={"x": X}), "`standardise` has no column 'y'"),
        (lambda: lv.FanIn(-1.0), "`scale` must be > 0"),
        (lambda: lv.FanIn(bias="1"), "`bias` must be > 0"),
        (lambda: lv.ScaleMixture(share=2.0), "`share` must be between 0 and 1"),
        (lambda: lv.likelihoods.Gaussian(-1.0), "`noise` must be > 0"),
        (lambda: lv.likelihoods.StudentT(df=0.0), "`df` must be > 0"),
    ],
)
def test_what_is_no_network_is_told_so(make, message):
    with pytest.raises(lv.LangevinError, match=message):
        make()


@pytest.mark.parametrize(
    ("network", "data", "message"),
    [
        (lv.Network(mlp()), {"x": X}, "no column 'y', which the network is to be fitted to"),
        (lv.Network(mlp()), {"y": NUMBERS}, "'x'"),
        (lv.Network(mlp(in_size=3)), {"x": X, "y": NUMBERS}, r"cannot be called with a row of shape \(2,\)"),
        (lv.Network(mlp(2)), {"x": X, "y": NUMBERS}, r"Normal of shape \(2,\) for each row.* rows of shape \(\)"),
        (lv.Network(mlp(1)), {"x": X, "y": PAIRS}, r"Normal of shape \(\) for each row.* rows of shape \(2,\)"),
        (lv.Network(mlp(2), "categorical"), {"x": X, "y": CLASSES}, "the class 2 in row .* 2 outputs, .* 0 to 1"),
        (lv.Network(mlp(3), "categorical"), {"x": X, "y": CLASSES - 1}, "the class -1 in row"),
        (lv.Network(mlp(3), "categorical"), {"x": X, "y": CLASSES + 0.5}, "the class .*5 in row 0"),
        (lv.Network(mlp(), "bernoulli"), {"x": X, "y": CLASSES}, "is 2 in row .* its values are 0 and 1"),
        (lv.Network(mlp(), "bernoulli"), {"x": X, "y": 2 * (CLASSES > 1) - 1}, "is -1 in row"),
        (lv.Network(mlp(), "poisson"), {"x": X, "y": CLASSES - 1}, "is -1 in row .* whole numbers from 0"),
        (lv.Network(mlp(), lv.likelihoods.Gaussian("output")), {"x": X, "y": NUMBERS}, "two outputs for each number"),
        (
            lv.Network(mlp()),
            {"x": np.where(np.arange(N)[:, None] == 3, np.nan, X), "y": NUMBERS},
            "lacks values",
        ),
        (
            lv.Network(LINE, lambda output: 3),
            {"x": X, "y": NUMBERS},
            "must return a NumPyro distribution; it returned 3",
        ),
        (
            lv.Network(({"w": np.ones((2, 1))}, lambda p, x: {"out": x @ p["w"]})),
            {"x": X, "y": NUMBERS},
            "must put out one array",
        ),
        (lv.Network(({"w": np.ones((2, 1))}, lambda p, x: jnp.sum(x @ p["w"]))), {"x": X, "y": NUMBERS}, "one array"),
    ],
)
def test_data_that_a_network_cannot_have_is_told_so(network, data, message):
    with pytest.raises(lv.LangevinError, match=message):
        target(network, data)
