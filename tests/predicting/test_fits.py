"""Predictions of real fits: every kind of engine, fits that were loaded, and what is said when something is missing."""

import jax
import jax.numpy as jnp
import numpy as np
import numpyro
import numpyro.distributions as dist
import pytest
from made import CASES, made

import langevin as lv

RNG = np.random.default_rng(0)
X = RNG.normal(size=(200, 2)).astype(np.float32)
Y = (X @ [1.0, -0.5] + 0.5 * RNG.normal(size=200)).astype(np.float32)
DATA = {"x": X, "y": Y}


def model(x, y=None):
    w = numpyro.sample("w", dist.Normal(0, 1).expand([2]).to_event(1))
    with numpyro.plate("rows", x.shape[0]):
        numpyro.sample("y", dist.Normal(x @ w, 0.5), obs=y)


def exact():
    """The predictive mean and sd on the rows, in closed form."""
    covariance = np.linalg.inv(X.T @ X / 0.25 + np.eye(2))
    mean = X @ covariance @ (X.T @ Y) / 0.25
    return mean, np.sqrt(0.25 + np.einsum("ni,ij,nj->n", X, covariance, X))


@pytest.fixture(scope="module")
def nuts():
    return lv.fit(model, DATA, num_draws=500, num_warmup=300, progress=False)


METHODS = {
    "SGHMC": {"method": "sghmc", "batch_size": 50, "num_draws": 500},
    "SGLD with weights": {
        "method": lv.SGLD(lv.Polynomial(2e-3, 10.0, 0.55)),
        "batch_size": 50,
        "num_draws": 1000,
        "num_warmup": 500,
        "thin": 5,
    },
    "VI": {"method": "vi", "num_draws": 500},
    "MAP": {"method": "map"},
}


@pytest.mark.parametrize("name", METHODS)
@pytest.mark.filterwarnings("ignore::langevin.LangevinWarning")
def test_every_engine_predicts(name):
    fit = lv.fit(model, DATA, progress=False, **METHODS[name])
    mean, sd = exact()
    found = fit.predict()
    assert np.abs(found["mean"] - mean).max() < 0.1
    assert np.abs(found["sd"] / sd - 1).max() < 0.1
    inside = ((found["q5"] < Y) & (found["q95"] > Y)).mean()
    assert 0.84 < inside < 0.96
    if name == "SGLD with weights":
        assert np.ptp(fit.weights.values) > 0.1
        draws, weights = fit.posterior["w"].values.reshape(-1, 2), fit.weights.values.ravel()
        everything = fit.predict(num_draws=fit.weights.size, quantiles=())
        np.testing.assert_allclose(everything["mean"], X @ (weights @ draws / weights.sum()), atol=1e-5)
    if name == "MAP":
        assert (found["sd_epistemic"] < 0.1).all()


def test_a_loaded_fit_predicts_when_given_the_model(nuts, tmp_path):
    nuts.save(tmp_path / "fit.zarr")
    with pytest.raises(lv.SettingError, match=r"needs the model.*lv.load\(path, model\)"):
        lv.load(tmp_path / "fit.zarr").predict(DATA)
    loaded = lv.load(tmp_path / "fit.zarr", model)
    expected = nuts.predict(DATA)
    for key, values in loaded.predict(DATA).items():
        np.testing.assert_array_equal(values, expected[key])
    with pytest.raises(lv.SettingError, match="Give `data`"):
        loaded.predict()
    with pytest.raises(lv.SettingError, match=r"`predictive_check` needs the rows"):
        loaded.predictive_check()
    assert loaded.evaluate(DATA)["RMSE"] == pytest.approx(nuts.evaluate()["RMSE"])


def test_the_same_seed_gives_the_same_bits_and_another_seed_others(nuts):
    one, two, three = (nuts.predict(kind="draws", num_draws=10, seed=seed)["y"].values for seed in (1, 1, 2))
    np.testing.assert_array_equal(one, two)
    assert np.abs(one - three).min() > 0


def test_a_guide_s_program_is_predicted_with_its_parameters():
    """The program's own parameter is fitted to 2.5, which it does not begin with; its rows have latents."""

    def program(x, y=None):
        scale = numpyro.param("scale", 1.0, constraint=dist.constraints.positive)
        with numpyro.plate("rows", len(x)):
            z = numpyro.sample("z", dist.Normal(0, 0.01))
            numpyro.sample("y", dist.Normal(scale * x + z, 0.1), obs=y)

    def guide(x, y=None):
        with numpyro.plate("rows", len(x)):
            numpyro.sample("z", dist.Normal(0.0, 0.01))

    x = np.linspace(-1, 1, 100).astype(np.float32)
    y = 2.5 * x + 0.1 * RNG.normal(size=100).astype(np.float32)
    fit = lv.fit(program, {"x": x, "y": y}, lv.VI(guide, num_steps=3000), num_draws=200, progress=False)
    scale = fit.guide.values["scale"]
    assert abs(scale - 2.5) < 0.1
    found = fit.predict({"x": np.array([1.0, 2.0], np.float32)})
    np.testing.assert_allclose(found["mean"], [scale, 2 * scale], atol=0.01)


