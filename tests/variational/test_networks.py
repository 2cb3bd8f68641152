"""Bayes by backprop: the bound of a network, noise by rows, and what a fit at its defaults comes to."""

import itertools
import math

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import numpyro.distributions as dist
import pytest
from scipy import stats

import langevin as lv
from langevin.data.table import as_table
from langevin.models.build import target_of
from langevin.models.networks.noisy import layers_of, outputs
from langevin.run import compilation, drive
from langevin.variational.build import objective_of

RNG = np.random.default_rng(0)
X = RNG.normal(size=(20, 2)).astype("float32")
DATA = {"x": X, "y": (np.sin(X[:, 0]) + 0.3 * RNG.normal(size=20)).astype("float32")}
KINDS = ("shared", "local", "flipout")


def mlp(key=None):
    return eqx.nn.MLP(2, 1, 4, 1, activation=jnp.tanh, key=jax.random.key(0) if key is None else key)


class Many(eqx.Module):
    """A convolution, a layer on each of its places by vmap, one that is called twice, one that lends its weights."""

    conv: eqx.nn.Conv1d
    each: eqx.nn.Linear
    again: eqx.nn.Linear
    lent: eqx.nn.Linear
    last: eqx.nn.Linear

    def __init__(self, key):
        keys = jax.random.split(key, 5)
        self.conv = eqx.nn.Conv1d(1, 2, 2, key=keys[0])
        self.each, self.again, self.lent = (eqx.nn.Linear(2, 2, key=key) for key in keys[1:4])
        self.last = eqx.nn.Linear(2, "scalar", key=keys[4])

    def __call__(self, x):
        x = jnp.tanh(jax.vmap(self.each, 1, 1)(jnp.tanh(self.conv(jnp.pad(x, 1)[None])))).sum(axis=1)
        x = jnp.tanh(self.again(jnp.tanh(self.again(x))))
        return self.last(jnp.tanh(self.lent.weight @ x + self.lent(x)))


def objective(network, data=DATA, minibatch=False, **settings):
    method = lv.VI("meanfield", **settings)
    target = target_of(
        network, as_table(data), constants={}, rows=None, noncentred="auto", needs=method.needs, minibatch=minibatch
    )
    return objective_of(method, target, 10 if minibatch else None)


def wide(found, scale=0.4):
    """Parameters of a q that is not narrow, where noise passes through the bends of the network."""
    parameters = found.init(np.random.default_rng(1))
    return parameters | {"log_scale": np.full_like(parameters["mean"], math.log(scale))}


NETS = {"mlp": mlp, "many": Many}


def gradients(found, parameters, count, seed):
    """Many estimates of the bound, and of its gradient by means and logarithms of scales."""

    def bound(parameters, words):
        sampled = found.sample(parameters, words, None)
        return sum(sampled.log_p.values()) + sampled.closed

    noise = found.noise(np.random.default_rng(seed), (count,), np.float32)
    each = compilation.run(
        lambda noise: jax.lax.map(lambda words: jax.value_and_grad(bound)(parameters, words), noise), noise
    )
    return jax.tree.map(lambda leaf: np.asarray(leaf, np.float64), each)


@pytest.mark.parametrize("net", NETS)
def test_noise_by_rows_has_the_same_gradient_with_less_variance(net):
    network = lv.Network(NETS[net](jax.random.key(1)), lv.likelihoods.Gaussian(0.5))
    parameters, count = wide(objective(network)), 3000
    shared, local, flipout = (
        gradients(objective(network, perturbation=kind), parameters, count, seed) for seed, kind in enumerate(KINDS)
    )
    for other in (local, flipout):
        for one, by_row in zip(jax.tree.leaves(shared), jax.tree.leaves(other), strict=True):
            error = np.sqrt((one.var(axis=0) + by_row.var(axis=0)) / count)
            assert (np.abs(one.mean(axis=0) - by_row.mean(axis=0)) < 4.5 * error).all()
        for name in ("mean", "log_scale"):
            assert other[1][name].var(axis=0).sum() < 0.7 * shared[1][name].var(axis=0).sum()


