"""lv.fit with the exact methods: right answers, the same bits, and what it says when something is wrong."""

import jax
import jax.numpy as jnp
import numpy as np
import numpyro
import numpyro.distributions as dist
import pytest
from compilation import compilations
from machinery import banana
from targets import Target, check_within_errors, linear_regression, poisson_rate, raw_regression

import langevin as lv
from langevin.diagnostics import weighted
from langevin.engines import reporting
from langevin.geometry import approach
from langevin.run import compilation, drive

METHODS = ["nuts", "hmc", "mala", "rwm"]
SHORT = {"num_chains": 2, "num_warmup": 100, "num_draws": 50, "progress": False}
LONG = {"num_chains": 16, "num_draws": 2000, "progress": False}
# (mean, sd) of an ARMA(1, 1).
ARMA = {"phi": (0.7572, 0.0521), "theta": (0.3573, 0.0698), "s": (0.9696, 0.0489)}
quiet = pytest.mark.filterwarnings("ignore::langevin.LangevinWarning")


@pytest.fixture(scope="module")
def normal():
    """A Gaussian in two dimensions."""
    return lv.Density(lambda x: -0.5 * jnp.sum(x**2 / jnp.array([1.0, 9.0])), init=jnp.zeros(2))


def funnel():
    v = numpyro.sample("v", dist.Normal(0, 3))
    numpyro.sample("x", dist.Normal(0, jnp.exp(v / 2)).expand([9]).to_event(1))


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("make_target", [linear_regression, poisson_rate])
def test_every_method_reaches_the_exact_posterior(method, make_target):
    target = make_target()
    fit = lv.fit(target.model, target.data, method, **LONG)
    check_within_errors(fit, target)
    assert fit.verdict == ()
    assert fit.settings["approximation"] == ""


@pytest.mark.parametrize("metric", ["unit", "diagonal", "dense", "lowrank"])
def test_every_metric_reaches_the_exact_posterior_of_badly_scaled_columns(metric):
    target = linear_regression(scales=(0.4, 1.0, 2.5) if metric == "unit" else (1e-3, 1.0, 1e3))
    fit = lv.fit(target.model, target.data, lv.NUTS(metric=metric), **LONG)
    check_within_errors(fit, target)
    assert (fit.stats["n_steps"].values.mean() < 5) == (metric != "unit")


@pytest.mark.parametrize("double", [False, True])
@pytest.mark.parametrize("kind", ["year", "square", "dollars"])
def test_columns_as_they_come(kind, double):
    """At the starts the log-density is -1e7 to -1e13, which single precision cannot resolve."""
    target = raw_regression(kind)
    with jax.enable_x64(double):
        fit = lv.fit(target.model, target.data, num_draws=3000, seed=1, progress=False)
    check_within_errors(fit, target)
    assert fit.verdict == ()
    assert fit.stats["n_steps"].values.mean() < 8


@quiet
def test_a_climb_can_be_continued(tmp_path, monkeypatch):
    target = raw_regression("year")
    whole = lv.fit(target.model, target.data, **SHORT)
    monkeypatch.setattr(approach, "advance", _raising_at(10, approach.advance))
    monkeypatch.setattr(drive._Clock, "decide", lambda self, phase: (50, True))
    with pytest.raises(KeyboardInterrupt, match="lv.resume"):
        lv.fit(target.model, target.data, store=tmp_path / "run", **SHORT)
    resumed = lv.resume(tmp_path / "run", target.model, target.data, progress=False)
    np.testing.assert_array_equal(resumed.posterior["w"], whole.posterior["w"])


def _raising_at(number, function):
    calls = []

    def counted(*arguments):
        calls.append(arguments)
        if len(calls) == number:
            raise KeyboardInterrupt
        return function(*arguments)

    return counted


