"""What a distribution is made of: NumPyro wraps it to expand it, to mask it, and to declare axes as one event."""

from __future__ import annotations

from typing import Any

from numpyro import distributions as dist


def unwrapped(distribution: Any, *, masks: bool = True) -> Any:
    """The distribution inside `Independent`, `ExpandedDistribution` and, unless `masks` is False, `MaskedDistribution`.

    Example:
        >>> unwrapped(dist.Normal(0.0, 1.0).expand([3]).to_event(1).mask(True)).batch_shape
        ()
    """
    wrappers = (dist.Independent, dist.ExpandedDistribution) + ((dist.MaskedDistribution,) if masks else ())
    while isinstance(distribution, wrappers):
        distribution = distribution.base_dist
    return distribution