def test_which_layers_have_noise_of_what_kind():
    def kinds(net, kind="local", frozen=()):
        network = lv.Network(net(jax.random.key(0)), frozen=frozen)
        return {layer.name: layer.kind for layer in layers_of(network.net, X[0], kind)}

    assert kinds(mlp) == {"layers.0.": "local", "layers.1.": "local"}
    assert kinds(mlp, "flipout") == {"layers.0.": "flipout", "layers.1.": "flipout"}
    assert kinds(mlp, frozen="layers.0.*") == {"layers.1.": "local"}
    # What a row calls several times shares its weights between the calls; what lends them is drawn for all rows.
    assert kinds(Many) == {"conv.": "flipout", "each.": "flipout", "again.": "flipout", "last.": "local"}
    assert kinds(lambda key: eqx.nn.Linear(2, 1, key=key)) == {"": "local"}


@pytest.mark.parametrize("kind", ["local", "flipout"])
def test_a_layer_by_hand(kind):
    net = lv.Network(eqx.nn.Linear(3, 2, key=jax.random.key(0))).net
    rng = np.random.default_rng(2)
    means = {"weight": rng.normal(size=(2, 3)), "bias": rng.normal(size=2)}
    scales = {"weight": rng.uniform(0.1, 1.0, (2, 3)), "bias": rng.uniform(0.1, 1.0, 2)}
    rows = rng.normal(size=(2, 3)).astype("float32")
    layers, count = layers_of(net, rows[0], kind), 40_000
    keys = jax.random.split(jax.random.key(3), count)
    as_32 = lambda tree: jax.tree.map(np.float32, tree)  # noqa: E731
    drawn = jax.jit(jax.vmap(lambda key: outputs(net, layers, {}, as_32(means), as_32(scales), rows, key)))(keys)
    drawn = np.asarray(drawn, np.float64)
    mean = rows @ means["weight"].T + means["bias"]
    variance = rows**2 @ (scales["weight"] ** 2).T + scales["bias"] ** 2
    np.testing.assert_array_less(np.abs(drawn.mean(axis=0) - mean), 4.5 * np.sqrt(variance / count))
    np.testing.assert_array_less(np.abs(drawn.var(axis=0) / variance - 1), 4.5 * math.sqrt(2 / count))
    # Two rows, and two outputs of a row, are not correlated.
    correlations = np.corrcoef(drawn.reshape(count, 4).T) - np.eye(4)
    assert np.abs(correlations).max() < 4.5 / math.sqrt(count)


PRIORS = {"fan-in": None, "mixture": lv.ScaleMixture(0.4, 1.0, 0.1), "laplace": dist.Laplace(0.1, 0.5)}


@pytest.mark.parametrize(
    ("kind", "prior", "temperature"),
    [("shared", "fan-in", 1.0), ("local", "fan-in", 0.5), ("local", "mixture", 1.0), ("flipout", "laplace", 2.0)],
)
def test_the_bound_is_that_of_the_program(kind, prior, temperature):
    """The mean of log p - log q over draws of the weights, where log p is the program's, and nothing in closed form."""
    network = lv.Network(mlp(), prior=PRIORS[prior], temperature=temperature)
    found = objective(network, minibatch=True, perturbation=kind)
    parameters, count = wide(found, 0.1), 3000
    # The last coordinate is the noise: a large one, so that little of the bound is chance.
    parameters["mean"][-1] = 1.5
    noise = found.noise(np.random.default_rng(3), (count,), np.float32)
    halves = [{name: column[part] for name, column in DATA.items()} for part in (slice(0, 10), slice(10, 20))]

    def bound(words, batch):
        sampled = found.sample(parameters, words, batch)
        assert not sampled.log_q
        return sum(sampled.log_p.values()) + sampled.closed

    @jax.jit
    def all_of_it(noise):
        of_halves = [jax.lax.map(lambda words, half=half: bound(words, half), noise) for half in halves]
        log_p, log_q = jax.lax.map(lambda words: found.log_terms(parameters, words), noise)
        return sum(of_halves) / 2, jax.lax.map(lambda words: bound(words, None), noise), log_p - log_q

    by_parts, whole, sampled = (np.asarray(part, np.float64) for part in all_of_it(noise))
    for estimate in (by_parts, whole):
        error = math.hypot(estimate.std(), sampled.std()) / math.sqrt(count)
        assert abs(estimate.mean() - sampled.mean()) < 4 * error
        assert error < 0.25


