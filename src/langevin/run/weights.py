"""The weight of each draw, from what a sampler tells of it."""

from __future__ import annotations

import numpy as np
import xarray as xr


def with_weights(tree: xr.DataTree) -> xr.DataTree:
    r"""The tree with `weight` in "sample_stats"; one that has it is returned as it is.

    A draw counts in proportion to its step size $\epsilon_t$, and not at all after its chain stopped:
    $w_t = v_t \epsilon_t / \mathrm{mean}(v \epsilon)$, where $v_t$ is `valid`. Without `valid` all weights are 1. The
    variable `valid` is dropped.

    Args:
        tree: A result with the group "sample_stats", with the dimensions chain and draw.

    Reference:
        Teh, Thiery & Vollmer (2016), Consistency and fluctuations for stochastic gradient Langevin dynamics.
    """
    stats = tree["sample_stats"].to_dataset()
    if "weight" in stats:
        return tree
    weights = np.ones((stats.sizes["chain"], stats.sizes["draw"]))
    if "valid" in stats:
        if "step_size" in stats:
            weights = stats["step_size"].transpose("chain", "draw").values.astype(np.float64)
        weights = np.where(stats["valid"].transpose("chain", "draw").values, weights, 0.0)
        total = weights.mean()
        weights = weights / total if total > 0 else weights
        stats = stats.drop_vars("valid")
    weighted = tree.copy()
    weighted["sample_stats"] = xr.DataTree(stats.assign(weight=(("chain", "draw"), weights)))
    return weighted
