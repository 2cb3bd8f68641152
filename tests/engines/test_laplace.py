"""Laplace's method: against closed forms, Hessians by hand, and Gauss-Newton matrices by jax.jacobian."""

import itertools

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import numpyro
import numpyro.distributions as dist
import pytest
from targets import check_against_exact, linear_regression, raw_regression

import langevin as lv
from langevin.contracts import Needs
from langevin.data.table import as_table
from langevin.geometry import curvature, evaluating, gauss_newton, modal
from langevin.geometry.starts import flattened
from langevin.models.build import target_of
from langevin.run import drive
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


# Closed forms.


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


@pytest.mark.parametrize("kind", LINEAR)
@pytest.mark.parametrize("structure", ["auto", "dense", "diagonal", "kronecker", "last_layer"])
def test_a_linear_model_is_exact(kind, structure):
    x, y = few_rows()
    precision = x.T @ x / 0.25 + np.eye(3) / 4
    method = lv.Laplace(structure)
    if structure in ("kronecker", "last_layer") and kind != "network":
        with pytest.raises(lv.SettingError, match="Choose 'dense' or 'diagonal'"):
            lv.fit(LINEAR[kind], {"x": x, "y": y}, method, **QUICK)
        return
    warns = pytest.warns(lv.LangevinWarning, match="far from the posterior") if structure == "diagonal" else None
    if warns is None:
        fit = lv.fit(LINEAR[kind], {"x": x, "y": y}, method, **QUICK)
    else:
        with warns:
            fit = lv.fit(LINEAR[kind], {"x": x, "y": y}, method, **QUICK)
    mean, covariance = gaussian(fit)
    exact = np.linalg.inv(precision)
    if structure == "diagonal":
        np.testing.assert_allclose(covariance, np.diag(1 / np.diag(precision)), rtol=1e-4, atol=1e-9)
    else:
        np.testing.assert_allclose(covariance, exact, rtol=1e-4, atol=1e-6)
        assert not fit.verdict or {finding.code for finding in fit.verdict} <= {"point"}
        assert fit.settings["evidence"]["ratios"]["efficiency"] > 0.99
    sds = np.sqrt(np.diag(exact))
    np.testing.assert_allclose(mean, exact @ x.T @ y / 0.25, atol=0.02 * sds.min())


def test_draws_are_those_of_the_gaussian():
    target = linear_regression()
    fit = lv.fit(target.model, target.data, "laplace", progress=False)
    check_against_exact(fit, target)
    assert fit.verdict.word == "trustworthy"
    assert fit.posterior.sizes["chain"] == 4
    first = {name: fit.tree["unconstrained_posterior"][name].values[0, 0] for name in ("w",)}
    assert fit.guide.log_prob(first) == pytest.approx(float(fit.stats["log_q"][0, 0]), rel=1e-4)


def test_kronecker_factors_are_exact_for_one_layer_with_its_own_prior_of_the_bias():
    """Several outputs, Gaussian noise: P is (X'X / s^2 + D) (x) I, where D has another precision for the bias."""
    x, y = few_rows(outputs=2)
    net = eqx.nn.Linear(3, 2, key=jax.random.key(1))
    network = lv.Network(net, lv.likelihoods.Gaussian(0.5), lv.FanIn(1.5, 0.3))
    rows = np.concatenate([x, np.ones((len(x), 1))], axis=1)
    precision = rows.T @ rows / 0.25 + np.diag([3 / 1.5**2] * 3 + [1 / 0.3**2])
    exact = np.linalg.inv(precision)
    # The flat position: the biases of both outputs first, and then their weights.
    order = [(0, 3), (1, 3), *((output, column) for output in (0, 1) for column in range(3))]
    wanted = np.array([[exact[i, j] * (o == p) for p, j in order] for o, i in order])
    for structure in ("kronecker", "dense", "last_layer"):
        np.testing.assert_allclose(covariance_at(network, {"x": x, "y": y}, structure), wanted, rtol=1e-3, atol=1e-6)


