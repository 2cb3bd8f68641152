"""Small models for the tests of Laplace's method, and what its Gaussian is by hand."""

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import numpyro
import numpyro.distributions as dist
import pytest

import langevin as lv
from langevin.contracts import Needs
from langevin.data.table import as_table
from langevin.geometry import modal
from langevin.geometry.starts import flattened
from langevin.models.build import target_of
from langevin.run.compilation import Programs

QUICK = {"progress": False, "num_draws": 500}
quiet = pytest.mark.filterwarnings("ignore::langevin.LangevinWarning")


def moments(family, parameters):
    """The mean and covariance of q, over the flat position."""
    parameters = jax.tree.map(lambda leaf: jnp.asarray(leaf, jnp.float32), parameters)
    root = np.asarray(jax.jit(jax.jacfwd(lambda e: family.draw(parameters, e)[0]))(np.zeros(family.noise_size, "f")))
    return np.asarray(parameters["mean"], np.float64), root.astype(np.float64) @ root.T


def gaussian(fit):
    return moments(fit.guide.objective.family, fit.guide.parameters)


def few_rows(count=12, width=3, outputs=1):
    """So few that the prior counts."""
    generator = np.random.default_rng(2)
    x = generator.normal(size=(count, width)).astype(np.float32)
    y = x @ generator.normal(size=(width, outputs)) + 0.5 * generator.normal(size=(count, outputs))
    return x, y.astype(np.float32)[:, 0] if outputs == 1 else y.astype(np.float32)


def linear_program(x, y=None):
    w = numpyro.sample("w", dist.Normal(0, 2).expand([x.shape[-1]]).to_event(1))
    with numpyro.plate("rows", x.shape[0]):
        numpyro.sample("y", dist.Normal(x @ w, 0.5), obs=y)


LINEAR = {
    "program": linear_program,
    "density": lv.Density(
        lambda w: -0.5 * w @ w / 4, lambda w, rows: -0.5 * (rows["y"] - rows["x"] @ w) ** 2 / 0.25, init=np.zeros(3)
    ),
    "network": lv.Network(
        eqx.nn.Linear(3, 1, use_bias=False, key=jax.random.key(0)), lv.likelihoods.Gaussian(0.5), dist.Normal(0, 2)
    ),
    "pair": lv.Network(
        (np.zeros((3, 1), np.float32), lambda w, x: x @ w), lv.likelihoods.Gaussian(0.5), dist.Normal(0, 2)
    ),
}


def two_layers(likelihood="categorical", rows=9, **settings):
    outputs = 3 if likelihood == "categorical" else 1
    net = eqx.nn.MLP(4, outputs, 5, 1, activation=jnp.tanh, key=jax.random.key(3))
    generator = np.random.default_rng(4)
    x = generator.normal(size=(rows, 4)).astype(np.float32)
    y = generator.integers(3, size=rows) if outputs == 3 else np.sin(x[:, 0])
    return lv.Network(net, likelihood, init="given", **settings), {"x": x, "y": y}


def by_hand(network, data):
    """Derivatives of the outputs by the flat position, H_i of classes, and the precision of the prior."""
    weights = {name: jnp.asarray(network.net.first[name]) for name in sorted(network.shapes)}
    x = jnp.asarray(data["x"])
    outputs = network.net.apply(weights, x)
    found = jax.jacobian(lambda w: network.net.apply(w, x))(weights)
    count, classes = outputs.shape
    jacobian = np.concatenate([np.asarray(found[name]).reshape(count, classes, -1) for name in weights], axis=2)
    p = np.asarray(jax.nn.softmax(outputs), np.float64)
    hessians = np.einsum("nc,cd->ncd", p, np.eye(classes)) - p[:, :, None] * p[:, None, :]
    scales = {name: 1.0 if "bias" in name else 3 / np.sqrt(network.shapes[name][1]) for name in weights}
    prior = np.concatenate([np.full(np.size(weights[name]), scales[name] ** -2.0) for name in weights])
    return jacobian.astype(np.float64), hessians, prior


def at_given(network, data, structure):
    """The mean and covariance of q around the weights that are given, without a run."""
    table = as_table(data)
    target = target_of(network, table, constants={}, rows=None, noncentred=False, needs=Needs(), minibatch=False)
    example = target.start(np.random.default_rng(0))
    shape = modal.shape_of(target, example, structure)
    point = flattened(example)
    sums = shape.curvature(target, example, Programs(lambda: None, 0)).at(point)
    made = modal.gaussian_at(shape, sums, point, target.num_data)
    return target, example, moments(shape.family, made.parameters)


def covariance_at(network, data, structure):
    return at_given(network, data, structure)[2][1]
