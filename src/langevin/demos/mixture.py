"""The posterior of a Gaussian mixture with tied means (Welling & Teh 2011).

    x_i ~ 0.5 N(t1, 2) + 0.5 N(t1 + t2, 2),   t1 ~ N(0, 10),   t2 ~ N(0, 1)

Its two modes mirror each other, and a chain that cannot cross between them gets their balance wrong. MAP, SGLD with
decreasing steps at three batch sizes, and SGHMC with everything left to warm-up, against the exact posterior on a grid.
The data and the steps of SGLD are those of Keng (2023), 'Bayesian learning via stochastic gradient Langevin dynamics
and Bayes by backprop'.
"""

from __future__ import annotations

import math
import warnings
from pathlib import Path
from typing import Any, NamedTuple

import jax.numpy as jnp
import numpy as np
import numpyro
import numpyro.distributions as dist
from rich import box
from rich.console import Console
from rich.table import Table

import langevin as lv
from langevin import plots

NUM_ROWS = 100


class Answer(NamedTuple):
    """What a method says of the posterior."""

    name: str
    means: tuple[float, float]
    sds: tuple[float, float]
    negative: float
    verdict: str
    draws: tuple[np.ndarray, np.ndarray, np.ndarray] | None = None


def make_data() -> np.ndarray:
    """Keng's 100 rows, from NumPy's legacy generator at seed 3."""
    generator = np.random.RandomState(3)
    first = generator.rand(NUM_ROWS) >= 0.5
    return np.where(first, generator.normal(0, 1.6, NUM_ROWS), generator.normal(1, 1.6, NUM_ROWS))


def model(x: Any) -> None:
    """The mixture as a NumPyro program."""
    t1 = numpyro.sample("t1", dist.Normal(0.0, math.sqrt(10.0)))
    t2 = numpyro.sample("t2", dist.Normal(0.0, 1.0))
    parts = dist.Normal(jnp.stack([t1, t1 + t2]), math.sqrt(2.0))
    with numpyro.plate("rows", x.shape[0]):
        numpyro.sample("x", dist.MixtureSameFamily(dist.Categorical(probs=jnp.array([0.5, 0.5])), parts), obs=x)


def exact(x: np.ndarray, points: int = 1201) -> tuple[Answer, np.ndarray, np.ndarray, np.ndarray]:
    """The posterior on a grid: the answer, the two axes, and the probability of each cell."""
    t1, t2 = np.linspace(-4, 5, points), np.linspace(-6, 6, points)
    first = t1[:, None]
    second = first + t2[None, :]
    log_density = -(first**2) / 20 - t2[None, :] ** 2 / 2
    for value in x:
        log_density = log_density + np.logaddexp(-((value - first) ** 2) / 4, -((value - second) ** 2) / 4)
    cells = np.exp(log_density - log_density.max())
    cells /= cells.sum()
    p1, p2 = cells.sum(axis=1), cells.sum(axis=0)
    means = float(p1 @ t1), float(p2 @ t2)
    sds = math.sqrt(p1 @ (t1 - means[0]) ** 2), math.sqrt(p2 @ (t2 - means[1]) ** 2)
    answer = Answer("exact (grid)", means, sds, float(p2[t2 < 0].sum() + p2[t2 == 0].sum() / 2), "")
    return answer, t1, t2, cells


def best(x: np.ndarray, seed: int = 0, progress: bool = False) -> lv.Fit:
    """Our best stochastic-gradient setting: SGHMC on minibatches of half the rows, nothing tuned by hand."""
    return lv.fit(model, {"x": x}, "sghmc", batch_size=50, num_draws=4000, thin=100, seed=seed, progress=progress)


def decreasing_sgld(x: np.ndarray, batch_size: int, seed: int = 0, progress: bool = False) -> lv.Fit:
    """Keng's SGLD: one chain, a million steps of `0.01 (1 + t)^-0.55`, no burn-in."""
    method = lv.SGLD(step_size=lv.Polynomial(0.01, 1.0, 0.55))
    return lv.fit(
        model,
        {"x": x},
        method,
        batch_size=batch_size,
        num_chains=1,
        num_warmup=0,
        num_draws=10_000,
        thin=100,
        seed=seed,
        progress=progress,
    )