def test_logistic_regression_has_the_curvature_of_its_likelihood():
    generator = np.random.default_rng(0)
    x = generator.normal(size=(400, 3)).astype(np.float32)
    y = (generator.random(400) < 1 / (1 + np.exp(-x @ [1.0, -2.0, 0.0]))).astype(np.float32)

    def model(x, y=None):
        w = numpyro.sample("w", dist.Normal(0, 1).expand([3]).to_event(1))
        with numpyro.plate("rows", len(x)):
            numpyro.sample("y", dist.Bernoulli(logits=x @ w), obs=y)

    w = np.zeros(3)
    for _ in range(20):
        p = 1 / (1 + np.exp(-x @ w))
        hessian = (x.T * (p * (1 - p))) @ x + np.eye(3)
        w = w + np.linalg.solve(hessian, x.T @ (y - p) - w)
    network = lv.Network(eqx.nn.Linear(3, 1, use_bias=False, key=jax.random.key(0)), "bernoulli", dist.Normal(0, 1))
    for fitted in (model, network):
        fit = lv.fit(fitted, {"x": x, "y": y}, "laplace", **QUICK)
        mean, covariance = gaussian(fit)
        np.testing.assert_allclose(mean, w, atol=1e-4)
        np.testing.assert_allclose(covariance, np.linalg.inv(hessian), rtol=1e-3, atol=1e-7)
        assert fit.verdict.word == "trustworthy"


# The Gauss-Newton matrix by hand, at weights that are given.


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


def test_the_gauss_newton_matrix_of_two_layers(monkeypatch):
    """In parts of 4 rows (dense, diagonal and last layer), of which the last overlaps the one before."""
    most = {"dense": 4 * 3 * 43, "diagonal": 4 * (3 * 8 + 11), "last_layer": 4 * (3 * 3 + 6 + 36)}
    whole = gauss_newton.GaussNewton.__init__

    def in_parts(self, target, example, programs, structure):
        monkeypatch.setattr(gauss_newton, "MOST_NUMBERS", most[structure.kind])
        whole(self, target, example, programs, structure)
        assert self.num_parts == 3

    monkeypatch.setattr(gauss_newton.GaussNewton, "__init__", in_parts)
    network, data = two_layers()
    jacobian, hessians, prior = by_hand(network, data)
    matrix = np.einsum("nci,ncd,ndj->ij", jacobian, hessians, jacobian) + np.diag(prior)
    mean, covariance = at_given(network, data, "dense")[2]
    np.testing.assert_allclose(covariance, np.linalg.inv(matrix), rtol=2e-3, atol=1e-5)
    np.testing.assert_allclose(np.sort(mean), np.sort(np.concatenate([v.ravel() for v in network.net.first.values()])))
    covariance = covariance_at(network, data, "diagonal")
    np.testing.assert_allclose(np.diag(covariance), 1 / np.diag(matrix), rtol=1e-4)
    covariance = covariance_at(network, data, "last_layer")
    last = np.r_[25:28, 28:43]
    assert [*sorted(network.shapes)] == ["layers.0.bias", "layers.0.weight", "layers.1.bias", "layers.1.weight"]
    np.testing.assert_allclose(
        covariance[np.ix_(last, last)], np.linalg.inv(matrix[np.ix_(last, last)]), rtol=2e-3, atol=1e-5
    )
    assert not covariance[:25].any()


def test_kronecker_factors_of_two_layers():
    network, data = two_layers()
    _, hessians, _ = by_hand(network, data)
    first = {name: np.asarray(value, np.float64) for name, value in network.net.first.items()}
    count = len(data["x"])
    hidden = np.tanh(data["x"] @ first["layers.0.weight"].T + first["layers.0.bias"])
    back = first["layers.1.weight"] * (1 - hidden**2)[:, None, :]
    factors = [
        (data["x"], np.einsum("nci,ncd,ndj->ij", back, hessians, back), 4, 9 / 4),
        (hidden, hessians.sum(axis=0), 5, 9 / 5),
    ]
    covariance = covariance_at(network, data, "kronecker")
    start = 0
    for inputs, outputs, width, variance in factors:
        a = np.concatenate([inputs, np.ones((count, 1))], axis=1)
        precision = np.kron(outputs, a.T @ a / count)
        precision += np.kron(np.eye(len(outputs)), np.diag([1 / variance] * width + [1.0]))
        places = np.arange(len(precision)).reshape(len(outputs), width + 1)
        # The flat position has the biases first.
        order = np.concatenate([places[:, -1], places[:, :-1].ravel()])
        wanted = np.linalg.inv(precision)[np.ix_(order, order)]
        here = slice(start, start + len(order))
        np.testing.assert_allclose(covariance[here, here], wanted, rtol=2e-3, atol=1e-5)
        start += len(order)


