"""Ensembles: members from starts of their own, what is left of one that is cut short, and what is said of them."""

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import numpyro
import numpyro.distributions as dist
import pytest

import langevin as lv
from langevin.diagnostics.ensembles import by_member
from langevin.diagnostics.findings import Finding, Verdict
from langevin.run import drive

TWO = lv.Density(lambda x: jnp.logaddexp(-8 * (x - 2) ** 2, -8 * (x + 2) ** 2), init=jax.random.normal)
# The rows say what the square of m is, and not its sign.
SQUARE = lv.Density(lambda m: -(m**2) / 200, lambda m, rows: -((rows["x"] - m**2) ** 2) / 2, init=jax.random.normal)
ROWS = {"x": np.random.default_rng(0).normal(4.0, 1.0, 200)}
QUIET = {"progress": False, "num_warmup": 200, "num_draws": 200, "thin": 4}


def codes(fit):
    return [finding.code for finding in fit.verdict]


def test_points_of_every_mode_with_the_same_weight():
    fit = lv.fit(TWO, method=lv.Ensemble(lv.MAP(num_steps=300), num_members=8), **QUIET)
    assert dict(fit.posterior.sizes) == {"chain": 8, "draw": 1}
    found = fit.posterior["position"].values.ravel()
    np.testing.assert_allclose(np.abs(found), 2.0, atol=1e-3)
    assert set(np.sign(found)) == {-1.0, 1.0}
    np.testing.assert_array_equal(fit.weights, 1.0)
    # No warning: it is what was asked for, and any would be an error here.
    assert codes(fit) == ["ensemble"]
    assert fit.verdict.word == "doubtful"
    said = fit.verdict[0].finding
    assert "points of 8 members" in said
    assert f"{np.std(found, ddof=1):.2g} at most, for position" in said
    assert fit.settings["num_chains"] == 8
    assert "8 fits by MAP" in fit.settings["approximation"]
    assert fit.summary().loc["position", "mean"] == pytest.approx(found.mean(), abs=1e-6)


# Of a sampler in one mode it is said that the posterior is also in the other.
@pytest.mark.filterwarnings("ignore::langevin.LangevinWarning")
@pytest.mark.parametrize("method", [lv.NUTS(), lv.SGHMC(step_size=0.1), lv.VI("fullrank", num_steps=400)], ids=repr)
def test_draws_of_every_mode(method):
    fit = lv.fit(TWO, method=lv.Ensemble(method, 6), seed=1, **QUIET)
    assert dict(fit.posterior.sizes) == {"chain": 6, "draw": 200}
    means = fit.posterior["position"].mean("draw").values
    np.testing.assert_allclose(np.abs(means), 2.0, atol=0.2)
    assert set(np.sign(means)) == {-1.0, 1.0}
    # Within a mode the sd is 1/4.
    np.testing.assert_allclose(fit.posterior["position"].std("draw"), 0.25, rtol=0.35)
    assert "ensemble" in codes(fit)
    assert "not mixed" not in codes(fit)
    assert "draws of 6 members" in fit.verdict[codes(fit).index("ensemble")].finding


def test_members_of_an_exact_sampler_that_agree_are_draws_of_the_posterior():
    normal = lv.Density(lambda x: -(x**2) / 2, init=0.0)
    fit = lv.fit(normal, method=lv.Ensemble("nuts", 4), progress=False)
    assert fit.verdict.word == "trustworthy"
    assert abs(float(fit.posterior["position"].std()) - 1) < 0.05


def test_members_see_minibatches_in_orders_of_their_own():
    """From one start, with so few steps that only the order tells them apart; the same seed gives the same bits."""
    start = lv.fit(SQUARE, ROWS, lv.MAP(num_steps=10), num_chains=1, progress=False)
    method = lv.Ensemble(lv.MAP("sgd", 0.01, num_steps=5), 4)
    one, other = (lv.fit(SQUARE, ROWS, method, batch_size=20, init=start, progress=False) for _ in range(2))
    values = one.posterior["position"].values.ravel()
    assert len(set(values.tolist())) == 4
    np.testing.assert_array_equal(values, other.posterior["position"].values.ravel())


def test_bands_open_where_there_are_no_rows():
    generator = np.random.default_rng(1)
    x = generator.uniform(-1, 1, 60).astype("float32")
    rows = {"x": x, "y": (np.sin(3 * x) + 0.1 * generator.normal(size=60)).astype("float32")}
    network = lv.Network(lambda key: eqx.nn.MLP(1, 1, 30, 2, jnp.tanh, key=key), lv.likelihoods.Gaussian(0.1))
    fit = lv.fit(network, rows, lv.Ensemble(lv.MAP(learning_rate=0.01, num_steps=600)), progress=False)
    assert fit.posterior.sizes["chain"] == 5
    assert "for prediction[" in fit.verdict[0].finding
    near, far = (
        fit.predict({"x": np.asarray(at, "float32")})["sd_epistemic"].values for at in ([0.0, 0.5], [3.0, 4.0])
    )
    assert far.min() > 3 * near.max()


def over_when(monkeypatch, phase, count):
    """Makes the time be over when a phase has been gone into so often."""
    phases = []

    def decide(self, now):
        phases.append(now)
        return 30, False

    def entered():
        return sum(a == phase != b for a, b in zip(phases, [None, *phases], strict=False))

    monkeypatch.setattr(drive._Clock, "decide", decide)
    monkeypatch.setattr(drive._Clock, "is_over", lambda self, limit: limit is not None and entered() >= count)


