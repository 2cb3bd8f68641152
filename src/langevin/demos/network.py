"""A network whose uncertainty opens outside the data: regression on a curve (Blundell et al. 2015, their figure 5).

    y_i = x_i + 0.3 sin(2 pi (x_i + e_i)) + 0.3 sin(4 pi (x_i + e_i)) + e_i,   e_i ~ N(0, 0.02^2),   x_i in [0, 0.5]

The same network and prior under six methods: Bayes by Backprop, SGHMC, NUTS, a deep ensemble, a Laplace approximation,
and the mode alone. NUTS is the reference: it is exact, if it mixes. What the others say beyond the data depends on what
they approximate.

Blundell, Cornebise, Kavukcuoglu & Wierstra (2015), Weight uncertainty in neural networks. ICML.
"""

from __future__ import annotations

import time
import warnings
from collections.abc import Callable
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
from langevin.plots.bands import Bands, bands_of, draw_bands

NUM_ROWS = 100
NOISE = 0.02
WIDTH = 16
INSIDE, SHOWN = (0.0, 0.5), (-0.5, 1.2)
# Where it is looked at how far the bands open.
BESIDE = (-0.2, 0.7)
BATCH_SIZE = 50


class Answer(NamedTuple):
    """What a method says."""

    name: str
    rmse: float
    nll: float
    inside: float
    beside: tuple[float, ...]
    seconds: float
    verdict: str
    bands: Bands


def curve(x: np.ndarray, e: np.ndarray) -> np.ndarray:
    """The curve with this noise."""
    return x + 0.3 * np.sin(2 * np.pi * (x + e)) + 0.3 * np.sin(4 * np.pi * (x + e)) + e


def make_data(num_rows: int = NUM_ROWS, seed: int = 0) -> dict[str, np.ndarray]:
    """Rows between 0 and 0.5."""
    generator = np.random.default_rng(seed)
    x = generator.uniform(*INSIDE, num_rows)
    return {"x": x, "y": curve(x, generator.normal(0, NOISE, num_rows))}


def model(data: dict[str, np.ndarray]) -> lv.Network:
    """One hidden layer of 16 units, whose noise is learned; inputs and outcome are standardised."""

    def make(key: jax.Array) -> eqx.nn.MLP:
        return eqx.nn.MLP(1, 1, WIDTH, 1, activation=jax.numpy.tanh, key=key)

    return lv.Network(make, "gaussian", lv.FanIn(scale=2.0, bias=2.0), standardise=data)


METHODS: dict[str, tuple[Callable[[], Any], dict[str, Any]]] = {
    "MAP": (lv.MAP, {}),
    "BBB": (lambda: lv.VI("meanfield"), {}),
    "SGHMC": (lv.SGHMC, {"batch_size": BATCH_SIZE}),
    "NUTS": (lv.NUTS, {"num_warmup": 500, "num_draws": 500}),
    "ensemble": (lambda: lv.Ensemble(num_members=5), {}),
    "Laplace": (lambda: lv.Laplace(structure="dense"), {}),
}


def answer_of(name: str, data: dict[str, np.ndarray], seed: int = 0, progress: bool = False) -> Answer:
    """Fits by one method, and looks at what it says inside the data and beside them."""
    make, settings = METHODS[name]
    began = time.perf_counter()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", lv.LangevinWarning)  # The table shows every verdict.
        fit = lv.fit(model(data), data, make(), seed=seed, progress=progress, **settings)
    seconds = time.perf_counter() - began
    scores = fit.evaluate(make_data(1000, seed=1))
    places = np.array([np.mean(INSIDE), *BESIDE])
    inside, *beside = (float(sd) for sd in fit.predict({"x": places}, quantiles=())["sd_epistemic"])
    verdict = ", ".join(finding.code for finding in fit.verdict) or "no fault found"
    shown = bands_of(fit, "x", over=SHOWN, parts=True)
    return Answer(name, float(scores["RMSE"]), float(scores["NLL"]), inside, tuple(beside), seconds, verdict, shown)


def run(folder: Path, seed: int = 0, progress: bool = True) -> list[Answer]:
    """Fits by every method, prints the table, and writes the picture to `folder`."""
    plots.check()
    data = make_data()
    answers = [answer_of(name, data, seed, progress) for name in METHODS]
    _print_table(answers)
    Console().print(f"wrote {_draw(folder, answers)}", soft_wrap=True)
    return answers


def _print_table(answers: list[Answer]) -> None:
    table = Table(
        title=f"A network of {WIDTH} units on {NUM_ROWS} rows, x in [0, 0.5]", box=box.SIMPLE_HEAD, pad_edge=False
    )
    table.add_column("method")
    for column in ("RMSE", "NLL", f"epistemic sd at {np.mean(INSIDE):g}", *(f"at {x:g}" for x in BESIDE), "seconds"):
        table.add_column(column, justify="right")
    table.add_column("verdict")
    for answer in answers:
        sds = [f"{sd:.3f}" for sd in (answer.inside, *answer.beside)]
        scores = [f"{answer.rmse:.4f}", f"{answer.nll:.2f}"]
        table.add_row(answer.name, *scores, *sds, f"{answer.seconds:.0f}", answer.verdict)
    Console().print(table)
    Console().print("RMSE and NLL are of 1,000 new rows inside the data; there the noise has an sd of up to 0.13.")


def _draw(folder: Path, answers: list[Answer]) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / "network.png"
    x = np.linspace(*SHOWN, 300)
    columns = min(len(answers), 3)
    with plots.figure(path, columns=columns, rows=-(-len(answers) // columns)) as grid:
        for axes, answer in zip(np.ravel(grid), answers, strict=False):
            draw_bands(axes, answer.bands)
            axes.plot(x, curve(x, np.zeros_like(x)), color="0.4", linewidth=0.9, linestyle=":", label="without noise")
            axes.set(title=answer.name, xlim=SHOWN, ylim=(-1.5, 2.0), xlabel="x", ylabel="y")
        np.ravel(grid)[0].legend(fontsize=8, frameon=False)
    return path