@pytest.mark.parametrize("seed", [0, 3])
def test_starts_from_which_the_errors_explode(seed):
    """ARMA(1, 1): with |theta| > 1 an error grows by that factor at every time."""
    generator = np.random.default_rng(0)
    noise = generator.normal(size=201)
    y = np.zeros(201)
    for t in range(1, 201):
        y[t] = 0.7 * y[t - 1] + 0.4 * noise[t - 1] + noise[t]

    def model(y):
        phi, theta = (numpyro.sample(name, dist.Normal(0, 2)) for name in ("phi", "theta"))
        s = numpyro.sample("s", dist.HalfCauchy(2.5))

        def step(error, pair):
            mean = phi * pair[0] + theta * error
            return pair[1] - mean, mean

        _, mean = jax.lax.scan(step, 0.0 * s, jnp.stack([y[:-1], y[1:]], axis=1))
        numpyro.sample("y", dist.Normal(mean, s).to_event(1), obs=y[1:])

    fit = lv.fit(model, constants={"y": jnp.asarray(y, jnp.float32)}, seed=seed, progress=False)
    assert fit.verdict == ()
    # Of a run of 16 x 20,000 draws in double precision.
    for name, (mean, sd) in ARMA.items():
        assert abs(float(fit.posterior[name].mean()) - mean) < 0.15 * sd, name


def test_random_walk_needs_no_gradient():
    """A staircase: its gradient is zero wherever there is one. The chance of each step is known."""
    heights = np.array([0.5, 0.2, 0.2, 0.1])

    def log_density(x):
        step = jnp.floor(x).astype(jnp.int32)
        return jnp.where((step >= 0) & (step < 4), jnp.log(jnp.asarray(heights))[jnp.clip(step, 0, 3)], -jnp.inf)

    fit = lv.fit(lv.Density(log_density, init=0.5), None, "rwm", **LONG)
    values, mean = np.arange(4) + 0.5, heights @ (np.arange(4) + 0.5)
    target = Target(None, {}, {"position": mean}, {"position": np.sqrt(heights @ (values - mean) ** 2 + 1 / 12)})
    check_within_errors(fit, target)


@quiet
def test_a_curved_posterior():
    density = lv.Density(
        banana().log_density, init=jnp.zeros(2), constrain=lambda x: {"wide": x[0], "bend": x[1] - 0.3 * x[0] ** 2}
    )
    fit = lv.fit(density, None, lv.NUTS(target_accept=0.95), **LONG)
    check_within_errors(fit, Target(None, {}, {"wide": 0.0, "bend": 0.0}, {"wide": np.array(2), "bend": np.array(0.5)}))


@pytest.mark.parametrize("method", METHODS)
@quiet
def test_the_same_seed_gives_the_same_bits_however_draws_are_reported(normal, method, monkeypatch):
    """How a run is cut into chunks: see tests/test_runs.py."""
    expected = lv.fit(normal, None, method, **SHORT)
    other = lv.fit(normal, None, method, seed=1, **SHORT)
    assert (expected.posterior["position"] != other.posterior["position"]).mean() > 0.9
    monkeypatch.setattr(reporting, "MOST_GROUPS", 1)
    cut = lv.fit(normal, None, method, **SHORT)
    for group in ("posterior", "sample_stats"):
        for name, values in expected.data_tree[group].items():
            np.testing.assert_array_equal(values, cut.data_tree[group][name], err_msg=str(name))


@quiet
def test_thinning_keeps_every_so_manieth_draw(normal):
    settings = {key: value for key, value in SHORT.items() if key != "num_draws"}
    every = lv.fit(normal, None, "nuts", num_draws=30, **settings)
    third = lv.fit(normal, None, "nuts", num_draws=10, thin=3, **settings)
    np.testing.assert_array_equal(every.posterior["position"][:, 2::3], third.posterior["position"])
    np.testing.assert_array_equal(every.stats["lp"][:, 2::3], third.stats["lp"])


