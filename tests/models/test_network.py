"""`lv.Network` as a density: likelihoods, priors, frozen weights, starts and scales, each by hand in NumPy."""

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from numpyro import distributions as dist
from scipy import stats

import langevin as lv
from langevin.contracts import Needs
from langevin.models.arguments import brought
from langevin.models.build import target_of

N = 12
RNG = np.random.default_rng(0)
X = RNG.normal(size=(N, 2)).astype(np.float32)


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


def gaussian_by_row(output, y, position):
    return stats.norm.logpdf(y, output[:, 0], np.log1p(np.exp(output[:, 1])) + 1e-3).sum()


def gaussian_two(output, y, position):
    noise = np.exp(position["noise"])
    return half_normal(noise) + position["noise"] + stats.norm.logpdf(y, output, noise).sum()


def gaussian_two_noises(output, y, position):
    noise = np.exp(position["noise"])
    return (half_normal(noise) + position["noise"]).sum() + stats.norm.logpdf(y, output, noise).sum()


def student(output, y, position):
    noise, more = np.exp(position["noise"]), np.exp(position["df"])
    prior = half_normal(noise) + position["noise"] + stats.gamma.logpdf(more, 2, scale=10) + position["df"]
    return prior + stats.t.logpdf(y, 1 + more, output[:, 0], noise).sum()


def categorical(output, y, position):
    return (output - np.log(np.exp(output).sum(axis=1, keepdims=True)))[np.arange(N), y.astype(int)].sum()


def bernoulli(output, y, position):
    return stats.bernoulli.logpmf(y.astype(int), 1 / (1 + np.exp(-output[:, 0]))).sum()


def poisson(output, y, position):
    return stats.poisson.logpmf(y, np.exp(output[:, 0])).sum()


def gamma(output, y, position):
    return stats.gamma.logpdf(y, 2.0, scale=np.exp(-output[:, 0])).sum()


NUMBERS = RNG.normal(size=N).astype(np.float32)
PAIRS = RNG.normal(size=(N, 2)).astype(np.float32)
CLASSES = RNG.integers(0, 3, N)
LIKELIHOODS = {
    "gaussian": ("gaussian", 1, NUMBERS, gaussian),
    "gaussian of a column": ("gaussian", 1, NUMBERS[:, None], lambda o, y, p: gaussian(o, y[:, 0], p)),
    "fixed noise": (lv.likelihoods.Gaussian(0.3), 1, NUMBERS, gaussian_fixed),
    "noise by row": (lv.likelihoods.Gaussian("output"), 2, NUMBERS, gaussian_by_row),
    "two numbers": ("gaussian", 2, PAIRS, gaussian_two),
    "two noises": (
        lv.likelihoods.Gaussian(dist.HalfNormal(jnp.ones(2)).to_event(1)),
        2,
        PAIRS,
        gaussian_two_noises,
    ),
    "student_t": ("student_t", 1, NUMBERS, student),
    "categorical": ("categorical", 3, CLASSES, categorical),
    "categorical of floats": ("categorical", 3, CLASSES.astype(np.float32), categorical),
    "bernoulli": ("bernoulli", 1, CLASSES > 1, bernoulli),
    "poisson": ("poisson", 1, CLASSES, poisson),
    "a function": (lambda output: dist.Gamma(2.0, jnp.exp(output[:, 0])), 1, np.exp(NUMBERS), gamma),
}


@pytest.mark.parametrize("name", LIKELIHOODS)
@pytest.mark.parametrize("minibatch", [False, True])
def test_log_density_by_hand(name, minibatch):
    likelihood, out_size, y, by_hand = LIKELIHOODS[name]
    network = lv.Network(mlp(out_size), likelihood)
    posterior = target(network, {"x": X, "y": y}, minibatch)
    position = drawn(posterior)
    prior, observed = weight_prior(network, position), by_hand(forward(position), y, position)
    assert log_density(posterior, position) == pytest.approx(prior + observed, rel=1e-4)
    if minibatch:
        rows = {"x": X[:4], "y": posterior.data["y"][:4]}
        by_row = np.asarray(posterior.log_likelihood(position, rows))
        assert by_row.shape == (4,)
        np.testing.assert_allclose(by_row, np.asarray(posterior.log_likelihood(position))[:4], rtol=1e-4, atol=1e-4)


def test_a_tempered_density_is_the_density_to_a_power():
    data = {"x": X, "y": NUMBERS}
    plain, cold = (target(lv.Network(mlp(), temperature=t), data) for t in (1.0, 0.25))
    position = drawn(plain)
    # The Jacobian of the noise is of the space, and has no temperature.
    jacobian = position["noise"]
    assert log_density(cold, position) == pytest.approx(
        4 * (log_density(plain, position) - jacobian) + jacobian, rel=1e-5
    )


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


def test_weights_are_not_noncentred():
    with pytest.raises(lv.SettingError, match="`noncentred` is for sites whose scale is unknown"):
        target(lv.Network(mlp()), {"x": X, "y": NUMBERS}, noncentred=True)
