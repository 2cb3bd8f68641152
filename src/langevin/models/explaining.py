"""Which part of a program is not finite at a position."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np

from langevin.models import outline
from langevin.models.enumeration import Enumeration, Traced
from langevin.models.placing import log_det_of
from langevin.models.structure import Structure
from langevin.posterior import Batch, Centring, Position


def explained(
    program: Traced,
    found: Structure,
    labels: Enumeration | None,
    position: Position,
    batch: Batch,
    centring: Centring,
) -> str:
    """Says which site is not finite at a position."""
    sites: dict[str, tuple[bool, int | None]] = {}

    @jax.jit
    def log_probs(position: Position, batch: Batch) -> tuple[dict[str, jax.Array], dict[str, jax.Array]]:
        # Compiled: on numbers, NumPyro would raise an error at a bad parameter, and not say of which site.
        if labels is not None:
            return labels.explained(position, batch, centring, sites), {}
        terms = dict(program.terms_of(found, program.trace(position, batch, centring)))
        sites.update({n: (outline.is_observed(s), outline.row_dim(s, found.row_plates)) for n, s in terms.items()})
        values = {name: jnp.asarray(site["value"]) for name, site in terms.items() if sites[name][0]}
        return {name: outline.log_prob(site) for name, site in terms.items()}, values

    found_log_probs, given = log_probs(position, batch)
    for name, (observed, row_dim) in sites.items():
        log_prob = np.asarray(found_log_probs[name])
        if np.isfinite(log_prob).all():
            continue
        bad = log_prob[~np.isfinite(log_prob)].flat[0]
        for latent in found.shapes:
            if name == log_det_of(latent):
                return f"the Jacobian of site {latent!r} is {bad}"
        kind = "observed site" if observed else "site"
        place = ""
        if row_dim is not None:
            row = np.flatnonzero(~np.isfinite(np.asarray(summed_to_rows(jnp.asarray(log_prob), row_dim))))[0]
            place = f" at row {row}"
            if name in given and np.shape(given[name]) == log_prob.shape:
                place += f", where its value is {np.take(np.asarray(given[name]), row, log_prob.ndim + row_dim)}"
        return f"the log-probability of {kind} {name!r} is {bad}{place}"
    return "every site is finite there, but the gradient is not"


def summed_to_rows(log_prob: jax.Array, row_dim: int) -> jax.Array:
    """Sums over every axis but the one of the rows, which is counted from the right."""
    axis = jnp.ndim(log_prob) + row_dim
    return jnp.sum(log_prob, axis=tuple(i for i in range(jnp.ndim(log_prob)) if i != axis))
