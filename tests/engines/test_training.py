"""Stochastic-gradient methods on networks: trained, measured, burnt in and sampled without a setting."""

import itertools

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import numpyro.distributions as dist
import pytest

import langevin as lv
from langevin.contracts import Needs, Plan
from langevin.data.table import as_table
from langevin.engines.network import NetworkEngine
from langevin.engines.stochastic import StochasticEngine
from langevin.geometry import fisher
from langevin.kernels.schedules import CosineCycles
from langevin.models.build import target_of
from langevin.run import drive
from langevin.run.keep import Keep
from langevin.run.seeds import Seed

NOISE, NUM_ROWS = 0.5, 200
STOCHASTIC = ("sgld", "psgld", "sghmc", "sgnht", "cyclicalsghmc")


def linear_rows():
    generator = np.random.default_rng(0)
    x = generator.normal(size=(NUM_ROWS, 3)).astype("float32")
    x[:, 1] = 0.6 * x[:, 0] + 0.8 * x[:, 1]
    y = x @ [1.0, -0.5, 0.2] + 0.3 + NOISE * generator.normal(size=NUM_ROWS)
    return {"x": x, "y": y.astype("float32")}


def linear_network():
    module = eqx.nn.Linear(3, 1, key=jax.random.key(0))
    return lv.Network(module, lv.likelihoods.Gaussian(noise=NOISE), dist.Normal(0, 1))


def closed_form(rows):
    """Mean and sds of the three weights and the bias."""
    design = np.column_stack([rows["x"], np.ones(NUM_ROWS)]).astype(np.float64)
    covariance = np.linalg.inv(design.T @ design / NOISE**2 + np.eye(4))
    return covariance @ design.T @ rows["y"] / NOISE**2, np.sqrt(np.diag(covariance))


def draws_of(fit):
    weight, bias = fit.posterior["weight"].values, fit.posterior["bias"].values
    return np.concatenate([weight[:, :, 0], bias], axis=2).reshape(-1, 4)


def curve(num_rows=40):
    generator = np.random.default_rng(1)
    x = np.sort(generator.uniform(-2, 2, num_rows)).astype("float32")
    return {"x": x, "y": (np.sin(2 * x) + 0.2 * generator.normal(size=num_rows)).astype("float32")}


def small_network():
    net = lambda key: eqx.nn.MLP(1, 1, 16, 1, activation=jnp.tanh, key=key)  # noqa: E731
    return lv.Network(net, lv.likelihoods.Gaussian(noise=0.2), dist.Normal(0, 1))


def target_on(network, rows):
    return target_of(network, as_table(rows), constants={}, rows=None, noncentred="auto", needs=Needs(), minibatch=True)


# There are too few draws for a verdict, and enough for these limits.
@pytest.mark.filterwarnings("ignore::langevin.LangevinWarning")
@pytest.mark.parametrize("name", STOCHASTIC)
def test_a_linear_network_agrees_with_the_closed_form(name):
    rows = linear_rows()
    mean, sd = closed_form(rows)
    thin = 5 if name.startswith("cyclical") else 25
    fit = lv.fit(linear_network(), rows, name, batch_size=50, num_warmup=1500, num_draws=400, thin=thin, progress=False)
    draws, weights = draws_of(fit), fit.weights.values.ravel()
    weights = weights / weights.sum()
    found = weights @ draws
    spread = np.sqrt(weights @ (draws - found) ** 2)
    np.testing.assert_array_less(np.abs(found - mean) / sd, 0.2)
    np.testing.assert_array_less(np.abs(spread / sd - 1), 0.15)


# Whether weights mix is not asked: chains of either method may differ in what prediction they are in.
@pytest.mark.filterwarnings("ignore::langevin.LangevinWarning")
def test_a_small_network_agrees_with_nuts_in_function_space():
    rows, network = curve(), small_network()
    new = {"x": np.linspace(-3, 3, 13, dtype="float32")}
    exact = lv.fit(network, rows, "nuts", num_warmup=300, num_draws=300, progress=False)
    ours = lv.fit(network, rows, "sghmc", batch_size=20, progress=False)
    values = []
    for fit in (exact, ours):
        weights = {name: fit.posterior[name].values.reshape(-1, *shape) for name, shape in network.shapes.items()}
        outputs = jax.vmap(lambda w: network.net.apply(w, new["x"][:, None])[:, 0])(weights)
        values.append((np.mean(outputs, axis=0), np.std(outputs, axis=0)))
    (mean, sd), (our_mean, our_sd) = values
    inside = np.abs(new["x"]) <= 2
    np.testing.assert_array_less(np.abs(our_mean - mean) / sd, 0.4)
    np.testing.assert_array_less(np.abs(np.log(our_sd / sd)), np.where(inside, 0.2, 0.25))


