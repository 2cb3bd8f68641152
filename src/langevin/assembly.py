"""Draws and settings -> the data tree that a Fit holds."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Mapping
from typing import Any

import jax
import numpy as np
import xarray as xr

from langevin import checks
from langevin.data.batches import Batches
from langevin.drivers.chains import Draws
from langevin.drivers.optimise import Optimised
from langevin.methods import MAP, SGNHT, VI, CyclicalSGHMC, CyclicalSGLD, Exact, Method, RMSprop
from langevin.tuning import SD_BIAS


def data_tree(draws: Draws, dims: dict[str, tuple[str, ...]], settings: dict[str, Any]) -> xr.DataTree:
    """The draws in ArviZ's groups, with the settings as an attribute.

    Args:
        draws: The draws.
        dims: For each reported name, the names of its dimensions, in the order in which a user reads them.
        settings: How the run was made.
    """
    # Compiled code returns dicts sorted by name.
    names = [*(name for name in dims if name in draws.reported), *(name for name in draws.reported if name not in dims)]
    reported = {
        name: (("chain", "draw", *dims.get(name, _numbered(name, draws.reported[name]))), draws.reported[name])
        for name in names
    }
    paths = jax.tree_util.tree_flatten_with_path(draws.position)[0]
    leaves = [jax.tree_util.keystr(path, simple=True, separator=".") or "position" for path, _ in paths]
    unconstrained = {
        name: (("chain", "draw", *_numbered(f"{name}_unconstrained", values)), values)
        for name, (_, values) in zip(leaves, paths, strict=True)
    }
    stats: dict[str, Any] = {name: (("chain", "draw"), values) for name, values in draws.info.items()}
    stats["lp"] = stats.pop("log_density")
    stats["weight"] = (("chain", "draw"), _weights(draws))
    stats["stopped"] = (("chain",), draws.stopped)
    coords = {"chain": np.arange(len(draws.valid)), "draw": np.arange(draws.valid.shape[1])}
    tree = xr.DataTree.from_dict(
        {
            "posterior": xr.Dataset(reported, coords, {"names": names}),
            "sample_stats": xr.Dataset(stats, coords),
            "unconstrained_posterior": xr.Dataset(unconstrained, coords, {"leaves": leaves}),
        }
    )
    tree.attrs["settings"] = json.dumps(settings)
    return tree


def add_optimisation(tree: xr.DataTree, optimised: Optimised) -> None:
    """Adds the bound at each step of every restart, and the parameters of q."""
    restarts, steps = optimised.elbo.shape
    coords = {"restart": np.arange(restarts), "step": np.arange(steps)}
    elbo = {"elbo": (("restart", "step"), optimised.elbo)}
    tree["optimisation"] = xr.DataTree(xr.Dataset(elbo, coords, {"best": optimised.best}))
    paths = jax.tree_util.tree_flatten_with_path(optimised.parameters)[0]
    named = {
        jax.tree_util.keystr(path, simple=True, separator=".").replace("/", "."): np.asarray(leaf)
        for path, leaf in paths
    }
    variables = {name: (tuple(f"{name}_dim_{axis}" for axis in range(leaf.ndim)), leaf) for name, leaf in named.items()}
    tree["parameters"] = xr.DataTree(xr.Dataset(variables))


def _weights(draws: Draws) -> np.ndarray:
    """Step sizes, zero for draws after a chain stopped, 1 on average (Teh, Thiery & Vollmer 2016)."""
    weights = np.where(draws.valid, np.asarray(draws.info["step_size"], np.float64), 0.0)
    return weights / weights.mean()


def _numbered(name: str, values: np.ndarray) -> tuple[str, ...]:
    return tuple(f"{name}_dim_{axis}" for axis in range(values.ndim - 2))


def describe(method: Any) -> dict[str, Any]:
    """A method as JSON can hold it."""

    def plain(value: Any) -> Any:
        if dataclasses.is_dataclass(value):
            return describe(value)
        if isinstance(value, str | int | bool | None):
            return value
        if checks.is_number(value):
            return float(value)
        if isinstance(value, Mapping):
            return {str(name): plain(part) for name, part in value.items()}
        # An address in a representation would differ from run to run.
        return getattr(value, "__qualname__", type(value).__qualname__) if " at 0x" in repr(value) else repr(value)

    fields = {field.name: plain(getattr(method, field.name)) for field in dataclasses.fields(method)}
    return {"name": type(method).__name__, **fields}


def approximation(method: Method, batches: Batches | None, scored: tuple[str, ...] = ()) -> str:
    """Which density the draws are from, where it is not exactly the posterior.

    Args:
        method: The method.
        batches: How minibatches were drawn.
        scored: Of variational inference, the sites whose gradient was by the score function.
    """
    by_score = f" The gradient of {', '.join(scored)} is by the score function." if scored else ""
    accept = getattr(method, "accept", None)
    preconditioner = getattr(method, "preconditioner", None)
    kind = "gradients from minibatches and a" if batches is not None else "a"
    cases = [
        (isinstance(method, Exact), ""),
        (
            isinstance(method, VI),
            "the member of a family that is nearest to the posterior, in the divergence that favours narrow ones."
            + by_score,
        ),
        (isinstance(method, MAP), "a mode of the unconstrained log-density, not the posterior."),
        (accept == "full", ""),
        (accept == "minibatch", "proposals are accepted by the minibatch alone, whose noise widens the posterior."),
        (
            isinstance(method, CyclicalSGLD | CyclicalSGHMC),
            "the balance between modes that the chain does not cross by itself is that of their basins.",
        ),
        (isinstance(method, SGNHT), "gradient noise that differs between directions is balanced only on average."),
        (
            isinstance(preconditioner, RMSprop) and preconditioner.adapt == "throughout",
            "the metric adapts throughout, and remembers earlier positions.",
        ),
        (
            getattr(method, "step_size", None) == "auto",
            f"the step was chosen so that sds are at most about {100 * SD_BIAS:.0f} % too wide.",
        ),
        (True, f"{kind} step of finite length, without a Metropolis correction: the bias shrinks with the step."),
    ]
    return next(sentence for holds, sentence in cases if holds)
