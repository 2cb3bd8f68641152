"""The mean and precision of a Gaussian, with a hand-written guide (Masegosa & Nielsen 2023).

    x_i ~ N(mu, 1 / gamma),   mu ~ N(0, tau),   gamma ~ Gamma(alpha, beta)

The guide is q(mu) q(gamma), a Gaussian and a Gamma: the family in which coordinate ascent has a closed form. Its
updates are written by hand here, and `lv.CAVI` derives them from the program. NUTS is the reference.
"""

from __future__ import annotations

import warnings
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import numpyro
import numpyro.distributions as dist
from numpyro.distributions import constraints
from rich import box
from rich.console import Console
from rich.table import Table

import langevin as lv
from langevin import plots

NUM_ROWS = 30
TAU, ALPHA, BETA = 100.0, 1.0, 1.0


class Answer(NamedTuple):
    """Mean and sd of mu and gamma."""

    name: str
    mu: tuple[float, float]
    gamma: tuple[float, float]
    verdict: str = ""


def make_data(seed: int = 0) -> dict[str, np.ndarray]:
    """Rows around 2, with precision 0.5."""
    return {"x": np.random.default_rng(seed).normal(2.0, np.sqrt(2.0), NUM_ROWS)}


def model(x: Any) -> None:
    """The model as a NumPyro program."""
    mu = numpyro.sample("mu", dist.Normal(0.0, np.sqrt(TAU)))
    gamma = numpyro.sample("gamma", dist.Gamma(ALPHA, BETA))
    with numpyro.plate("rows", x.shape[0]):
        numpyro.sample("x", dist.Normal(mu, 1 / gamma**0.5), obs=x)


def guide(x: Any) -> None:
    """A Gaussian for mu and a Gamma for gamma."""
    del x
    loc = numpyro.param("mu_loc", 0.0)
    scale = numpyro.param("mu_scale", 1.0, constraint=constraints.positive)
    concentration = numpyro.param("gamma_concentration", 2.0, constraint=constraints.positive)
    rate = numpyro.param("gamma_rate", 2.0, constraint=constraints.positive)
    numpyro.sample("mu", dist.Normal(loc, scale))
    numpyro.sample("gamma", dist.Gamma(concentration, rate))


def coordinate_ascent(x: np.ndarray, num_steps: int = 200) -> Answer:
    """The best q of the guide's family, by its closed-form updates."""
    count, concentration = len(x), ALPHA + len(x) / 2
    mean, variance, expected = float(np.mean(x)), 1.0, 1.0
    rate = 1.0
    for _ in range(num_steps):
        precision = 1 / TAU + count * expected
        mean, variance = expected * float(np.sum(x)) / precision, 1 / precision
        rate = BETA + 0.5 * (float(np.sum((x - mean) ** 2)) + count * variance)
        expected = concentration / rate
    return Answer("by hand", (mean, variance**0.5), (expected, concentration**0.5 / rate))


def answer_of(name: str, fit: lv.Fit) -> Answer:
    """The figures of a fit."""
    table = fit.summary()
    verdict = ", ".join(finding.code for finding in fit.verdict) or "no fault found"
    mu, gamma = ((table.loc[site, "mean"], table.loc[site, "sd"]) for site in ("mu", "gamma"))
    return Answer(name, mu, gamma, verdict)


def run(folder: Path, seed: int = 0, progress: bool = True) -> list[Answer]:
    """Runs CAVI, the guide and NUTS, prints the table, and writes the picture to `folder`."""
    plots.check()
    data = make_data()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", lv.LangevinWarning)  # The table shows every verdict.
        fits = {
            "CAVI": lv.fit(model, data, "cavi", num_draws=4000, seed=seed, progress=progress),
            "VI, guide": lv.fit(model, data, lv.VI(guide), num_draws=4000, seed=seed, progress=progress),
            "VI, fullrank": lv.fit(model, data, lv.VI("fullrank"), num_draws=4000, seed=seed, progress=progress),
            "NUTS": lv.fit(model, data, num_draws=4000, seed=seed, progress=progress),
        }
    answers = [coordinate_ascent(data["x"]), *(answer_of(name, fit) for name, fit in fits.items())]
    table = Table(title=f"Gaussian model, {NUM_ROWS} rows: mean (sd)", box=box.SIMPLE_HEAD, pad_edge=False)
    for column in ("", "mu", "gamma", "verdict"):
        table.add_column(column, justify="left" if column in ("", "verdict") else "right")
    for answer in answers:
        pairs = (f"{mean:.3f} ({sd:.3f})" for mean, sd in (answer.mu, answer.gamma))
        table.add_row(answer.name, *pairs, answer.verdict)
    Console().print(table)
    Console().print(f"wrote {_draw(folder, fits)}", soft_wrap=True)
    return answers


def _draw(folder: Path, fits: dict[str, lv.Fit]) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / "gaussian.png"
    with plots.figure(path, columns=3) as grid:
        for axes, name in zip(grid, ("CAVI", "VI, guide", "VI, fullrank"), strict=True):
            for fit, color in ((fits["NUTS"], plots.GREY), (fits[name], plots.RED)):
                mu, gamma = (fit.posterior[site].values.ravel() for site in ("mu", "gamma"))
                plots.contours_of_draws(axes, mu, gamma, np.ones(len(mu)), color=color)
            axes.set(title=f"{name} (red) and NUTS", xlabel="mu", ylabel="gamma")
    return path
