"""An engine for each part of a model: volatility of a real series, of a million steps, and labels of a million rows.

    python benchmarks/hybrid.py [--quick]

Every fit runs in a fresh process.
"""

from __future__ import annotations

import sys
import time
import warnings
from collections.abc import Callable
from typing import Any

import machine
import numpy as np

WANTED = 400  # effective draws of the worst parameter
# Of NUTS on the real series: as lv.fit does it, and as it does best.
NUTS_COUNTS = {"num_warmup": 1000, "num_draws": 1000}
# A look at q takes a gradient and a product with the Hessian at each of five nodes, and three products for couplings.
GRADIENTS_A_LOOK = 5 * 3 + 3 * 2
PERSISTENCE, SIGMA, NU, LEVEL = 0.98, 0.1, 9.0, -4.5
SHARES, CENTRES, SDS = (0.3, 0.7), (-1.5, 1.0), (0.8, 0.8)


def silent() -> None:
    """The table shows every verdict."""
    import langevin as lv

    warnings.simplefilter("ignore", lv.LangevinWarning)


def sizes(fit: Any, sites: tuple[str, ...]) -> dict[str, float]:
    """The effective size of the worst element of each site, bulk, by arviz-stats."""
    from arviz_stats.base import array_stats

    worst = {}
    for name in sites:
        draws = np.asarray(fit.posterior[name].values, np.float64)
        each = array_stats.ess(draws, chain_axis=0, draw_axis=1, method="bulk")
        worst[name] = float(np.min(each))
    return worst


def told(fit: Any, seconds: float, sites: tuple[str, ...]) -> dict:
    """What is compared of a fit."""
    found = {"seconds": seconds, "verdict": [finding.code for finding in fit.verdict], "sizes": sizes(fit, sites)}
    for name in sites[:2]:
        draws = fit.posterior[name].values
        found[name] = [float(draws.mean()), float(draws.std())]
    path = fit.posterior["s"].values
    found["path"] = [path.mean((0, 1)).tolist(), path.std((0, 1)).tolist()]
    return found


def nuts_on_returns(how: str, seed: int, draws: int) -> dict:
    """NUTS over all coordinates: "default", or with the noise of the walk as the unknown and a metric of low rank."""
    import jax.numpy as jnp
    import numpyro
    import numpyro.distributions as dist

    import langevin as lv
    from langevin.demos import volatility

    silent()

    def by_steps(r: Any) -> None:
        sigma = numpyro.sample("sigma", dist.Exponential(10.0))
        nu = numpyro.sample("nu", dist.Exponential(0.1))
        first = numpyro.sample("first", dist.Normal(0.0, 10.0))
        noise = numpyro.sample("noise", dist.Normal(0.0, 1.0).expand([r.shape[0] - 1]).to_event(1))
        s = numpyro.deterministic("s", first + jnp.concatenate([jnp.zeros(1), jnp.cumsum(sigma * noise)]))
        numpyro.sample("r", dist.StudentT(nu, 0.0, jnp.exp(s)), obs=r)

    model, method = (volatility.model, "nuts") if how == "default" else (by_steps, lv.NUTS(metric="lowrank"))
    begun = time.perf_counter()
    counts = NUTS_COUNTS | ({"num_warmup": draws, "num_draws": draws} if draws else {})
    fit = lv.fit(model, volatility.make_data(), method, seed=seed, progress=False, **counts)
    found = told(fit, time.perf_counter() - begun, ("sigma", "nu", "s"))
    return found | {"gradients": float(fit.stats["n_steps"].values.sum())}