# A random walk has few effective draws.
@pytest.mark.filterwarnings("ignore:The effective size")
@pytest.mark.parametrize("method", METHODS)
def test_statistics_have_the_names_that_arviz_knows(normal, method):
    fit = lv.fit(normal, None, method, num_draws=500, progress=False)
    names = {"diverging", "energy", "n_steps", "step_size", "acceptance_rate", "lp"}
    names |= {"tree_depth", "reached_max_treedepth"} if method == "nuts" else set()
    assert names <= set(fit.stats)
    assert fit.stats["diverging"].dtype == bool
    assert fit.stats["n_steps"].dtype.kind == "i"
    position = fit.posterior["position"].values
    np.testing.assert_allclose(fit.stats["lp"], -0.5 * (position**2 / [1, 9]).sum(axis=2), rtol=1e-4, atol=1e-5)
    assert len(np.unique(fit.stats["step_size"])) == 1
    assert fit.settings["step_size"] == pytest.approx(fit.stats["step_size"].values[0, 0])
    target = {"nuts": 0.8, "hmc": 0.8, "mala": 0.574, "rwm": 0.3}[method]
    assert fit.stats["acceptance_rate"].values.mean() == pytest.approx(target, abs=0.12)
    if method == "nuts":
        depth, steps = fit.stats["tree_depth"].values, fit.stats["n_steps"].values
        assert (steps < 2 ** (depth + 1)).all()
        assert (steps >= 2**depth - 1).all()


def test_divergences_are_reported():
    method = lv.NUTS(step_size=1.0)
    with pytest.warns(lv.LangevinWarning) as seen:
        fit = lv.fit(funnel, None, method, noncentred=False, num_warmup=200, num_draws=300, progress=False)
    count = int(fit.stats["diverging"].sum())
    assert count > 0
    assert any(f"{count} trajectories diverged" in str(w.message) and "Non-centre" in str(w.message) for w in seen)
    assert "diverging" in [finding.code for finding in fit.verdict]


@quiet
def test_the_acceptance_is_raised_where_trajectories_diverge(normal):
    """Eight schools, at 0.8: with any tool a few of 4,000 trajectories diverge."""
    data = {"y": np.array([28.0, 8, -3, 7, -1, 1, 18, 12]), "sigma": np.array([15.0, 10, 16, 11, 9, 11, 10, 18])}

    def schools(y, sigma):
        mu, tau = numpyro.sample("mu", dist.Normal(0, 5)), numpyro.sample("tau", dist.HalfCauchy(5))
        with numpyro.plate("schools", 8):
            numpyro.sample("y", dist.Normal(numpyro.sample("theta", dist.Normal(mu, tau)), sigma), obs=y)

    def diverged(target_accept):
        fits = [lv.fit(schools, data, lv.NUTS(target_accept), seed=seed, progress=False) for seed in range(4)]
        return [int(fit.stats["diverging"].sum()) for fit in fits], [fit.settings["target_accept"] for fit in fits]

    plain, auto = diverged(0.8), diverged("auto")
    assert plain[1] == [0.8] * 4
    assert max(auto[1]) > 0.8
    assert sum(auto[0]) < sum(plain[0]) / 2
    assert lv.fit(normal, None, "nuts", **SHORT).settings["target_accept"] == 0.8


def test_trajectories_that_are_cut_off_are_reported():
    method = lv.NUTS(max_depth=2, step_size=0.3, metric="unit")
    density = lv.Density(lambda x: -0.5 * jnp.sum(x**2), init=jnp.zeros(2))
    with pytest.warns(lv.LangevinWarning, match="cut off at the largest depth"):
        fit = lv.fit(density, None, method, num_draws=1000, progress=False)
    assert fit.stats["tree_depth"].values.max() == 2
    assert fit.stats["n_steps"].values.max() == 3
    assert fit.stats["reached_max_treedepth"].values.mean() > 0.5


def test_chains_that_cannot_start_here_start_elsewhere():
    """Two of three starts are where there is no density."""
    density = lv.Density(
        lambda x: jnp.where(x > 1, -x, -jnp.inf), init=lambda key: jax.random.uniform(key, minval=-1.0, maxval=2.0)
    )
    fit = lv.fit(density, None, "rwm", **LONG | {"num_draws": 4000})
    assert fit.posterior["position"].values.min() > 1
    exponential = Target(None, {}, {"position": np.array(2.0)}, {"position": np.array(1.0)})
    check_within_errors(fit, exponential)