def test_the_divergence_of_gaussian_priors():
    """Where nothing is observed of a weight, its divergence is in closed form."""
    network = lv.Network(
        eqx.nn.Linear(2, 1, key=jax.random.key(0)), lv.likelihoods.Gaussian(1.0), dist.Normal(0.3, 2.0)
    )
    found = objective(network)
    parameters = wide(found, 0.7)
    sampled = found.sample(parameters, found.noise(np.random.default_rng(0), (), np.float32), None)
    mean, scale = parameters["mean"].astype(float), 0.7
    divergence = np.log(2.0 / scale) + (scale**2 + (mean - 0.3) ** 2) / (2 * 2.0**2) - 0.5
    np.testing.assert_allclose(float(sampled.closed), -divergence.sum(), rtol=1e-5)
    assert float(sampled.log_p["log_prior"]) == 0


def test_the_scale_mixture_against_scipy():
    x = np.linspace(-3, 3, 41)
    mixture = lv.ScaleMixture(0.3, 1.5, 0.01)
    parts = [math.log(share) + stats.norm.logpdf(x, scale=scale) for share, scale in ((0.3, 1.5), (0.7, 0.01))]
    np.testing.assert_allclose(mixture.log_prob(x.astype("float32")), np.logaddexp(*parts), rtol=1e-4, atol=1e-4)
    draws = np.asarray(mixture.sample(jax.random.key(0), (100_000,)), float)
    np.testing.assert_allclose(draws.var(), float(mixture.variance), rtol=0.03)


def straight(rng=RNG, num_rows=150):
    """A linear regression with correlated columns: the closed form of its posterior, of coefficients and intercept."""
    x = rng.normal(size=(num_rows, 3))
    x[:, 1] += 0.6 * x[:, 0]
    y = x @ [1.0, -0.5, 0.0] + 0.7 + 0.5 * rng.normal(size=num_rows)
    data = {"x": x.astype("float32"), "y": y.astype("float32")}
    design = np.column_stack([x, np.ones(num_rows)])
    precision = design.T @ design / 0.25 + np.diag([1.0, 1.0, 1.0, 0.25])
    network = lv.Network(
        eqx.nn.Linear(3, 1, key=jax.random.key(1)),
        lv.likelihoods.Gaussian(0.5),
        {"weight": dist.Normal(0.0, 1.0), "bias": dist.Normal(0.0, 2.0)},
    )
    return network, data, np.linalg.solve(precision, design.T @ y / 0.25), precision


def draws_of(fit):
    weight, bias = (fit.posterior[name].values for name in ("weight", "bias"))
    return np.concatenate([weight.reshape(-1, 3), bias.reshape(-1, 1)], axis=1)


@pytest.mark.parametrize("batch_size", [None, 50])
@pytest.mark.filterwarnings("ignore::langevin.LangevinWarning")
def test_a_straight_line_reaches_the_nearest_mean_field(batch_size):
    network, data, mean, precision = straight()
    fit = lv.fit(network, data, "vi", batch_size=batch_size, num_draws=50, progress=False)
    sd = 1 / np.sqrt(np.diag(precision))
    # In the order of their names: bias, weight.
    order = [3, 0, 1, 2]
    np.testing.assert_allclose(np.exp(fit.guide.parameters["log_scale"]), sd[order], rtol=0.04)
    np.testing.assert_array_less(np.abs(fit.guide.parameters["mean"] - mean[order]), 0.15 * sd[order])
    np.testing.assert_allclose(draws_of(fit).std(axis=0), sd, rtol=4.5 / math.sqrt(400))


@pytest.mark.parametrize("family", ["fullrank", "lowrank"])
@pytest.mark.filterwarnings("ignore::langevin.LangevinWarning")
def test_other_families_of_a_small_network(family):
    network, data, mean, precision = straight()
    fit = lv.fit(network, data, lv.VI(family, num_particles=4), progress=False)
    covariance = np.linalg.inv(precision)
    sd = np.sqrt(np.diag(covariance))
    draws = draws_of(fit)
    np.testing.assert_array_less(np.abs(draws.mean(axis=0) - mean), 0.2 * sd)
    np.testing.assert_allclose(draws.std(axis=0), sd, rtol=0.1)


