"""The fitted approximation, as a user holds it: to sample, and to evaluate."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.flatten_util import ravel_pytree

from langevin.data.table import as_arrays, as_table
from langevin.errors import SettingError
from langevin.models.outline import unscaled_log_prob
from langevin.variational.guided import Guided, drawn
from langevin.variational.objective import OfPositions


class Guide:
    """q with its fitted parameters.

    Attributes:
        objective: The approximation and its target.
        parameters: A pytree of arrays; of a NumPyro guide, those of the guide and of the program are in `values`.
    """

    def __init__(self, objective: OfPositions | Guided, parameters: Any) -> None:
        self.objective = objective
        self.parameters = parameters

    @property
    def values(self) -> dict[str, Any]:
        """The parameters by name, where they may be: `numpyro.param` sites by their name."""
        if isinstance(self.objective, Guided):
            return self.objective.constrained(self.parameters) | self.parameters.get("rest", {})
        return dict(self.parameters)

    def sample(self, num_draws: int, *, data: Any = None, seed: int = 0) -> dict[str, np.ndarray]:
        """Draws from q: the constrained sites and the deterministic ones, with the draws in front.

        Args:
            num_draws: How many.
            data: Other rows, for a guide that tells a row's own sites from the row. All columns that the program
                takes must be there.
            seed: The same seed gives the same bits.
        """
        objective = self.objective
        if data is not None:
            if not isinstance(objective, Guided):
                raise SettingError("`Guide.sample`: `data` is for guides that tell a row's own sites from the row.")
            rows: Any = as_arrays(as_table(data), copy=True)
        else:
            rows = None
        words = np.random.SeedSequence(seed).spawn(2)
        generators = tuple(np.random.Generator(np.random.Philox(one)) for one in words)
        dtype = jnp.result_type(*jax.tree.leaves(self.parameters))
        noise = objective.noise(generators, (num_draws,), dtype)  # ty: ignore[invalid-argument-type]
        drawn = jax.jit(
            lambda parameters, noise: jax.lax.map(lambda one: values(objective, parameters, one, rows), noise)
        )
        return jax.tree.map(np.asarray, drawn(self.parameters, noise))

    def log_prob(self, position: Any, *, data: Any = None) -> float:
        """Log q.

        Args:
            position: The unconstrained position, as in `fit.data_tree["unconstrained_posterior"]`; of a NumPyro guide,
                the values of its sites.
            data: As in `sample`.
        """
        objective = self.objective
        if isinstance(objective, OfPositions):
            flat = ravel_pytree(
                jax.tree.map(lambda leaf, like: jnp.asarray(leaf, like.dtype), position, objective.example)
            )
            return float(jnp.sum(objective.family.log_parts(self.parameters, flat[0])))
        return self._log_prob_of_sites(objective, position, data)

    def _log_prob_of_sites(self, objective: Guided, sites: Mapping[str, Any], data: Any) -> float:
        if objective.guide is None or objective.family is not None:
            raise SettingError(
                "`Guide.log_prob` of a family inside a program is not known for sites; use the fit's stats."
            )
        batch = objective.joint.rows if data is None else as_arrays(as_table(data), copy=True)
        values = objective.constrained(self.parameters) | dict(sites)
        trace = objective.joint.trace(objective.guide, batch, values, jax.random.key(0))
        missing = [name for name in drawn(trace) if name not in sites]
        if missing:
            raise SettingError(f"`Guide.log_prob` needs the value of {missing[0]!r}, which the guide draws.")
        return float(sum(jnp.sum(unscaled_log_prob(trace[name])) for name in drawn(trace)))


def values(objective: Any, parameters: Any, noise: Any, rows: Any = None) -> dict[str, Any]:
    """What is reported of one draw."""
    if isinstance(objective, OfPositions):
        return objective.posterior.constrain(objective.unravel(objective.family.draw(parameters, noise)[0]))
    return objective.values(parameters, noise, rows)[0]