def test_a_density_predicts_by_its_predictive_function():
    def log_prior(position):
        return -jnp.sum(position["w"] ** 2) / 2

    def log_likelihood(position, rows):
        return -((rows["y"] - rows["x"] @ position["w"]) ** 2) / 0.5

    parts = {"log_prior": log_prior, "log_likelihood": log_likelihood, "init": {"w": np.zeros(2)}}
    fit = lv.fit(lv.Density(**parts), DATA, progress=False, num_draws=300, num_warmup=300)
    with pytest.raises(lv.ModelError, match="Give it a `predictive` function"):
        fit.predict(DATA)
    density = lv.Density(**parts, predictive=lambda position, rows: {"y": dist.Normal(rows["x"] @ position["w"], 0.5)})
    fit = lv.fit(density, DATA, progress=False, num_draws=300, num_warmup=300)
    found, (mean, sd) = fit.predict(), exact()
    np.testing.assert_allclose(found["mean"], mean, atol=0.02)
    np.testing.assert_allclose(found["sd"], sd, rtol=0.02)
    assert "log_predictive_density" in found
    assert fit.predict({"x": X[:3]}).sizes == {"row": 3}


@pytest.mark.filterwarnings("ignore::langevin.LangevinWarning")
def test_what_keep_dropped_is_named():
    fit = lv.fit(
        model, DATA, progress=False, num_draws=50, num_warmup=100, keep=lambda sites: {"norm": sites["w"].sum()}
    )
    with pytest.raises(lv.ModelError, match=r"Site 'w' is needed to predict.*it has 'norm'.*`keep=`"):
        fit.predict(DATA)


def test_arguments_that_cannot_be_left_out_are_named():
    def needs_y(x, y):
        a = numpyro.sample("a", dist.Normal(0, 1))
        with numpyro.plate("rows", len(x)):
            numpyro.sample("y", dist.Normal(a * x, 1.0), obs=y)

    def sized_by_y(x, y=None):
        a = numpyro.sample("a", dist.Normal(0, 1))
        with numpyro.plate("rows", len(y)):
            numpyro.sample("y", dist.Normal(a * x, 1.0), obs=y)

    def only_if_observed(x, y=None):
        a = numpyro.sample("a", dist.Normal(0, 1))
        if y is not None:
            with numpyro.plate("rows", len(x)):
                numpyro.sample("y", dist.Normal(a * x, 1.0), obs=y)

    case = CASES["linear"]()
    x, draws = case.data["x"][:, 0], {"a": np.ones(800, np.float32)}
    data = {"x": x, "y": x}
    for program, message in (
        (needs_y, r"called without 'y', of which its observed site 'y' is made.*Write `y=None`"),
        (sized_by_y, r"does not run on the rows to predict without `y`: TypeError.*sizes"),
        (only_if_observed, r"called without `y`, has no site to predict.*obs=y"),
    ):
        with pytest.raises(lv.ModelError, match=message):
            made(case._replace(model=program, data=data, draws=draws)).predict()
    with pytest.raises(lv.ModelError, match=r"missing a required argument: 'y'.*default None"):
        made(case._replace(model=needs_y, data=data, draws=draws)).predict({"x": x})
    with pytest.raises(lv.ModelError, match=r"missing a required argument: 'x'"):
        made(case).predict({"y": x})
    with pytest.raises(lv.ModelError, match=r"argument: 'x'. `data` also has 'z', which no argument asks for"):
        made(case).predict({"z": x})


def test_values_of_other_rows_that_nobody_knows_are_refused():
    def process(x, y=None):
        f = numpyro.sample("f", dist.MultivariateNormal(jnp.zeros(len(x)), jnp.eye(len(x)) + x[:, None] * x))
        with numpyro.plate("rows", len(x)):
            numpyro.sample("y", dist.Normal(f, 0.1), obs=y)

    x = np.linspace(0, 1, 20).astype(np.float32)
    draws = {"f": RNG.normal(size=(800, 20)).astype(np.float32)}
    fit = made(CASES["linear"]()._replace(model=process, data={"x": x, "y": x}, draws=draws))
    np.testing.assert_allclose(fit.predict(num_draws=800)["mean"], draws["f"].mean(axis=0), atol=1e-5)
    with pytest.raises(lv.ModelError, match=r"Site 'f' has a value for each of the fit's rows and is not in a plate"):
        fit.predict({"x": x + 1})


def test_bad_settings_are_named():
    fit = made(CASES["linear"]())
    for settings, message in (
        ({"kind": "mean"}, r"`kind` must be one of 'summary', 'draws'"),
        ({"names": "z"}, r"there is no site 'z'; there are 'w', 's', 'mu', 'y'"),
        ({"quantiles": (0.0,)}, r"`quantiles` must be between 0 and 1; got 0.0"),
        ({"num_draws": 0}, r"`num_draws` must be a whole number"),
        ({"batch_size": 0}, r"`batch_size` must be a whole number"),
        ({"unseen": "skip"}, r"`unseen` must be one of"),
    ):
        with pytest.raises(lv.SettingError, match=message):
            fit.predict(**settings)


@pytest.mark.filterwarnings("ignore::langevin.LangevinWarning")
def test_half_precision_and_x64_predict(nuts):
    half = lv.fit(model, DATA, progress=False, num_draws=100, num_warmup=100, keep=lv.Keep(precision="half"))
    assert np.abs(half.predict()["mean"] - exact()[0]).max() < 0.1
    with jax.enable_x64(True):
        found = nuts.predict()
    np.testing.assert_allclose(found["mean"], nuts.predict()["mean"], atol=1e-4)