def hybrid_on_returns(seed: int, draws: int) -> dict:
    """NUTS over sigma and nu, the path by its bound."""
    import langevin as lv
    from langevin.demos import volatility

    silent()
    begun = time.perf_counter()
    method = lv.Hybrid({"s": lv.VI("markov"), ...: lv.NUTS()})
    data = volatility.make_data()
    fit = lv.fit(volatility.model, data, method, seed=seed, progress=False, num_warmup=200, num_draws=draws)
    found = told(fit, time.perf_counter() - begun, ("sigma", "nu", "s"))
    looks = float(fit.stats["n_steps"].values.sum()) * fit.settings["looks_a_gradient"]
    return found | {"looks": looks, "gradients": looks * GRADIENTS_A_LOOK}


def long_series(steps: int, seed: int) -> dict:
    """Stochastic volatility of many steps in pieces: are the true values inside the 95 % intervals?"""
    import jax.numpy as jnp
    import numpyro
    import numpyro.distributions as dist
    from scipy.signal import lfilter

    import langevin as lv

    silent()
    generator = np.random.default_rng(seed)
    pushes = SIGMA * generator.standard_normal(steps)
    pushes[0] /= np.sqrt(1 - PERSISTENCE**2)
    path = LEVEL + lfilter([1.0], [1.0, -PERSISTENCE], pushes)
    data = {"r": (np.exp(path) * generator.standard_t(NU, steps)).astype(np.float32)}

    def model(r: Any) -> None:
        sigma = numpyro.sample("sigma", dist.Exponential(10.0))
        nu = numpyro.sample("nu", dist.Exponential(0.1))
        persistence = numpyro.sample("persistence", dist.Beta(20.0, 1.5))
        level = numpyro.sample("level", dist.Normal(-4.5, 1.0))
        s = numpyro.sample("s", lv.series.Autoregression(persistence, sigma, r.shape[0], level=level))
        numpyro.sample("r", dist.StudentT(nu, 0.0, jnp.exp(s)), obs=r)

    pieces = lv.Subsequences(length=1000, buffer=100)
    method = lv.Hybrid({"s": lv.VI("markov"), ...: lv.SGLD()}, subsequences=pieces)
    begun = time.perf_counter()
    fit = lv.fit(model, data, method, num_chains=2, num_warmup=100, num_draws=200, seed=seed, progress=False)
    found: dict[str, Any] = {"seed": seed, "seconds": time.perf_counter() - begun}
    for name, true in {"sigma": SIGMA, "nu": NU, "persistence": PERSISTENCE, "level": LEVEL}.items():
        low, high = np.quantile(fit.posterior[name].values, [0.025, 0.975])
        found[name] = [float(low), float(high), bool(low < true < high)]
    return found | {"verdict": [finding.code for finding in fit.verdict]}