def test_kronecker_factors_of_biases_alone_are_exact_by_layer():
    """With the matrices frozen, what goes in is 1."""
    network, data = two_layers(frozen="*.weight")
    dense, kronecker = (covariance_at(network, data, structure) for structure in ("dense", "kronecker"))
    for here in (slice(0, 5), slice(5, 8)):
        wanted = np.linalg.inv(np.linalg.inv(dense)[here, here])
        np.testing.assert_allclose(kronecker[here, here], wanted, rtol=2e-3, atol=1e-5)
    assert not kronecker[:5, 5:].any()


def test_temperature_counts_in_all_of_it():
    network, data = two_layers()
    warm, _ = two_layers(temperature=4.0)
    one, other = (covariance_at(net, data, "kronecker") for net in (network, warm))
    np.testing.assert_allclose(other, 4 * one, rtol=2e-3, atol=1e-5)


def test_unknowns_of_the_likelihood_have_their_own_curvature():
    network, data = two_layers(lv.likelihoods.StudentT(dist.Gamma(2.0, 0.1)), rows=40)
    target, position, (_, covariance) = at_given(network, data, "dense")
    of_others = lambda u: -target.log_density({**position, "df": u[0], "noise": u[1]})  # noqa: E731
    hessian = jax.jit(jax.hessian(of_others))(jnp.stack([position["df"], position["noise"]]))
    names = sorted(position)
    places = [sum(position[other].size for other in names[: names.index(name)]) for name in ("df", "noise")]
    np.testing.assert_allclose(covariance[np.ix_(places, places)], np.linalg.inv(hessian), rtol=1e-3)
    rest = np.delete(np.arange(len(covariance)), places)
    assert not covariance[np.ix_(places, rest)].any()


def test_a_convolution_is_a_linear_layer_at_every_place():
    """Over the whole image it is one; with several places its diagonal is that of the derivatives."""
    keys = jax.random.split(jax.random.key(0), 2)

    class Net(eqx.Module):
        conv: eqx.nn.Conv2d
        last: eqx.nn.Linear

        def __call__(self, x):
            return self.last(jnp.tanh(self.conv(x)).ravel())

    generator = np.random.default_rng(1)
    data = {"x": generator.normal(size=(6, 1, 3, 3)).astype(np.float32), "y": generator.integers(2, size=6)}
    whole = Net(eqx.nn.Conv2d(1, 4, 3, key=keys[0]), eqx.nn.Linear(4, 2, key=keys[1]))
    flat = eqx.nn.MLP(9, 2, 4, 1, activation=jnp.tanh, key=keys[0])
    where = lambda net: [net.layers[0].weight, net.layers[0].bias, net.layers[1].weight, net.layers[1].bias]  # noqa: E731
    same = [whole.conv.weight.reshape(4, 9), whole.conv.bias.ravel(), whole.last.weight, whole.last.bias]
    flat = eqx.tree_at(where, flat, same)
    priors = dist.Normal(0, 1)
    of_conv = covariance_at(lv.Network(whole, "categorical", priors, init="given"), data, "kronecker")
    rows = {**data, "x": data["x"].reshape(6, 9)}
    of_flat = covariance_at(lv.Network(flat, "categorical", priors, init="given"), rows, "kronecker")
    np.testing.assert_allclose(of_conv, of_flat, rtol=1e-3, atol=1e-5)
    small = Net(eqx.nn.Conv2d(1, 4, 2, key=keys[0]), eqx.nn.Linear(16, 2, key=keys[1]))
    network = lv.Network(small, "categorical", priors, init="given")
    jacobian, hessians, _ = by_hand(network, data)
    diagonal = np.einsum("nci,ncd,ndi->i", jacobian, hessians, jacobian) + 1
    variance = np.diag(covariance_at(network, data, "diagonal"))
    np.testing.assert_allclose(variance, 1 / diagonal, rtol=1e-3)
    variance = np.diag(covariance_at(network, data, "kronecker"))
    # An approximation: of the same size.
    assert np.abs(np.log(variance * diagonal)).max() < 1.5


# Predictions.


