"""What warm-up measures, and what it hands to a kernel."""

from __future__ import annotations

from typing import Any, NamedTuple

import jax

from langevin.kernels import metrics
from langevin.kernels.metrics import Metric
from langevin.posterior import Position

# How much wider than exact the sds may be through the choice of an automatic step. Smaller steps cost in proportion.
SD_BIAS = 0.03


class Tuning(NamedTuple):
    """What warm-up found, and a kernel needs. All of it may be traced, so that new values compile nothing.

    Attributes:
        step_size: The step, where it was left to warm-up.
        metric: G; None for the identity.
        centre: The mode.
        gradient_noise: The variance of the whitened gradient, a pytree like the position.
        stiffest: The largest curvature in units of the metric.
        epoch: Steps in an epoch.
        cycle: Steps in a cycle, and how many of them explore.
        lowest: The step at the end of a cycle, as a share of that at its beginning.
    """

    step_size: Any = None
    metric: Metric | None = None
    centre: Position = None
    gradient_noise: Position = None
    stiffest: Any = 1.0
    epoch: Any = 1
    cycle: tuple[Any, Any] = (1, 0)
    lowest: Any = 0.0

    def as_plain(self) -> dict[str, Any]:
        """As the state of a run holds it."""
        pytrees = {name: tuple(jax.tree.leaves(getattr(self, name))) for name in ("centre", "gradient_noise")}
        return self._asdict() | pytrees | {"metric": metrics.as_plain(self.metric)}

    @classmethod
    def from_plain(cls, plain: dict[str, Any], example: Position) -> Tuning:
        """What `as_plain` described; `example` has the structure of a position."""
        structure = jax.tree.structure(example)
        fields: dict[str, Any] = plain | {"metric": metrics.from_plain(plain["metric"], example)}
        for name in ("centre", "gradient_noise"):
            fields[name] = jax.tree.unflatten(structure, plain[name]) if plain[name] else None
        return cls(**fields)


class Landscape(NamedTuple):
    """What the target looks like around its mode, in whitened units.

    Attributes:
        stiffest: The largest curvature.
        softest: The smallest curvature.
        noise: The largest variance of the gradient estimate in any coordinate.
        size: The number of coordinates.
    """

    stiffest: float
    softest: float
    noise: float
    size: int


class Pace(NamedTuple):
    """A step size, and the autocorrelation time of the chain in such steps: about how many it takes to forget."""

    step_size: float
    autocorrelation_time: float
