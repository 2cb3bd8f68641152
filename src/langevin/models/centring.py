"""Non-centred sites: the unknown is the noise of a site, and the site is its location plus its scale times the noise.

Where the scale of a site is unknown itself (random effects, random walks), a chain that moves the site directly has to
keep up with the scale, and mixes badly or not at all (Papaspiliopoulos, Roberts & Skold 2007; Betancourt & Girolami
2015). In the noise, prior and scale are independent. The posterior is the same: the log-determinant of the map belongs
to the log-density, and what is reported is the site.

Where rows tell much of each effect, the centred form is the better one: so a user asks for this.
"""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
from numpyro import distributions as dist

LOCATION_SCALE = (dist.Normal, dist.Laplace, dist.Cauchy, dist.StudentT, dist.Gumbel, dist.Logistic)


def can_be_noncentred(distribution: Any) -> bool:
    """Whether a site of this distribution has a location and a scale, or a random walk's scale."""
    if isinstance(distribution, dist.Independent | dist.ExpandedDistribution | dist.MaskedDistribution):
        return can_be_noncentred(distribution.base_dist)
    if isinstance(distribution, dist.LogNormal):
        return True
    return isinstance(distribution, (*LOCATION_SCALE, dist.MultivariateNormal, dist.GaussianRandomWalk))


def from_noise(distribution: Any, noise: jax.Array) -> tuple[jax.Array, jax.Array]:
    """The value of a site for this noise, and the log-determinant of the map.

    Args:
        distribution: One that can be non-centred.
        noise: In the shape of the site.
    """
    if isinstance(distribution, dist.Independent | dist.ExpandedDistribution | dist.MaskedDistribution):
        return from_noise(distribution.base_dist, noise)
    if isinstance(distribution, dist.LogNormal):
        logarithm = distribution.loc + distribution.scale * noise
        return jnp.exp(logarithm), jnp.log(distribution.scale) + logarithm
    if isinstance(distribution, dist.GaussianRandomWalk):
        scale = jnp.asarray(distribution.scale)
        return jnp.cumsum(scale[..., None] * noise, axis=-1), noise.shape[-1] * jnp.log(scale)
    if isinstance(distribution, dist.MultivariateNormal):
        value = distribution.loc + jnp.squeeze(distribution.scale_tril @ noise[..., None], axis=-1)
        return value, jnp.sum(jnp.log(jnp.diagonal(distribution.scale_tril, axis1=-2, axis2=-1)), axis=-1)
    value = distribution.loc + distribution.scale * noise
    return value, jnp.broadcast_to(jnp.log(distribution.scale), value.shape)