@pytest.mark.parametrize("method", METHODS)
def test_no_start_anywhere_names_the_site(method):
    def broken(y):
        scale = numpyro.sample("scale", dist.HalfNormal(1.0))
        with numpyro.plate("rows", y.shape[0]):
            numpyro.sample("y", dist.Uniform(0, scale), obs=y)

    with pytest.raises(lv.SamplingError, match=r"'y'.*row 1"):
        lv.fit(broken, {"y": np.array([0.1, 1e9])}, method, progress=False)


@pytest.mark.parametrize("method", METHODS)
def test_minibatches_are_refused(method):
    target = linear_regression()
    with pytest.raises(lv.SettingError, match="all rows in every step.*batch_size"):
        lv.fit(target.model, target.data, method, batch_size=10, progress=False)


@pytest.mark.parametrize(
    ("make", "culprit"),
    [
        (lambda: lv.NUTS(target_accept=1.0), "`target_accept` must be between 0 and 1; got 1.0"),
        (lambda: lv.NUTS(max_depth=0), "`max_depth`"),
        (lambda: lv.NUTS(max_depth=25), "`max_depth` must be at most 20"),
        (lambda: lv.NUTS(metric="sparse"), "`metric`"),
        (lambda: lv.NUTS(rank=0), "`rank`"),
        (lambda: lv.HMC(step_size=-1.0), "`step_size` must be > 0"),
        (lambda: lv.HMC(step_size="large"), "`step_size`"),
        (lambda: lv.HMC(num_steps=0), "`num_steps`"),
        (lambda: lv.HMC(jitter=1.0), "`jitter`"),
        (lambda: lv.HMC(length=0.0), "`length`"),
        (lambda: lv.MALA(target_accept=float("nan")), "`target_accept`"),
        (lambda: lv.RWM(target_accept="high"), "`target_accept`"),
    ],
)
def test_bad_settings_fail_at_construction(make, culprit):
    with pytest.raises(lv.SettingError, match=culprit):
        make()


# A random walk has few effective draws.
@pytest.mark.filterwarnings("ignore:The effective size")
@pytest.mark.parametrize("method", [lv.NUTS, lv.HMC, lv.MALA, lv.RWM])
@pytest.mark.parametrize("metric", ["unit", "auto"])
def test_a_given_step_stays_as_it_is_and_needs_no_warm_up(normal, method, metric):
    """Also when the chains start at the mode, where the gradient tells nothing."""
    fit = lv.fit(normal, None, method(step_size=1.3, metric=metric), num_warmup=0, num_draws=2000, progress=False)
    np.testing.assert_allclose(fit.stats["step_size"], 1.3, rtol=1e-6)
    assert fit.posterior["position"].shape == (4, 2000, 2)
    assert np.abs(fit.summary()["sd"] / [1.0, 3.0] - 1).max() < 0.2


@quiet
@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize(("num_warmup", "num_draws", "num_chains"), [(100, 1, 1), (1, 2, 3), (13, 1, 4)])
def test_very_short_runs(normal, method, num_warmup, num_draws, num_chains):
    fit = lv.fit(
        normal, None, method, num_warmup=num_warmup, num_draws=num_draws, num_chains=num_chains, progress=False
    )
    assert fit.posterior["position"].shape == (num_chains, num_draws, 2)
    assert np.isfinite(fit.stats["lp"]).all()
    repr(fit)


def test_hundreds_of_short_chains_are_judged_by_nested_rhat():
    target = linear_regression()
    fit = lv.fit(target.model, target.data, "nuts", num_chains=128, num_draws=20, num_warmup=200, progress=False)
    assert fit.posterior["w"].shape == (128, 20, 3)
    assert fit.settings["evidence"]["mixing"]["together"] == 16
    expected = weighted.nested_rhat(fit.posterior["w"].values, 16)
    np.testing.assert_allclose(fit.summary()["r_hat"], expected)
    assert (expected < 1.05).all()
    draws = fit.posterior["w"].values
    # 2,560 draws, nearly independent.
    assert (np.abs(draws.mean((0, 1)) - target.means["w"]) < 4 * target.sds["w"] / np.sqrt(1500)).all()
    assert (np.abs(draws.std((0, 1)) / target.sds["w"] - 1) < 0.06).all()


