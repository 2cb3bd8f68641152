"""The hybrid on a simulated series of stochastic volatility, next to what it must find."""

import os

import numpy as np
import pytest

import langevin as lv
from langevin.demos import volatility

pytestmark = [
    pytest.mark.filterwarnings("ignore::langevin.LangevinWarning"),
    pytest.mark.skipif("LANGEVIN_LONG" not in os.environ, reason="takes minutes; LANGEVIN_LONG=1 runs it"),
]


def test_the_real_series():
    """NUTS over all coordinates, 6,000 draws after 3,200: sigma 0.0906, nu 10.5 (of 63 and 867 effective draws)."""
    pytest.importorskip("arch")
    r = volatility.make_data()["r"]
    assert len(r) == 2686
    fit = volatility.hybrid(r)
    answer = volatility.answer_of("hybrid", fit, 0.0)
    assert answer.sigma.mean() == pytest.approx(0.0906, rel=0.1)
    assert answer.nu.mean() == pytest.approx(10.5, rel=0.15)
    assert answer.gradients is not None
    assert answer.gradients < 50_000
    assert {finding.code for finding in fit.verdict} <= {"few draws"}
    # Volatility was high in the autumn of 2008.
    path = np.exp(answer.path[0])
    assert path[100:150].mean() > 3 * np.median(path)


def test_prices_that_are_not_there_are_said_so(tmp_path):
    file = tmp_path / "prices.csv"
    file.write_text("Date,Close\n2010-01-01,3.0\n")
    with pytest.raises(lv.DataError, match="no column 'Adj Close'"):
        volatility.make_data(file)
