"""What is kept of a site of a program's trace."""

from __future__ import annotations

from typing import Any, NamedTuple

import jax.numpy as jnp

from langevin.conjugacy.densities import DENSITIES, arguments_of
from langevin.conjugacy.latents import peeled
from langevin.models import outline

SUM = "sum of log-probabilities"


class Site(NamedTuple):
    """What is static of a site of the program, and of one part of it: a `scan` has two."""

    name: str
    kind: Any
    by_rows: bool
    plates: tuple[tuple[int, str], ...]
    num_events: int
    batch_shape: tuple[int, ...]
    given: tuple[str, ...]
    steps: str = ""


def site_of(name: str, site: dict[str, Any], row_plates: tuple[str, ...]) -> tuple[Site, dict[str, Any]]:
    """What is static of a site of a trace, and what its log-density is computed from."""
    base, mask = peeled(site["fn"])
    given: dict[str, Any] = {}
    batch_shape = tuple(site["fn"].batch_shape)
    num_events = site["fn"].event_dim
    if type(base) in DENSITIES and not site.get("intermediates"):
        given = {"value": site["value"], **arguments_of(base)}
        num_events -= base.event_dim
        batch_shape = tuple(site["fn"].shape())[: len(site["fn"].shape()) - base.event_dim]
        if mask is not None:
            given["_mask"] = mask
    else:
        given = {SUM: outline.unscaled_log_prob(site)}
        num_events = 0
    if site["scale"] is not None:
        given["_scale"] = site["scale"]
    given = {key: jnp.asarray(value) for key, value in given.items()}
    frames = tuple((frame.dim, frame.name) for frame in site["cond_indep_stack"])
    by_rows = any(plate in row_plates for _, plate in frames)
    kind = type(base)
    return Site(name, kind, by_rows, frames, num_events, batch_shape, tuple(given)), given


def event_axes(site: dict[str, Any], key: str, static: Site) -> int:
    """How many axes of an array that a site was given are not of its batch."""
    if key in (SUM, "_mask", "_scale"):
        return 0
    base = peeled(site["fn"])[0]
    own = base.event_dim if key == "value" else getattr(base.arg_constraints.get(key), "event_dim", 0)
    return static.num_events + own
