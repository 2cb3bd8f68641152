"""What a posterior of the gallery is, and how the answers to it are known.

A posterior is registered as a small function that makes its data, from a fixed seed, and its model. What is compared of
a fit is the mean and the sd of every coordinate of its view: by default that of each reported site.
"""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

Arrays = dict[str, np.ndarray]
REFERENCES = Path(__file__).parent / "results" / "references.json"
NUM_EXACT_DRAWS = 400_000
REGISTRY: dict[str, Callable[[], Posterior]] = {}


class Moments(NamedTuple):
    """Means and sds by name, and the standard errors of the means where they come from draws.

    Attributes:
        mean: Of each coordinate.
        sd: Of each coordinate; infinite where the posterior is improper, so that no fit is right.
        error: Of the mean, in sds; one number for all.
        meanfield: The sds of the best mean-field Gaussian, where they are known.
    """

    mean: Arrays
    sd: Arrays
    error: float = 0.0
    meanfield: Arrays | None = None


@dataclasses.dataclass(frozen=True, eq=False)
class Posterior:
    """A posterior and what is known of it.

    Args:
        model: A NumPyro program or an `lv.Density`.
        data: The rows.
        constants: Arguments of the program that are passed whole.
        batch_size: For the methods that take minibatches; None for all rows.
        reference: The moments; None if they come from a long run of NumPyro's NUTS.
        noncentred: Sites that are better non-centred.
        view: What is compared, from the draws of the sites: `(..., shape of the site)` each. For heavy tails, a
            function that has moments.
        sampler: Makes independent draws for the reference, `(chains, draws, shape of the site)` each, in place of a
            long run, where that would not mix.
    """

    model: Any
    data: Arrays | None = None
    constants: dict[str, Any] = dataclasses.field(default_factory=dict)
    batch_size: int | None = None
    reference: Moments | None = None
    noncentred: tuple[str, ...] = ()
    view: Callable[[Arrays], Arrays] = dict
    sampler: Callable[[np.random.Generator], Arrays] | None = None


def register(make: Callable[[], Posterior]) -> Callable[[], Posterior]:
    """Adds a posterior under the name of its function."""
    REGISTRY[make.__name__] = make
    return make


def reference_of(name: str, posterior: Posterior) -> Moments:
    """The moments of a posterior: its own, or those of the long run."""
    if posterior.reference is not None:
        return posterior.reference
    stored = json.loads(REFERENCES.read_text())[name]
    mean, sd = ({site: np.asarray(value) for site, value in stored[kind].items()} for kind in ("mean", "sd"))
    return Moments(mean, sd, stored["error"])


def shown(*names: str, logarithms: tuple[str, ...] = ()) -> Callable[[Arrays], Arrays]:
    """A view of some sites; of those among `logarithms`, which have heavy tails, the logarithm."""

    def view(draws: Arrays) -> Arrays:
        found = {name: draws[name] for name in names}
        return found | {f"log {name}": np.log(np.maximum(draws[name], 1e-30)) for name in logarithms}

    return view


def gaussian(name: str, mean: np.ndarray, covariance: np.ndarray) -> Moments:
    """The moments of a Gaussian over one site, and its best mean-field approximation."""
    narrow = 1 / np.sqrt(np.diag(np.linalg.inv(covariance)))
    return Moments({name: np.asarray(mean)}, {name: np.sqrt(np.diag(covariance))}, meanfield={name: narrow})


def conjugate(name: str, x: np.ndarray, y: np.ndarray, prior_sd: np.ndarray, noise: float) -> Moments:
    """The posterior of the weights of a linear regression with known noise, in scaled columns and double precision."""
    scale = np.sqrt(np.mean(x.astype(np.float64) ** 2, axis=0))
    columns = x / scale
    precision = columns.T @ columns / noise**2 + np.diag(1 / (prior_sd * scale) ** 2)
    covariance = np.linalg.inv(precision)
    mean = covariance @ columns.T @ y / noise**2
    return gaussian(name, mean / scale, covariance / np.outer(scale, scale))


def laplace(name: str, x: np.ndarray, y: np.ndarray, prior_sd: np.ndarray, family: str, offset: Any = 0.0) -> Moments:
    """The Laplace approximation of a generalised linear model, by Newton's method in scaled columns."""
    scale = np.sqrt(np.mean(x.astype(np.float64) ** 2, axis=0))
    columns = x / scale
    precision = 1 / (prior_sd * scale) ** 2
    mode = np.zeros(len(scale))
    for _ in range(50):
        linear = columns @ mode + offset
        fitted = 1 / (1 + np.exp(-linear)) if family == "logistic" else np.exp(linear)
        weights = fitted * (1 - fitted) if family == "logistic" else fitted
        hessian = columns.T @ (columns * weights[:, None]) + np.diag(precision)
        mode += np.linalg.solve(hessian, columns.T @ (y - fitted) - precision * mode)
    return gaussian(name, mode / scale, np.linalg.inv(hessian) / np.outer(scale, scale))


def drawn(draw: Callable[[np.random.Generator, int], Arrays], view: Callable[[Arrays], Arrays] = dict) -> Moments:
    """Moments from many exact, independent draws."""
    draws = view(draw(np.random.default_rng(0), NUM_EXACT_DRAWS))
    mean, sd = ({name: statistic(x, axis=0) for name, x in draws.items()} for statistic in (np.mean, np.std))
    return Moments(mean, sd, 1 / np.sqrt(NUM_EXACT_DRAWS))


def on_grid(log_density: Callable[..., np.ndarray], **axes: np.ndarray) -> Moments:
    """Moments by quadrature on a grid of scalar sites."""
    grid = np.meshgrid(*axes.values(), indexing="ij")
    logs = log_density(*grid)
    weights = np.exp(logs - logs.max())
    weights /= weights.sum()
    mean = {name: np.sum(weights * x) for name, x in zip(axes, grid, strict=True)}
    sd = {name: np.sqrt(np.sum(weights * (x - mean[name]) ** 2)) for name, x in zip(axes, grid, strict=True)}
    return Moments(mean, sd)