@pytest.mark.filterwarnings("ignore::langevin.LangevinWarning")
def test_bands_open_outside_the_data():
    rng = np.random.default_rng(4)
    x = rng.uniform(-1.0, 1.0, (80, 1)).astype("float32")
    y = (x[:, 0] ** 3 + 0.1 * rng.normal(size=80)).astype("float32")
    network = lv.Network(lambda key: eqx.nn.MLP(1, 1, 20, 2, key=key), lv.likelihoods.Gaussian(0.1))
    fit = lv.fit(network, {"x": x, "y": y}, "vi", num_draws=100, progress=False)
    rows = np.linspace(-4.0, 4.0, 81, dtype="float32")[:, None]
    weights = {name: fit.posterior[name].values.reshape(-1, *shape) for name, shape in network.shapes.items()}
    curves = np.asarray(jax.vmap(lambda one: network.net.apply(one, rows))(weights))[:, :, 0]
    sd = curves.std(axis=0)
    inside, outside = np.abs(rows[:, 0]) < 0.9, np.abs(rows[:, 0]) > 3
    assert np.abs(curves.mean(axis=0) - rows[:, 0] ** 3)[inside].max() < 0.15
    assert sd[inside].mean() < 0.1
    assert sd[outside].mean() > 3 * sd[inside].mean()


class Killed(BaseException):
    """What ends a run at once."""


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.filterwarnings("ignore::langevin.LangevinWarning")
def test_the_same_bits_however_it_is_cut(kind, monkeypatch, tmp_path):
    network, method = lv.Network(mlp()), lv.VI(perturbation=kind, num_steps=150)
    settings = {"batch_size": 16, "num_draws": 30, "num_chains": 2, "progress": False}
    whole = lv.fit(network, DATA, method, **settings)
    clock = itertools.count()

    def decide(self, phase):
        now = next(clock)
        if now == 6:
            raise Killed
        return [1, 5, 40][now % 3], now % 2 == 0

    with monkeypatch.context() as patch:
        patch.setattr(drive._Clock, "decide", decide)
        with pytest.raises(Killed):
            lv.fit(network, DATA, method, store=tmp_path / "run", **settings)
        again = lv.resume(tmp_path / "run", network, DATA, progress=False)
    for name, values in whole.posterior.items():
        np.testing.assert_array_equal(values.values, again.posterior[name].values, err_msg=str(name))


def test_a_larger_network_is_not_judged_by_ratios():
    network = lv.Network(lambda key: eqx.nn.MLP(2, "scalar", 40, 2, key=key), prior=lv.ScaleMixture())
    fit = lv.fit(network, DATA, lv.VI(num_steps=200), batch_size=10, num_draws=10, progress=False)
    (finding,) = fit.verdict
    assert finding.code == "unchecked"
    assert f"importance ratios of {network.num_weights + 1:,} weights tell nothing" in str(finding)
    assert fit.posterior["layers.1.weight"].shape == (4, 10, 40, 40)
    assert np.isfinite(fit.evaluate(DATA, num_draws=20)["NLL"])


def test_what_it_does_not_go_with():
    network, density = lv.Network(mlp()), lv.Density(lambda x: -(x**2), init=0.0)
    pair = lv.Network(({"w": jnp.ones((2, 1))}, lambda params, x: x @ params["w"]))
    summed = eqx.nn.Sequential([eqx.nn.LayerNorm(2), eqx.nn.Lambda(jnp.sum)])
    local = lv.VI(perturbation="local")
    for model, data, method, said in (
        (density, None, local, "is for an lv.Network of an Equinox module"),
        (pair, DATA, local, "a pair \\(params, apply\\) cannot be told"),
        (network, DATA, lv.VI("fullrank", perturbation="flipout"), "goes with family='meanfield'"),
        (network, DATA, lv.VI(gradient="stl", perturbation="local"), "goes with family='meanfield'"),
        (lv.Network(summed), DATA, local, "no eqx.nn.Linear or Conv"),
    ):
        with pytest.raises(lv.SettingError, match=said):
            lv.fit(model, data, method, progress=False)
    with pytest.raises(lv.SettingError, match="perturbation"):
        lv.VI(perturbation="localised")
