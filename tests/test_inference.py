"""lv.fit as a whole: precision, optimisers, schedules, what warm-up decides."""

import jax
import numpy as np
import optax
import pytest
from targets import linear_regression

import langevin as lv


@pytest.mark.parametrize("optimizer", ["adam", "rmsprop", "sgd", optax.adam(optax.cosine_decay_schedule(0.1, 3000))])
@pytest.mark.parametrize("batch_size", [None, 50])
def test_map_reaches_the_mode(optimizer, batch_size):
    target = linear_regression()
    fit = lv.fit(target.model, target.data, lv.MAP(optimizer), batch_size=batch_size, num_chains=2, progress=False)
    assert dict(fit.posterior.sizes) == {"chain": 1, "draw": 1, "w_dim_0": 3}
    # On minibatches the last steps still jitter, by less as the rate decays.
    tolerance = 0.3 if batch_size else 0.05
    assert (np.abs(fit.posterior["w"].values[0, 0] - target.means["w"]) < tolerance * target.sds["w"]).all()


@pytest.mark.parametrize("method", ["sgld", "sghmc", "map"])
def test_double_precision_throughout(method):
    target = linear_regression()
    with jax.enable_x64(True):
        fit = lv.fit(target.model, target.data, method, batch_size=50, progress=False)
    assert fit.posterior["w"].dtype == np.float64
    assert (np.abs(fit.summary()["mean"].to_numpy() - target.means["w"]) < 0.3 * target.sds["w"]).all()


def test_any_optax_schedule_is_a_step_size():
    target = linear_regression()
    schedule = optax.exponential_decay(1e-3, 1000, 0.5)
    settings = {"num_chains": 2, "num_warmup": 0, "num_draws": 100, "thin": 10, "progress": False}
    with pytest.warns(lv.LangevinWarning):
        fit = lv.fit(target.model, target.data, lv.SGLD(step_size=schedule), batch_size=50, **settings)
    expected = [float(schedule(10 * draw + 9)) for draw in range(100)]
    np.testing.assert_allclose(fit.stats["step_size"].values[0], expected, rtol=1e-5)


def test_automatic_thinning_and_its_override():
    target = linear_regression()
    free = lv.fit(target.model, target.data, "sgld", batch_size=50, progress=False)
    assert free.settings["thin"] > 1
    fixed = lv.fit(target.model, target.data, "sgld", batch_size=50, thin=free.settings["thin"], progress=False)
    np.testing.assert_array_equal(free.posterior["w"], fixed.posterior["w"])


def test_method_by_class_or_name_or_settings_is_the_same():
    from langevin.methods import SGLD, as_method

    assert as_method("SGLD") == as_method(SGLD) == as_method(SGLD()) == SGLD()
    assert as_method("psgld") == SGLD(preconditioner="rmsprop")


def test_progress_is_shown_on_the_terminal(capsys):
    target = linear_regression()
    with pytest.warns(lv.LangevinWarning):
        lv.fit(target.model, target.data, lv.SGLD(step_size=1e-4), num_warmup=50, num_draws=50, progress=True)
    shown = capsys.readouterr().err
    assert "sampling" in shown
    assert "log-density" in shown
    assert "100%" in shown


@pytest.mark.parametrize(
    ("make", "culprit"),
    [
        (lambda: lv.SGLD(step_size=0), "`step_size` must be > 0; got 0"),
        (lambda: lv.SGLD(step_size="large"), "`step_size` must be one of 'auto'; got 'large'"),
        (lambda: lv.SGLD(metric="sparse"), "`metric`"),
        (lambda: lv.SGLD(estimator="saga"), "`estimator`"),
        (lambda: lv.SGLD(step_size=0.1, metric="dense"), "needs step_size='auto'"),
        (lambda: lv.SGLD(metric="dense", preconditioner="rmsprop"), "takes the place of"),
        (lambda: lv.SGLD(preconditioner="adam"), "`preconditioner`"),
        (lambda: lv.SGLD(accept="full", estimator="svrg"), "svrg"),
        (lambda: lv.SGLD(accept="full", preconditioner=lv.RMSprop(adapt="throughout")), "fixed metric"),
        (lambda: lv.SGHMC(friction=-1), "`friction` must be > 0; got -1"),
        (lambda: lv.SGHMC(gradient_noise=-1.0), "`gradient_noise`"),
        (lambda: lv.SGNHT(friction=float("nan")), "`friction`"),
        (lambda: lv.CyclicalSGLD(num_cycles=0), "`num_cycles`"),
        (lambda: lv.CyclicalSGLD(explore=1.0), "`explore`"),
        (lambda: lv.CyclicalSGHMC(step_size=lv.Polynomial(0.1)), "peak of a cycle"),
        (lambda: lv.RMSprop(decay=1.0), "`decay`"),
        (lambda: lv.RMSprop(damping=0.0), "`damping`"),
        (lambda: lv.MAP("lbfgs"), "`optimizer`"),
        (lambda: lv.MAP(learning_rate=0), "`learning_rate`"),
        (lambda: lv.MAP(num_steps=0), "`num_steps`"),
    ],
)
def test_bad_settings_fail_at_construction(make, culprit):
    with pytest.raises(lv.SettingError, match=culprit.replace("(", r"\(")):
        make()


@pytest.mark.parametrize(
    ("method", "keywords", "culprit"),
    [
        (lv.SGLD(), {"num_warmup": 0}, "num_warmup=0.*step"),
        (lv.SGLD(step_size=0.1, estimator="control_variate"), {"num_warmup": 0}, "num_warmup=0.*centre"),
        (lv.SGLD(step_size=0.1, preconditioner="rmsprop"), {"num_warmup": 0}, "num_warmup=0"),
        (lv.CyclicalSGLD(num_cycles=7), {}, "multiple of the 7 cycles"),
        (lv.SGHMC(gradient_noise=3.0), {}, "no noise to take off"),
    ],
)
def test_settings_that_do_not_go_together(method, keywords, culprit):
    target = linear_regression()
    with pytest.raises(lv.SettingError, match=culprit):
        lv.fit(target.model, target.data, method, progress=False, **keywords)


def test_jax_numbers_are_numbers():
    assert lv.SGLD(step_size=jax.numpy.float32(0.5)) == lv.SGLD(step_size=0.5)


def test_a_climb_that_diverges_is_an_error():
    target = linear_regression()
    with pytest.raises(lv.SamplingError, match="learning_rate"):
        lv.fit(target.model, target.data, lv.MAP("sgd", learning_rate=1e3), progress=False)


@pytest.mark.parametrize("batch_size", [None, 50])
def test_rmsprop_is_not_ignored(batch_size):
    target = linear_regression()
    plain, adapted = (
        lv.fit(target.model, target.data, m, batch_size=batch_size, progress=False) for m in ("sgld", "psgld")
    )
    assert abs(adapted.settings["step_size"] / plain.settings["step_size"] - 1) > 0.5
    ratio = adapted.summary()["sd"].to_numpy() / target.sds["w"]
    assert (np.abs(ratio - 1) < 0.15).all()


def test_boolean_sites_are_reported():
    import numpyro
    import numpyro.distributions as dist

    def model(y):
        m = numpyro.sample("m", dist.Normal(0, 1))
        numpyro.deterministic("positive", m > 0)
        with numpyro.plate("rows", y.shape[0]):
            numpyro.sample("y", dist.Normal(m, 1), obs=y)

    fit = lv.fit(model, {"y": np.linspace(-1, 1.5, 40)}, "sghmc", batch_size=10, progress=False)
    assert 0 < fit.summary()["mean"]["positive"] < 1
