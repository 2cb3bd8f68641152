"""Stochastic volatility of the S&P 500 (Hoffman & Gelman 2014, section 5; Keng 2023).

    sigma ~ Exp(10),  nu ~ Exp(0.1),  s_0 ~ N(0, 100),  s_t ~ N(s_{t-1}, sigma^2),  r_t ~ StudentT(nu, 0, exp(s_t))

for 2,686 daily log-returns from May 2008 to December 2018. NUTS over all 2,688 coordinates; the hybrid, NUTS over sigma
and nu with the bound of a Markov Gaussian q for the path; and the construction of Keng's text (his equations 37 to 39),
SGLD over sigma, nu and the drifts mu_t of

    q(s_t | s_{t-1}) = N(s_{t-1} + mu_t, sigma^2)

which is defective, and here to show by how much:

- the sd of a step of q is sigma, the model's own, whatever the returns say: the path of q is as wide as a free random
  walk, and only a small sigma makes it narrow;
- the density of the walk, of which -mu_t^2 / (2 sigma^2) is left beside q's own, is not in the loss: nothing ties the
  drifts to sigma;
- the terms are divided by the size of the batch, so that one part in a hundred of the evidence is left.
"""

from __future__ import annotations

import time
import warnings
from pathlib import Path
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import numpyro
import numpyro.distributions as dist
from jax.flatten_util import ravel_pytree
from rich import box
from rich.console import Console
from rich.table import Table

import langevin as lv
from langevin import plots
from langevin.errors import DataError

FIRST, LAST = "2008-05", "2018-12"
NUTS_COUNTS: dict[str, Any] = {"num_warmup": 500, "num_draws": 500}
HYBRID_COUNTS: dict[str, Any] = {"num_warmup": 200, "num_draws": 250}
# Of the text's construction.
NUM_STEPS, NUM_TRACES, BATCH_SIZE, LEARNING_RATE = 3000, 4, 100, 0.005
# Of the noise of its steps, which at its learning rate would drown the drifts of so many days.
SCALE_OF_NOISE = 0.01


class Answer(NamedTuple):
    """What a method says.

    Attributes:
        name: Of the method.
        sigma: Draws.
        nu: Draws.
        path: The mean of s and its sd, (2, steps).
        seconds: How long it took.
        gradients: Over the whole series, in sampling; None where it is not counted.
        verdict: What the fit says of itself.
    """

    name: str
    sigma: np.ndarray
    nu: np.ndarray
    path: np.ndarray
    seconds: float
    gradients: float | None
    verdict: str


def make_data(data: Path | None = None) -> dict[str, np.ndarray]:
    """The returns: of the package `arch`, or of a CSV file with the columns Date and Adj Close.

    Raises:
        DataError: If neither is there.
    """
    import pandas as pd

    if data is None:
        try:
            from arch.data import sp500
        except ImportError as error:
            raise DataError(
                "The demo 'volatility' takes its prices from the package `arch`: pip install arch. Or give a CSV file "
                "with the columns Date and 'Adj Close': --data prices.csv."
            ) from error
        prices = sp500.load()
    else:
        prices = pd.read_csv(data, index_col=0, parse_dates=True)
    if "Adj Close" not in prices:
        raise DataError(f"{data} has no column 'Adj Close'; it has {', '.join(map(str, prices.columns))}.")
    returns = np.log(prices["Adj Close"]).diff().dropna()
    return {"r": returns[FIRST:LAST].to_numpy(np.float32)}


def model(r: Any) -> None:
    """The model as a NumPyro program."""
    sigma = numpyro.sample("sigma", dist.Exponential(10.0))
    nu = numpyro.sample("nu", dist.Exponential(0.1))
    s = numpyro.sample("s", lv.series.RandomWalk(sigma, r.shape[0], start_scale=10.0))
    numpyro.sample("r", dist.StudentT(nu, 0.0, jnp.exp(s)), obs=r)


