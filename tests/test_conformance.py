"""EVERY kernel goes through here. A new one adds a line to KERNELS, with its step written out in NumPy."""

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

import langevin as lv
from langevin import kernels
from langevin.kernels.base import standard_normal

STEP = 1e-3
LEAP = 0.05
FRICTION = 1.5
NUM_ROWS, SIZE = 40, 8


def log_prior(position):
    return -0.5 * (jnp.sum(position["w"] ** 2) + position["b"] ** 2)


def log_likelihood(position, rows):
    return -0.5 * (rows["y"] - rows["x"] @ position["w"] - position["b"]) ** 2


def make_posterior(dtype=np.float32):
    generator = np.random.default_rng(0)
    x = generator.normal(size=(NUM_ROWS, 3)).astype(dtype)
    data = {"x": x, "y": (x @ np.array([1.0, -1.0, 0.5]) + generator.normal(size=NUM_ROWS)).astype(dtype)}
    init = {"w": jnp.array([0.3, -0.2, 0.1], dtype), "b": jnp.asarray(0.5, dtype)}
    return lv.Density(log_prior, log_likelihood, init=init).posterior(data)


def gradient_by_hand(x, y, w, b):
    """The gradient of the minibatch log-density, scaled by N/B, as one vector (b first, as pytrees sort)."""
    residual = y - x @ w - b
    scale = NUM_ROWS / len(y)
    return np.concatenate([[-b + scale * residual.sum()], -w + scale * x.T @ residual])


def sgld_by_hand(start, gradient, noise, state):
    return start + STEP / 2 * gradient(start) + np.sqrt(STEP) * noise


def sghmc_by_hand(start, gradient, noise, state):
    keep = np.exp(-FRICTION * STEP)
    momentum = keep * state["momentum"] + np.sqrt(1 - keep**2) * noise
    return start + STEP / 2 * (state["momentum"] + momentum)


def sgnht_by_hand(start, gradient, noise, state):
    p = state["momentum"]
    thermostat = FRICTION + STEP / 2 * (p @ p / len(p) - 1)
    keep = np.exp(-thermostat * STEP)
    momentum = keep * p + np.sqrt(FRICTION * (1 - keep**2) / thermostat) * noise
    return start + STEP / 2 * (p + momentum)


def ascent_by_hand(start, gradient, noise, state):
    return start + STEP * gradient(start) / NUM_ROWS


class Case(NamedTuple):
    """How to make a kernel; its position after one step on a minibatch, by NumPy."""

    make: Any
    by_hand: Any


DIAGONAL = {"w": jnp.array([0.5, 2.0, 1.0]), "b": jnp.array(0.1)}
FACTOR = jnp.array(np.tril(0.3 * np.ones((4, 4))) + np.diag([1.0, 0.5, 2.0, 1.0]))

