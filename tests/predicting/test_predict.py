"""fit.predict: closed forms, batches, memory, fits of every kind, and what it says when it cannot."""

import subprocess
import sys

import jax.numpy as jnp
import numpy as np
import numpyro
import numpyro.distributions as dist
import pandas as pd
import pytest
from made import CASES, Case, made, uneven

import langevin as lv
from langevin.predicting import blocks
from langevin.predicting.draws import predictive_draws


def conjugate(num_draws=4000):
    """y ~ N(m, 2), m ~ N(1, 0.5): draws of the posterior of m itself, stratified."""
    from scipy.stats import norm

    def model(x, y=None):
        m = numpyro.sample("m", dist.Normal(0, 10))
        with numpyro.plate("rows", x.shape[0]):
            numpyro.sample("y", dist.Normal(m + 0 * x, 2.0), obs=y)

    levels = (np.random.default_rng(0).permutation(num_draws) + 0.5) / num_draws
    y = np.linspace(-4, 6, 21).astype(np.float32)
    return Case(
        model, {"x": np.zeros(21, np.float32), "y": y}, {}, {"m": norm.ppf(levels, 1.0, 0.5).astype(np.float32)}
    )


def test_law_of_total_variance_and_density_in_closed_form():
    from scipy.stats import norm

    case = conjugate()
    found = made(case).predict(num_draws=4000, quantiles=(0.025, 0.5, 0.9))
    total = np.sqrt(4.25)
    np.testing.assert_allclose(found["mean"], 1.0, atol=1e-3)
    np.testing.assert_allclose(found["sd_aleatoric"], 2.0, rtol=1e-4)
    np.testing.assert_allclose(found["sd_epistemic"], 0.5, rtol=2e-3)
    np.testing.assert_allclose(found["sd"], total, rtol=1e-3)
    for probability in (0.025, 0.5, 0.9):
        share = norm.cdf(found[f"q{100 * probability:g}"], 1.0, total)
        assert np.abs(share - probability).max() < 4 * np.sqrt(probability * (1 - probability) / 4000)
    np.testing.assert_allclose(found["log_predictive_density"], norm.logpdf(case.data["y"], 1.0, total), atol=1e-3)


def test_weights_move_everything():
    """Weights that make the draws of N(1, 0.5) draws of N(1.25, 0.5): the ratio of the densities."""
    case = conjugate(4000)
    m = case.draws["m"].astype(np.float64)
    weights = np.exp(-((m - 1.25) ** 2) / 0.5 + (m - 1.0) ** 2 / 0.5)
    fit = made(case, weights / weights.mean())
    for num_draws, tolerance in ((4000, 0.01), (1000, 0.05)):
        found = fit.predict(num_draws=num_draws)
        np.testing.assert_allclose(found["mean"], 1.25, atol=tolerance)
        np.testing.assert_allclose(found["sd_epistemic"], 0.5, atol=tolerance)
        np.testing.assert_allclose(found["q50"], 1.25, atol=0.15)
    drawn = fit.predict(names="y", kind="draws", num_draws=1000)
    assert (drawn["weight"] == 1).all()
    assert abs(float(drawn["y"].mean()) - 1.25) < 4 * np.sqrt(4.25 / 21_000 + 0.25 / 1000)


@pytest.mark.parametrize("name", ["linear", "softmax", "Student-t in groups", "vectors"])
def test_batches_of_any_length_give_the_same_answer(name):
    case = CASES[name]()
    fit = made(case, uneven())
    # Quantiles of sites with no quantile function are of other draws.
    quantiles = (0.05, 0.95) if name in ("linear", "softmax") else ()
    whole = fit.predict(quantiles=quantiles)
    for batch_size in (1, 7, 64) if name == "linear" else (7,):
        some = fit.predict(quantiles=quantiles, batch_size=batch_size)
        for key in whole:
            np.testing.assert_allclose(some[key], whole[key], rtol=1e-4, atol=1e-5, err_msg=key)


