"""Scores by their definitions, checks that find what is wrong, and draws from the prior."""

import jax
import numpy as np
import numpyro
import numpyro.distributions as dist
import pytest
from made import CASES, NUM_CHAINS, NUM_DRAWS, made, uneven
from numpyro.infer import Predictive

import langevin as lv
from langevin.diagnostics import weighted
from langevin.predicting import quantiles
from langevin.predicting.scores import crps, expected_calibration_error

COUNT = NUM_CHAINS * NUM_DRAWS


@pytest.mark.parametrize("uneven_shares", [False, True], ids=["equal", "weighted"])
def test_crps_by_its_definition(uneven_shares):
    generator = np.random.default_rng(0)
    draws, observed = generator.normal(100.0, 1.0, size=(4, 50)).astype(np.float32), np.array([99.0, 100, 101, 103])
    shares = generator.dirichlet(np.ones(50)) if uneven_shares else np.full(50, 0.02)
    expected = np.sum(shares * np.abs(draws - observed[:, None]), axis=1) - 0.5 * np.einsum(
        "i,j,rij->r", shares, shares, np.abs(draws[:, :, None] - draws[:, None, :])
    )
    np.testing.assert_allclose(crps(*quantiles.ordered(draws, shares), observed), expected, atol=1e-6)


def test_crps_of_a_gaussian_in_closed_form():
    from scipy.stats import norm

    draws = norm.ppf((np.arange(5000) + 0.5) / 5000)[None]
    z = 0.7
    expected = z * (2 * norm.cdf(z) - 1) + 2 * norm.pdf(z) - 1 / np.sqrt(np.pi)
    assert crps(draws, None, np.array([z]))[0] == pytest.approx(expected, abs=1e-3)


def test_calibration_error_by_hand():
    confidence, correct = np.array([0.95, 0.95, 0.65, 0.65]), np.array([True, False, True, True])
    assert expected_calibration_error(confidence, correct) == pytest.approx(0.5 * 0.45 + 0.5 * 0.35)
    assert expected_calibration_error(np.array([1.0, 1.0]), np.array([True, True])) == 0


@pytest.mark.parametrize("discrete", [False, True])
def test_weighted_quantiles_are_those_of_repeated_draws(discrete):
    """A draw of weight 3 is three draws."""
    generator = np.random.default_rng(0)
    draws, times = generator.integers(0, 40, size=(6, 30)).astype(float), generator.integers(0, 4, size=30)
    repeated = np.repeat(draws, times, axis=1)
    one, many = quantiles.ordered(draws, times / times.sum()), quantiles.ordered(repeated, np.ones(repeated.shape[1]))
    for probability in (0.1, 0.33, 0.5, 0.9):
        (ours,), (theirs,) = (quantiles.at(*ordered, (probability,), discrete=discrete) for ordered in (one, many))
        if discrete:
            np.testing.assert_array_equal(ours, theirs)
            np.testing.assert_array_equal(ours, np.quantile(repeated, probability, axis=1, method="inverted_cdf"))
        else:
            np.testing.assert_allclose(theirs, np.quantile(repeated, probability, axis=1, method="hazen"))
            expected = weighted.quantile(draws.T[None], times[None].astype(float), probability)
            np.testing.assert_allclose(ours, expected)


@pytest.mark.parametrize("uneven_weights", [False, True], ids=["equal", "weighted"])
def test_evaluate_numbers(uneven_weights):
    case = CASES["linear"]()
    fit = made(case, uneven() if uneven_weights else None)
    scores = fit.evaluate(num_draws=COUNT)
    found = fit.predict(num_draws=COUNT, quantiles=(0.05, 0.25, 0.75, 0.95)).to_dataframe()
    y = case.data["y"]
    assert scores.name == "y"
    assert list(scores.index) == ["RMSE", "NLL", "CRPS", "coverage_50", "coverage_90"]
    assert scores["RMSE"] == pytest.approx(np.sqrt(np.mean((found["mean"] - y) ** 2)), rel=1e-5)
    assert scores["NLL"] == pytest.approx(-float(found["log_predictive_density"].mean()), rel=1e-5)
    assert scores["coverage_50"] == pytest.approx(np.mean((found["q25"] <= y) & (y <= found["q75"])), abs=0.02)
    assert scores["coverage_90"] == pytest.approx(np.mean((found["q5"] <= y) & (y <= found["q95"])), abs=0.02)
    # The predictive distribution is nearly Gaussian, and that of a Gaussian is known.
    from scipy.stats import norm

    z = (y - found["mean"].to_numpy()) / found["sd"].to_numpy()
    closed = found["sd"].to_numpy() * (z * (2 * norm.cdf(z) - 1) + 2 * norm.pdf(z) - 1 / np.sqrt(np.pi))
    assert scores["CRPS"] == pytest.approx(closed.mean(), rel=0.02)
    np.testing.assert_allclose(scores, fit.evaluate(num_draws=COUNT, batch_size=32), rtol=1e-4)


