"""How fast is coordinate ascent? Mixtures against NumPyro's SVI and scikit-learn, topics against scikit-learn.

    python benchmarks/cavi.py [--quick]

Every contestant runs in a fresh process. Bounds are compared by one function of the parameters of q, in NumPy and in
double precision, whoever found them.
"""

from __future__ import annotations

import itertools
import resource
import statistics
import sys
import tempfile
import time
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import machine
import numpy as np
from scipy.special import digamma, gammaln, logsumexp

NUM_COMPONENTS = 5
NUM_SWEEPS = 100
BETA = 0.05  # precision of a component's mean, in precisions of the component
CENTRES, SDS, SHARES = [-6.0, -2.5, 0.5, 3.5, 8.0], [1.0, 0.6, 0.8, 0.5, 1.2], [0.1, 0.25, 0.3, 0.2, 0.15]
# SVI has arrived where it is nearer than this to the bound of coordinate ascent, relative to its size.
NEAR = 1e-4
MOST_SECONDS = 60.0
RATES, SIZES = (0.003, 0.01, 0.03, 0.1), (100_000, 10_000, 1_000)
ROUNDS = 3
NUM_TOPICS, CONCENTRATION = 10, 0.1


def points(num_rows: int, dim: int) -> np.ndarray:
    """Rows of a mixture; in two dimensions the second column goes along with the first."""
    generator = np.random.default_rng(0)
    label = generator.choice(NUM_COMPONENTS, num_rows, p=SHARES)
    x = np.take(CENTRES, label) + np.take(SDS, label) * generator.normal(size=num_rows)
    if dim == 1:
        return x.astype(np.float32)
    other = 2.0 * (label % 3) + 0.5 * (x - np.take(CENTRES, label)) + 0.7 * generator.normal(size=num_rows)
    return np.stack([x, other], axis=1).astype(np.float32)


def mixture(x):
    """The program in one dimension."""
    import jax.numpy as jnp
    import numpyro
    import numpyro.distributions as dist

    w = numpyro.sample("w", dist.Dirichlet(jnp.ones(NUM_COMPONENTS)))
    with numpyro.plate("components", NUM_COMPONENTS):
        t = numpyro.sample("t", dist.Gamma(1.0, 1.0))
        m = numpyro.sample("m", dist.Normal(0.0, (BETA * t) ** -0.5))
    with numpyro.plate("rows", x.shape[0]):
        z = numpyro.sample("z", dist.Categorical(w))
        numpyro.sample("x", dist.Normal(m[z], t[z] ** -0.5), obs=x)


def mixture_of_vectors(x):
    """The program in several dimensions, with full covariances."""
    import jax.numpy as jnp
    import numpyro
    import numpyro.distributions as dist

    dim = x.shape[1]
    w = numpyro.sample("w", dist.Dirichlet(jnp.ones(NUM_COMPONENTS)))
    with numpyro.plate("components", NUM_COMPONENTS):
        t = numpyro.sample("t", dist.Wishart(dim + 1.0, rate_matrix=jnp.eye(dim)))
        m = numpyro.sample("m", dist.MultivariateNormal(jnp.zeros(dim), precision_matrix=BETA * t))
    with numpyro.plate("rows", x.shape[0]):
        z = numpyro.sample("z", dist.Categorical(w))
        numpyro.sample("x", dist.MultivariateNormal(m[z], precision_matrix=t[z]), obs=x)