def labels(num_rows: int, seed: int) -> dict:
    """A mixture by drawn labels and SGLD, next to the Gaussian at the mode with the labels summed out."""
    import jax
    import jax.numpy as jnp
    import numpyro
    import numpyro.distributions as dist
    from jax.scipy.stats import norm

    import langevin as lv

    silent()
    generator = np.random.default_rng(seed)
    which = (generator.random(num_rows) < SHARES[1]).astype(int)
    x = np.take(CENTRES, which) + np.take(SDS, which) * generator.normal(size=num_rows)

    def model(x: Any) -> None:
        w = numpyro.sample("w", dist.Beta(2.0, 2.0))
        m = numpyro.sample("m", dist.Normal(np.array([-1.5, 1.5]), 0.5).to_event(1))
        s = numpyro.sample("s", dist.HalfNormal(2.0))
        with numpyro.plate("rows", x.shape[0]):
            z = numpyro.sample("z", dist.Bernoulli(w))
            numpyro.sample("x", dist.Normal(m[z], s), obs=x)

    begun = time.perf_counter()
    blocks = {"z": lv.Enumerate(), ...: lv.SGLD()}
    fit = lv.fit(model, {"x": x}, lv.Hybrid(blocks), batch_size=1000, seed=seed, progress=False)
    seconds = time.perf_counter() - begun
    with jax.enable_x64(True):
        rows = jnp.asarray(x.astype(np.float32), jnp.float64)

        def log_density(at: Any) -> Any:
            w, m, s = jax.nn.sigmoid(at[0]), at[1:3], jnp.exp(at[3])
            each = jnp.logaddexp(jnp.log1p(-w) + norm.logpdf(rows, m[0], s), jnp.log(w) + norm.logpdf(rows, m[1], s))
            prior = 2 * jnp.log(w) + 2 * jnp.log1p(-w) - jnp.sum((m - jnp.array([-1.5, 1.5])) ** 2) / 0.5
            return jnp.sum(each) + prior - s**2 / 8 + at[3]

        slope, curvature = jax.jit(jax.grad(log_density)), jax.jit(jax.hessian(log_density))
        at = jnp.array([np.log(SHARES[1] / SHARES[0]), *CENTRES, np.log(SDS[0])])
        for _ in range(8):
            at = at - jnp.linalg.solve(curvature(at), slope(at))
        exact_mean, exact_sd = np.asarray(at), np.sqrt(np.diag(np.linalg.inv(-np.asarray(curvature(at)))))
        assert float(jnp.abs(slope(at) * exact_sd).max()) < 1e-6
    posterior = {name: fit.posterior[name].values.astype(np.float64) for name in ("w", "m", "s")}
    w = posterior["w"]
    drawn = np.concatenate(
        [np.log(w / (1 - w))[..., None], posterior["m"], np.log(posterior["s"])[..., None]], axis=-1
    ).reshape(-1, 4)
    return {
        "seed": seed,
        "seconds": seconds,
        "errors": (np.abs(drawn.mean(0) - exact_mean) / exact_sd).tolist(),
        "ratios": (drawn.std(0) / exact_sd).tolist(),
        "verdict": [finding.code for finding in fit.verdict],
    }


def worker(question: str, *arguments: str) -> dict:
    """Answers one question."""
    if question == "nuts":
        return nuts_on_returns(arguments[0], *map(int, arguments[1:]))
    questions: dict[str, Callable[..., dict]] = {"hybrid": hybrid_on_returns, "series": long_series, "labels": labels}
    return questions[question](*map(int, arguments))


def _taken(question: str, *arguments: object) -> dict:
    found = machine.fresh("hybrid.py", question, *arguments)
    assert found is not None
    short = {name: value for name, value in found.items() if name != "path"}
    print(f"  {question} {arguments}: {short}", file=sys.stderr, flush=True)
    return found


def measure(quick: bool) -> dict:
    """All three questions."""
    fits = {
        "NUTS": _taken("nuts", "default", 0, 100 if quick else 0),
        "NUTS, noise of the walk, low rank": _taken("nuts", "noise", 0, 100 if quick else 0),
        "hybrid": _taken("hybrid", 0, 100 if quick else 500),
    }
    reference = np.asarray(fits["NUTS, noise of the walk, low rank"]["path"])
    for found in fits.values():
        path = np.asarray(found.pop("path"))
        found["correlation"] = float(np.corrcoef(path[0], reference[0])[0, 1])
        found["sd_ratio"] = float(np.median(path[1] / reference[1]))
        found["gradients_wanted"] = found["gradients"] * WANTED / min(found["sizes"].values())
        if "looks" in found:
            found["looks_wanted"] = found["looks"] * WANTED / min(found["sizes"].values())
    steps, seeds = (20_000, 1) if quick else (1_000_000, 10)
    num_rows = 20_000 if quick else 1_000_000
    return {
        "wanted": WANTED,
        "gradients_a_look": GRADIENTS_A_LOOK,
        "returns": fits,
        "steps": steps,
        "truth": {"sigma": SIGMA, "nu": NU, "persistence": PERSISTENCE, "level": LEVEL},
        "series": [_taken("series", steps, seed) for seed in range(seeds)],
        "num_rows": num_rows,
        "labels": [_taken("labels", num_rows, seed) for seed in range(1 if quick else 3)],
    }


if __name__ == "__main__":
    machine.main(measure, worker)