def test_nested_rhat_finds_groups_that_never_met():
    """Two modes, far apart: within a group all chains agree."""
    density = lv.Density(
        lambda x: jnp.logaddexp(-0.5 * (x - 20) ** 2, -0.5 * (x + 20) ** 2),
        init=lambda key: 20.0 * jax.random.rademacher(key, ()),
    )
    with pytest.warns(lv.LangevinWarning, match="R-hat"):
        fit = lv.fit(density, None, "nuts", num_chains=64, num_draws=20, num_warmup=200, progress=False)
    places = np.sign(fit.posterior["position"].values[:, 0]).reshape(4, 16)
    assert (places == places[:, :1]).all()
    assert 0 < (places[:, 0] > 0).sum() < 4


@quiet
def test_a_second_fit_compiles_nothing():
    """Also with other rows, if they are as many; and it sees them."""
    target = linear_regression(num_rows=31)
    other = {"x": 2 * target.data["x"], "y": target.data["y"] + 1}

    lv.fit(target.model, target.data, "nuts", **SHORT)
    kept = len(compilation._kept)
    with compilations() as seen:
        second = lv.fit(target.model, other, "nuts", seed=5, **SHORT)
        assert seen == []
        assert len(compilation._kept) == kept
        jax.jit(lambda x: 3.14159 * x)(1.0)
        assert seen
    precision = other["x"].T @ other["x"] + np.eye(3)
    mean = np.linalg.solve(precision, other["x"].T @ other["y"])
    assert (np.abs(second.summary()["mean"] - mean) < np.sqrt(np.diag(np.linalg.inv(precision)))).all()


@quiet
def test_a_second_fit_may_have_fewer_rows_or_more():
    """Programs that do not use the rows have the same text for any number of them."""
    for num_rows in (23, 22, 24):
        target = linear_regression(num_rows=num_rows)
        fit = lv.fit(target.model, target.data, "nuts", **SHORT)
        assert (np.abs(fit.summary()["mean"] - target.means["w"]) < target.sds["w"]).all()


@quiet
@pytest.mark.parametrize(
    "constant",
    [
        lambda value: value,
        lambda value: np.full(3, value, np.float32),
        lambda value: jnp.full(3, value),
        lambda value: jnp.full((200, 300), value),
        lambda value: np.full((200, 300), value, np.float32),
    ],
    ids=["number", "NumPy", "JAX", "large, JAX", "large, NumPy"],
)
def test_a_constant_that_changed_is_not_taken_from_an_old_program(constant):
    """The program is known by its text: whatever the density closes over must be in there."""
    for value in (0.0, 50.0):
        centre = constant(value)
        density = lv.Density(lambda x, centre=centre: -0.5 * (x - jnp.mean(centre)) ** 2, init=0.0)
        fit = lv.fit(density, None, "nuts", **SHORT)
        assert fit.posterior["position"].values.mean() == pytest.approx(value, abs=1.0)


def test_pytrees_with_data():
    """y ~ N(a + b x, 1) with a flat prior: least squares, whatever the shape of the position."""
    generator = np.random.default_rng(0)
    x, y = generator.normal(size=(2, 50))
    density = lv.Density(
        lambda p: -1e-6 * p["line"][0] ** 2,
        lambda p, rows: -0.5 * (rows["y"] - p["line"][0] - p["line"][1]["slope"][0, 0] * rows["x"]) ** 2,
        init={"line": (0.0, {"slope": jnp.zeros((1, 1))})},
    )
    fit = lv.fit(density, {"x": x, "y": y}, "nuts", **LONG)
    design = np.stack([np.ones(50), x], axis=1)
    mean, covariance = np.linalg.lstsq(design, y)[0], np.linalg.inv(design.T @ design)
    found = fit.posterior["line.1.slope"].values
    assert found.shape == (16, 2000, 1, 1)
    names = ("line.0", "line.1.slope")
    check_within_errors(
        fit,
        Target(
            None, {}, dict(zip(names, mean, strict=True)), dict(zip(names, np.sqrt(np.diag(covariance)), strict=True))
        ),
    )


