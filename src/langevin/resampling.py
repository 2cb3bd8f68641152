"""Importance resampling of a fit."""

from __future__ import annotations

import json

import numpy as np
import xarray as xr

from langevin.errors import SettingError
from langevin.ratios import smoothed
from langevin.result import Fit


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
    for name in ("posterior", "sample_stats", "unconstrained_posterior"):
        dataset = fit.data_tree[name].to_dataset()
        flat = dataset.stack(flat=("chain", "draw"), create_index=False)
        taken = flat.isel(flat=xr.DataArray(chosen, dims=("chain", "draw")))
        taken = taken.drop_vars([v for v in ("chain", "draw") if v in taken.variables])
        taken = taken.assign_coords(chain=np.arange(num_chains), draw=np.arange(count))
        groups[name] = taken.transpose("chain", "draw", ...)
    if "stopped" in groups["sample_stats"]:
        groups["sample_stats"]["stopped"] = (("chain",), np.full(num_chains, -1))
    tree = xr.DataTree.from_dict(groups)
    settings = fit.settings | {
        "resampled": True,
        "approximation": "draws of an approximation, resampled by their ratios.",
    }
    tree.attrs["settings"] = json.dumps(settings)
    return Fit(tree, fit.target)
