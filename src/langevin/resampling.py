"""Draws taken again: by their importance ratios, or by their weights."""

from __future__ import annotations

import json

import numpy as np
import xarray as xr

from langevin.diagnostics import weighted
from langevin.errors import SettingError
from langevin.ratios import smoothed
from langevin.result import Fit

DRAWS = ("posterior", "sample_stats", "unconstrained_posterior")


def resampled(fit: Fit, num_draws: int | None, seed: int) -> Fit:
    """Draws again, with replacement, by the Pareto-smoothed ratios p / q (Vehtari et al. 2024)."""
    stats = fit.stats
    if "log_q" not in stats:
        raise SettingError("`resampled` is for variational inference, whose draws have importance ratios.")
    log_ratios = (stats["lp"] - stats["log_q"]).values.ravel()
    known = np.flatnonzero(np.isfinite(log_ratios))
    if not len(known):
        raise SettingError("`resampled`: the importance ratios of this fit were not computed.")
    log_weights, _ = smoothed(log_ratios[known])
    weights = np.exp(log_weights - log_weights.max())
    num_chains = stats.sizes["chain"]
    count = num_draws or stats.sizes["draw"]
    generator = np.random.default_rng(seed)
    chosen = known[generator.choice(len(known), (num_chains, count), p=weights / weights.sum())]
    groups = {}
    for name in DRAWS:
        dataset = fit.tree[name].to_dataset()
        flat = dataset.stack(flat=("chain", "draw"), create_index=False)
        taken = flat.isel(flat=xr.DataArray(chosen, dims=("chain", "draw")))
        taken = taken.drop_vars([v for v in ("chain", "draw") if v in taken.variables])
        taken = taken.assign_coords(chain=np.arange(num_chains), draw=np.arange(count))
        groups[name] = taken.transpose("chain", "draw", ...)
    if "stopped" in groups["sample_stats"]:
        groups["sample_stats"]["stopped"] = (("chain",), np.full(num_chains, -1))
    # The ratios are used up: these draws are no longer q's.
    groups["sample_stats"] = groups["sample_stats"].drop_vars("log_q")
    tree = xr.DataTree.from_dict(groups)
    settings = fit.settings | {
        "resampled": True,
        "approximation": "draws of an approximation, resampled by their ratios.",
    }
    tree.attrs["settings"] = json.dumps(settings)
    return Fit(tree, fit.target, source=fit.source)


def unweighted(tree: xr.DataTree) -> xr.DataTree:
    """The tree with draws of equal weight, by systematic resampling within each chain; with the weighted ones beside.

    The groups of draws are also there as they were, under names that begin with "weighted_". Chains without any weight
    stay as they are, and all chains count the same.
    """
    weights = tree["sample_stats"]["weight"].transpose("chain", "draw").values
    chosen = xr.DataArray(np.stack([weighted.resampled(of_chain) for of_chain in weights]), dims=("chain", "draw"))
    chains = xr.DataArray(np.arange(len(weights)), dims="chain")
    equal = tree.copy()
    for name in DRAWS:
        if name not in tree.children:
            continue
        dataset = tree[name].to_dataset()
        taken = dataset.drop_vars(["chain", "draw"], errors="ignore").isel(chain=chains, draw=chosen)
        by_chain = {n: dataset[n].variable for n in dataset.data_vars if "draw" not in dataset[n].dims}
        taken = taken.assign(by_chain).assign_coords({n: dataset[n] for n in ("chain", "draw") if n in dataset.coords})
        if "weight" in taken:
            taken["weight"] = xr.ones_like(taken["weight"])
        equal[name] = xr.DataTree(taken.transpose("chain", "draw", ...))
        equal[f"weighted_{name}"] = xr.DataTree(dataset)
    return equal
