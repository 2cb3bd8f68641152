"""Two moons: one point against the average over the posterior, for a logistic regression and for a small network.

    p(y | x, rows) = integral of p(y | x, w) p(w | rows) dw     against     p(y | x, w at the mode)

Near the rows both say much the same. Far from them the point is sure of itself; the average is not, since the weights
that fit the rows disagree there.
"""

from __future__ import annotations

import time
import warnings
from pathlib import Path
from typing import Any, NamedTuple

import equinox as eqx
import jax
import numpy as np
from rich import box
from rich.console import Console
from rich.table import Table

import langevin as lv
from langevin import plots
from langevin.plots.boundary import Surface, draw_boundary, draw_epistemic, surface_of

NUM_ROWS = 100
NOISE = 0.2
WIDTH = 16
SHOWN = ((-4.0, 5.0), (-4.0, 4.5))
# How far from the middle of the rows is far: on this circle no row is near.
MIDDLE, RADIUS = (0.5, 0.25), 6.0
METHODS = {
    "logistic regression": {"point": "map", "posterior": "nuts"},
    "network": {"point": "map", "posterior": "nuts", "BBB": "vi", "SGHMC": "sghmc", "ensemble": "ensemble"},
}
BATCH_SIZES = {"SGHMC": 50}
# Of draws, where it is NUTS.
COUNTS: dict[str, Any] = {"num_warmup": 500, "num_draws": 500}


class Answer(NamedTuple):
    """What a method says of a model."""

    model: str
    name: str
    accuracy: float
    nll: float
    ece: float
    far: float
    seconds: float
    verdict: str
    surface: Surface


def make_data(num_rows: int = NUM_ROWS, seed: int = 0) -> dict[str, np.ndarray]:
    """Two half circles that reach into one another, with noise; half of the rows on each."""
    generator = np.random.default_rng(seed)
    y = np.arange(num_rows) % 2
    angle = generator.uniform(0, np.pi, num_rows)
    first = np.stack([np.cos(angle), np.sin(angle)], axis=1)
    second = np.stack([1 - np.cos(angle), 0.5 - np.sin(angle)], axis=1)
    x = np.where(y[:, None] == 0, first, second) + generator.normal(0, NOISE, (num_rows, 2))
    return {"x": x.astype(np.float32), "y": y}


def model(name: str) -> lv.Network:
    """A linear layer, or one hidden layer of 16 units before it."""
    if name == "logistic regression":
        return lv.Network(lambda key: eqx.nn.Linear(2, 1, key=key), "bernoulli", lv.FanIn(scale=5.0, bias=5.0))
    make = lambda key: eqx.nn.MLP(2, 1, WIDTH, 1, activation=jax.numpy.tanh, key=key)  # noqa: E731
    return lv.Network(make, "bernoulli", lv.FanIn(scale=4.0, bias=2.0))


def far_rows(count: int = 200) -> np.ndarray:
    """Places on a circle around the rows."""
    angle = np.linspace(0, 2 * np.pi, count, endpoint=False)
    circle = np.stack([np.cos(angle), np.sin(angle)], axis=1)
    return (np.array(MIDDLE) + RADIUS * circle).astype(np.float32)


def answer_of(model_name: str, name: str, data: dict[str, Any], seed: int = 0, progress: bool = False) -> Answer:
    """Fits by one method, and looks at what it says of new rows and far from all."""
    began = time.perf_counter()
    method, size = METHODS[model_name][name], BATCH_SIZES.get(name)
    counts = COUNTS if method == "nuts" else {}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", lv.LangevinWarning)  # The table shows every verdict.
        fit = lv.fit(model(model_name), data, method, batch_size=size, seed=seed, progress=progress, **counts)
    seconds = time.perf_counter() - began
    scores = fit.evaluate(make_data(2000, seed=1))
    far = fit.predict({"x": far_rows()}, quantiles=())["probability_1"].values
    confidence = float(np.maximum(far, 1 - far).mean())
    verdict = ", ".join(finding.code for finding in fit.verdict) or "no fault found"
    numbers = (float(scores[score]) for score in ("accuracy", "NLL", "ECE"))
    surface = surface_of(fit, over=SHOWN)
    return Answer(model_name, name, *numbers, confidence, seconds, verdict, surface)


def run(folder: Path, seed: int = 0, progress: bool = True) -> list[Answer]:
    """Fits both models by every method, prints the table, and writes the pictures to `folder`."""
    plots.check()
    data = make_data()
    answers = [answer_of(kind, name, data, seed, progress) for kind, names in METHODS.items() for name in names]
    _print_table(answers)
    folder.mkdir(parents=True, exist_ok=True)
    for path in (_draw_boundaries(folder, answers), _draw_methods(folder, answers)):
        Console().print(f"wrote {path}", soft_wrap=True)
    return answers


def _print_table(answers: list[Answer]) -> None:
    table = Table(title=f"Two moons, {NUM_ROWS} rows; scores on 2,000 others", box=box.SIMPLE_HEAD, pad_edge=False)
    for column in ("model", "method"):
        table.add_column(column)
    for column in ("accuracy", "NLL", "ECE", "confidence far away", "seconds"):
        table.add_column(column, justify="right")
    table.add_column("verdict")
    for answer in answers:
        scores = [f"{answer.accuracy:.3f}", f"{answer.nll:.3f}", f"{answer.ece:.3f}", f"{answer.far:.3f}"]
        table.add_row(answer.model, answer.name, *scores, f"{answer.seconds:.0f}", answer.verdict)
    Console().print(table)


def _draw_boundaries(folder: Path, answers: list[Answer]) -> Path:
    """The point and the posterior average of both models, and what the average does not know."""
    path = folder / "classify_boundaries.png"
    with plots.figure(path, columns=3, rows=2) as grid:
        for row, kind in zip(grid, METHODS, strict=True):
            by_name = {answer.name: answer for answer in answers if answer.model == kind}
            for axes, name in zip(row, ("point", "posterior"), strict=False):
                draw_boundary(axes, by_name[name].surface)
                axes.set(title=f"{kind}, {name}", xlabel="x[0]", ylabel="x[1]")
            draw_epistemic(row[2], by_name["posterior"].surface, most=0.5)
            row[2].set(title="sd of the probability over the posterior", xlabel="x[0]", ylabel="x[1]")
    return path


def _draw_methods(folder: Path, answers: list[Answer]) -> Path:
    """The network under every method."""
    path = folder / "classify_methods.png"
    mine = [answer for answer in answers if answer.model == "network"]
    with plots.figure(path, columns=len(mine)) as grid:
        for axes, answer in zip(grid, mine, strict=True):
            draw_boundary(axes, answer.surface, bar=False)
            axes.set(title=f"network, {answer.name}", xlabel="x[0]", ylabel="x[1]")
    return path