POINTS = lv.Ensemble(lv.MAP(num_steps=90), 4)
WALKS = lv.Ensemble(lv.SGLD(step_size=1e-3), 4)


@pytest.mark.filterwarnings("ignore::langevin.LangevinWarning")
@pytest.mark.parametrize(("method", "phase"), [(POINTS, "climbing"), (WALKS, "sampling")], ids=["points", "walks"])
def test_members_that_are_finished_are_kept(method, phase, monkeypatch, tmp_path):
    """In the third member the time is over: in memory there are two; on disk it goes on to the same bits."""
    settings = {"batch_size": 50, "num_warmup": 40, "num_draws": 100, "thin": 1, "progress": False}
    whole = lv.fit(SQUARE, ROWS, method, **settings)
    with monkeypatch.context() as patch:
        over_when(patch, phase, 3)
        part = lv.fit(SQUARE, ROWS, method, max_seconds=50, **settings)
    assert part.posterior.sizes["chain"] == 2
    assert part.settings["num_chains"] == 2
    assert part.posterior.sizes["draw"] == whole.posterior.sizes["draw"]
    np.testing.assert_array_equal(part.posterior["position"], whole.posterior["position"][:2])
    assert codes(part)[0] == "out of time"
    assert "2 of the 4 members" in part.verdict[codes(part).index("ensemble")].finding
    with monkeypatch.context() as patch, pytest.raises(lv.SamplingError, match=r"Continue it with lv\.resume"):
        over_when(patch, phase, 3)
        lv.fit(SQUARE, ROWS, method, max_seconds=50, store=tmp_path / "run", **settings)
    resumed = lv.resume(tmp_path / "run", SQUARE, ROWS, progress=False)
    np.testing.assert_array_equal(resumed.posterior["position"], whole.posterior["position"])
    assert resumed.settings == whole.settings


@pytest.mark.filterwarnings("ignore::langevin.LangevinWarning")
def test_a_first_member_that_is_cut_short_is_what_there_is(monkeypatch):
    over_when(monkeypatch, "start", 1)
    with pytest.raises(lv.SamplingError, match="before the first draw"):
        lv.fit(SQUARE, ROWS, WALKS, batch_size=50, num_warmup=40, progress=False, max_seconds=50)
    over_when(monkeypatch, "sampling", 1)
    part = lv.fit(SQUARE, ROWS, WALKS, batch_size=50, num_warmup=40, thin=1, progress=False, max_seconds=50)
    assert dict(part.posterior.sizes) == {"chain": 1, "draw": 30}
    over_when(monkeypatch, "climbing", 1)
    part = lv.fit(SQUARE, ROWS, POINTS, progress=False, max_seconds=50)
    assert dict(part.posterior.sizes) == {"chain": 1, "draw": 1}
    assert "1 of the 4 members" in part.verdict[-1].finding


@pytest.mark.filterwarnings("ignore::langevin.LangevinWarning")
def test_more_draws_of_every_member(tmp_path):
    settings = {"batch_size": 50, "num_warmup": 40, "thin": 2, "progress": False}
    longer = lv.fit(SQUARE, ROWS, WALKS, num_draws=70, **settings)
    lv.fit(SQUARE, ROWS, WALKS, num_draws=30, store=tmp_path / "run", **settings)
    more = lv.resume(tmp_path / "run", SQUARE, ROWS, num_draws=70, progress=False)
    np.testing.assert_array_equal(more.posterior["position"], longer.posterior["position"])


def test_what_is_wrong_with_a_member_is_said_of_it():
    stuck, far = (Finding(code, f"It is {code}.", "So.", "Do.") for code in ("stuck", "far off"))
    point = Finding("point", "It is a point.", "So.", "Do.")
    found = by_member([Verdict([point]), Verdict([far, point]), Verdict([stuck]), Verdict([far])])
    assert [(finding.code, finding.finding) for finding in found] == [
        ("far off", "Member 1 (and 1 of the other 3): It is far off."),
        ("stuck", "Member 2: It is stuck."),
    ]


def test_unconstrained_positions_are_not_kept_where_members_choose_their_centring():
    def program(y):
        scale = numpyro.sample("scale", dist.HalfNormal(1.0))
        with numpyro.plate("groups", 3):
            effect = numpyro.sample("effect", dist.Normal(0.0, scale))
        numpyro.sample("y", dist.Normal(effect, 1.0), obs=y)

    fit = lv.fit(program, {"y": np.array([1.0, 2.0, 3.0])}, lv.Ensemble(lv.MAP(num_steps=50), 2), progress=False)
    assert "unconstrained_posterior" not in fit.tree
    assert fit.posterior["effect"].shape == (2, 1, 3)


def test_settings():
    assert lv.Ensemble("nuts").method == lv.NUTS()
    assert lv.Ensemble().method == lv.MAP()
    with pytest.raises(lv.SettingError, match=r"must not be an ensemble itself.*Raise `num_members`"):
        lv.Ensemble(lv.Ensemble())
    with pytest.raises(lv.SettingError, match="`num_members` must be a whole number, at least 1; got 0"):
        lv.Ensemble(num_members=0)
    with pytest.raises(lv.SettingError, match="takes all rows in every step"):
        lv.fit(SQUARE, ROWS, lv.Ensemble("nuts"), batch_size=10)
    with pytest.raises(lv.SettingError, match="multiple of the 10 cycles"):
        lv.fit(SQUARE, ROWS, lv.Ensemble("cyclicalsgld"), num_draws=3)