def hybrid(r: np.ndarray, seed: int = 0, progress: bool = False, **counts: Any) -> lv.Fit:
    """NUTS over sigma and nu, the path by its bound."""
    method = lv.Hybrid({"s": lv.VI("markov"), ...: lv.NUTS()})
    return lv.fit(model, {"r": r}, method, seed=seed, progress=progress, **(HYBRID_COUNTS | counts))


def answer_of(name: str, fit: lv.Fit, seconds: float) -> Answer:
    """The figures of a fit."""
    posterior, stats = fit.posterior, fit.stats
    path = posterior["s"].values.reshape(-1, posterior["s"].shape[-1])
    gradients = float(stats["n_steps"].values.sum()) * fit.settings.get("looks_a_gradient", 1.0)
    verdict = ", ".join(finding.code for finding in fit.verdict) or "no fault found"
    sigma, nu = (posterior[site].values.ravel() for site in ("sigma", "nu"))
    return Answer(name, sigma, nu, np.stack([path.mean(axis=0), path.std(axis=0)]), seconds, gradients, verdict)


def of_the_text(r: np.ndarray, seed: int = 0) -> Answer:
    """The text's construction, defects and all: for comparison, and not for use."""
    begun, size = time.perf_counter(), len(r)
    returns = jnp.asarray(r)

    def loss(parameters: dict[str, jax.Array], noise: jax.Array) -> jax.Array:
        sigma, nu = jnp.exp(parameters["log_sigma"]), jnp.exp(parameters["log_nu"])
        path = parameters["s0"] + jnp.cumsum(parameters["mu"] + sigma * noise, axis=-1)
        rows = jnp.sum(dist.StudentT(nu, 0.0, jnp.exp(path)).log_prob(returns), axis=-1)
        prior = dist.Exponential(10.0).log_prob(sigma) + dist.Exponential(0.1).log_prob(nu)
        prior += parameters["log_sigma"] + parameters["log_nu"] - parameters["s0"] ** 2 / 200
        return (jnp.mean(rows) + prior) / BATCH_SIZE

    def step(carry: Any, inputs: Any) -> Any:
        parameters, squares = carry
        number, key = inputs
        trace_key, walk_key = jax.random.split(key)
        slope = jax.grad(loss)(parameters, jax.random.normal(trace_key, (NUM_TRACES, size)))
        squares = jax.tree.map(lambda v, g: 0.99 * v + 0.01 * g**2, squares, slope)
        rate = LEARNING_RATE * (1.0 + number) ** -0.33
        flat, unravel = ravel_pytree(parameters)
        noise = unravel(jax.random.normal(walk_key, flat.shape))

        def moved(x: jax.Array, g: jax.Array, v: jax.Array, e: jax.Array) -> jax.Array:
            metric = 1 / (1e-2 + jnp.sqrt(v))
            return x + rate / 2 * metric * g + jnp.sqrt(rate * metric) * SCALE_OF_NOISE * e

        parameters = jax.tree.map(moved, parameters, slope, squares, noise)
        kept = (jnp.exp(parameters["log_sigma"]), jnp.exp(parameters["log_nu"]))
        path = parameters["s0"] + jnp.cumsum(parameters["mu"])
        return (parameters, squares), (*kept, path)

    first = {
        "log_sigma": jnp.log(0.1),
        "log_nu": jnp.log(10.0),
        "s0": jnp.asarray(np.log(np.std(r))),
        "mu": jnp.zeros(size),
    }
    keys = jax.random.split(jax.random.key(seed), NUM_STEPS)
    begin = (first, jax.tree.map(jnp.zeros_like, first))
    sigma, nu, paths = (np.asarray(part) for part in jax.jit(_scanned(step))(begin, (jnp.arange(NUM_STEPS), keys))[1])
    half = NUM_STEPS // 2
    path = np.stack([paths[half:].mean(axis=0), paths[half:].std(axis=0)])
    seconds = time.perf_counter() - begun
    return Answer("the text's construction", sigma[half:], nu[half:], path, seconds, None, "terms missing and divided")