def answer_of(name: str, fit: lv.Fit) -> Answer:
    """The figures of a fit."""
    table = fit.summary(["t1", "t2"])
    weights = fit.weights.values.reshape(-1)
    t1, t2 = (fit.posterior[site].values.reshape(-1) for site in ("t1", "t2"))
    negative = float(np.average(t2 < 0, weights=weights))
    means, sds = table["mean"], table["sd"]
    verdict = ", ".join(finding.code for finding in fit.verdict) or "no fault found"
    return Answer(name, (means["t1"], means["t2"]), (sds["t1"], sds["t2"]), negative, verdict, (t1, t2, weights))


def run(folder: Path, seed: int = 0, progress: bool = True) -> list[Answer]:
    """Runs every method, prints the table, and writes the pictures to `folder`."""
    plots.check()
    x = make_data()
    truth, t1, t2, cells = exact(x)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", lv.LangevinWarning)  # The table shows every verdict.
        answers = [answer_of("MAP", lv.fit(model, {"x": x}, "map", seed=seed, progress=progress))]
        for batch_size in (1, 10, 100):
            fit = decreasing_sgld(x, batch_size, seed + batch_size, progress)
            answers.append(answer_of(f"SGLD, batch {batch_size}", fit))
        answers.append(answer_of("SGHMC, batch 50", best(x, seed, progress)))
    _print_table([truth, *answers])
    for path in _draw(folder, x, t1, t2, cells, answers):
        Console().print(f"wrote {path}", soft_wrap=True)
    return [truth, *answers]


def _print_table(answers: list[Answer]) -> None:
    table = Table(title="Tied-means mixture, 100 rows: posterior mean (sd)", box=box.SIMPLE_HEAD, pad_edge=False)
    for column in ("method", "t1", "t2", "P(t2 < 0)", "verdict"):
        table.add_column(column, justify="left" if column in ("method", "verdict") else "right")
    for answer in answers:
        cells = [
            f"{mean:.3f}" + ("" if math.isnan(sd) else f" ({sd:.3f})")
            for mean, sd in zip(answer.means, answer.sds, strict=True)
        ]
        negative = "" if math.isnan(answer.sds[0]) else f"{answer.negative:.3f}"
        table.add_row(answer.name, *cells, negative, answer.verdict)
    Console().print(table)


def _draw(
    folder: Path, x: np.ndarray, t1: np.ndarray, t2: np.ndarray, cells: np.ndarray, answers: list[Answer]
) -> list[Path]:
    folder.mkdir(parents=True, exist_ok=True)
    sampled = [answer for answer in answers if not math.isnan(answer.sds[0])]
    with plots.figure(folder / "mixture_data.png") as axes:
        axes.hist(x, bins=20, color=plots.BLUE, edgecolor="white")
        axes.set(title="The data: 100 rows", xlabel="x", ylabel="rows")
    with plots.figure(folder / "mixture_exact.png") as axes:
        plots.contours_of_grid(axes, t1, t2, cells)
        axes.plot(*answers[0].means, "o", color=plots.RED, label="MAP")
        axes.set(title="Exact posterior", xlabel="t1", ylabel="t2", xlim=(-3, 4), ylim=(-5, 5))
        axes.legend()
    with plots.figure(folder / "mixture_methods.png", columns=2, rows=2) as grid:
        for axes, answer in zip(grid.flat, sampled, strict=True):
            assert answer.draws is not None
            plots.contours_of_grid(axes, t1, t2, cells, color=plots.GREY)
            plots.contours_of_draws(axes, *answer.draws)
            axes.set(title=f"{answer.name}: {answer.verdict}", xlabel="t1", ylabel="t2", xlim=(-3, 4), ylim=(-5, 5))
    return [folder / f"mixture_{name}.png" for name in ("data", "exact", "methods")]
