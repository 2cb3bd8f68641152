"""lv.fit on bad inputs, which it refuses by name, and on odd ones, which it must take."""

import jax
import jax.numpy as jnp
import numpy as np
import numpyro
import numpyro.distributions as dist
import pandas as pd
import polars as pl
import pytest

import langevin as lv

# Runs this short have not mixed, and say so.
pytestmark = pytest.mark.filterwarnings("ignore::langevin.LangevinWarning")

NUM_ROWS = 10
RNG = np.random.default_rng(0)
X = RNG.normal(size=(NUM_ROWS, 2)).astype(np.float32)
Y = RNG.normal(size=NUM_ROWS).astype(np.float32)
SHORT = {"num_warmup": 20, "num_draws": 20, "num_chains": 1, "progress": False}


def normal(y):
    m = numpyro.sample("m", dist.Normal(0.0, 1.0))
    with numpyro.plate("rows", y.shape[0]):
        numpyro.sample("y", dist.Normal(m, 1.0), obs=y)


def regression(x, y):
    w = numpyro.sample("w", dist.Normal(0.0, 1.0).expand([2]).to_event(1))
    with numpyro.plate("rows", x.shape[0]):
        numpyro.sample("y", dist.Normal(x @ w, 1.0), obs=y)


def fit(model=normal, data=None, method=None, **keywords):
    method = lv.SGLD(step_size=1e-2) if method is None else method
    return lv.fit(model, {"y": Y} if data is None else data, method, **SHORT | keywords)


def with_value(value):
    y = Y.copy()
    y[3] = value
    return {"y": y}


@pytest.mark.parametrize(
    ("data", "culprit"),
    [
        (with_value(np.nan), r"`data` lacks values, of 10 rows: 'y' in 1 \(row 3\)"),
        (with_value(np.inf), r"`data\['y'\]` has inf at row 3"),
        ({"y": []}, "`data` is empty: 'y'"),
        ({}, "no columns"),
        ({"y": 1.0}, r"`data\['y'\]` is a single value"),
        ({"y": ["1.5", "2"]}, r"`data\['y'\]` holds numbers as text"),
        (Y, "`data` must be a dict of arrays or a frame; got ndarray"),
    ],
    ids=["nan", "inf", "empty", "no columns", "scalar", "text", "bare"],
)
def test_bad_data(data, culprit):
    with pytest.raises(lv.DataError, match=culprit):
        fit(data=data)


@pytest.mark.parametrize(
    ("keywords", "culprit"),
    [
        ({"batch_size": 0}, "`batch_size` must be a whole number.*got 0"),
        ({"batch_size": -5}, "`batch_size` must be a whole number.*got -5"),
        ({"batch_size": 2.0}, r"`batch_size` must be a whole number.*got 2\.0"),
        ({"batch_size": "all"}, "`batch_size` must be a whole number.*got 'all'"),
        ({"batch_size": True}, "`batch_size` must be a whole number.*got True"),
        ({"batch_size": 11}, "`batch_size` is 11, but the data has 10 rows"),
        ({"num_chains": 0}, "`num_chains` must be a whole number, at least 1; got 0"),
        ({"num_chains": 1.5}, r"`num_chains`.*got 1\.5"),
        ({"num_draws": 0}, "`num_draws`.*at least 1; got 0"),
        ({"num_draws": -1}, "`num_draws`.*got -1"),
        ({"num_draws": "many"}, "`num_draws`.*got 'many'"),
        ({"num_warmup": -1}, "`num_warmup`.*at least 0; got -1"),
        ({"thin": 0}, "`thin`.*at least 1; got 0"),
        ({"thin": 0.5}, r"`thin`.*got 0\.5"),
        ({"seed": "zero"}, "`seed` must be a whole number .*one key.*got 'zero'"),
        ({"seed": 1.0}, r"`seed`.*got 1\.0"),
        ({"seed": True}, "`seed`.*got True"),
        ({"seed": None}, "`seed`.*got None"),
        ({"seed": 2**70}, "`seed` must be a whole number of 64 bits"),
        ({"constants": [1]}, "`constants` must be a dict"),
        ({"method": "slice"}, "'slice'"),
        ({"method": 3}, "3"),
    ],
)
def test_bad_settings(keywords, culprit):
    with pytest.raises(lv.SettingError, match=culprit):
        fit(**keywords)


