"""Laplace's method: against closed forms and Hessians by hand, and however it is cut."""

import itertools

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import numpyro
import numpyro.distributions as dist
import pytest
from laplace_cases import LINEAR, QUICK, covariance_at, few_rows, gaussian, quiet, two_layers
from targets import check_against_exact, linear_regression, raw_regression

import langevin as lv
from langevin.geometry import curvature, evaluating, gauss_newton
from langevin.run import drive


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