KERNELS = {
    "sgld": Case(lambda p: kernels.sgld(p, STEP), sgld_by_hand),
    "sgld, diagonal metric": Case(
        lambda p: kernels.sgld(p, STEP, preconditioner=kernels.fixed(kernels.Diagonal(DIAGONAL))),
        lambda start, gradient, noise, state: (
            start + STEP / 2 * _variance() * gradient(start) + np.sqrt(STEP * _variance()) * noise
        ),
    ),
    "sgld, dense metric": Case(
        lambda p: kernels.sgld(p, STEP, preconditioner=kernels.fixed(kernels.Dense(FACTOR))),
        lambda start, gradient, noise, state: (
            start + STEP / 2 * FACTOR @ FACTOR.T @ gradient(start) + np.sqrt(STEP) * FACTOR @ noise
        ),
    ),
    "sgld, rmsprop": Case(
        lambda p: kernels.sgld(p, STEP, preconditioner=kernels.rmsprop(p, 0.9, 1e-3, gamma=False)),
        lambda start, gradient, noise, state: _rmsprop_by_hand(start, gradient, noise),
    ),
    "sgld, rmsprop with gamma": Case(lambda p: kernels.sgld(p, STEP, preconditioner=kernels.rmsprop(p)), None),
    "sgld, control variate": Case(
        lambda p: kernels.sgld(p, STEP, estimator=kernels.control_variate(p, {"w": jnp.ones(3), "b": jnp.array(0.0)})),
        lambda start, gradient, noise, state: _control_variate_by_hand(start, gradient, noise),
    ),
    "sgld, svrg": Case(
        lambda p: kernels.sgld(p, STEP, estimator=kernels.svrg(p, 3)),
        lambda start, gradient, noise, state: start + STEP / 2 * _full_gradient(start) + np.sqrt(STEP) * noise,
    ),
    "sgld, accept on all rows": Case(lambda p: kernels.sgld(p, STEP, accept="full"), None),
    "sgld, accept on the minibatch": Case(lambda p: kernels.sgld(p, STEP, accept="minibatch"), None),
    "sghmc": Case(lambda p: kernels.sghmc(p, STEP, friction=FRICTION), sghmc_by_hand),
    "sghmc, control variate": Case(lambda p: kernels.sghmc(p, STEP, estimator=kernels.control_variate(p)), None),
    "sgnht": Case(lambda p: kernels.sgnht(p, STEP, friction=FRICTION), sgnht_by_hand),
    "ascent": Case(lambda p: kernels.ascent(p, optax.sgd(STEP)), ascent_by_hand),
    "nuts": Case(lambda p: kernels.nuts(p, LEAP), None),
    "hmc, diagonal metric": Case(lambda p: kernels.hmc(p, LEAP, kernels.Diagonal(DIAGONAL), num_steps=3), None),
    "mala, dense metric": Case(lambda p: kernels.mala(p, LEAP, kernels.Dense(FACTOR)), None),
    "rwm": Case(lambda p: kernels.rwm(p, LEAP), None),
}


def _variance():
    return np.concatenate([[DIAGONAL["b"]], DIAGONAL["w"]])


def _rmsprop_by_hand(start, gradient, noise):
    g = gradient(start)
    scale = 1 / (1e-3 + np.sqrt(0.9 + 0.1 * (g / NUM_ROWS) ** 2))
    return start + STEP / 2 * scale * g + np.sqrt(STEP * scale) * noise


def _control_variate_by_hand(start, gradient, noise):
    centre = np.array([0.0, 1.0, 1.0, 1.0])
    anchored = _full_gradient(centre) + gradient(start) - gradient(centre)
    return start + STEP / 2 * anchored + np.sqrt(STEP) * noise


def _full_gradient(position):
    rows = make_posterior().data
    return gradient_by_hand(np.asarray(rows["x"]), np.asarray(rows["y"]), position[1:], position[0])


# The kernels that remember a log-density or a gradient of the target from one step to the next.
REMEMBERING = {
    "sgld, control variate",
    "sgld, svrg",
    "sgld, accept on all rows",
    "sghmc, control variate",
    "nuts",
    "hmc, diagonal metric",
    "mala, dense metric",
    "rwm",
}


@pytest.fixture(params=KERNELS)
def case(request):
    return KERNELS[request.param]


def batch_of(posterior, start=0):
    return jax.tree.map(lambda array: array[start : start + SIZE], posterior.data)


def flatten(position):
    return np.concatenate([np.ravel(position["b"]), np.ravel(position["w"])])


