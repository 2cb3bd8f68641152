"""Networks that classify digits, by every method: what averaging over the posterior is worth, and what it costs.

Two hidden layers of ReLUs (400 units on MNIST, as Blundell et al. 2015; 100 on scikit-learn's digits), and the same
priors for all but the last of the Bayes-by-Backprop fits. The scores are of the test images. As images that are unlike
all of these serve the same ones with their pixels in another order.

Where a row says T, the posterior is tempered (its density to the power of 1 / T), which is no Bayesian posterior: under
Gaussian priors a network of this kind predicts better so (Wenzel et al. 2020, How good is the Bayes posterior in deep
neural networks really?). The row with T = 1 shows by how much. Prior and temperatures were chosen on 10,000 of MNIST's
training images, which were held back.
"""

from __future__ import annotations

import time
import warnings
from collections.abc import Iterator
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
from langevin.demos.images import Images, digits, mnist
from langevin.plots.novelty import Measured, auroc, draw_measured, measured

DEPTH = 2
NUM_CLASSES = 10
NUM_DRAWS = 60
NUM_MEMBERS = 5
SWAG_RANK = 10
NUM_CYCLES, EXPLORE = 6, 0.8
NUM_CHAINS = 4
PRIOR = lv.FanIn(6.0)
# Temperatures of Bayes by Backprop and of samplers.
MILD, COLD = 0.1, 0.01
RATE_OF_BBB = 2e-3


class Budget(NamedTuple):
    """How long everything goes on, in epochs, and how large the network and the minibatches are.

    Attributes:
        width: Units of a hidden layer.
        batch_size: Rows in a minibatch.
        climb: Epochs of a point estimate, and of each member of an ensemble.
        fit: Epochs of a variational fit.
        warmup: Epochs before draws are kept.
        sample: Epochs over which draws are kept.
    """

    width: int
    batch_size: int
    climb: int
    fit: int
    warmup: int
    sample: int


SMALL = Budget(width=100, batch_size=64, climb=60, fit=150, warmup=60, sample=60)
LARGE = Budget(width=400, batch_size=128, climb=20, fit=40, warmup=20, sample=15)
# Enough to see that everything works.
TRIAL = Budget(width=20, batch_size=64, climb=5, fit=5, warmup=5, sample=5)


class Contestant(NamedTuple):
    """A method with its settings.

    Attributes:
        name: As the table has it.
        method: The method.
        settings: Of `lv.fit`.
        epochs: How often its chains or members see each row, in all.
        temperature: Of the posterior.
        prior: Of the weights.
    """

    name: str
    method: Any
    settings: dict[str, Any]
    epochs: int
    temperature: float = 1.0
    prior: Any = PRIOR


class Answer(NamedTuple):
    """What a contestant reached: on the test images, and between these and the shuffled ones."""

    name: str
    error: float
    nll: float
    ece: float
    auroc: float
    epochs: int
    seconds: float
    verdict: str
    own: Measured
    shuffled: Measured

    @property
    def seconds_an_epoch(self) -> float:
        """On average, with compilation."""
        return self.seconds / self.epochs


