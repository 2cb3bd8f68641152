"""How long does a user wait for a first small fit?

Linear regression on 1,000 rows, in a fresh process: imports, compilation and draws. All run 4 chains side by side and
keep 1,000 draws of each. Processes alternate between the contestants; figures are medians.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable

import machine
import numpy as np
from problems import linear_data, linear_model

NUM_CHAINS, NUM_WARMUP, NUM_DRAWS = 4, 1000, 1000
Fit = Callable[[np.ndarray, np.ndarray], np.ndarray]


def langevin_sgld(batch_size: int | None) -> Fit:
    """`lv.fit(model, data, "sgld")`; the name is imported here because `import langevin` alone loads nothing."""
    from langevin import fit as lv_fit

    def fit(x: np.ndarray, y: np.ndarray) -> np.ndarray:
        data = {"x": x, "y": y}
        return lv_fit(linear_model, data, "sgld", batch_size=batch_size, progress=False).posterior["w"].values

    return fit


def numpyro_nuts() -> Fit:
    """NumPyro's NUTS, chains vectorised."""
    import jax
    from numpyro.infer import MCMC, NUTS

    def fit(x: np.ndarray, y: np.ndarray) -> np.ndarray:
        settings = {"num_warmup": NUM_WARMUP, "num_samples": NUM_DRAWS, "num_chains": NUM_CHAINS}
        mcmc = MCMC(NUTS(linear_model), **settings, chain_method="vectorized", progress_bar=False)
        mcmc.run(jax.random.key(0), x, y)
        return np.asarray(mcmc.get_samples(group_by_chain=True)["w"])

    return fit


def blackjax_nuts() -> Fit:
    """BlackJAX's NUTS after its window adaptation, each chain its own, in one compiled function."""
    import blackjax
    import jax
    import jax.numpy as jnp
    from jax.scipy.stats import norm

    def fit(x: np.ndarray, y: np.ndarray) -> np.ndarray:
        def log_density(position: dict) -> jax.Array:
            w, log_sigma = position["w"], position["log_sigma"]
            sigma = jnp.exp(log_sigma)
            log_prior = norm.logpdf(w).sum() + norm.logpdf(sigma) + log_sigma
            return log_prior + norm.logpdf(y, x @ w, sigma).sum()

        def one_chain(key: jax.Array) -> jax.Array:
            start_key, warm_key, draw_key = jax.random.split(key, 3)
            start = {"w": jax.random.uniform(start_key, (x.shape[1],), minval=-2, maxval=2), "log_sigma": jnp.zeros(())}
            warmup = blackjax.window_adaptation(blackjax.nuts, log_density)
            (state, parameters), _ = warmup.run(warm_key, start, num_steps=NUM_WARMUP)
            step = blackjax.nuts(log_density, **parameters).step

            def one_step(state, key):
                state, _ = step(key, state)
                return state, state.position["w"]

            return jax.lax.scan(one_step, state, jax.random.split(draw_key, NUM_DRAWS))[1]

        return np.asarray(jax.jit(jax.vmap(one_chain))(jax.random.split(jax.random.key(0), NUM_CHAINS)))

    return fit


CONTESTANTS: dict[str, Callable[[], Fit]] = {
    "langevin sgld": lambda: langevin_sgld(None),
    "langevin sgld, batch_size=100": lambda: langevin_sgld(100),
    "numpyro nuts": numpyro_nuts,
    "blackjax nuts": blackjax_nuts,
}


def worker(name: str, num_rows: str) -> dict:
    """One fit: seconds to import, seconds of the call, and what came of it."""
    x, y = linear_data(int(num_rows))
    began = time.perf_counter()
    fit = CONTESTANTS[name]()
    imported = time.perf_counter()
    draws = fit(x, y)
    done = time.perf_counter()
    from langevin.diagnostics import weighted

    worst = float(np.min(weighted.effective_size(draws, np.ones(draws.shape[:2]))))
    return {"import_seconds": imported - began, "call_seconds": done - imported, "worst_ess": worst}


def measure(quick: bool) -> dict:
    """Fresh processes, in turn."""
    num_rows, repeats = 1000, 1 if quick else 3
    runs = {name: [] for name in CONTESTANTS}
    for _ in range(repeats):
        for name, results in runs.items():
            results.append(machine.fresh("compile_time.py", name, num_rows))
    medians = {
        name: {key: statistics.median(result[key] for result in results) for key in results[0]}
        for name, results in runs.items()
    }
    for name, figures in medians.items():
        figures["seconds"] = statistics.median(run["import_seconds"] + run["call_seconds"] for run in runs[name])
    ours = medians["langevin sgld"]["seconds"]
    for figures in medians.values():
        figures["ratio_to_langevin"] = figures["seconds"] / ours
    return {"num_rows": num_rows, "repeats": repeats, "contestants": medians}


if __name__ == "__main__":
    machine.main(measure, worker)
