"""Non-centred sites: the unknown is the noise of a site, and the site is its location plus its scale times the noise.

Where the scale of a site is unknown itself (random effects, random walks), a chain that moves the site directly has to
keep up with the scale, and mixes badly or not at all (Papaspiliopoulos, Roberts & Skold 2007; Betancourt & Girolami
2015). In the noise, prior and scale are independent. The posterior is the same, and what is reported is the site.

Where rows tell much of an effect, the centred form is the better one. So each element z of a site is anywhere between:

    u = (z - c loc) / scale^c,    site = loc + scale u,    0 <= c <= 1

with the noise u itself at c = 0, and the site itself at c = 1. Of the noise, the rows leave a share v = var(u) of its
variance; c = 1 - v makes a Gaussian hierarchy's z independent of its location, and nearly so of its scale
(Papaspiliopoulos, Roberts & Skold 2003; Gorinova, Moore & Hoffman 2020). A site with correlated
elements is at either end.
"""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
from jax.scipy.linalg import solve_triangular
from numpyro import distributions as dist
from numpyro.distributions.util import sum_rightmost

from langevin.models.wrappers import unwrapped

LOCATION_SCALE = (dist.Normal, dist.Laplace, dist.Cauchy, dist.StudentT, dist.Gumbel, dist.Logistic)


def can_be_noncentred(distribution: Any) -> bool:
    """Whether a site of this distribution has a location and a scale, or a random walk's scale."""
    kinds = (*LOCATION_SCALE, dist.LogNormal, dist.MultivariateNormal, dist.GaussianRandomWalk)
    return isinstance(unwrapped(distribution), kinds)


def is_adjustable(distribution: Any) -> bool:
    """Whether its site can be anywhere between non-centred and centred: as above, but without a mask."""
    return can_be_noncentred(distribution) and unwrapped(distribution) is unwrapped(distribution, masks=False)


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


def placed(distribution: Any, z: jax.Array, centring: jax.Array) -> tuple[jax.Array, jax.Array]:
    """The value of a site at z, and the log-density of z.

    Args:
        distribution: One that `is_adjustable`.
        z: In the shape of the site.
        centring: c, in the shape of the site.
    """
    distribution = unwrapped(distribution)
    if isinstance(distribution, dist.MultivariateNormal):
        centred = jnp.mean(centring, axis=-1) > 0.5
        value, log_density = from_noise(distribution, z)
        of_site = jnp.broadcast_to(distribution.log_prob(z)[..., None] / z.shape[-1], z.shape)
        return jnp.where(centred[..., None], z, value), jnp.where(centred[..., None], of_site, log_density)
    location, log_scale = _location_and_log_scale(distribution)
    u = (z - centring * location) * jnp.exp(-centring * log_scale)
    # Not as location + scale u: at c = 1 the scale must drop out, in the gradient too.
    value = location + jnp.exp((1 - centring) * log_scale) * (z - centring * location)
    log_density = _standard(distribution).log_prob(u) - centring * log_scale
    if isinstance(distribution, dist.LogNormal):
        return jnp.exp(value), log_density
    if isinstance(distribution, dist.GaussianRandomWalk):
        return jnp.cumsum(value, axis=-1), log_density
    return value, log_density


def centred_unknown(distribution: Any, value: jax.Array) -> jax.Array | None:
    """The z of a value at c = 1; None if the site is not adjustable."""
    if not is_adjustable(distribution):
        return None
    kind = type(unwrapped(distribution))
    if issubclass(kind, dist.GaussianRandomWalk):
        return jnp.diff(value, prepend=0.0)
    return jnp.log(value) if issubclass(kind, dist.LogNormal) else value


def recentred(distribution: Any, z: jax.Array, centring: jax.Array, other: jax.Array) -> jax.Array:
    """The z of the same site under another centring."""
    distribution = unwrapped(distribution)
    if isinstance(distribution, dist.MultivariateNormal):
        before, after = (jnp.mean(c, axis=-1, keepdims=True) > 0.5 for c in (centring, other))
        value = jnp.where(before, z, from_noise(distribution, z)[0])
        gap = (value - distribution.loc)[..., None]
        factor = jnp.broadcast_to(distribution.scale_tril, (*gap.shape[:-1], gap.shape[-2]))
        return jnp.where(after, value, jnp.squeeze(solve_triangular(factor, gap, lower=True), axis=-1))
    location, log_scale = _location_and_log_scale(distribution)
    u = (z - centring * location) * jnp.exp(-centring * log_scale)
    return other * location + jnp.exp(other * log_scale) * u


def scale_of(distribution: Any) -> jax.Array:
    """The scale, on which other sites may depend."""
    distribution = unwrapped(distribution)
    is_matrix = isinstance(distribution, dist.MultivariateNormal)
    return distribution.scale_tril if is_matrix else distribution.scale


def _location_and_log_scale(distribution: Any) -> tuple[jax.Array, jax.Array]:
    if isinstance(distribution, dist.GaussianRandomWalk):
        return jnp.zeros(()), jnp.log(distribution.scale)[..., None]
    return distribution.loc, jnp.log(distribution.scale)


def _standard(distribution: Any) -> Any:
    """The distribution with location 0 and scale 1."""
    if isinstance(distribution, dist.StudentT):
        return dist.StudentT(distribution.df)
    if isinstance(distribution, (dist.LogNormal, dist.GaussianRandomWalk)):
        return dist.Normal()
    return next(kind() for kind in LOCATION_SCALE if isinstance(distribution, kind))
