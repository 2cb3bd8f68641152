"""What an optimiser sees: parameters and noise in, the terms of the bound out."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any, Protocol

import jax
import jax.numpy as jnp
import numpy as np
from jax.flatten_util import ravel_pytree

from langevin.posterior import Batch, Position, Posterior
from langevin.variational.elbo import Sampled, Wiring
from langevin.variational.families import Family, MeanField, Parameters

FIRST_SCALE = 0.1


class Objective(Protocol):
    """An approximation of one target. A pytree whose only leaves are the data."""

    @property
    def gradient(self) -> str:
        """One of "pathwise", "stl" and "score"."""
        ...

    @property
    def family(self) -> Family | None:
        """The family over what no guide has; None if there is nothing left."""
        ...

    @property
    def points(self) -> tuple[str, ...]:
        """The sites to which q gives a single value."""
        ...

    @property
    def data(self) -> Batch:
        """Arrays whose leading axis is the rows."""
        ...

    @property
    def num_data(self) -> int:
        """How many rows there are."""
        ...

    @property
    def wiring(self) -> Wiring:
        """Which sites have their gradient by the score function."""
        ...

    @property
    def identified(self) -> bool:
        """Whether it is certain that an average of parameters is one of the q they make."""
        ...

    def init(self, generator: np.random.Generator) -> Parameters:
        """Parameters to begin with."""
        ...

    def noise(self, generator: np.random.Generator, shape: tuple[int, ...], dtype: Any) -> Any:
        """Noise for draws of q, as an array (or a pytree of them) of this leading shape."""
        ...

    def sample(self, parameters: Parameters, noise: Any, batch: Batch | None) -> Sampled:
        """The terms of the bound at one draw; `batch=None` means all rows."""
        ...

    def rate_units(self, parameters: Parameters) -> Parameters:
        """The units of a family's parameters, in which they move equally fast; of all others 1."""
        ...

    def units(self, parameters: Parameters, noise: Any) -> Parameters | None:
        """The scale on which a change of each parameter changes q, for its error; None if that is unknown.

        Args:
            parameters: The parameters.
            noise: Of many draws.
        """
        ...

    def values(self, parameters: Parameters, noise: Any, batch: Batch | None) -> tuple[dict[str, Any], Position]:
        """One draw: what is reported of it, and its unconstrained position."""
        ...

    def log_terms(self, parameters: Parameters, noise: Any) -> tuple[jax.Array, jax.Array]:
        """Log p and log q of one draw, on all rows."""
        ...

    @property
    def has_ratios(self) -> bool:
        """Whether draws have importance ratios p / q."""
        ...

    @property
    def local(self) -> Mapping[str, int]:
        """The sites that every row has its own of, and how many numbers of each a draw has."""
        ...

    @property
    def draw_size(self) -> int:
        """How many numbers a draw has, but for those sites."""
        ...

    @property
    def rows_a_call(self) -> int:
        """How many rows a step sees."""
        ...

    def named(self, parameters: Parameters) -> dict[str, Any]:
        """The parameters by name, where they may be."""
        ...

    def log_prob(self, parameters: Parameters, draw: Any, data: Batch | None) -> float:
        """Log q of a draw, on these rows (None: all)."""
        ...

    def with_data(self, data: Batch) -> Objective:
        """The same with other data."""
        ...

    def explain(self, parameters: Parameters, noise: Any) -> str:
        """Says which part of the bound is not finite at a draw."""
        ...


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class OfPositions:
    """A family over the unconstrained positions of a posterior.

    With the pathwise gradient, the entropy is in closed form where the family has one. Of a mean-field family, so is
    the whole divergence of the sites whose prior is Gaussian.

    Attributes:
        posterior: The target.
        family: Over the raveled position.
        example: A position, for its shape.
        gradient: "pathwise", "stl" or "score".
        closed_forms: Whether what is known in closed form is not sampled. Importance ratios need log q at the draw.
    """

    posterior: Posterior
    example: Position
    family: Family = dataclasses.field(metadata={"static": True})
    gradient: str = dataclasses.field(metadata={"static": True})
    closed_forms: bool = dataclasses.field(default=True, metadata={"static": True})

    @property
    def points(self) -> tuple[str, ...]:
        """None: every coordinate has a width."""
        return ()

    @property
    def data(self) -> Batch:
        """Arrays whose leading axis is the rows."""
        return self.posterior.data

    @property
    def num_data(self) -> int:
        """How many rows there are."""
        return self.posterior.num_data

    @property
    def wiring(self) -> Wiring:
        """All coordinates, or none. The parts of q are independent: each meets the log-density and its own log q."""
        if self.gradient != "score":
            return Wiring()
        return Wiring(scored=("position",), costs={"position": (("log_density",), ("position",))})

    def init(self, generator: np.random.Generator) -> Parameters:
        """A narrow q around a random start."""
        leaves = jax.tree.leaves(self.posterior.start(generator))
        centre = np.concatenate([np.ravel(leaf) for leaf in leaves])
        return self.family.init(generator, centre, FIRST_SCALE)

    def noise(self, generator: np.random.Generator, shape: tuple[int, ...], dtype: Any) -> np.ndarray:
        """Standard normal."""
        return generator.standard_normal((*shape, self.family.noise_size), dtype)

    def unravel(self, x: jax.Array) -> Position:
        """A flat vector as a position."""
        return ravel_pytree(self.example)[1](x)

    def sample(self, parameters: Parameters, noise: jax.Array, batch: Batch | None) -> Sampled:
        """The terms of the bound at one draw."""
        x, log_q = self.family.draw(parameters, noise)
        nothing = jnp.zeros((), x.dtype)
        if self.gradient == "pathwise":
            entropy = self.family.entropy(parameters) if self.closed_forms else None
            if entropy is None:
                return Sampled({"log_density": self._log_density(x, batch)}, {"position": log_q}, nothing, {})
            known, closed = self._divergences(parameters, x, batch)
            return Sampled({"log_density": self._log_density(x, batch) - known}, {}, entropy + closed, {})
        if self.gradient == "stl":
            log_q = self.family.held(parameters, x, noise)
            return Sampled({"log_density": self._log_density(x, batch)}, {"position": log_q}, nothing, {})
        x = jax.lax.stop_gradient(x)
        parts = self.family.log_parts(parameters, x)
        log_density = jax.lax.stop_gradient(self._log_density(x, batch))
        return Sampled({"log_density": log_density}, {"position": parts}, nothing, {"position": parts})

    @property
    def identified(self) -> bool:
        """Whether an average of parameters is one of the q they make."""
        return self.family.identified

    def rate_units(self, parameters: Parameters) -> Parameters:
        """The units of the family."""
        return self.family.units(parameters)

    def units(self, parameters: Parameters, noise: Any) -> Parameters | None:
        """The same, if they say how near the optimum is."""
        del noise
        return self.family.units(parameters) if self.identified else None

    def with_data(self, data: Batch) -> OfPositions:
        """The same with other data."""
        return dataclasses.replace(self, posterior=dataclasses.replace(self.posterior, data=data))

    def explain(self, parameters: Parameters, noise: Any) -> str:
        """Says which part of the log-density is not finite at a draw."""
        return self.posterior.explain(self.unravel(self.family.draw(parameters, noise)[0]), self.posterior.rows)

    def values(self, parameters: Parameters, noise: Any, batch: Batch | None) -> tuple[dict[str, Any], Position]:
        """One draw: what is reported of it, and its position."""
        del batch
        position = self.unravel(self.family.draw(parameters, noise)[0])
        return self.posterior.constrain(position), position

    def log_terms(self, parameters: Parameters, noise: Any) -> tuple[jax.Array, jax.Array]:
        """Log p and log q of one draw, on all rows."""
        x, log_q = self.family.draw(parameters, noise)
        return self.posterior.log_density(self.unravel(x)), log_q

    @property
    def has_ratios(self) -> bool:
        """Yes."""
        return True

    @property
    def local(self) -> Mapping[str, int]:
        """None: the position is the same whatever the rows are."""
        return {}

    @property
    def draw_size(self) -> int:
        """How many coordinates there are."""
        return sum(np.size(leaf) for leaf in jax.tree.leaves(self.example))

    @property
    def rows_a_call(self) -> int:
        """The draws do not depend on the rows."""
        return self.num_data

    def named(self, parameters: Parameters) -> dict[str, Any]:
        """The parameters of the family."""
        return dict(parameters)

    def log_prob(self, parameters: Parameters, draw: Any, data: Batch | None) -> float:
        """Log q of an unconstrained position."""
        del data
        like = jax.tree.map(lambda leaf, example: jnp.asarray(leaf, example.dtype), draw, self.example)
        return float(jnp.sum(self.family.log_parts(parameters, ravel_pytree(like)[0])))

    def _log_density(self, x: jax.Array, batch: Batch | None) -> jax.Array:
        return self.posterior.log_density(self.unravel(x), batch)

    def _divergences(self, parameters: Parameters, x: jax.Array, batch: Batch | None) -> tuple[Any, Any]:
        """Of the sites with a Gaussian prior: log p(x) as sampled, and E_q[log p(x)] = -KL(q, p) - H(q).

        Given the other sites, on which the prior may depend: in a mean-field family they are independent of this one.
        """
        if not isinstance(self.family, MeanField):
            return 0.0, 0.0
        # Importing NumPyro takes a while; a posterior that has priors has imported it.
        priors = self.posterior.priors(self.unravel(x), batch)
        if not priors:
            return 0.0, 0.0
        from numpyro import distributions as dist

        means, scales = (self.unravel(v) for v in (parameters["mean"], jnp.exp(parameters["log_scale"])))
        position, known, closed = self.unravel(x), 0.0, 0.0
        for name, prior in priors.items():
            q = dist.Normal(means[name], scales[name])
            known = known + jnp.sum(prior.log_prob(position[name]))
            closed = closed - jnp.sum(dist.kl_divergence(q, prior)) - jnp.sum(q.entropy())
        return known, closed