@quiet
def test_full_batch_hmc_on_a_small_network():
    """As Izmailov et al. 2021: the posterior of a network of two layers, 59 weights, by long trajectories."""
    generator = np.random.default_rng(0)
    x = generator.uniform(-2, 2, size=60)
    data = {"x": x, "y": np.sin(2 * x) + 0.1 * generator.normal(size=60)}

    def predict(p, x):
        hidden = jnp.tanh(x[..., None] * p["w1"] + p["b1"])
        return jnp.tanh(hidden @ p["w2"] + p["b2"]) @ p["w3"]

    def init(key):
        shapes = {"w1": (5,), "b1": (5,), "w2": (5, 7), "b2": (7,), "w3": (7,)}
        keys = jax.random.split(key, len(shapes))
        return {name: jax.random.normal(k, shape) for k, (name, shape) in zip(keys, shapes.items(), strict=True)}

    density = lv.Density(
        lambda p: -0.5 * sum(jnp.sum(leaf**2) for leaf in jax.tree.leaves(p)),
        lambda p, rows: -0.5 * ((rows["y"] - predict(p, rows["x"])) / 0.1) ** 2,
        init=init,
    )
    fit = lv.fit(density, data, lv.HMC(length=2.0), num_warmup=500, num_draws=200, progress=False)
    draws = {name: values.values.reshape(-1, *values.shape[2:]) for name, values in fit.posterior.items()}
    assert sum(np.prod(values.shape[1:], dtype=int) for values in draws.values()) == 59
    assert 0.6 < fit.stats["acceptance_rate"].values.mean() < 0.95
    new = np.linspace(-2, 2, 50)
    curves = np.asarray(jax.vmap(lambda p: predict(p, new))(draws))
    assert np.sqrt(np.mean((curves.mean(axis=0) - np.sin(2 * new)) ** 2)) < 0.08
    beyond = np.asarray(jax.vmap(lambda p: predict(p, np.array([0.0, 4.0])))(draws)).std(axis=0)
    assert beyond[1] > 3 * beyond[0]


@quiet
@pytest.mark.parametrize("method", METHODS)
def test_double_precision(normal, method):
    with jax.enable_x64(True):
        fit = lv.fit(lv.Density(normal.log_prior, init=np.zeros(2)), None, method, **SHORT)
    assert fit.posterior["position"].dtype == np.float64
    assert fit.stats["lp"].dtype == np.float64


@pytest.mark.parametrize("width", [1.0, 60.0])
def test_many_coordinates_get_a_metric_of_low_rank(width):
    """One direction through all of them is that much wider."""
    sds = 10.0 ** np.linspace(-2, 2, 150)

    def log_density(x):
        z = x / sds
        return -0.5 * (jnp.sum(z**2) - (1 - width**-2) * jnp.sum(z) ** 2 / 150)

    fit = lv.fit(lv.Density(log_density, init=jnp.zeros(150)), None, "nuts", num_chains=8, progress=False)
    assert fit.verdict == ()
    exact = sds * np.sqrt(1 + (width**2 - 1) / 150)
    assert np.abs(fit.summary()["sd"].to_numpy() / exact - 1).max() < 0.08
    assert fit.stats["n_steps"].values.mean() < 16


def test_a_renamed_site_is_reported_by_its_name():
    def fit(name):
        def model(y):
            m = numpyro.sample(name, dist.Normal(0, 1))
            with numpyro.plate("rows", len(y)):
                numpyro.sample("y", dist.Normal(m, 1.0), obs=y)

        return lv.fit(model, {"y": np.ones(7)}, "nuts", **SHORT | {"num_draws": 300})

    assert [list(fit(name).posterior) for name in ("first", "second")] == [["first"], ["second"]]
