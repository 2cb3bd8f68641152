"""The fitted approximation, as a user holds it: to sample, and to evaluate."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from langevin.data.table import as_arrays, as_table
from langevin.errors import SettingError
from langevin.run.seeds import Seed
from langevin.variational.objective import Objective


class Guide:
    """q with its fitted parameters.

    Attributes:
        objective: The approximation and its target.
        parameters: A pytree of arrays; those of a NumPyro guide and of its program are in `values`.
        levels: For each column of names, its levels: other rows get the same codes.
    """

    def __init__(self, objective: Objective, parameters: Any) -> None:
        self.objective = objective
        self.parameters = parameters
        self.levels: Mapping[str, Sequence[Any]] = {}

    @property
    def values(self) -> dict[str, Any]:
        """The parameters by name, where they may be: `numpyro.param` sites by their name."""
        return self.objective.named(self.parameters)

    def sample(self, num_draws: int, *, data: Any = None, seed: int = 0) -> dict[str, np.ndarray]:
        """Draws from q: the constrained sites and the deterministic ones, with the draws in front.

        Args:
            num_draws: How many.
            data: Other rows, for an amortised guide (encoder). All columns that the program takes must be there.
            seed: The same seed gives the same bits.
        """
        objective = self.objective
        rows = self._rows(data)
        dtype = jnp.result_type(*jax.tree.leaves(self.parameters))
        noise = objective.noise(Seed.of(seed).child("guide").generator(), (num_draws,), dtype)
        draw = jax.jit(
            lambda parameters, noise: jax.lax.map(lambda one: objective.values(parameters, one, rows)[0], noise)
        )
        return jax.tree.map(np.asarray, draw(self.parameters, noise))

    def log_prob(self, position: Any, *, data: Any = None) -> float:
        """Log q.

        Args:
            position: The unconstrained position, as in `fit.data_tree["unconstrained_posterior"]`; of a NumPyro guide,
                the values of its sites.
            data: As in `sample`.
        """
        return self.objective.log_prob(self.parameters, position, self._rows(data))

    def _rows(self, data: Any) -> Any:
        if data is None:
            return None
        if not self.objective.local:
            raise SettingError("`Guide`: `data` is for amortised guides (encoders), in which every row has its sites.")
        wanted = frozenset(self.objective.data)
        return as_arrays(as_table(data, wanted=wanted, levels=self.levels), copy=True)
