"""Simulation-based calibration: right models pass, and wrong ones are found."""

import jax
import numpy as np
import numpyro
import numpyro.distributions as dist
import pytest

import langevin as lv
from langevin.calibration import calibrate as module
from langevin.run import compilation
from langevin.run.seeds import Seed

SHORT = {"num_chains": 4, "num_warmup": 150, "num_draws": 25, "thin": 4, "progress": False}
TEMPLATE = {"y": np.zeros(5)}


@pytest.fixture(autouse=True)
def _trace_once(monkeypatch):
    """All fits of a test are of one program, with other rows as its argument: to trace it for each would take the most
    time."""
    real, known = compilation.compiled, {}

    def compiled(function, static, *arguments, **rest):
        shapes = tuple((np.shape(leaf), getattr(leaf, "dtype", type(leaf))) for leaf in jax.tree.leaves(arguments))
        if (function, static, shapes) not in known:
            known[function, static, shapes] = real(function, static, *arguments, **rest)
        return known[function, static, shapes]

    monkeypatch.setattr(compilation, "compiled", compiled)


def normal(y, prior_sd=1.0):
    mu = numpyro.sample("mu", dist.Normal(0.0, prior_sd))
    sigma = numpyro.sample("sigma", dist.LogNormal(1.5, 0.5))
    with numpyro.plate("rows", y.shape[0]):
        numpyro.sample("y", dist.Normal(mu, sigma), obs=y)


def simulate_normal(generator):
    mu, sigma = generator.normal(), generator.lognormal(1.5, 0.5)
    return {"mu": mu, "sigma": sigma}, {"y": generator.normal(mu, sigma, size=5)}


def groups(y):
    """Effects of unknown spread, fitted by their noise (`noncentred`)."""
    mu = numpyro.sample("mu", dist.Normal(0.0, 1.0))
    tau = numpyro.sample("tau", dist.HalfNormal(1.0))
    with numpyro.plate("rows", y.shape[0]):
        theta = numpyro.sample("theta", dist.Normal(mu, tau))
        numpyro.sample("y", dist.Normal(theta, 1.0), obs=y)


def test_a_program_that_simulates_itself():
    found = lv.calibrate(normal, data=TEMPLATE, num_simulations=80, **SHORT)
    assert found.is_calibrated, found.summary()
    assert found.num_simulations == 80
    assert set(found.places) == {"mu", "sigma"}
    assert repr(found).startswith("Calibrated: in 80 simulations by NUTS, all 2 parameters")


def test_a_prior_that_is_too_narrow_is_found(tmp_path):
    found = lv.calibrate(normal, simulate_normal, num_simulations=80, constants={"prior_sd": 0.5}, **SHORT)
    assert found.miscalibrated == ["mu"]
    assert not found.is_calibrated
    assert "Not calibrated" in found.verdict
    assert "mu (p < 0.0001" in found.verdict
    assert "draws are too narrow" in found.verdict
    table = found.summary()
    assert table.loc["mu", "spread"] > 3
    assert not table.loc["mu", "calibrated"]
    assert table.loc["sigma", "calibrated"]
    figure = found.plot(tmp_path / "wrong.png")
    assert (tmp_path / "wrong.png").stat().st_size > 1000
    assert [axes.get_title().split()[0] for axes in figure.axes] == ["mu", "sigma"]


def test_other_noise_than_the_model_has_is_found():
    def noisier(generator):
        parameters, data = simulate_normal(generator)
        return parameters, {"y": parameters["mu"] + 1.7 * (data["y"] - parameters["mu"])}

    found = lv.calibrate(normal, noisier, num_simulations=60, **SHORT)
    assert found.miscalibrated == ["sigma"]
    assert "draws are too high" in found.verdict


def test_weights_are_honoured():
    """Steps that shrink: by their weights the draws are those of the posterior; all counting the same, too wide."""
    generator = np.random.default_rng(0)
    truth = generator.normal(size=400)
    steps = np.repeat([[4.0, 1.0]], 500, axis=1).reshape(1, -1)
    places, unweighted = [], []
    for number, value in enumerate(truth):
        # Half of the draws are far too wide, and should count for nearly nothing.
        draws = generator.normal(size=(1, 1000)) * np.where(steps == 1.0, 3.0, 1.0)
        for weights, into in ((np.where(steps == 1.0, 1e-3, 2.0), places), (np.ones_like(steps), unweighted)):
            fit = _fit_of(draws, weights)
            into.append(module._places(fit, {"x": np.array(value)}, Seed.of(number))["x"])
    assert lv.Calibration({"x": np.array(places)}, "made up", 400).is_calibrated
    assert lv.Calibration({"x": np.array(unweighted)}, "made up", 400).miscalibrated == ["x"]


def _fit_of(draws, weights):
    import json

    import xarray as xr

    dims = ("chain", "draw")
    tree = xr.DataTree.from_dict(
        {"posterior": xr.Dataset({"x": (dims, draws)}), "sample_stats": xr.Dataset({"weight": (dims, weights)})}
    )
    tree.attrs["settings"] = json.dumps({"seed": [0, 0], "evidence": {}})
    return lv.Fit(tree)


def test_draws_that_depend_on_one_another_are_thinned():
    """By their effective size: without that, places are too far out."""
    generator = np.random.default_rng(1)
    truth, places, unthinned = generator.normal(size=400), [], []
    for number, value in enumerate(truth):
        noise = generator.normal(size=(2, 200))
        draws = np.empty_like(noise)
        draws[:, 0] = noise[:, 0]
        for step in range(1, 200):
            draws[:, step] = 0.98 * draws[:, step - 1] + np.sqrt(1 - 0.98**2) * noise[:, step]
        fit = _fit_of(draws, np.ones_like(draws))
        places.append(module._places(fit, {"x": np.array(value)}, Seed.of(number))["x"])
        unthinned.append(np.mean(draws < value))
    assert lv.Calibration({"x": np.array(places)}, "made up", 400).is_calibrated
    assert lv.Calibration({"x": np.array(unthinned)}, "made up", 400).miscalibrated == ["x"]