@quiet
def test_predictions_are_those_of_the_linearised_network(tmp_path):
    network, data = two_layers(lv.likelihoods.Gaussian(0.3), rows=30)
    fit = lv.fit(network, data, lv.Laplace("dense", climb=lv.MAP(learning_rate=0.01)), progress=False)
    mean, covariance = gaussian(fit)
    x = np.random.default_rng(8).normal(size=(7, 4)).astype(np.float32)
    unravel = fit.guide.objective.unravel
    apply = lambda flat: network.net.apply(unravel(flat), x)[:, 0]  # noqa: E731
    jacobian = np.asarray(jax.jacobian(apply)(jnp.asarray(mean, jnp.float32)), np.float64)
    sd = np.sqrt(np.einsum("ni,ij,nj->n", jacobian, covariance, jacobian))
    found = fit.predict({"x": x})
    # 1,000 draws.
    np.testing.assert_allclose(found["mean"], apply(mean.astype(np.float32)), atol=4.5 * sd.max() / np.sqrt(1000))
    np.testing.assert_allclose(found["sd_epistemic"], sd, rtol=4.5 / np.sqrt(2000))
    np.testing.assert_allclose(found["sd_aleatoric"], 0.3, rtol=1e-3)
    assert "linearised at the mode" in repr(fit)
    # So are those at a few rows that are kept with the draws.
    kept = fit.posterior["prediction"].values.reshape(-1, 30)
    at_mode = np.asarray(network.net.apply(unravel(jnp.asarray(mean, jnp.float32)), data["x"])[:, 0])
    np.testing.assert_allclose(kept.mean(axis=0), at_mode, atol=4.5 * kept.std(axis=0).max() / np.sqrt(4000))
    # And what else is computed of the fit: the log-density of its draws.
    first = {name: jnp.asarray(fit.posterior[name].values[1, 3]) for name in network.shapes}
    assert float(fit.target.log_density(first)) == pytest.approx(float(fit.stats["lp"][1, 3]), rel=1e-4)
    fit.save(tmp_path / "fit")
    loaded = lv.load(tmp_path / "fit", network).predict({"x": x})
    np.testing.assert_allclose(loaded["mean"], found["mean"], atol=1e-6)
    np.testing.assert_allclose(loaded["sd_epistemic"], found["sd_epistemic"], rtol=1e-4)
    plain = lv.fit(network, data, lv.Laplace("dense", climb=None, linearised=False), init=fit, progress=False)
    through = plain.predict({"x": x})
    assert np.abs(through["sd_epistemic"] / sd - 1).max() > 0.05


def test_the_posterior_of_the_linearised_network_is_gaussian():
    """With Gaussian noise that is known: its ratios are all the same, where those of the network itself are not."""
    network, data = two_layers(lv.likelihoods.Gaussian(0.3), rows=30)
    climb = lv.MAP(learning_rate=0.01)
    fit = lv.fit(network, data, lv.Laplace("dense", climb), **QUICK)
    assert fit.settings["evidence"]["ratios"]["efficiency"] > 0.98
    assert fit.verdict.word == "trustworthy"
    with pytest.warns(lv.LangevinWarning, match="far from the posterior"):
        fit = lv.fit(network, data, lv.Laplace("dense", climb, linearised=False), **QUICK)
    assert fit.settings["evidence"]["ratios"]["efficiency"] < 0.5


# What it says of itself.


def test_a_skewed_posterior_is_said_to_be_far():
    skewed = lv.Density(lambda x: 0.3 * x - jnp.exp(x), init=0.0)
    with pytest.warns(lv.LangevinWarning, match="far from the posterior.*method='vi'"):
        fit = lv.fit(skewed, method="laplace", progress=False)
    assert fit.verdict.word == "wrong"


def finding(fit, code):
    return next(str(found) for found in fit.verdict if found.code == code)


@quiet
def test_a_direction_without_curvature_is_said():
    flat = lv.Density(lambda x: -0.5 * x["a"] ** 2 - 0.5 * (x["b"] - x["c"]) ** 2, init={"a": 1.0, "b": 0.0, "c": 0.0})
    fit = lv.fit(flat, method="laplace", **QUICK)
    assert "In 1 of 3 directions the density does not fall" in finding(fit, "curvature")


@quiet
def test_a_saddle_is_said_and_a_curvature_that_is_not_finite_is_refused():
    saddle = lv.Density(lambda x: -0.5 * x[0] ** 2 + 0.5 * x[1] ** 2 - x[1] ** 4, init=np.zeros(2, np.float32))
    fit = lv.fit(saddle, method=lv.Laplace(climb=None), **QUICK)
    assert "In 1 of 2 directions" in finding(fit, "curvature")
    kink = lv.Density(lambda x: -(jnp.abs(x) ** 1.5), init=np.float32(0.0))
    with pytest.raises(lv.SamplingError, match="the curvature at the mode is not finite"):
        lv.fit(kink, method=lv.Laplace(climb=None), **QUICK)