# The others draw more random numbers in a step, and have it written out in tests/kernels.
@pytest.mark.parametrize("case", [KERNELS[name] for name in KERNELS if KERNELS[name].by_hand])
def test_one_step_by_hand(case):
    posterior = make_posterior()
    kernel = case.make(posterior)
    batch = batch_of(posterior)
    key = jax.random.key(3)
    state = kernel.init(jax.random.key(2), posterior.init(key), batch)
    moved, info = kernel.step(key, state, batch)
    x, y = np.asarray(batch["x"], np.float64), np.asarray(batch["y"], np.float64)
    known = {"momentum": flatten(state.momentum)} if hasattr(state, "momentum") else {}
    noise = flatten(standard_normal(key, state.position))

    def gradient(v):
        return gradient_by_hand(x, y, v[1:], v[0])

    expected = case.by_hand(flatten(state.position), gradient, noise, known)
    np.testing.assert_allclose(flatten(moved.position), expected, rtol=2e-5, atol=1e-6)
    if hasattr(moved, "momentum"):
        path = (flatten(moved.position) - flatten(state.position)) * 2 / STEP - known["momentum"]
        kick = flatten(moved.momentum) - path
        np.testing.assert_allclose(kick, STEP * gradient(flatten(moved.position)), rtol=0.02, atol=2e-3)
    assert np.isfinite(info.log_density)


def test_jit_vmap_and_scan_agree_with_plain_calls(case):
    posterior = make_posterior()
    kernel = case.make(posterior)
    batches = jax.tree.map(lambda array: array.reshape(5, SIZE, *array.shape[1:]), posterior.data)
    keys = jax.random.split(jax.random.key(1), 5)
    start = kernel.init(jax.random.key(2), posterior.init(keys[0]), batch_of(posterior))

    def body(state, inputs):
        return kernel.step(inputs[0], state, inputs[1])

    scanned, infos = jax.jit(lambda state: jax.lax.scan(body, state, (keys, batches)))(start)
    plain = start
    for i in range(5):
        plain, _ = kernel.step(keys[i], plain, jax.tree.map(lambda array, i=i: array[i], batches))
    np.testing.assert_allclose(flatten(scanned.position), flatten(plain.position), rtol=1e-4, atol=1e-5)
    assert jax.tree.structure(scanned) == jax.tree.structure(start)
    assert all(jnp.shape(leaf) == (5,) for leaf in jax.tree.leaves(infos))

    pair = jax.tree.map(lambda leaf: jnp.stack([leaf, leaf]), start)
    batch = batch_of(posterior)
    moved, _ = jax.vmap(kernel.step, (0, 0, None))(keys[:2], pair, batch)
    for chain in range(2):
        alone, _ = kernel.step(keys[chain], start, batch)
        here = jax.tree.map(lambda leaf, c=chain: leaf[c], moved.position)
        np.testing.assert_allclose(flatten(here), flatten(alone.position), rtol=1e-4, atol=1e-5)


def test_full_batch_and_all_rows_as_a_batch_agree(case):
    posterior = make_posterior()
    kernel = case.make(posterior)
    key = jax.random.key(5)
    moved = []
    for batch in (None, posterior.data):
        state = kernel.init(key, posterior.init(key), batch)
        moved.append(flatten(kernel.step(key, state, batch)[0].position))
    np.testing.assert_allclose(*moved, rtol=1e-4, atol=1e-5)


def test_steps_do_not_retrace(case):
    posterior = make_posterior()
    kernel = case.make(posterior)
    traces = []

    @jax.jit
    def step(key, state, batch):
        traces.append(1)
        return kernel.step(key, state, batch)

    state = kernel.init(jax.random.key(0), posterior.init(jax.random.key(0)), batch_of(posterior))
    for i in range(4):
        state, _ = step(jax.random.key(i), state, batch_of(posterior, i))
    assert len(traces) == 1


def test_double_precision(case):
    with jax.enable_x64(True):
        posterior = make_posterior(np.float64)
        kernel = case.make(posterior)
        state = kernel.init(jax.random.key(0), posterior.init(jax.random.key(0)), batch_of(posterior))
        moved, _ = kernel.step(jax.random.key(1), state, batch_of(posterior))
    assert all(leaf.dtype == np.float64 for leaf in jax.tree.leaves(moved.position))
    assert jax.tree.map(jnp.shape, moved) == jax.tree.map(jnp.shape, state)


