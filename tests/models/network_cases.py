"""Small networks and rows for the tests of `lv.Network`, and their densities by hand in NumPy."""

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from scipy import stats

from langevin.contracts import Needs
from langevin.models.arguments import brought
from langevin.models.build import target_of

N = 12
RNG = np.random.default_rng(0)
X = RNG.normal(size=(N, 2)).astype(np.float32)
NUMBERS = RNG.normal(size=N).astype(np.float32)
PAIRS = RNG.normal(size=(N, 2)).astype(np.float32)
CLASSES = RNG.integers(0, 3, N)


def target(network, data, minibatch=False, **options):
    table, constants = brought(network, data, {})
    settings = {"constants": constants, "rows": None, "noncentred": "auto", "needs": Needs(), "minibatch": minibatch}
    return target_of(network, table, **settings | options)


def mlp(out_size=1, width=3, seed=0, in_size=2):
    return eqx.nn.MLP(in_size, out_size, width, 1, activation=jnp.tanh, key=jax.random.key(seed))


def forward(weights, x=X):
    hidden = np.tanh(x @ weights["layers.0.weight"].T + weights["layers.0.bias"])
    return hidden @ weights["layers.1.weight"].T + weights["layers.1.bias"]


def drawn(posterior, seed=1):
    """A position, all of it as NumPy arrays in double precision."""
    rng = np.random.default_rng(seed)
    return {name: 0.5 * rng.normal(size=like.shape) for name, like in posterior.model.like.items()}


def weight_prior(network, position):
    """The log-density of the default prior: by the shapes of the layers."""
    total = 0.0
    for name in network.shapes:
        value = position[name]
        scale = 3 / np.sqrt(value.shape[1]) if value.ndim == 2 else 1.0
        total += stats.norm.logpdf(value, 0, scale).sum()
    return total


def log_density(posterior, position):
    return float(posterior.log_density({name: jnp.asarray(v, jnp.float32) for name, v in position.items()}))


def half_normal(x):
    return np.log(2) + stats.norm.logpdf(x)


def gaussian(output, y, position):
    noise = np.exp(position["noise"])
    return half_normal(noise) + position["noise"] + stats.norm.logpdf(y, output[:, 0], noise).sum()


def gaussian_fixed(output, y, position):
    return stats.norm.logpdf(y, output[:, 0], 0.3).sum()


def categorical(output, y, position):
    return (output - np.log(np.exp(output).sum(axis=1, keepdims=True)))[np.arange(N), y.astype(int)].sum()