def test_any_method(monkeypatch):
    """Decreasing steps of SGLD, with minibatches; so few simulations show only that it runs."""
    method = lv.SGLD(step_size=lv.Polynomial(0.05, 10, 0.55))
    settings = {"num_chains": 2, "num_warmup": 200, "num_draws": 50, "thin": 10, "progress": False, "batch_size": 2}
    found = lv.calibrate(normal, data=TEMPLATE, method=method, num_simulations=10, **settings)
    assert found.method == "SGLD"
    assert all(((values > 0) & (values < 1)).all() for values in found.places.values())


def test_the_same_seed_gives_the_same():
    one, same, other = (
        lv.calibrate(normal, data=TEMPLATE, num_simulations=10, seed=seed, **SHORT).places["mu"] for seed in (1, 1, 2)
    )
    np.testing.assert_array_equal(one, same)
    assert not np.array_equal(one, other)


def test_fits_that_fail_are_counted(monkeypatch):
    real, calls = module.fit, iter(range(100))

    def sometimes(*args, **settings):
        if next(calls) % 5 == 0:
            raise lv.SamplingError("No start was found.")
        return real(*args, **settings)

    monkeypatch.setattr(module, "fit", sometimes)
    found = lv.calibrate(normal, data=TEMPLATE, num_simulations=10, **SHORT)
    assert (found.num_simulations, len(found.failures)) == (8, 2)
    assert "2 of 10 fits failed and do not count" in found.verdict
    assert "No start was found" in found.verdict


def test_all_fits_fail(monkeypatch):
    def never(*args, **settings):
        raise lv.SamplingError("No start was found.")

    monkeypatch.setattr(module, "fit", never)
    with pytest.raises(lv.SamplingError, match=r"all 10 fits failed.*No start"):
        lv.calibrate(normal, data=TEMPLATE, num_simulations=10, **SHORT)


def test_an_interrupted_calibration_has_what_there_is(monkeypatch):
    real, calls = module.fit, iter(range(100))

    def until(*args, **settings):
        if next(calls) == 6:
            raise KeyboardInterrupt
        return real(*args, **settings)

    monkeypatch.setattr(module, "fit", until)
    found = lv.calibrate(normal, data=TEMPLATE, num_simulations=10, **SHORT)
    assert found.interrupted
    assert found.num_simulations == 6
    assert "interrupted: 10 simulations were asked for" in found.verdict


MISTAKES = {
    "no data": ({}, "there is no `data`"),
    "both": ({"simulate": simulate_normal, "data": TEMPLATE}, "Leave `data` out, or `simulate`"),
    "no function": ({"simulate": 3}, "must be a function of a NumPy generator"),
    "no pair": ({"simulate": lambda generator: {"mu": 0.0}}, "must return a pair"),
    "no such name": ({"data": TEMPLATE, "names": ["nu"]}, "no parameter 'nu' is simulated; there are mu, sigma"),
    "too few": ({"data": TEMPLATE, "num_simulations": 3}, "num_simulations"),
    "one fit's": ({"data": TEMPLATE, "store": "x"}, "`store` is for a single fit"),
    "shape": (
        {"simulate": lambda g: ({"mu": np.zeros(2)}, {"y": np.zeros(5)})},
        r"'mu' is simulated with the shape \(2,\)",
    ),
    "unknown": ({"simulate": lambda g: ({"nu": 0.0}, {"y": np.zeros(5)})}, "the fit has no 'nu'"),
}


@pytest.mark.parametrize("mistake", MISTAKES)
def test_mistakes(mistake):
    arguments, message = MISTAKES[mistake]
    with pytest.raises(lv.SettingError, match=message):
        lv.calibrate(normal, **{"num_simulations": 10} | SHORT | arguments)


def test_a_program_that_cannot_simulate_itself():
    def logarithm(y):
        mu = numpyro.sample("mu", dist.Normal(0.0, 1.0))
        with numpyro.plate("rows", y.shape[0]):
            numpyro.sample("z", dist.Normal(mu, 1.0), obs=jax.numpy.log(y))

    def improper(y):
        mu = numpyro.sample("mu", dist.ImproperUniform(dist.constraints.real, (), ()))
        with numpyro.plate("rows", y.shape[0]):
            numpyro.sample("y", dist.Normal(mu, 1.0), obs=y)

    with pytest.raises(lv.SettingError, match="observed site 'z' is not a column of the data as it is"):
        lv.calibrate(logarithm, data={"y": np.ones(5)}, **SHORT)
    with pytest.raises(lv.ModelError, match="may be improper"):
        lv.calibrate(improper, data=TEMPLATE, **SHORT)
    density = lv.Density(lambda m: -(m**2), lambda m, rows: -((rows["x"] - m) ** 2), init=0.0)
    with pytest.raises(lv.SettingError, match=r"an lv\.Density has no prior to draw from"):
        lv.calibrate(density, data={"x": [1.0]}, **SHORT)


@pytest.mark.slow
def test_groups_of_unknown_spread():
    long = SHORT | {"num_warmup": 200, "thin": 10}
    found = lv.calibrate(groups, data={"y": np.zeros(6)}, num_simulations=200, noncentred=("theta",), **long)
    assert found.is_calibrated, found.summary()
    assert len(found.places) == 8