@pytest.mark.parametrize("optimizer", ["sgd", "adam"])
def test_weight_decay_is_the_prior(optimizer):
    rows, scale, rate, num_steps = linear_rows(), 0.7, 0.02, 60
    module = eqx.nn.MLP(3, "scalar", 5, 1, activation=jnp.tanh, key=jax.random.key(2))
    network = lv.Network(module, lv.likelihoods.Gaussian(noise=1.0), dist.Normal(0, scale), init="given")
    method = lv.MAP(optimizer, learning_rate=rate, num_steps=num_steps)
    fit = lv.fit(network, rows, method, progress=False)
    params, static = eqx.partition(module, eqx.is_inexact_array)
    decay = 1 / (scale**2 * NUM_ROWS)

    @jax.jit
    def gradient(params):
        def loss(params):
            return jnp.mean((jax.vmap(eqx.combine(params, static))(rows["x"]) - rows["y"]) ** 2) / 2

        return jax.tree.map(lambda g, w: g + decay * w, jax.grad(loss)(params), params)

    first = second = jax.tree.map(jnp.zeros_like, params)
    for step in range(num_steps):
        now = rate * (1 + np.cos(np.pi * step / num_steps)) / 2
        g = gradient(params)
        if optimizer == "sgd":
            first = jax.tree.map(lambda m, g: 0.9 * m + g, first, g)
            change = first
        else:
            first = jax.tree.map(lambda m, g: 0.9 * m + 0.1 * g, first, g)
            second = jax.tree.map(lambda v, g: 0.999 * v + 0.001 * g**2, second, g)
            unbiased = (1 - 0.9 ** (step + 1), 1 - 0.999 ** (step + 1))
            change = jax.tree.map(lambda m, v, c=unbiased: m / c[0] / (jnp.sqrt(v / c[1]) + 1e-8), first, second)
        params = jax.tree.map(lambda w, d, r=now: w - r * d, params, change)
    for name, value in (("layers.0.weight", params.layers[0].weight), ("layers.1.bias", params.layers[1].bias)):
        np.testing.assert_allclose(fit.posterior[name].values[0, 0], value, rtol=2e-4, atol=2e-5)


def cut(monkeypatch, limits):
    limits = itertools.cycle(limits)
    monkeypatch.setattr(drive._Clock, "decide", lambda self, phase: (next(limits), True))


@pytest.mark.filterwarnings("ignore::langevin.LangevinWarning")
@pytest.mark.parametrize("name", ["sghmc", "cyclicalsghmc"])
def test_the_same_bits_however_it_is_cut(name, monkeypatch, tmp_path):
    rows, network = curve(), small_network()
    settings = {"num_chains": 2, "num_warmup": 60, "num_draws": 20, "thin": 3, "batch_size": 10, "progress": False}
    whole = lv.fit(network, rows, name, **settings)
    with monkeypatch.context() as patch:
        cut(patch, [1, 2, 3, 7, 50])
        other = lv.fit(network, rows, name, **settings)
    clock = itertools.count()

    def killed(self, phase):
        if phase == "burn-in" and next(clock) == 2:
            raise KeyboardInterrupt
        return 7, True

    with monkeypatch.context() as patch, pytest.raises(KeyboardInterrupt):
        patch.setattr(drive._Clock, "decide", killed)
        lv.fit(network, rows, name, store=tmp_path / "run", **settings)
    resumed = lv.resume(tmp_path / "run", network, rows, progress=False)
    for fit in (other, resumed):
        assert fit.settings == whole.settings
        for site in whole.posterior:
            np.testing.assert_array_equal(fit.posterior[site].values, whole.posterior[site].values)