def bound_of_mixture(x: np.ndarray, q: dict[str, np.ndarray]) -> float:
    """The bound of the program in one dimension, each label at its optimum: q(w), q(m), q(t) are all that it needs.

    Args:
        x: All rows.
        q: "weights", the concentration of w; "loc" and "scale" of m; "concentration" and "rate" of t.
    """
    weights, loc, variance = q["weights"], q["loc"], q["scale"] ** 2
    a, b = q["concentration"], q["rate"]
    log_w, log_t, t = digamma(weights) - digamma(weights.sum()), digamma(a) - np.log(b), a / b
    total = 0.0
    for part in np.array_split(x.astype(np.float64), max(len(x) // 100_000, 1)):
        away = (part[:, None] - loc) ** 2 + variance
        total += logsumexp(log_w + 0.5 * (log_t - np.log(2 * np.pi)) - 0.5 * t * away, axis=1).sum()
    count = len(weights)
    prior = (
        gammaln(count) - np.sum(t) + 0.5 * np.sum(np.log(BETA / (2 * np.pi)) + log_t - BETA * t * (loc**2 + variance))
    )
    entropy = np.sum(gammaln(weights)) - gammaln(weights.sum()) - np.sum((weights - 1) * log_w)
    entropy += 0.5 * np.sum(np.log(2 * np.pi * np.e * variance))
    entropy += np.sum(a - np.log(b) + gammaln(a) + (1 - a) * digamma(a))
    return float(total + prior + entropy)


def bound_of_topics(counts: np.ndarray, theta: np.ndarray, phi: np.ndarray) -> float:
    """The bound of latent Dirichlet allocation, each token's topic at its optimum, from both concentrations."""
    doc, word = np.nonzero(counts)
    total = 0.0
    logs = []
    for own in (theta, phi):
        size = own.shape[1]
        log_p = digamma(own) - digamma(own.sum(axis=1, keepdims=True))
        total += len(own) * (gammaln(size * CONCENTRATION) - size * gammaln(CONCENTRATION))
        total += np.sum((CONCENTRATION - own) * log_p) + np.sum(gammaln(own)) - np.sum(gammaln(own.sum(axis=1)))
        logs.append(log_p)
    return float(total + np.sum(counts[doc, word] * logsumexp(logs[0][doc] + logs[1].T[word], axis=1)))


def parameters_of(fit: Any) -> dict[str, np.ndarray]:
    """Of a fit by `lv.CAVI`, what `bound_of_mixture` asks for."""
    names = {"weights": "w.concentration", "loc": "m.loc", "scale": "m.scale"}
    names |= {"concentration": "t.concentration", "rate": "t.rate"}
    found = fit.data_tree["parameters"]
    return {name: found[site].values.reshape(-1).astype(np.float64) for name, site in names.items()}


def timed(run: Callable[[], Any], repeats: int) -> tuple[float, float, Any]:
    """A first run with its imports, the median of some more, and what the last returned."""
    seconds, result = [], None
    for _ in range(repeats + 1):
        began = time.perf_counter()
        result = run()
        seconds.append(time.perf_counter() - began)
    return seconds[0], statistics.median(seconds[1:]), result


def our_mixture(num_rows: int, dim: int, repeats: int) -> dict:
    """`lv.fit` with so many sweeps from one start."""
    warnings.simplefilter("ignore")
    x = points(num_rows, dim)

    def run(num_sweeps: int = NUM_SWEEPS) -> Any:
        import langevin as lv

        program = mixture if dim == 1 else mixture_of_vectors
        method = lv.CAVI(num_sweeps=num_sweeps, num_restarts=1)
        return lv.fit(program, {"x": x}, method, num_draws=1, num_chains=1, progress=False)

    cold, warm, fit = timed(run, repeats)
    # The sweeps alone, as the clock of SVI has its steps: what as many again take.
    twice = timed(lambda: run(2 * NUM_SWEEPS), repeats)[1]
    bound = bound_of_mixture(x, parameters_of(fit)) if dim == 1 else None
    return {"cold": cold, "warm": warm, "sweeps": twice - warm, "bound": bound, "said": float(fit.elbo.values[-1])}


def sklearn_mixture(num_rows: int, dim: int, repeats: int) -> dict:
    """`BayesianGaussianMixture` with the same priors; its q has the mean and precision of a component in one block."""
    warnings.simplefilter("ignore")
    x = points(num_rows, dim).astype(np.float64).reshape(num_rows, dim)

    def run() -> Any:
        from sklearn.mixture import BayesianGaussianMixture

        return BayesianGaussianMixture(
            n_components=NUM_COMPONENTS,
            weight_concentration_prior_type="dirichlet_distribution",
            weight_concentration_prior=1.0,
            mean_precision_prior=BETA,
            mean_prior=np.zeros(dim),
            degrees_of_freedom_prior=dim + 1.0,
            # A gamma of rate 1 is a Wishart of one dimension and rate 2.
            covariance_prior=np.eye(dim) * (2.0 if dim == 1 else 1.0),
            init_params="random_from_data",
            max_iter=NUM_SWEEPS,
            tol=0.0,
            random_state=0,
        ).fit(x)

    cold, warm, fit = timed(run, repeats)
    return {"cold": cold, "warm": warm, "sweeps": int(fit.n_iter_)}


def numpyro_mixture(num_rows: int, batch_size: int, rate: float, target: float) -> dict:
    """SVI with labels summed out and a guide of our family; the clock runs in its steps alone.

    It begins at quantiles of the rows, which is a better start than ours. Its bound is looked at now and then, by the
    same function as ours, and by the bound without labels that it climbs, which is a little higher.
    """
    import jax
    import jax.numpy as jnp
    import numpyro
    import numpyro.distributions as dist
    from numpyro.distributions import constraints
    from numpyro.infer import SVI, TraceMeanField_ELBO

    x = points(num_rows, 1)
    rows = jnp.asarray(x)
    positive = constraints.positive

    def program(x, size):
        w = numpyro.sample("w", dist.Dirichlet(jnp.ones(NUM_COMPONENTS)))
        with numpyro.plate("components", NUM_COMPONENTS):
            t = numpyro.sample("t", dist.Gamma(1.0, 1.0))
            m = numpyro.sample("m", dist.Normal(0.0, (BETA * t) ** -0.5))
        with numpyro.plate("rows", x.shape[0], subsample_size=size) as index:
            seen = x if size == x.shape[0] else x[index]
            mixed = dist.MixtureSameFamily(dist.Categorical(w), dist.Normal(m, t**-0.5))
            numpyro.sample("x", mixed, obs=seen)

    def guide(x, size):
        del size
        start = jnp.quantile(x, (jnp.arange(NUM_COMPONENTS) + 0.5) / NUM_COMPONENTS)
        ones = jnp.ones(NUM_COMPONENTS)
        weights = numpyro.param("weights", 10 * ones, constraint=positive)
        loc = numpyro.param("loc", start)
        scale = numpyro.param("scale", 0.1 * ones, constraint=positive)
        concentration = numpyro.param("concentration", 10 * ones, constraint=positive)
        mean = numpyro.param("mean", ones, constraint=positive)  # of t: better conditioned than its rate
        numpyro.sample("w", dist.Dirichlet(weights))
        with numpyro.plate("components", NUM_COMPONENTS):
            numpyro.sample("t", dist.Gamma(concentration, concentration / mean))
            numpyro.sample("m", dist.Normal(loc, scale))

    elbo = TraceMeanField_ELBO()
    svi = SVI(program, guide, numpyro.optim.Adam(rate), elbo)
    stretch = 100 if batch_size < num_rows else 20

    @jax.jit
    def advanced(state, x):
        return jax.lax.scan(lambda state, _: svi.update(state, x, batch_size), state, None, stretch)[0]

    state = svi.init(jax.random.key(0), rows, batch_size)
    compiled = time.perf_counter()
    jax.block_until_ready(advanced(state, rows))
    compiled = time.perf_counter() - compiled
    seconds, best, steps, next_look = 0.0, -np.inf, 0, 0.0
    while seconds < MOST_SECONDS:
        began = time.perf_counter()
        state = jax.block_until_ready(advanced(state, rows))
        seconds += time.perf_counter() - began
        steps += stretch
        if seconds >= next_look:
            params = {name: np.asarray(value, np.float64) for name, value in svi.get_params(state).items()}
            params["rate"] = params["concentration"] / params["mean"]
            best = max(best, bound_of_mixture(x, params))
            if best > target:
                break
            next_look = 1.1 * seconds
    return {"seconds": seconds, "compiled": compiled, "steps": steps, "bound": best, "reached": bool(best > target)}


def corpus() -> np.ndarray:
    """Counts of the Reuters corpus of the package lda."""
    import lda.datasets

    return np.asarray(lda.datasets.load_reuters())


def our_topics(num_sweeps: int, repeats: int) -> dict:
    """`lv.fit` on tokens, from one start."""
    warnings.simplefilter("ignore")
    counts = corpus()
    doc, word = np.nonzero(counts)
    data = {name: np.repeat(column, counts[doc, word]) for name, column in (("doc", doc), ("word", word))}

    def program(doc, word):
        import jax.numpy as jnp
        import numpyro
        import numpyro.distributions as dist

        with numpyro.plate("topics", NUM_TOPICS):
            phi = numpyro.sample("phi", dist.Dirichlet(jnp.full(counts.shape[1], CONCENTRATION)))
        with numpyro.plate("documents", counts.shape[0]):
            theta = numpyro.sample("theta", dist.Dirichlet(jnp.full(NUM_TOPICS, CONCENTRATION)))
        with numpyro.plate("tokens", doc.shape[0]):
            z = numpyro.sample("z", dist.Categorical(theta[doc]))
            numpyro.sample("word", dist.Categorical(phi[z]), obs=word)

    def run() -> Any:
        import langevin as lv

        method = lv.CAVI(num_sweeps=num_sweeps, num_restarts=1)
        return lv.fit(program, data, method, num_draws=1, num_chains=1, progress=False)

    cold, warm, fit = timed(run, repeats)
    found = [fit.data_tree["parameters"][f"{site}.concentration"].values for site in ("theta", "phi")]
    said = float(fit.elbo.values[-1])
    return {"cold": cold, "warm": warm, "bound": bound_of_topics(counts, *found), "said": said}


def sklearn_topics(num_sweeps: int, repeats: int) -> dict:
    """`LatentDirichletAllocation`, batch, with its own inner loop over a document."""
    counts = corpus()
    table = counts.astype(np.float64)

    def run() -> Any:
        from sklearn.decomposition import LatentDirichletAllocation

        method = LatentDirichletAllocation(
            n_components=NUM_TOPICS,
            doc_topic_prior=CONCENTRATION,
            topic_word_prior=CONCENTRATION,
            learning_method="batch",
            max_iter=num_sweeps,
            evaluate_every=-1,
            random_state=0,
        )
        return method.fit(table)

    cold, warm, fit = timed(run, repeats)
    # What `transform` divides by the sum: counts of the tokens, and the prior.
    theta = fit.transform(table) * (table.sum(axis=1, keepdims=True) + NUM_TOPICS * CONCENTRATION)
    return {"cold": cold, "warm": warm, "bound": bound_of_topics(counts, theta, fit.components_)}


def tall(num_rows: int, batch_size: int, num_sweeps: int, in_pieces: int = 0) -> dict:
    """One fit of the mixture on minibatches, of a Parquet file where asked; on all rows if `batch_size` is 0."""
    warnings.simplefilter("ignore")
    x = points(num_rows, 1)
    import langevin as lv

    with tempfile.TemporaryDirectory() as folder:
        data: Any = {"x": x}
        if in_pieces:
            data = lv.Pieces.parquet(_written(x, Path(folder) / "rows.parquet"))
        return _fitted_tall(x, data, batch_size, num_sweeps)


def _written(x: np.ndarray, path: Path) -> Path:
    """The rows as a file, in row groups of pyarrow's own size."""
    import pyarrow as arrow
    from pyarrow import parquet

    parquet.write_table(arrow.table({"x": x}), path)
    return path


def _fitted_tall(x: np.ndarray, data: Any, batch_size: int, num_sweeps: int) -> dict:
    import langevin as lv

    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    began = time.perf_counter()
    method = lv.CAVI(num_sweeps=num_sweeps or None)
    fit = lv.fit(mixture, data, method, batch_size=batch_size or None, num_draws=1, num_chains=1, progress=False)
    seconds = time.perf_counter() - began
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before
    return {"seconds": seconds, "megabytes": peak / 1024, "bound": bound_of_mixture(x, parameters_of(fit))}


WORKERS: dict[str, Callable[..., dict]] = {
    "our_mixture": our_mixture,
    "sklearn_mixture": sklearn_mixture,
    "our_topics": our_topics,
    "sklearn_topics": sklearn_topics,
    "tall": tall,
}


def worker(question: str, *numbers: str) -> dict:
    """Answers one question for one contestant."""
    if question == "numpyro_mixture":
        num_rows, batch_size, rate, target = numbers
        return numpyro_mixture(int(num_rows), int(batch_size), float(rate), float(target))
    return WORKERS[question](*map(int, numbers))


def _taken(question: str, *numbers: object) -> dict:
    found = machine.fresh("cavi.py", question, *numbers)
    assert found is not None
    print(f"  {question} {numbers}: {found}", file=sys.stderr, flush=True)
    return found


def _median(runs: list[dict]) -> dict:
    phases = [phase for phase in ("cold", "warm", "sweeps") if phase in runs[0]]
    return runs[0] | {phase: statistics.median(run[phase] for run in runs) for phase in phases}


def measure(quick: bool) -> dict:
    """All three questions."""
    num_rows, rounds, repeats = (10_000, 1, 1) if quick else (100_000, ROUNDS, 2)
    mixtures: dict[str, dict] = {}
    every: dict[str, list] = {}
    for dim in (1, 2):
        runs: dict[str, list[dict]] = {"langevin": [], "scikit-learn": []}
        for _ in range(rounds):
            runs["langevin"].append(_taken("our_mixture", num_rows, dim, repeats))
            runs["scikit-learn"].append(_taken("sklearn_mixture", num_rows, dim, 1))
        mixtures[str(dim)] = {name: _median(found) for name, found in runs.items()}
        every[f"mixture {dim}"] = list(runs.values())
    ours = mixtures["1"]["langevin"]["bound"]
    target = ours - NEAR * abs(ours)
    sizes, rates = ((num_rows,), (0.03,)) if quick else (SIZES, RATES)
    svi = [
        {"batch_size": size, "rate": rate} | _taken("numpyro_mixture", num_rows, size, rate, target)
        for size, rate in itertools.product(sizes, rates)
    ]
    sweeps = 20 if quick else NUM_SWEEPS
    topics: dict[str, list[dict]] = {"langevin": [], "scikit-learn": []}
    for _ in range(rounds):
        topics["langevin"].append(_taken("our_topics", sweeps, repeats))
        topics["scikit-learn"].append(_taken("sklearn_topics", sweeps, 1))
    many, batch_size = (100_000, 1_000) if quick else (10_000_000, 10_000)
    return {
        "num_rows": num_rows,
        "rounds": rounds,
        "num_sweeps": NUM_SWEEPS,
        "mixture": mixtures,
        "svi": svi,
        "target": target,
        "near": NEAR,
        "topics": {name: _median(found) for name, found in topics.items()},
        "topic_sweeps": sweeps,
        "tall": {
            "num_rows": many,
            "batch_size": batch_size,
            "stochastic": _taken("tall", many, batch_size, 0),
            "pieces": _taken("tall", many, batch_size, 0, 1),
            "batch": _taken("tall", many, 0, 60),
        },
        "all": every | {"topics": list(topics.values())},
    }


if __name__ == "__main__":
    machine.main(measure, worker)