def test_unknown_keywords():
    with pytest.raises(TypeError, match="num_samples"):
        fit(num_samples=10)
    with pytest.raises(TypeError, match="stepsize"):
        lv.SGLD(stepsize=0.1)


@pytest.mark.parametrize("model", [None, "normal", 3, {"log_prior": normal}])
def test_what_is_no_model(model):
    with pytest.raises(lv.ModelError, match=r"`model` must be a NumPyro program or an lv\.Density"):
        lv.fit(model, {"y": Y}, **SHORT)


def test_constants_that_clash_with_data():
    with pytest.raises(lv.ModelError, match=r"`data` and `constants` both have \['y'\]"):
        fit(constants={"y": 1.0})


def test_names_that_do_not_match():
    with pytest.raises(lv.ModelError, match=r"missing a required argument: 'y'.*\['z'\]"):
        fit(data={"z": Y})
    with pytest.raises(lv.ModelError, match="unexpected keyword argument 'scale'"):
        fit(constants={"scale": 1.0})


def test_rows_and_constants_are_for_programs():
    density = lv.Density(lambda m: -(m**2), lambda m, rows: rows["y"] * m, init=0.0)
    with pytest.raises(lv.SettingError, match="`constants`, `rows` and `noncentred` are for NumPyro programs"):
        fit(density, constants={"k": 1})
    with pytest.raises(lv.SettingError, match="`constants`, `rows` and `noncentred` are for NumPyro programs"):
        fit(density, rows="rows")


def test_rows_must_name_a_plate():
    with pytest.raises(lv.ModelError, match=r"`rows='nowhere'`"):
        fit(rows="nowhere")


def test_minibatches_need_data():
    with pytest.raises(lv.SettingError, match="`batch_size=2` needs rows"):
        lv.fit(lambda: numpyro.sample("m", dist.Normal()), None, "sgld", batch_size=2, **SHORT)


def row_local(y):
    s = numpyro.sample("s", dist.HalfNormal(1.0))
    with numpyro.plate("rows", y.shape[0]):
        z = numpyro.sample("z", dist.Normal(0.0, s))
        numpyro.sample("y", dist.Normal(z, 1.0), obs=y)


def test_row_local_latents_need_all_rows():
    with pytest.raises(lv.ModelError, match="'z' is latent and inside the plate over the rows"):
        fit(row_local, batch_size=5)


def test_infinite_start_names_the_observed_site_and_the_row():
    def model(y):
        rate = numpyro.sample("rate", dist.HalfNormal(1.0))
        with numpyro.plate("rows", y.shape[0]):
            numpyro.sample("y", dist.Beta(rate, 2.0), obs=y)

    with pytest.raises(lv.SamplingError, match=r"'y' is -inf at row 1, where its value is 1\.0, at rate="):
        fit(model, {"y": np.array([0.5, 1.0, 0.2])})


def test_infinite_start_names_the_latent_site():
    def model(y):
        m = numpyro.sample("m", dist.Normal(0.0, 1.0))
        numpyro.factor("wall", jnp.where(m > 100.0, 0.0, -jnp.inf))
        with numpyro.plate("rows", y.shape[0]):
            numpyro.sample("y", dist.Normal(m, 1.0), obs=y)

    with pytest.raises(lv.SamplingError, match=r"not finite.*site 'wall' is -inf"):
        fit(model)


def test_infinite_start_of_a_density():
    density = lv.Density(lambda m: -(m**2), lambda m, rows: jnp.log(rows["y"]) * m, init=1.0)
    with pytest.raises(lv.SamplingError, match="`log_likelihood` is nan for row 1"):
        fit(density, {"y": np.array([1.0, -1.0])})


COUNTS = np.array([0, 3, 1, 2, 5, 0, 1, 1, 2, 4])


def poisson(y):
    rate = numpyro.sample("rate", dist.LogNormal(0.0, 1.0))
    with numpyro.plate("rows", y.shape[0]):
        numpyro.sample("y", dist.Poisson(rate), obs=y)