@quiet
def test_a_climb_that_ended_early_is_said():
    network, data = two_layers(lv.likelihoods.Gaussian(0.1), rows=50)
    fit = lv.fit(network, data, lv.Laplace("kronecker", climb=lv.MAP(num_steps=2)), **QUICK)
    assert "ended before the mode" in finding(fit, "not settled")


@quiet
@pytest.mark.parametrize("kind", ["year", "dollars"])
def test_columns_as_they_come(kind):
    target = raw_regression(kind)
    fit = lv.fit(target.model, target.data, "laplace", progress=False)
    assert "curvature" not in {finding.code for finding in fit.verdict}
    np.testing.assert_allclose(fit.posterior["w"].std(("chain", "draw")), target.sds["w"], rtol=0.1)
    # At the mode, w is what it is given s.
    mode = {name: fit.tree["mode"][name].values.astype(np.float64) for name in ("w", "s")}
    x, prior = target.data["x"], {"year": [10.0, 1.0], "dollars": [50_000.0, 2000.0]}[kind]
    wanted = np.linalg.solve(x.T @ x + np.diag((mode["s"] / prior) ** 2), x.T @ target.data["y"])
    assert np.abs((mode["w"] - wanted) / target.sds["w"]).max() < 0.02


def counts(x, y=None):
    w = numpyro.sample("w", dist.Normal(0, 1).expand([2]).to_event(1))
    with numpyro.plate("rows", len(x)):
        numpyro.sample("y", dist.Poisson(jnp.exp(x @ w)), obs=y)


def heavy(x, y=None):
    w = numpyro.sample("w", dist.Normal(0, 1).expand([2]).to_event(1))
    s = numpyro.sample("s", dist.HalfNormal(1))
    with numpyro.plate("rows", len(x)):
        numpyro.sample("y", dist.StudentT(4.0, x @ w, s), obs=y)


@pytest.mark.parametrize("model", [counts, heavy], ids=["poisson", "student"])
def test_other_likelihoods_against_the_hessian(model):
    generator = np.random.default_rng(3)
    x = generator.normal(size=(600, 2)).astype(np.float32)
    middle = x @ np.array([0.5, -0.3])
    y = generator.poisson(np.exp(middle)) if model is counts else middle + 0.4 * generator.standard_t(4, size=600)
    fit = lv.fit(model, {"x": x, "y": y.astype(np.float32)}, "laplace", progress=False)
    assert fit.verdict.word == "trustworthy"
    mean, covariance = gaussian(fit)
    unravel = fit.guide.objective.unravel
    with jax.enable_x64(False):
        log_density = lambda flat: fit.target.log_density(unravel(flat))  # noqa: E731
        hessian = -np.asarray(jax.hessian(log_density)(jnp.asarray(mean, jnp.float32)), np.float64)
    np.testing.assert_allclose(covariance, np.linalg.inv(hessian), rtol=1e-3, atol=1e-6)


def test_what_a_network_lacks_is_said():
    class Normed(eqx.Module):
        first: eqx.nn.Linear
        norm: eqx.nn.LayerNorm

        def __call__(self, x):
            return self.norm(self.first(x))

    keys = jax.random.split(jax.random.key(0))
    network = lv.Network(Normed(eqx.nn.Linear(4, 3, key=keys[0]), eqx.nn.LayerNorm(3)), "categorical")
    data = two_layers()[1]
    with pytest.raises(lv.SettingError, match=r"'norm.weight' is not"):
        lv.fit(network, data, lv.Laplace("kronecker"), progress=False)
    shared = lv.Network(lambda key: Shared(eqx.nn.Linear(2, 3, key=key)), "categorical")
    with pytest.raises(lv.SettingError, match="no layer can be told"):
        lv.fit(shared, data, lv.Laplace("last_layer"), progress=False)
    tied = lv.Network(lambda key: Tied(eqx.nn.Linear(4, 4, key=key)), "categorical")
    with pytest.raises(lv.SettingError, match="no layer can be told"):
        lv.fit(tied, data, lv.Laplace("kronecker"), progress=False)
    wide = lv.Network(eqx.nn.MLP(4, 3, 400, 2, key=keys[1]), "categorical")
    with pytest.raises(lv.SettingError, match="would take .* GB"):
        lv.fit(wide, data, lv.Laplace("dense"), progress=False)
    tied = lv.Network(
        eqx.nn.Linear(4, 3, use_bias=False, key=keys[0]),
        "categorical",
        lambda name, shape: dist.MultivariateNormal(np.zeros((3, 4)), np.eye(4) + 0.5),
    )
    with pytest.raises(lv.SettingError, match="independent in their prior"):
        lv.fit(tied, data, lv.Laplace("kronecker"), progress=False)
    for settings, message in (
        ({"structure": "full"}, "`structure` must be one of"),
        ({"climb": "adam"}, "`climb` must be 'auto', an lv.MAP or None"),
        ({"num_starts": 0}, "`num_starts` must be a whole number"),
    ):
        with pytest.raises(lv.SettingError, match=message):
            lv.Laplace(**settings)


