"""Non-centred sites: the unknown is the noise of a site, and the site is its location plus its scale times the noise.

Where the scale of a site is unknown itself (random effects, random walks), a chain that moves the site directly has to
keep up with the scale, and mixes badly or not at all (Papaspiliopoulos, Roberts & Skold 2007; Betancourt & Girolami
2015). In the noise, prior and scale are independent. The posterior is the same, and what is reported is the site.

Where rows tell much of each effect, the centred form is the better one: so a user asks for this.
"""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
from numpyro import distributions as dist
from numpyro.distributions.util import sum_rightmost

from langevin.models.wrappers import unwrapped

LOCATION_SCALE = (dist.Normal, dist.Laplace, dist.Cauchy, dist.StudentT, dist.Gumbel, dist.Logistic)


def can_be_noncentred(distribution: Any) -> bool:
    """Whether a site of this distribution has a location and a scale, or a random walk's scale."""
    kinds = (*LOCATION_SCALE, dist.LogNormal, dist.MultivariateNormal, dist.GaussianRandomWalk)
    return isinstance(unwrapped(distribution), kinds)


def from_noise(distribution: Any, noise: jax.Array) -> tuple[jax.Array, jax.Array]:
    """The value of a site for this noise, and the log-density of the noise.

    The latter is the log-density of the value plus the log-determinant of the map, but is not computed so: where the
    scale is small, the noise is lost in the rounding of the value.

    Args:
        distribution: One that can be non-centred.
        noise: In the shape of the site.
    """
    distribution = unwrapped(distribution, masks=False)
    if isinstance(distribution, dist.MaskedDistribution):
        base = distribution.base_dist
        value, log_density = from_noise(base, noise)
        log_density = sum_rightmost(log_density, jnp.ndim(log_density) - jnp.ndim(value) + base.event_dim)
        # A site that is masked has no density of its own: what is left is the determinant, and that only once.
        return value, jnp.where(distribution._mask, log_density, log_density - base.log_prob(value))
    if isinstance(distribution, dist.LogNormal):
        return jnp.exp(distribution.loc + distribution.scale * noise), dist.Normal().log_prob(noise)
    if isinstance(distribution, dist.GaussianRandomWalk):
        steps = jnp.asarray(distribution.scale)[..., None] * noise
        return jnp.cumsum(steps, axis=-1), dist.Normal().log_prob(noise)
    if isinstance(distribution, dist.MultivariateNormal):
        value = distribution.loc + jnp.squeeze(distribution.scale_tril @ noise[..., None], axis=-1)
        return value, dist.Normal().log_prob(noise)
    value = distribution.loc + distribution.scale * noise
    return value, _standard(distribution).log_prob(noise)


def _standard(distribution: Any) -> Any:
    """The distribution with location 0 and scale 1."""
    if isinstance(distribution, dist.StudentT):
        return dist.StudentT(distribution.df)
    return next(kind() for kind in LOCATION_SCALE if isinstance(distribution, kind))