def test_batches_are_compiled_once_and_rows_are_padded():
    case = CASES["linear"]()
    calls = []

    def model(x, y=None):
        calls.append(x.shape)
        case.model(x, y)

    fit = made(case._replace(model=model))
    fit.predict(batch_size=32)
    first = len(calls)
    assert sum(shape == (32, 3) for shape in calls) == 2  # without y, and with it for its density
    fit.predict(batch_size=32)
    assert len(calls) == first
    # Other numbers of rows, and other rows, are served by the same program.
    fit.predict({"x": case.data["x"][:90], "y": case.data["y"][:90]}, batch_size=32)
    assert sum(shape == (32, 3) for shape in calls) == 2


def test_a_row_is_the_same_in_other_company():
    case = CASES["linear"]()
    fit = made(case)
    alone, together = fit.predict({"x": case.data["x"][:5]}), fit.predict({"x": case.data["x"]})
    for key in together:
        if key != "log_predictive_density":
            np.testing.assert_allclose(alone[key], together[key][:5], rtol=1e-4, atol=1e-5)


def test_rows_that_depend_on_one_another_are_called_together():
    def model(x, y=None):
        a = numpyro.sample("a", dist.Normal(0, 1))
        with numpyro.plate("rows", len(x)):
            numpyro.sample("y", dist.Normal(a * (x - x.mean()), 1.0), obs=y)

    x = np.arange(40, dtype=np.float32)
    case = Case(model, {"x": x, "y": x}, {}, {"a": np.full(800, 2.0, np.float32)})
    found = made(case).predict({"x": x}, batch_size=8)
    np.testing.assert_allclose(found["mean"], 2 * (x - x.mean()), rtol=1e-4)


def test_memory_is_bounded_by_the_compiler_s_count(monkeypatch):
    """A wide hidden layer takes 400 numbers a draw and row: the batch shrinks until the program fits."""

    def model(x, y=None):
        w = numpyro.sample("w", dist.Normal(0, 1).expand([400]).to_event(1))
        with numpyro.plate("rows", len(x)):
            hidden = jnp.tanh(x[:, None] * w) @ mixing
            numpyro.sample("y", dist.Normal(hidden[:, 0], 1.0), obs=y)

    generator = np.random.default_rng(0)
    mixing = generator.normal(size=(400, 3)).astype(np.float32)
    draws = {"w": generator.normal(size=(200, 400)).astype(np.float32)}
    fit = made(Case(model, {"x": np.ones(300, np.float32), "y": np.ones(300, np.float32)}, {}, draws))
    whole = fit.predict(quantiles=())
    needed = []
    analysed = blocks._bytes_of
    monkeypatch.setattr(blocks, "MOST_BYTES", 20_000_000)
    monkeypatch.setattr(blocks, "_bytes_of", lambda compiled: needed.append(analysed(compiled)) or needed[-1])
    fit.source.known.clear()
    some = fit.predict(quantiles=())
    assert needed[0] > 20_000_000 > needed[-1]
    np.testing.assert_allclose(some["mean"], whole["mean"], rtol=1e-3, atol=1e-3)


BIG = """
import resource, numpy as np
from made import *
generator = np.random.default_rng(0)
case = linear()
draws = {name: np.concatenate([value, value[:200]]) for name, value in case.draws.items()}
fit = made(case._replace(draws=draws))
fit.predict({"x": generator.normal(size=(3000, 3))})
before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
found = fit.predict({"x": generator.normal(size=(1_000_000, 3)).astype(np.float32)})
after = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
print(found.sizes["rows"], found["q95"].shape[0], (after - before) / 1e3)
"""


def test_a_thousand_draws_of_a_million_rows_in_bounded_memory():
    """All draws would take 4 GB. The rows, the seven columns of the result and the blocks take less than 400 MB."""
    folder = str(__file__).rsplit("/", 1)[0]
    done = subprocess.run([sys.executable, "-c", BIG], capture_output=True, text=True, check=True, cwd=folder)
    rows, quantiles, megabytes = map(float, done.stdout.split())
    assert rows == quantiles == 1_000_000
    assert megabytes < 400


def test_draws_that_do_not_fit_are_refused():
    fit = made(CASES["linear"]())
    with pytest.raises(lv.SettingError, match=r"800 draws of 5,000,000 rows would take 16.0 GB"):
        fit.predict({"x": np.zeros((5_000_000, 3), np.float32)}, kind="draws")