def test_different_keys_move_differently(case):
    posterior = make_posterior()
    kernel = case.make(posterior)
    state = kernel.init(jax.random.key(0), posterior.init(jax.random.key(0)), batch_of(posterior))

    def after_some_steps(key):
        # Trajectories begin with the draw before them: the key of a first step tells in the second. Of random walks,
        # every other proposal is rejected.
        moved = state
        for number in range(6):
            moved, _ = kernel.step(jax.random.fold_in(key, number), moved, batch_of(posterior))
        return flatten(moved.position)

    a, b = (after_some_steps(jax.random.key(i)) for i in (1, 2))
    if case.by_hand is ascent_by_hand:
        np.testing.assert_array_equal(a, b)
    else:
        assert (a != b).any()


def make_shifted(shift):
    """The same regression with a further site, which is fixed: the rows are shifted by it."""
    posterior = make_posterior()
    density = lv.Density(
        lambda position: log_prior(position) - 0.5 * position["shift"] ** 2,
        lambda position, rows: log_likelihood(position, rows | {"y": rows["y"] - position["shift"]}),
        init=posterior.init(jax.random.key(0)) | {"shift": 0.0},
    )
    return density.posterior(posterior.data).given({"shift": shift})


def with_memory_of(fresh, state, target):
    """A fresh state with all that an old one remembers of its own way: momentum, counts, anchor."""
    own = ("momentum", "thermostat", "step", "preconditioner", "optimizer")
    kept = {name: getattr(state, name) for name in own if hasattr(state, name)}
    if jax.tree.leaves(getattr(state, "estimator", ())):
        anchor = state.estimator.anchor
        kept["estimator"] = state.estimator._replace(gradient=jax.grad(target.log_density)(anchor))
    return fresh._replace(**kept)


@pytest.mark.parametrize("name", KERNELS)
def test_refresh_forgets_the_old_target_and_nothing_else(name):
    before, after = make_shifted(0.0), make_shifted(0.7)
    old, new = (KERNELS[name].make(target) for target in (before, after))
    keys = jax.random.split(jax.random.key(4), 5)
    batch = batch_of(before)
    state = old.init(keys[0], before.init(keys[0]), batch)
    for key in keys[1:3]:
        state, _ = old.step(key, state, batch)

    expected = new.step(keys[4], with_memory_of(new.init(keys[3], state.position, batch), state, after), batch)
    refreshed = new.step(keys[4], new.refresh(keys[3], state, batch), batch)
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-5, atol=1e-6), refreshed, expected)
    stale = new.step(keys[4], state, batch)
    same = jax.tree.map(lambda a, b: np.allclose(a, b, rtol=1e-3, atol=1e-4), stale, expected)
    assert all(jax.tree.leaves(same)) == (name not in REMEMBERING)


def test_refresh_keeps_shapes_under_jit_and_vmap(case):
    target = make_shifted(0.7)
    kernel = case.make(target)
    keys = jax.random.split(jax.random.key(4), 3)
    states = jax.vmap(lambda key: kernel.init(key, target.init(jax.random.key(0)), batch_of(target)))(keys)
    refreshed = jax.jit(jax.vmap(lambda key, state: kernel.refresh(key, state, batch_of(target))))(keys, states)
    assert jax.tree.map(lambda leaf: (leaf.shape, leaf.dtype), refreshed) == jax.tree.map(
        lambda leaf: (leaf.shape, leaf.dtype), states
    )


@pytest.mark.parametrize("impl", ["threefry2x32", "rbg", "unsafe_rbg"])
def test_keys_of_every_kind(case, impl):
    posterior = make_posterior()
    kernel = case.make(posterior)
    key = jax.random.key(3, impl=impl)
    state = kernel.init(key, posterior.init(key), None)
    moved, info = kernel.step(jax.random.fold_in(key, 1), kernel.refresh(key, state, None), None)
    assert np.isfinite(flatten(moved.position)).all()
    assert np.isfinite(info.log_density)