def contestants(num_rows: int, budget: Budget) -> list[Contestant]:
    """All of them, for so many rows."""
    steps = -(-num_rows // budget.batch_size)
    climb = lv.MAP(num_steps=budget.climb * steps)
    bayes = lv.VI("meanfield", num_steps=budget.fit * steps, learning_rate=RATE_OF_BBB)
    batches = {"batch_size": budget.batch_size, "num_chains": 1}
    drawn = batches | {"num_draws": NUM_DRAWS}
    thin = max(budget.sample * steps // NUM_DRAWS, 1)
    sampled = drawn | {"num_chains": NUM_CHAINS, "num_warmup": budget.warmup * steps, "thin": thin}
    sampling = NUM_CHAINS * (budget.warmup + budget.sample)
    # Without momentum chains are slower: half as much warm-up again.
    warmup = 3 * budget.warmup // 2
    slower = sampled | {"num_warmup": warmup * steps}
    # Draws are kept at the ends of cycles only.
    cycled = sampled | {"thin": max(int(thin * (1 - EXPLORE)), 1)}
    cycles = lv.CyclicalSGHMC(num_cycles=NUM_CYCLES, explore=EXPLORE)
    many = NUM_MEMBERS * budget.climb
    swag = lv.SWAG(rank=SWAG_RANK, num_snapshots=budget.climb, climb=climb)
    last = lv.Laplace("last_layer", climb=climb)
    mild, cold = f"T = {MILD:g}", f"T = {COLD:g}"
    return [
        Contestant("MAP", climb, batches, budget.climb),
        Contestant(f"ensemble of {NUM_MEMBERS}", lv.Ensemble(climb, NUM_MEMBERS), batches, many),
        Contestant("SWAG", swag, drawn | {"num_warmup": steps}, 2 * budget.climb + 1),
        Contestant("Laplace, last layer", last, drawn, budget.climb),
        Contestant("BBB, Gaussian prior, T = 1", bayes, drawn, budget.fit),
        Contestant(f"BBB, Gaussian prior, {mild}", bayes, drawn, budget.fit, MILD),
        Contestant(f"BBB, scale mixture, {mild}", bayes, drawn, budget.fit, MILD, lv.ScaleMixture()),
        Contestant(
            f"pSGLD, {cold}",
            lv.SGLD(preconditioner="rmsprop"),
            slower,
            NUM_CHAINS * (warmup + budget.sample),
            COLD,
        ),
        Contestant(f"SGHMC, {cold}", lv.SGHMC(), sampled, sampling, COLD),
        Contestant(f"cyclical SGHMC, {cold}", cycles, cycled, sampling, COLD),
    ]


def network(images: Images, width: int, prior: Any = PRIOR, temperature: float = 1.0) -> lv.Network:
    """Two hidden layers of ReLUs."""
    pixels = images.train.shape[1]
    make = lambda key: eqx.nn.MLP(pixels, NUM_CLASSES, width, DEPTH, activation=jax.nn.relu, key=key)  # noqa: E731
    return lv.Network(make, "categorical", prior, temperature=temperature)


def fitted(one: Contestant, images: Images, width: int, seed: int = 0, progress: bool = False) -> lv.Fit:
    """The fit of a contestant."""
    rows = {"x": images.train, "y": images.train_labels}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", lv.LangevinWarning)  # The table shows every verdict.
        model = network(images, width, one.prior, one.temperature)
        return lv.fit(model, rows, one.method, seed=seed, progress=progress, **one.settings)


def shuffled(images: Images) -> np.ndarray:
    """The test images with their pixels in another order, the same for all."""
    order = np.random.default_rng(0).permutation(images.test.shape[1])
    return images.test[:, order]


def answer_of(one: Contestant, images: Images, width: int, seed: int = 0, progress: bool = False) -> Answer:
    """Fits, and looks at the test images."""
    began = time.perf_counter()
    fit = fitted(one, images, width, seed, progress)
    seconds = time.perf_counter() - began
    scores = fit.evaluate({"x": images.test, "y": images.test_labels})
    own, others = (measured(fit, {"x": rows}) for rows in (images.test, shuffled(images)))
    verdict = ", ".join(finding.code for finding in fit.verdict) or "no fault found"
    area = auroc(own.values, others.values)
    numbers = (1 - float(scores["accuracy"]), float(scores["NLL"]), float(scores["ECE"]), area)
    return Answer(one.name, *numbers, one.epochs, seconds, verdict, own, others)


def answers(images: Images, budget: Budget, seed: int = 0, progress: bool = False) -> Iterator[Answer]:
    """One after the other: a fit of a network holds many weights, and is let go before the next."""
    for one in contestants(len(images.train), budget):
        yield answer_of(one, images, budget.width, seed, progress)


def run(folder: Path, seed: int = 0, progress: bool = True, data: Path | None = None) -> list[Answer]:
    """Fits by every method, prints the table, and writes the picture. `data` is the folder of MNIST's files."""
    plots.check()
    images, budget = (mnist(data), LARGE) if data else (digits(), SMALL)
    what = "MNIST" if data else "scikit-learn's digits"
    made = list(answers(images, budget, seed, progress))
    sizes = f"{len(images.train):,} images, {DEPTH} x {budget.width} ReLU"
    _print_table(f"{what}: {sizes}; scores on {len(images.test):,} others", made)
    folder.mkdir(parents=True, exist_ok=True)
    Console().print(f"wrote {_draw(folder, made)}", soft_wrap=True)
    return made


def _print_table(name: str, made: list[Answer]) -> None:
    table = Table(title=name, box=box.SIMPLE_HEAD, pad_edge=False)
    table.add_column("method")
    for column in ("error, %", "NLL", "ECE", "AUROC, shuffled", "epochs", "s an epoch", "seconds"):
        table.add_column(column, justify="right")
    table.add_column("verdict")
    for answer in made:
        scores = [f"{100 * answer.error:.2f}", *(f"{x:.4f}" for x in (answer.nll, answer.ece)), f"{answer.auroc:.3f}"]
        times = [str(answer.epochs), f"{answer.seconds_an_epoch:.2f}", f"{answer.seconds:.0f}"]
        table.add_row(answer.name, *scores, *times, answer.verdict)
    Console().print(table)


def _draw(folder: Path, made: list[Answer]) -> Path:
    """How sure each is of test images, and of the same when shuffled."""
    path = folder / "mnist_shuffled.png"
    columns = 3
    with plots.figure(path, columns=columns, rows=-(-len(made) // columns)) as grid:
        for axes in grid.flat[len(made) :]:
            axes.set_visible(False)
        for axes, answer in zip(grid.flat, made, strict=False):
            draw_measured(axes, answer.own, answer.shuffled)
            axes.set_title(f"{answer.name}: AUROC {answer.auroc:.3f}")
        grid.flat[0].legend(fontsize=8, frameon=False)
    return path