def test_evaluate_classes_and_several_sites():
    case = CASES["softmax"]()
    fit = made(case, uneven())
    scores, found = fit.evaluate(case.data), fit.predict(case.data)
    probabilities = np.stack([found[f"probability_{k}"].values for k in range(3)], axis=1)
    y = case.data["y"]
    assert scores["accuracy"] == np.mean(probabilities.argmax(axis=1) == y)
    assert scores["Brier"] == pytest.approx(np.mean(np.sum((probabilities - np.eye(3)[y]) ** 2, axis=1)), rel=1e-5)
    assert scores["NLL"] == pytest.approx(-np.mean(np.log(probabilities[np.arange(150), y])), rel=1e-4)
    two = made(CASES["logistic"]()).evaluate()
    assert 0 < two["Brier"] < 0.5
    table = made(CASES["vectors"]()).evaluate(num_draws=100)
    assert list(table.index) == ["y", "z"]
    assert np.isfinite(table.to_numpy()).all()
    with pytest.raises(lv.DataError, match=r"no values of the observed site 'y'; it has the columns \['x'\]"):
        fit.evaluate({"x": case.data["x"]})


def test_a_check_finds_too_many_zeros_and_little_else():
    """Counts with twice the zeros of a Poisson; and counts of the model itself."""
    case = CASES["Poisson with an offset"]()
    sampled = Predictive(case.model, {name: draws[:1] for name, draws in case.draws.items()})(
        jax.random.key(0), x=case.data["x"], exposure=case.data["exposure"]
    )
    y = np.asarray(sampled["y"])[0]
    draws = {name: np.tile(values[:1], COUNT) for name, values in case.draws.items()}
    fine = made(case._replace(draws=draws), data=case.data | {"y": y}).predictive_check()
    assert fine.table["p_value"].between(0.01, 0.99).all()
    assert list(fine.table.columns) == ["observed", "mean", "low", "high", "p_value"]
    zeros = np.where(np.random.default_rng(0).random(150) < 0.3, 0, y)
    wrong = made(case._replace(draws=draws), data=case.data | {"y": zeros}).predictive_check()
    assert wrong.table.loc[("y", "share of zeros"), "p_value"] < 0.001
    assert "The share of zeros of 'y' is" in repr(wrong)
    assert "above 100.0 % of what the model replicates" in repr(wrong)


def test_a_check_takes_evenly_spread_rows_and_weighs_draws():
    case = CASES["linear"]()
    check = made(case, uneven()).predictive_check(most_rows=50)
    assert (check.num_rows, check.num_data) == (50, 150)
    assert "50 of 150 rows" in repr(check)
    index = np.linspace(0, 149, 50).astype(int)
    assert check.table.loc[("y", "mean"), "observed"] == pytest.approx(case.data["y"][index].mean(), rel=1e-5)
    # With most weight on the draws of a large first coefficient, the spread of the replicated data is larger.
    weights = np.where(case.draws["w"][:, 0] > 1.3, 20.0, 0.2)
    heavy = made(case, weights / weights.mean()).predictive_check()
    light = made(case).predictive_check()
    assert heavy.table.loc[("y", "sd"), "mean"] > light.table.loc[("y", "sd"), "mean"] + 0.1


def test_prior_predictive_agrees_with_numpyro():
    case = CASES["Student-t in groups"]()
    tree = lv.prior_predictive(case.model, case.data, num_draws=1000, constants=case.constants)
    assert set(tree) == {"prior", "prior_predictive", "observed_data"}
    assert tree["prior"]["effect"].dims == ("chain", "draw", "groups")
    inputs = {name: value for name, value in case.data.items() if name != "y"}
    theirs = Predictive(case.model, num_samples=1000)(jax.random.key(0), **inputs, **case.constants)
    for name in ("tau", "slope", "effect"):
        ours, other = tree["prior"][name].values[0], np.asarray(theirs[name])
        error = np.sqrt(2 * other.var(axis=0) / 1000)
        assert (np.abs(ours.mean(axis=0) - other.mean(axis=0)) < 4.5 * error).all()
        assert (np.abs(ours.std(axis=0) / other.std(axis=0) - 1) < 0.15).all()
    ours, other = tree["prior_predictive"]["y"].values[0], np.asarray(theirs["y"])
    assert np.abs(ours.mean(axis=0) - other.mean(axis=0)).max() < 5 * np.sqrt(2 * other.var() / 1000)
    # Rows of one draw share its effects.
    group = case.data["group"]
    effect = tree["prior"]["effect"].values[0]
    assert np.corrcoef(ours[:, 0], effect[:, group[0]])[0, 1] > 0.3
    np.testing.assert_allclose(tree["observed_data"]["y"], case.data["y"])


def test_prior_predictive_does_without_what_is_observed():
    case = CASES["linear"]()
    one, two = (lv.prior_predictive(case.model, data, num_draws=50) for data in (case.data, {"x": case.data["x"]}))
    assert set(two) == {"prior", "prior_predictive"}
    assert list(two["prior"].data_vars) == ["w", "s", "mu"]
    np.testing.assert_allclose(one["prior_predictive"]["y"], two["prior_predictive"]["y"], rtol=1e-5)


def test_prior_predictive_names_what_is_missing():
    def model(x, y=None):
        with numpyro.plate("rows", len(x)):
            numpyro.sample("y", dist.Normal(x, 1.0))

    with pytest.raises(lv.ModelError, match="no telling which sites"):
        lv.prior_predictive(model, {"x": [1.0, 2.0]})
    with pytest.raises(lv.ModelError, match="has no prior to draw from"):
        lv.prior_predictive(lv.Density(lambda x: -x, init=0.0), {"x": [1.0]})