class Shared(eqx.Module):
    part: eqx.nn.Linear

    def __call__(self, x):
        return jax.vmap(self.part)(x.reshape(2, 2)).sum(axis=0)


class Tied(eqx.Module):
    part: eqx.nn.Linear

    def __call__(self, x):
        return self.part.weight.T @ jnp.tanh(self.part(x))


# Runs.


@quiet
def test_a_network_is_the_same_however_it_is_cut(monkeypatch, tmp_path):
    monkeypatch.setattr(gauss_newton, "MOST_NUMBERS", 100)
    network, data = two_layers(lv.likelihoods.Gaussian(), rows=40)
    method = lv.Laplace("kronecker", climb=lv.MAP(num_steps=50))
    settings = {"num_draws": 30, "num_chains": 2, "batch_size": 10, "progress": False}
    whole = lv.fit(network, data, method, **settings)
    limits = itertools.cycle([1, 3, 7])
    monkeypatch.setattr(drive._Clock, "decide", lambda self, phase: (next(limits), True))
    cut = lv.fit(network, data, method, store=tmp_path / "run", **settings)
    for name in whole.posterior:
        np.testing.assert_array_equal(whole.posterior[name].values, cut.posterior[name].values)
    assert cut.settings["structure"] == "kronecker"


def test_parts_of_the_rows_make_the_same_hessian(monkeypatch):
    x, y = few_rows(200)
    fits = []
    for most in (evaluating.MOST_AT_ONCE, 100):
        monkeypatch.setattr(evaluating, "MOST_AT_ONCE", most)
        fits.append(gaussian(lv.fit(LINEAR["density"], {"x": x, "y": y}, "laplace", **QUICK)))
    for one, other in zip(*fits, strict=True):
        np.testing.assert_allclose(one, other, rtol=1e-4, atol=1e-8)


def test_many_coordinates_are_reached_as_map_does():
    generator = np.random.default_rng(0)
    middle = generator.normal(size=600).astype(np.float32)
    density = lv.Density(lambda x: -jnp.sum(jnp.cosh(x - middle)), init=np.zeros(600, np.float32))
    fit = lv.fit(
        density,
        method=lv.Laplace(num_starts=1, climb=lv.MAP(num_steps=300)),
        num_chains=1,
        num_draws=20,
        progress=False,
    )
    mean, covariance = gaussian(fit)
    np.testing.assert_allclose(mean, middle, atol=1e-4)
    np.testing.assert_allclose(covariance, np.eye(600), atol=1e-3)


def test_a_factor_of_a_bad_curvature_counts_what_is_made_up():
    root = np.random.default_rng(0).normal(size=(4, 4))
    good = root @ root.T + np.eye(4)
    factor, flat = curvature.factor_of(good)
    assert flat == 0
    np.testing.assert_allclose(factor @ factor.T, np.linalg.inv(good))
    assert (np.triu(factor, 1) == 0).all()
    vectors = np.linalg.eigh(good)[1]
    factor, flat = curvature.factor_of((vectors * [-1, 1, 2, 3]) @ vectors.T)
    assert flat == 1
    assert (np.diag(factor) > 0).all()
    assert np.isfinite(factor).all()


def test_predictions_of_the_linearised_network_are_not_kept_without_weights():
    network, data = two_layers(lv.likelihoods.Gaussian(0.3), rows=10)
    with pytest.raises(lv.SettingError, match="give linearised=False"):
        lv.fit(network, data, lv.Laplace("dense"), keep=lv.Keep(predict={"x": data["x"]}), progress=False)