def coin(y):
    p = numpyro.sample("p", dist.Beta(1.0, 1.0))
    with numpyro.plate("rows", y.shape[0]):
        numpyro.sample("y", dist.Bernoulli(probs=p), obs=y)


def no_rows():
    m = numpyro.sample("m", dist.Normal(0.0, 1.0))
    numpyro.sample("y", dist.Normal(m, 1.0), obs=jnp.array([1.0, 2.0]))


@pytest.mark.parametrize(
    ("model", "data", "keywords", "name", "shape"),
    [
        (poisson, {"y": COUNTS}, {}, "rate", ()),
        (poisson, {"y": COUNTS.astype(np.uint8)}, {"batch_size": 4}, "rate", ()),
        (coin, {"y": COUNTS > 1}, {}, "p", ()),
        (regression, {"x": X.astype(np.float64), "y": Y.tolist()}, {}, "w", (2,)),
        (normal, {"y": Y[:1]}, {}, "m", ()),
        (normal, {"y": Y[:1]}, {"batch_size": 1}, "m", ()),
        (normal, {"y": Y}, {"batch_size": 3, "num_chains": 2}, "m", ()),
        (normal, {"y": Y}, {"batch_size": NUM_ROWS}, "m", ()),
        (normal, {"y": Y}, {"batch_size": np.int64(5)}, "m", ()),
        (normal, {"y": Y}, {"batch_size": lv.Batches(4, "rows", shared=True)}, "m", ()),
        (no_rows, None, {}, "m", ()),
        (normal, {"y": Y}, {"num_draws": 1, "num_warmup": 0}, "m", ()),
        (normal, {"y": Y}, {"thin": np.int64(3), "num_draws": np.int64(20), "seed": -1}, "m", ()),
    ],
    ids=[
        "integers",
        "bytes",
        "booleans",
        "64 bits and lists",
        "one row",
        "one row, one a batch",
        "uneven batches",
        "one batch",
        "numpy batch size",
        "shared rows",
        "no data",
        "one draw",
        "thin",
    ],
)
def test_odd_inputs_work(model, data, keywords, name, shape):
    result = lv.fit(model, data, lv.SGLD(step_size=1e-3), **SHORT | keywords)
    draws = result.posterior[name]
    settings = SHORT | keywords
    assert draws.shape == (settings["num_chains"], settings["num_draws"], *shape)
    assert np.isfinite(draws).all()
    assert np.unique(draws).size == draws.size
    assert result.settings["num_data"] == (0 if data is None else len(data["y"]))


def test_row_local_latents_in_full_data():
    with pytest.warns(lv.LangevinWarning):
        result = fit(row_local, num_chains=2)
    assert result.posterior["z"].shape == (2, 20, NUM_ROWS)
    assert np.isfinite(result.posterior["z"]).all()
    assert result.posterior["z"].dims == ("chain", "draw", "rows")
    assert result.posterior["s"].dims == ("chain", "draw")


def test_constants_are_passed_whole():
    def model(y, centre, use):
        assert use == "this"
        m = numpyro.sample("m", dist.Normal(centre.sum(), 1e-3))
        with numpyro.plate("rows", y.shape[0]):
            numpyro.sample("y", dist.Normal(m, 1e3), obs=y)

    constants = {"centre": np.array([1.0, 2.0, 3.0]), "use": "this"}
    result = fit(model, method=lv.SGLD(step_size=1e-6), batch_size=5, constants=constants, num_warmup=200)
    assert abs(float(result.posterior["m"].mean()) - 6.0) < 0.1


@pytest.fixture(scope="module")
def reference():
    y = Y.copy()
    draws = fit(data={"y": y}, batch_size=4, seed=7).posterior["m"].values
    np.testing.assert_array_equal(y, Y)
    return draws


@pytest.mark.parametrize(
    "data",
    [pd.DataFrame({"y": Y.astype(np.float64)}), pl.DataFrame({"y": Y}), {"y": jnp.asarray(Y)}],
    ids=["pandas", "polars", "jax"],
)
def test_the_same_data_in_any_form_gives_the_same_bits(reference, data):
    np.testing.assert_array_equal(fit(data=data, batch_size=4, seed=jax.random.key(7)).posterior["m"], reference)