@pytest.mark.filterwarnings("ignore::langevin.LangevinWarning")
def test_what_is_asked_for_is_what_is_done():
    settings = {"num_chains": 2, "num_warmup": 100, "num_draws": 10, "thin": 7, "batch_size": 10, "progress": False}
    fit = lv.fit(small_network(), curve(), "sghmc", **settings)
    assert (fit.settings["num_training_steps"], fit.settings["num_burn_in_steps"], fit.settings["thin"]) == (50, 50, 7)
    assert fit.posterior.sizes["draw"] == 10
    assert "nats a row" in fit.settings["approximation"]
    given = lv.fit(small_network(), curve(), lv.SGHMC(step_size=1e-3), **settings)
    assert given.settings["step_size"] is None
    assert "num_training_steps" not in given.settings


@pytest.mark.filterwarnings("ignore::langevin.LangevinWarning")
def test_a_burn_in_that_blows_up_starts_again_with_half_the_step(monkeypatch):
    paces = NetworkEngine._paces
    monkeypatch.setattr(NetworkEngine, "_paces", lambda *args: tuple(64 * step for step in paces(*args)))
    settings = {"num_chains": 2, "num_warmup": 400, "num_draws": 10, "thin": 5, "batch_size": 10, "progress": False}
    fit = lv.fit(small_network(), curve(), "sghmc", **settings)
    assert fit.settings["num_halvings"] > 0
    assert (fit.stats["stopped"] < 0).all()
    assert np.abs(fit.posterior["layers.0.weight"]).max() < 50


def test_only_an_automatic_step_on_a_network_trains():
    target = target_on(small_network(), curve())
    plan = Plan(2, 100, 30, None, lv.Batches(10).resolved(40, True), Seed.of(0), Keep())
    assert isinstance(lv.SGHMC().engine(target, plan), NetworkEngine)
    assert type(lv.SGHMC(step_size=0.1).engine(target, plan)) is StochasticEngine
    with pytest.raises(lv.SettingError, match="control_variate"):
        lv.SGHMC(estimator="control_variate").engine(target, plan)


def test_draws_of_a_network_are_as_many_as_memory_has_room_for():
    assert lv.SGHMC().counts(0) == lv.SGHMC().counts(100) == (4, 1000)
    assert lv.SGHMC().counts(478_410) == (4, 20)
    assert lv.SGHMC().counts(50_000) == (4, 250)
    assert lv.MAP().counts(100) == (1, 1)


def test_metric_curvature_and_noise_are_those_of_the_formulas():
    rows, network = linear_rows(), linear_network()
    batches = lv.Batches(20, "rows")
    plan = Plan(2, 100, 30, None, batches, Seed.of(0), Keep())
    engine = lv.SGLD().engine(target_on(network, rows), plan)
    weights = {"weight": np.array([[1.0, -0.5, 0.3]], "float32"), "bias": np.array([0.2], "float32")}
    positions = jax.tree.map(lambda leaf: np.stack([leaf, leaf]), weights)
    target = target_on(network, rows)
    around = fisher.around(engine._programs, target, batches, positions, Seed.of(1))
    residuals = rows["y"] - rows["x"] @ weights["weight"][0] - weights["bias"]
    slopes = residuals[:, None] * np.column_stack([rows["x"], np.ones(NUM_ROWS)]) / NOISE**2
    variance = slopes.var(axis=0)
    flat = lambda tree: np.concatenate([np.ravel(tree["weight"]), np.ravel(tree["bias"])])  # noqa: E731
    # 512 minibatches in all: the variance is known to about 6 %.
    np.testing.assert_allclose(flat(around.noise), NUM_ROWS**2 / 20 * variance, rtol=0.25)
    np.testing.assert_allclose(flat(around.precision), 1 + NUM_ROWS * variance, rtol=0.25)
    metric = lv.kernels.metrics.Diagonal(jax.tree.map(lambda p: 1 / p, around.precision))
    design = np.column_stack([rows["x"], np.ones(NUM_ROWS)])
    hessian = design.T @ design / NOISE**2 + np.eye(4)
    scale = 1 / np.sqrt(flat(around.precision))
    largest = np.linalg.eigvalsh(hessian * np.outer(scale, scale))[-1]
    np.testing.assert_allclose(
        fisher.stiffest(engine._programs, target, positions, metric, Seed.of(2)), largest, rtol=0.01
    )


def test_cycles_end_at_a_share_of_their_beginning():
    schedule = CosineCycles(2.0, 10, 0.1)
    values = [float(schedule(step)) for step in range(11)]
    assert values[0] == values[10] == 2.0
    assert 0.2 < values[9] < 0.25
    assert float(CosineCycles(2.0, 10)(5)) == pytest.approx(1.0)
