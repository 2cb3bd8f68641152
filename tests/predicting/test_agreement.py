"""Predictions against numpyro.infer.Predictive and numpyro.infer.log_likelihood, weights included."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from made import CASES, NUM_CHAINS, NUM_DRAWS, made, uneven
from numpyro.infer import Predictive, log_likelihood

COUNT = NUM_CHAINS * NUM_DRAWS


@functools.cache
def oracle(name):
    """The case, draws of its observed sites by NumPyro, four for each draw, and their log-likelihood."""
    case = CASES[name]()
    inputs = {column: value for column, value in case.data.items() if column not in case.observed}
    draws = {site: jnp.asarray(value) for site, value in case.draws.items()}
    sampled = [
        Predictive(case.model, draws, return_sites=case.observed, parallel=True)(jax.random.key(i), **inputs, **case.constants)
        for i in range(4)
    ]
    return case, {site: np.stack([np.asarray(one[site]) for one in sampled]) for site in case.observed}


@pytest.mark.parametrize("weighted", [False, True], ids=["equal", "weighted"])
@pytest.mark.parametrize("name", CASES)
def test_summary_agrees_with_predictive(name, weighted):
    case, sampled = oracle(name)
    weights = uneven() if weighted else np.ones(COUNT)
    fit = made(case, weights)
    shares = weights / weights.sum()
    found = fit.predict(num_draws=COUNT)
    for site, draws in sampled.items():
        prefix = "" if len(sampled) == 1 else f"{site}_"
        of_site = {key.removeprefix(prefix): found[key].values for key in found if key.startswith(prefix)}
        w = (shares / 4).reshape(1, -1, *(1,) * (draws.ndim - 2))
        if "probability_0" in of_site:
            classes = sum(key.startswith("probability") for key in of_site)
            for k in range(classes):
                check_means(of_site[f"probability_{k}"], (draws == k).astype(float), w)
        if "mean" not in of_site:
            continue
        mean = check_means(of_site["mean"], draws, w, 5 if name == "rows with latents" else 1)
        squares = np.sum(w * (draws - mean) ** 2, axis=(0, 1))
        fourth = np.sum(w * (draws - mean) ** 4, axis=(0, 1))
        error = np.sqrt(4 * np.sum(w**2) * (fourth - squares**2)) / (2 * np.sqrt(squares))
        assert np.abs((of_site["sd"] - np.sqrt(squares)) / error).mean() < 1.5
        if "sd_aleatoric" in of_site:
            parts = of_site["sd_aleatoric"] ** 2 + of_site["sd_epistemic"] ** 2
            np.testing.assert_allclose(of_site["sd"], np.sqrt(parts), rtol=1e-5)
        if "q5" in of_site:
            for probability in (0.05, 0.5, 0.95):
                q = of_site[f"q{100 * probability:g}"]
                below, at = (np.sum(w * (draws < q), axis=(0, 1)), np.sum(w * (draws == q), axis=(0, 1)))
                # Our error is that of a share of so many weighted draws; NumPyro has four times as many.
                tolerance = 4.5 * np.sqrt(1.25 * probability * (1 - probability) * np.sum(shares**2))
                assert (below < probability + tolerance).all()
                assert (below + at > probability - tolerance).all()
                if not at.any():
                    assert abs(below.mean() - probability) < tolerance / 2


def check_means(mean, draws, w, factor=1):
    """The mean has no error where a distribution knows its own: the distance is that of NumPyro's draws.

    Where rows have latents, one is drawn for each draw, and NumPyro has drawn four: the variances are 4/4 and 1/4.
    """
    theirs = np.sum(w * draws, axis=(0, 1))
    spread = np.sum(w**2 * (draws - np.mean(draws, axis=0)) ** 2, axis=(0, 1)) * 4 / 3
    standardised = (mean - theirs) / np.sqrt(spread)
    assert np.mean(standardised**2) < factor * (1 + 6 * np.sqrt(2 / standardised.size))
    return theirs


@pytest.mark.parametrize("name", CASES)
def test_draws_agree_with_predictive(name):
    case, sampled = oracle(name)
    found = made(case).predict(kind="draws", num_draws=COUNT)
    assert dict(found.sizes)["sample"] == COUNT
    for site, draws in sampled.items():
        ours = found[site].values.astype(float)
        mean, theirs = ours.mean(axis=0), draws.mean(axis=(0, 1))
        error = np.sqrt(1.25 * draws.var(axis=(0, 1)) / COUNT)
        assert np.mean(((mean - theirs) / error) ** 2) < 1.6
        # Draw s is made at draw s of the posterior: both follow it in the same way.
        by_draw = [np.reshape(a, (COUNT, -1)).mean(axis=1) for a in (ours, draws.mean(axis=0))]
        if np.std(by_draw[1]) > 0.05:
            assert np.corrcoef(*by_draw)[0, 1] > 0.15


@pytest.mark.parametrize("weighted", [False, True], ids=["equal", "weighted"])
@pytest.mark.parametrize("name", [name for name in CASES if name not in ("rows with latents", "time series")])
def test_log_predictive_density_is_exact(name, weighted):
    case, _ = oracle(name)
    weights = uneven() if weighted else np.ones(COUNT)
    draws = {site: jnp.asarray(value) for site, value in case.draws.items()}
    terms = log_likelihood(case.model, draws, parallel=True, **case.data, **case.constants)
    found = made(case, weights).predict(num_draws=COUNT)
    shares = weights / weights.sum()
    for site, by_draw in terms.items():
        expected = np.log(np.tensordot(shares, np.exp(np.asarray(by_draw, np.float64)), axes=1))
        key = "log_predictive_density" if len(terms) == 1 else f"{site}_log_predictive_density"
        np.testing.assert_allclose(found[key].values, expected, rtol=2e-4, atol=2e-4)
