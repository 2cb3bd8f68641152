"""The kernel Stein discrepancy of a fit: its draws, and the target's gradients at them."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.flatten_util import ravel_pytree

from langevin import checks
from langevin.diagnostics.stein import kernel_stein_discrepancy
from langevin.errors import SettingError
from langevin.posterior import Posterior
from langevin.result import Fit


def discrepancy_of_fit(fit: Fit, batch_size: int | None, most_draws: int, seed: int) -> float:
    """See `Fit.kernel_stein_discrepancy`."""
    if fit.target is None:
        raise SettingError("`kernel_stein_discrepancy` needs the model, and this fit was loaded. Fit it again.")
    checks.count("kernel_stein_discrepancy", "most_draws", most_draws, least=2)
    posterior = fit.target
    if batch_size is not None and not (
        isinstance(batch_size, int) and posterior.by_rows and 0 < batch_size <= posterior.num_data
    ):
        raise SettingError(
            f"`batch_size` must be from 1 to {posterior.num_data} rows of a model by rows; got {batch_size}."
        )
    if "unconstrained_posterior" not in fit.tree:
        raise SettingError(
            "`kernel_stein_discrepancy`: this fit kept no unconstrained positions. Fit it with "
            "lv.Keep(unconstrained=True)."
        )
    unconstrained = fit.tree["unconstrained_posterior"].to_dataset()
    template = posterior.start(np.random.default_rng(0))
    weights = fit.weights.values.reshape(-1)
    chosen = np.flatnonzero(weights > 0)
    chosen = chosen[np.linspace(0, len(chosen) - 1, min(most_draws, len(chosen))).astype(int)]
    leaves = [np.asarray(unconstrained[name].values) for name in unconstrained.attrs["leaves"]]
    leaves = [jnp.asarray(leaf.reshape(-1, *leaf.shape[2:])[chosen]) for leaf in leaves]
    positions = jax.tree.unflatten(jax.tree.structure(template), leaves)
    flat, gradients = _gradients(posterior, positions, jax.random.key(seed), batch_size=batch_size)
    return kernel_stein_discrepancy(flat, gradients, weights[chosen], stochastic=batch_size is not None)


@jax.jit(static_argnames="batch_size")
def _gradients(posterior: Posterior, positions: Any, key: Any, batch_size: int | None) -> tuple[Any, Any]:
    def one(inputs: Any) -> Any:
        position, row_key = inputs
        batch = None
        if batch_size is not None:
            index = jax.random.randint(row_key, (batch_size,), 0, posterior.num_data)
            batch = jax.tree.map(lambda array: array[index], posterior.data)
        gradient = jax.grad(posterior.log_density)(position, batch)
        return ravel_pytree(position)[0], ravel_pytree(gradient)[0]

    count = len(jax.tree.leaves(positions)[0])
    return jax.lax.map(one, (positions, jax.random.split(key, count)))
