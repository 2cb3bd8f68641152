"""How close does `lv.fit` come with no setting but the batch size, on columns scaled from 1e-3 to 1e3?

Logistic regression on 200,000 rows, 20 columns (two of them correlated) and an intercept, prior Normal(0, 10). With so
many rows the posterior is all but Gaussian, so the reference is the Laplace approximation, in float64. Every fit is one
call in a fresh process; NUTS on all rows is stopped if it takes too long.
"""

from __future__ import annotations

import time

import machine
import numpy as np
from problems import badly_scaled_data, wide_logistic_model

OURS = ("sgld", "sghmc", "sgld, control variates")
BATCH = 1000


def laplace(x: np.ndarray, y: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """The mode and the sds of the Laplace approximation, intercept first, by Newton's method in scaled columns."""
    scale = np.concatenate([[1.0], x.std(0, dtype=np.float64)])
    columns = np.column_stack([np.ones(len(x)), x.astype(np.float64)]) / scale
    precision = 1 / (10 * scale) ** 2
    mode = np.zeros(len(scale))
    for _ in range(20):
        p = 1 / (1 + np.exp(-columns @ mode))
        hessian = columns.T @ (columns * (p * (1 - p))[:, None]) + np.diag(precision)
        mode += np.linalg.solve(hessian, columns.T @ (y - p) - precision * mode)
    return mode / scale, np.sqrt(np.diag(np.linalg.inv(hessian))) / scale


def our_draws(method: str, data: dict[str, np.ndarray]) -> np.ndarray:
    """Draws of one call with nothing but a batch size, as (chains, draws, coordinates)."""
    import langevin as lv

    setting = lv.SGLD(estimator="control_variate") if "control" in method else method
    posterior = lv.fit(wide_logistic_model, data, setting, batch_size=BATCH, progress=False).posterior
    return np.concatenate([posterior["a"].values[..., None], posterior["w"].values], axis=-1)


def nuts_draws(data: dict[str, np.ndarray], prior: np.ndarray) -> np.ndarray:
    """Draws of NumPyro's NUTS on all rows: 4 chains, 500 + 500. The prior's sds are in the units of the columns."""
    import jax
    from numpyro.infer import MCMC, NUTS

    settings = {"num_warmup": 500, "num_samples": 500, "num_chains": 4, "chain_method": "vectorized"}
    mcmc = MCMC(NUTS(wide_logistic_model), **settings, progress_bar=False)
    mcmc.run(jax.random.key(0), **data, prior=prior)
    draws = mcmc.get_samples(group_by_chain=True)
    return np.concatenate([np.asarray(draws["a"])[..., None], np.asarray(draws["w"])], axis=-1)


def worker(method: str, num_rows: str) -> dict:
    """One fit, held against the Laplace approximation."""
    from langevin.diagnostics import weighted

    x, y = badly_scaled_data(int(num_rows))
    mode, sds = laplace(x, y)
    scale = np.concatenate([[1.0], x.std(0)]) if "standardised" in method else np.ones(len(mode))
    data = {"x": x / scale[1:].astype(np.float32), "y": y}
    began = time.perf_counter()
    draws = nuts_draws(data, 10 * scale[1:]) if method.startswith("nuts") else our_draws(method, data)
    seconds = time.perf_counter() - began
    draws = draws / scale
    worst = float(np.min(weighted.effective_size(draws, np.ones(draws.shape[:2]))))
    ratios = draws.std((0, 1)) / sds
    return {
        "method": method,
        "largest_mean_error_in_sds": float(np.max(np.abs(draws.mean((0, 1)) - mode) / sds)),
        "least_sd_ratio": float(ratios.min()),
        "largest_sd_ratio": float(ratios.max()),
        "worst_ess": worst,
        "seconds": seconds,
        "worst_ess_a_second": worst / seconds,
    }


def measure(quick: bool) -> dict:
    """Ours; then NUTS, on raw columns and on columns that a user standardised by hand.

    NUTS is stopped after the time of our slowest fit, or after `least_cap` seconds if that is longer.
    """
    num_rows, least_cap = (20_000, 10) if quick else (200_000, 100)
    fits = [machine.fresh("auto_step.py", method, num_rows) for method in OURS]
    cap = max(least_cap, round(max(fit["seconds"] for fit in fits)))
    for method in ("nuts", "nuts, columns standardised by hand"):
        fitted = machine.fresh("auto_step.py", method, num_rows, timeout=cap)
        fits.append(fitted or {"method": method, "stopped_after_seconds": cap})
    return {"num_rows": num_rows, "fits": fits}


if __name__ == "__main__":
    machine.main(measure, worker)
