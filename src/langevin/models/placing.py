"""Unconstrained positions put into a program, from inside its run."""

from __future__ import annotations

from typing import Any

import jax.numpy as jnp
import numpyro
from numpyro.distributions import biject_to

from langevin.models.centring import from_noise, placed
from langevin.models.outline import is_observed
from langevin.posterior import Position


def place_site(position: Position, site: dict[str, Any], *, noncentred: bool = False, centring: Any = None) -> Any:
    """The value of a latent site at an unconstrained position; its log-determinant becomes a factor.

    Where the noise of the site is inferred, the factor is the log-density of the noise, and the site has none. A factor
    inside the program, and not a sum outside it, so that sites inside `scan` work too.

    Args:
        position: Unconstrained values by site.
        site: As NumPyro's handlers see it.
        noncentred: Whether the position is the noise of the site.
        centring: How far each element is centred, if that can be chosen.

    Returns:
        The value; None for a site that the position does not hold.
    """
    name = site["name"]
    if site["type"] != "sample" or is_observed(site) or name not in position:
        return None
    transform = biject_to(site["fn"].support)
    unconstrained = position[name]
    index = site["infer"].get("_scan_current_index")
    if index is not None:
        shift = transform.codomain.event_dim - transform.domain.event_dim
        if jnp.ndim(unconstrained) > len(site["fn"].shape()) - shift:
            unconstrained = unconstrained[index]
            centring = None if centring is None else centring[index]
    if centring is not None:
        value, log_det = placed(site["fn"], unconstrained, centring)
    elif noncentred:
        value, log_det = from_noise(site["fn"], unconstrained)
    else:
        value = transform(unconstrained)
        log_det = transform.log_abs_det_jacobian(unconstrained, value)
    extra = jnp.ndim(log_det) - jnp.ndim(value) + len(site["fn"].event_shape)
    numpyro.factor(log_det_of(name), jnp.sum(log_det, axis=tuple(range(-extra, 0))))
    return value


def log_det_of(name: str) -> str:
    """The name of the factor."""
    return f"_{name}_log_det"
