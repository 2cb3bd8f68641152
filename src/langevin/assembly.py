"""Draws and settings -> the data tree that a Fit holds."""

from __future__ import annotations

import dataclasses
import json
from typing import Any

import jax
import numpy as np
import xarray as xr

from langevin import checks
from langevin.data.batches import Batches
from langevin.drivers.chains import Draws
from langevin.methods import MAP, SGNHT, CyclicalSGHMC, CyclicalSGLD, Exact, Method, RMSprop
from langevin.posterior import Posterior
from langevin.tuning import SD_BIAS


def data_tree(draws: Draws, posterior: Posterior, settings: dict[str, Any]) -> xr.DataTree:
    """The draws in ArviZ's groups, with the settings as an attribute."""
    dims = dict(posterior.dims)
    # Compiled code returns dicts sorted by name; a user reads them in the order of the program.
    names = [*dims, *(name for name in draws.reported if name not in dims)]
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
        return float(value) if checks.is_number(value) else repr(value)

    fields = {field.name: plain(getattr(method, field.name)) for field in dataclasses.fields(method)}
    return {"name": type(method).__name__, **fields}


def approximation(method: Method, batches: Batches | None) -> str:
    """Which density the draws are from, where it is not exactly the posterior."""
    accept = getattr(method, "accept", None)
    preconditioner = getattr(method, "preconditioner", None)
    kind = "gradients from minibatches and a" if batches is not None else "a"
    cases = [
        (isinstance(method, Exact), ""),
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
