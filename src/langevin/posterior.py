"""The one target that every engine sees.

    log p(position, batch) = log_prior(position) + (num_data / rows in batch) * sum(log_likelihood(position, batch))

`batch=None` means all rows, with no scaling. Positions are unconstrained pytrees; the Jacobian of the map to the
constrained space is part of `log_prior`.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

Position = Any
Batch = Any
Key = jax.Array


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class Posterior:
    """A log-density over unconstrained positions that knows its rows.

    It is a pytree whose only leaves are the data, so that it can be an argument of a compiled function: the same
    program serves other data of the same shape, and a large data set never becomes a constant in it.

    Attributes:
        data: Arrays whose first `num_data` rows are the data. More rows may follow: minibatches need the
            first ones again after the last (see `langevin.data.batches`).
        terms: `(position, batch) -> (log_prior, log_likelihood)`, a scalar and one value a row. Both come from one
            call because a NumPyro program computes both in one pass.
        num_data: How many rows there are; 0 for a density without data.
        constrained: `(position, data) -> dict of name -> array`: what is reported for a draw.
        start: `generator -> position`: a random point to start from, made by NumPy's generator.
        dims: For each reported name, the names of its dimensions.
        by_rows: Whether a batch of any number of rows is meaningful. Minibatch engines need it.
        explain: `(position, data) -> str`: says which part of the model is not finite at a position.
        gaussian_priors: `(position, batch) -> dict of name -> Normal`: the leaves of the position that have a Gaussian
            prior, given the others, with that prior. For divergences in closed form.
    """

    data: Batch
    terms: Callable[[Position, Batch], tuple[jax.Array, jax.Array]] = dataclasses.field(metadata={"static": True})
    num_data: int = dataclasses.field(metadata={"static": True})
    constrained: Callable[[Position, Batch], dict[str, jax.Array]] = dataclasses.field(metadata={"static": True})
    start: Callable[[np.random.Generator], Position] = dataclasses.field(metadata={"static": True})
    dims: tuple[tuple[str, tuple[str, ...]], ...] = dataclasses.field(default=(), metadata={"static": True})
    by_rows: bool = dataclasses.field(default=True, metadata={"static": True})
    explain: Callable[[Position, Batch], str] = dataclasses.field(
        default=lambda position, data: "", metadata={"static": True}
    )
    gaussian_priors: Callable[[Position, Batch], dict[str, Any]] = dataclasses.field(
        default=lambda position, batch: {}, metadata={"static": True}
    )

    @property
    def rows(self) -> Batch:
        """All rows, and nothing but the rows."""
        return jax.tree.map(lambda array: array[: self.num_data], self.data) if self.num_data else self.data

    def log_density(self, position: Position, batch: Batch | None = None) -> jax.Array:
        """The log posterior up to a constant, estimated from `batch`, or exact from all rows.

        Example:
            >>> import jax.numpy as jnp, langevin as lv
            >>> density = lv.Density(lambda m: -m**2 / 2, lambda m, rows: -(rows["x"] - m)**2 / 2, init=0.0)
            >>> posterior = density.posterior({"x": jnp.arange(4.0)})
            >>> float(posterior.log_density(1.0)), float(posterior.log_density(1.0, {"x": jnp.array([3.0])}))
            (-3.5, -8.5)
        """
        if batch is None:
            log_prior, log_likelihood = self.terms(position, self.rows)
            return log_prior + jnp.sum(log_likelihood)
        log_prior, log_likelihood = self.terms(position, batch)
        return log_prior + (self.num_data / num_rows(batch)) * jnp.sum(log_likelihood)

    def log_prior(self, position: Position) -> jax.Array:
        """The part of the log-density that no row enters."""
        batch = jax.tree.map(lambda array: array[:1], self.data) if self.by_rows else self.rows
        return self.terms(position, batch)[0]

    def log_likelihood(self, position: Position, batch: Batch | None = None) -> jax.Array:
        """One value a row, not scaled."""
        return self.terms(position, self.rows if batch is None else batch)[1]

    def priors(self, position: Position, batch: Batch | None = None) -> dict[str, Any]:
        """The Gaussian priors of leaves of the position, given the others."""
        return self.gaussian_priors(position, self.rows if batch is None else batch)

    def constrain(self, position: Position) -> dict[str, jax.Array]:
        """What is reported of a position: constrained sites, and deterministic ones."""
        data = jax.tree.map(lambda array: array[:1], self.data) if self.by_rows else self.rows
        return self.constrained(position, data)

    def init(self, key: Key) -> Position:
        """A random point to start from. Not for compiled code."""
        words = np.asarray(jax.random.key_data(key)).ravel().tolist()
        return jax.tree.map(jnp.asarray, self.start(np.random.default_rng(words)))


def num_rows(batch: Batch) -> int:
    """How many rows a batch has."""
    return jnp.shape(jax.tree.leaves(batch)[0])[0]
