"""The hybrid on the real series of stochastic volatility, next to what it must find."""

import numpy as np
import pytest
from compilation import forget
from scipy.stats import norm, t
from targets import moments

import langevin as lv
from langevin.demos import volatility

pytestmark = pytest.mark.filterwarnings("ignore::langevin.LangevinWarning")

LENGTH = 500
SIGMA, NU = np.geomspace(0.025, 0.22, 20), np.geomspace(2.5, 120.0, 16)
STATES = np.arange(-7.0, -1.5, 0.03)


def exact(r):
    """Means and sds of sigma, nu and the path: forwards and backwards over a grid of states, for each of a grid.

    The sum over states is as exact as their spacing is finer than sigma; sigma and nu are spaced by their logarithms.
    """
    log_rows = t.logpdf(r[:, None, None], NU[:, None], 0.0, np.exp(STATES))
    most = log_rows.max(axis=(1, 2))
    rows = np.exp(log_rows - most[:, None, None])
    log_weight, paths = np.zeros((SIGMA.size, NU.size)), np.zeros((SIGMA.size, NU.size, 2, len(r)))
    for number, sigma in enumerate(SIGMA):
        walk = norm.pdf(STATES[:, None], STATES, sigma)
        walk /= walk.sum(axis=1).max()
        forwards, scale = np.empty_like(rows), np.zeros(NU.size)
        for step, row in enumerate(rows):
            before = norm.pdf(STATES, 0.0, 10.0) if step == 0 else forwards[step - 1] @ walk
            total = (before * row).sum(axis=1, keepdims=True)
            forwards[step], scale = before * row / total, scale + np.log(total[:, 0])
        after = np.ones_like(rows[0])
        for step in range(len(r) - 1, -1, -1):
            smooth = forwards[step] * after
            smooth /= smooth.sum(axis=1, keepdims=True)
            paths[number, :, :, step] = np.stack([smooth @ STATES, smooth @ STATES**2], axis=1)
            after = (after * rows[step]) @ walk
            after /= after.max(axis=1, keepdims=True)
        # The priors with the Jacobians of the logarithms.
        log_weight[number] = scale - 10 * sigma + np.log(sigma) - 0.1 * NU + np.log(NU)
    weight = np.exp(log_weight - log_weight.max())
    weight /= weight.sum()
    assert max(weight[0].sum(), weight[-1].sum(), weight[:, 0].sum()) < 1e-3
    parts = {"sigma": (weight.sum(axis=1), SIGMA), "nu": (weight.sum(axis=0), NU)}
    answer = {name: (w @ x, np.sqrt(w @ x**2 - (w @ x) ** 2)) for name, (w, x) in parts.items()}
    mean, square = np.tensordot(weight, paths, axes=2)
    return answer | {"s": (mean, np.sqrt(square - mean**2))}


@pytest.fixture(scope="module")
def returns():
    pytest.importorskip("arch")
    r = volatility.make_data()["r"]
    assert len(r) == 2686
    return r


def check_short(r):
    """The bound's own bias is allowed for: 3 % of sigma, 4 % of nu and of the width of the path."""
    truth = exact(r.astype(np.float64))
    fit = volatility.hybrid(r, num_warmup=100, num_draws=250)
    path, (mean, sd) = fit.posterior["s"].values, truth["s"]
    assert np.abs((path.mean((0, 1)) - mean) / sd).max() < 0.2
    assert np.median(path.std((0, 1)) / sd) == pytest.approx(1.0, abs=0.04)
    for name, bias in (("sigma", 0.03), ("nu", 0.04)):
        (mean, error), exact_mean = moments(fit.posterior[name].values)["mean"], truth[name][0]
        assert error < 0.1 * truth[name][1]
        assert abs(mean - exact_mean) < bias * exact_mean + 4 * error, f"{name}: {mean}, and not {exact_mean}"
    assert {finding.code for finding in fit.verdict} <= {"few draws"}


def test_some_returns_next_to_quadrature(returns):
    check_short(returns[:LENGTH])


def shrink_the_walk(patch):
    """The terms of the random walk count for less than they should: the text's mistake."""
    real = lv.series.RandomWalk.log_prob
    patch.setattr(lv.series.RandomWalk, "log_prob", lambda walk, value: 0.5 * real(walk, value))


def test_the_check_fails_with_the_bug_in(returns, monkeypatch):
    forget()
    shrink_the_walk(monkeypatch)
    with pytest.raises((AssertionError, lv.SamplingError)):
        check_short(returns[:LENGTH])
    forget()


def test_the_real_series(returns):
    """NUTS over all coordinates, 6,000 draws after 3,200: sigma 0.0906, nu 10.5 (of 63 and 867 effective draws)."""
    fit = volatility.hybrid(returns, num_warmup=50, num_draws=50)
    answer = volatility.answer_of("hybrid", fit, 0.0)
    assert answer.sigma.mean() == pytest.approx(0.0906, rel=0.1)
    assert answer.nu.mean() == pytest.approx(10.5, rel=0.15)
    assert answer.gradients is not None
    assert answer.gradients < 5_000
    assert {finding.code for finding in fit.verdict} <= {"few draws"}
    # Volatility was high in the autumn of 2008.
    path = np.exp(answer.path[0])
    assert path[100:150].mean() > 3 * np.median(path)


def test_prices_that_are_not_there_are_said_so(tmp_path):
    file = tmp_path / "prices.csv"
    file.write_text("Date,Close\n2010-01-01,3.0\n")
    with pytest.raises(lv.DataError, match="no column 'Adj Close'"):
        volatility.make_data(file)
