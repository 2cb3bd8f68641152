"""Cross-validation by a sample of 200,000 rows, next to that of all rows: is it as far off as it says?

    python benchmarks/loo.py [--quick]

Writes benchmarks/results/loo.json.
"""

from __future__ import annotations

import warnings

import machine
import numpy as np
from gallery_rows import with_intercept
from numpyro import distributions as dist
from numpyro import plate, sample

import langevin as lv


def regression(x, y):
    """Linear regression, which expects no tails."""
    w = sample("w", dist.Normal(0, 1).expand([x.shape[-1]]).to_event(1))
    sigma = sample("sigma", dist.HalfNormal(2))
    with plate("rows", x.shape[0]):
        sample("y", dist.Normal(x @ w, sigma), obs=y)


def measure(quick: bool) -> dict:
    """The error of samples of 200 and 1,000 rows, by 20 seeds each, with the error that they say."""
    rng = np.random.default_rng(0)
    count = 5_000 if quick else 200_000
    x = with_intercept(*rng.normal(size=(3, count)))
    data = {"x": x, "y": x @ np.array([1.0, 0.5, -0.5, 0.2]) + rng.standard_t(5, size=count)}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", lv.LangevinWarning)
        fit = lv.fit(regression, data, num_chains=2, num_warmup=200, num_draws=200, progress=False)
    exact = fit.loo()
    figures: dict = {"rows": count, "draws": fit.weights.size, "elpd": exact.elpd, "se": exact.se, "p": exact.p}
    for num_rows in (200, 1000):
        samples = [fit.loo(num_rows, seed=seed) for seed in range(5 if quick else 20)]
        errors = np.array([found.elpd - exact.elpd for found in samples])
        said = np.array([found.subsampling_se for found in samples])
        figures[str(num_rows)] = {
            "errors": errors.tolist(),
            "said": said.tolist(),
            "within two": float(np.mean(np.abs(errors) < 2 * said)),
            "root mean square": float(np.sqrt(np.mean(errors**2))),
            "root mean square said": float(np.sqrt(np.mean(said**2))),
        }
    return figures


if __name__ == "__main__":
    machine.main(measure)