def test_draws_come_by_batches_of_rows():
    case = CASES["linear"]()
    fit = made(case)
    parts = list(predictive_draws(fit, {"x": case.data["x"]}, names=["y", "mu"], num_draws=50, batch_size=64))
    assert [(part.start, part.stop) for part in parts] == [(0, 64), (64, 128), (128, 150)]
    assert parts[2].draws["y"].shape == (50, 22)
    whole = fit.predict({"x": case.data["x"]}, kind="draws", names=["y", "mu"], num_draws=50, batch_size=64)
    np.testing.assert_array_equal(np.concatenate([part.draws["mu"] for part in parts], axis=1), whole["mu"])
    noise = (whole["y"] - whole["mu"]).values
    assert np.corrcoef(noise[:, 0], noise[:, 64])[0, 1] < 0.6  # each batch has noise of its own


def test_deterministic_sites_are_predicted_by_name():
    case = CASES["linear"]()
    found = made(case).predict({"x": case.data["x"]}, names="mu", num_draws=800)
    expected = np.einsum("rk,sk->sr", case.data["x"], case.draws["w"])
    np.testing.assert_allclose(found["mean"], expected.mean(axis=0), atol=1e-5)
    np.testing.assert_allclose(found["sd"], expected.std(axis=0, ddof=1), rtol=1e-3)
    np.testing.assert_allclose(found["q5"], np.quantile(expected, 0.05, axis=0, method="hazen"), atol=1e-4)


def test_a_frame_keeps_its_index_and_other_columns_are_left_alone():
    case = CASES["Poisson with an offset"]()
    frame = pd.DataFrame(case.data | {"note": "seen"}, index=[f"row {i}" for i in range(150)])
    found = made(case).predict(frame.head(3)).to_dataframe()
    assert list(found.index) == ["row 0", "row 1", "row 2"]
    assert {"mean", "sd", "q5", "q50", "q95", "log_predictive_density"} <= set(found)


def test_rows_with_latents_of_their_own_are_the_fit_s_only_on_its_rows():
    case = CASES["rows with latents"]()
    own = np.random.default_rng(0).normal(3.0, 0.01, size=(800, 150)).astype(np.float32)
    fit = made(case._replace(draws=case.draws | {"own": own}))
    expected = np.exp(own + 0.02).mean(axis=0)
    np.testing.assert_allclose(fit.predict(batch_size=32)["mean"], expected, rtol=1e-4)
    same = fit.predict({"x": case.data["x"]})
    np.testing.assert_allclose(same["mean"], expected, rtol=1e-4)
    assert "sd_aleatoric" in same
    other = fit.predict({"x": case.data["x"] + 0.0001})
    assert (other["mean"] < 10).all()
    assert "sd_aleatoric" not in other  # given the draw, the row's latent is drawn too


def test_unseen_groups_are_drawn_from_their_distribution():
    case = CASES["Student-t in groups"]()
    fit = made(case)
    data = {"group": np.array([0, 5, 6, 7, 6]), "x": np.zeros(5, np.float32)}
    with pytest.raises(
        lv.ModelError, match=r"Site 'effect' has 6 entries along the plate 'groups'.*asks for 8.*unseen='draw'"
    ):
        fit.predict(data, constants={"num_groups": 8})
    drawn = fit.predict(
        data, kind="draws", names=["effect", "y"], constants={"num_groups": 8}, unseen="draw", num_draws=800
    )
    effect = drawn["effect"].values
    np.testing.assert_array_equal(effect[:, :6], case.draws["effect"])
    # The new ones are N(2, tau) given each draw's tau.
    standardised = (effect[:, 6:] - 2.0) / case.draws["tau"][:, None]
    assert abs(standardised.mean()) < 4 / np.sqrt(1600)
    assert abs(standardised.std() - 1) < 4 / np.sqrt(3200)
    assert abs(np.corrcoef(standardised.T)[0, 1]) < 4 / np.sqrt(800)
    # Two rows of the same new group share its effect, in batches of rows too.
    found = fit.predict(data, constants={"num_groups": 8}, unseen="draw", batch_size=2, num_draws=800, quantiles=())
    np.testing.assert_allclose(found["mean"][2], found["mean"][4], rtol=1e-5)
    np.testing.assert_allclose(found["sd_epistemic"][2], effect[:, 6].std(ddof=1), rtol=1e-3)
    with pytest.raises(lv.ModelError, match="has the shape"):
        fit.predict(data, constants={"num_groups": 3})
