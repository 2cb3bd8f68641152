"""Variational inference for a linear regression, whose posterior is known (Masegosa & Nielsen 2023).

    y_i ~ N(w0 + w1 x_i, 1),   w0, w1 ~ N(0, 10^2)

The best mean-field Gaussian has the posterior's mean and the variances 1 / diag(P) of its precision P: not those of the
marginals. The best Gaussian of full rank is the posterior. And two estimators of the bound's gradient at one point,
the score function and the pathwise, from M = 1, 3, 5, 10 and 25 draws.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import numpyro
import numpyro.distributions as dist
from rich import box
from rich.console import Console
from rich.table import Table

import langevin as lv
from langevin import plots

NUM_ROWS = 40
PRIOR_SCALE = 10.0
PARTICLES = (1, 3, 5, 10, 25)
# Where the estimators are compared: a q beside the posterior.
POINT = {"mean": np.array([0.2, 1.2], np.float32), "log_scale": np.log(np.array([0.3, 0.3], np.float32))}


class Gaussian(NamedTuple):
    """A posterior, or an approximation."""

    mean: np.ndarray
    covariance: np.ndarray


def make_data(seed: int = 0) -> dict[str, np.ndarray]:
    """Rows with x away from 0, so that intercept and slope are correlated."""
    generator = np.random.default_rng(seed)
    x = generator.uniform(0.5, 3.0, NUM_ROWS)
    return {"x": x, "y": -0.5 + 1.5 * x + generator.normal(size=NUM_ROWS)}


def model(x: Any, y: Any = None) -> None:
    """The regression as a NumPyro program."""
    w: Any = numpyro.sample("w", dist.Normal(0.0, PRIOR_SCALE).expand([2]).to_event(1))
    with numpyro.plate("rows", x.shape[0]):
        numpyro.sample("y", dist.Normal(w[0] + w[1] * x, 1.0), obs=y)


def exact(data: dict[str, np.ndarray]) -> tuple[Gaussian, Gaussian]:
    """The posterior, and the best mean-field approximation of it."""
    design = np.stack([np.ones(NUM_ROWS), data["x"]], axis=1)
    precision = design.T @ design + np.eye(2) / PRIOR_SCALE**2
    mean = np.linalg.solve(precision, design.T @ data["y"])
    return Gaussian(mean, np.linalg.inv(precision)), Gaussian(mean, np.diag(1 / np.diag(precision)))


def gaussian_of(fit: lv.Fit) -> Gaussian:
    """The Gaussian that q is, from its parameters."""
    parameters = fit.guide.parameters
    factor = np.diag(np.exp(parameters["log_scale"])).astype(np.float64)
    if "below" in parameters:
        factor = factor @ (np.eye(2) + np.tril(parameters["below"], -1))
    return Gaussian(np.asarray(parameters["mean"], np.float64), factor @ factor.T)


def run(folder: Path, seed: int = 0, progress: bool = True) -> list[tuple[str, Gaussian]]:
    """Fits both families, compares the estimators, prints the tables, and writes the pictures to `folder`."""
    plots.check()
    data = make_data()
    posterior, best = exact(data)
    answers = [("exact", posterior), ("best mean-field", best)]
    verdicts = {}
    for family in ("meanfield", "fullrank"):
        fit = _quietly(data, family, seed, progress)
        name = f"VI, {family}"
        answers.append((name, gaussian_of(fit)))
        verdicts[name] = ", ".join(finding.code for finding in fit.verdict) or "no fault found"
    _print_answers(answers, verdicts)
    estimates = {
        gradient: {count: _gradients(data, gradient, count, seed) for count in PARTICLES}
        for gradient in ("score", "pathwise")
    }
    _print_variances(estimates)
    folder.mkdir(parents=True, exist_ok=True)
    for path in (_draw_ellipses(folder, answers), _draw_arrows(folder, estimates)):
        Console().print(f"wrote {path}", soft_wrap=True)
    return answers


def _quietly(data: dict[str, np.ndarray], family: str, seed: int, progress: bool) -> lv.Fit:
    import warnings

    with warnings.catch_warnings():
        warnings.simplefilter("ignore", lv.LangevinWarning)  # The table shows every verdict.
        return lv.fit(model, data, lv.VI(family), seed=seed, progress=progress)


def _gradients(data: dict[str, np.ndarray], gradient: Any, num_particles: int, seed: int) -> np.ndarray:
    """Estimates of the gradient by the mean of q, (estimates, 2). Plain: no baseline, nothing left out."""
    method = lv.VI(gradient=gradient, num_particles=num_particles, baseline=None, rao_blackwell=False)
    return lv.elbo_gradients(model, data, method, parameters=POINT, num_samples=2000, seed=seed).samples["mean"]


def _print_answers(answers: list[tuple[str, Gaussian]], verdicts: dict[str, str]) -> None:
    table = Table(title=f"Linear regression, {NUM_ROWS} rows: mean (sd)", box=box.SIMPLE_HEAD, pad_edge=False)
    for column in ("", "w0", "w1", "correlation", "verdict"):
        table.add_column(column, justify="left" if column in ("", "verdict") else "right")
    for name, (mean, covariance) in answers:
        sds = np.sqrt(np.diag(covariance))
        cells = [f"{m:.4f} ({sd:.4f})" for m, sd in zip(mean, sds, strict=True)]
        table.add_row(name, *cells, f"{covariance[0, 1] / sds.prod():.3f}", verdicts.get(name, ""))
    Console().print(table)


def _print_variances(estimates: dict[str, dict[int, np.ndarray]]) -> None:
    table = Table(title="Variance of the gradient by the mean of w1, from M draws", box=box.SIMPLE_HEAD, pad_edge=False)
    table.add_column("M", justify="right")
    for name in (*estimates, "ratio"):
        table.add_column(name, justify="right")
    for count in PARTICLES:
        variances = [samples[count][:, 1].var() for samples in estimates.values()]
        table.add_row(str(count), *(f"{v:,.1f}" for v in variances), f"{variances[0] / variances[1]:,.0f}")
    Console().print(table)


def _draw_ellipses(folder: Path, answers: list[tuple[str, Gaussian]]) -> Path:
    path = folder / "regression_ellipses.png"
    angles = np.linspace(0, 2 * np.pi, 200)
    circle = 2 * np.stack([np.cos(angles), np.sin(angles)])
    looks = ((plots.GREY, 4.0, "-"), (plots.GREY, 4.0, ":"), (plots.RED, 1.5, "-"), (plots.BLUE, 1.5, "-"))
    with plots.figure(path) as axes:
        for (name, gaussian), (color, width, style) in zip(answers, looks, strict=True):
            ellipse = gaussian.mean[:, None] + np.linalg.cholesky(gaussian.covariance) @ circle
            axes.plot(*ellipse, style, color=color, linewidth=width, label=name)
        axes.set(title="Two standard deviations", xlabel="w0", ylabel="w1")
        axes.legend()
    return path


def _draw_arrows(folder: Path, estimates: dict[str, dict[int, np.ndarray]]) -> Path:
    path = folder / "regression_gradients.png"
    exact_gradient = estimates["pathwise"][PARTICLES[-1]].mean(axis=0)
    with plots.figure(path, columns=len(PARTICLES), rows=2) as grid:
        for row, (name, samples) in zip(grid, estimates.items(), strict=True):
            for axes, count in zip(row, PARTICLES, strict=True):
                arrows = samples[count][:40]
                origin = np.zeros(len(arrows))
                style = {"angles": "xy", "scale_units": "xy", "scale": 1}
                axes.quiver(origin, origin, *arrows.T, color=plots.BLUE, alpha=0.4, width=0.004, **style)
                axes.quiver(0, 0, *exact_gradient, color=plots.RED, width=0.01, **style)
                reach = 3 * np.abs(exact_gradient).max()
                axes.set(title=f"{name}, M = {count}", xlim=(-reach, reach), ylim=(-reach, reach))
    return path