def _scanned(step: Any) -> Any:
    return lambda begin, inputs: jax.lax.scan(step, begin, inputs)


def run(
    folder: Path, seed: int = 0, progress: bool = True, data: Path | None = None, nuts: bool = True
) -> list[Answer]:
    """Runs every method, prints the table, and writes the pictures to `folder`."""
    plots.check()
    r = make_data(data)["r"]
    answers = []
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", lv.LangevinWarning)  # The table shows every verdict.
        if nuts:
            begun = time.perf_counter()
            fit = lv.fit(model, {"r": r}, "nuts", seed=seed, progress=progress, **NUTS_COUNTS)
            answers.append(answer_of("NUTS", fit, time.perf_counter() - begun))
        begun = time.perf_counter()
        fit = hybrid(r, seed, progress)
        answers.append(answer_of("hybrid: NUTS + markov VI", fit, time.perf_counter() - begun))
    answers.append(of_the_text(r, seed))
    _print_table(answers)
    for path in _draw(folder, r, answers):
        Console().print(f"wrote {path}", soft_wrap=True)
    return answers


def agreement(answer: Answer, reference: Answer) -> tuple[float, float]:
    """The correlation of the mean paths, and the median ratio of their sds."""
    correlation = float(np.corrcoef(answer.path[0], reference.path[0])[0, 1])
    return correlation, float(np.median(answer.path[1] / reference.path[1]))


def _print_table(answers: list[Answer]) -> None:
    table = Table(
        title="Volatility of the S&P 500: posterior mean (sd), and the path next to the first method's",
        box=box.SIMPLE_HEAD,
        pad_edge=False,
    )
    for column in ("method", "sigma", "nu", "correlation", "sd ratio", "gradients", "seconds", "verdict"):
        table.add_column(column, justify="left" if column in ("method", "verdict") else "right")
    for answer in answers:
        correlation, ratio = agreement(answer, answers[0])
        table.add_row(
            answer.name,
            f"{answer.sigma.mean():.3f} ({answer.sigma.std():.3f})",
            f"{answer.nu.mean():.1f} ({answer.nu.std():.1f})",
            f"{correlation:.3f}",
            f"{ratio:.2f}",
            "" if answer.gradients is None else f"{answer.gradients:,.0f}",
            f"{answer.seconds:.0f}",
            answer.verdict,
        )
    Console().print(table)


def _draw(folder: Path, r: np.ndarray, answers: list[Answer]) -> list[Path]:
    folder.mkdir(parents=True, exist_ok=True)
    colours, days = (plots.BLUE, plots.RED, plots.GREY), np.arange(len(r))
    colours = dict(zip([answer.name for answer in answers], colours[-len(answers) :], strict=True))
    with plots.figure(folder / "volatility_parameters.png", columns=2) as grid:
        for axes, site in zip(grid.flat, ("sigma", "nu"), strict=True):
            for answer in answers:
                draws = getattr(answer, site)
                axes.hist(draws, bins=50, density=True, histtype="step", color=colours[answer.name], label=answer.name)
            axes.set(title=site, xlabel=site, ylabel="density")
        grid.flat[0].legend()
    with plots.figure(folder / "volatility_path.png", rows=len(answers)) as grid:
        for axes, answer in zip(np.ravel(grid), answers, strict=True):
            mean, sd = answer.path
            axes.plot(days, np.abs(r), ".", color=plots.GREY, markersize=1)
            axes.fill_between(days, np.exp(mean - 2 * sd), np.exp(mean + 2 * sd), color=plots.BLUE, alpha=0.3)
            axes.plot(days, np.exp(mean), color=plots.BLUE)
            axes.set(title=f"{answer.name}: volatility, 95 % band", xlabel="day", ylabel="|return|", yscale="log")
            axes.set_ylim(1e-4, 0.2)
    return [folder / f"volatility_{name}.png" for name in ("parameters", "path")]
