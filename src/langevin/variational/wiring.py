"""Which terms of the bound a site of a guide has a part in, and within which plates only element by element."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import jax
import jax.numpy as jnp

from langevin.models.outline import is_observed, unscaled_log_prob
from langevin.posterior import Batch, Key
from langevin.variational.elbo import Wiring
from langevin.variational.independence import entangled
from langevin.variational.sites import REST, OfSites, drawn

Parents = Mapping[str, frozenset[str]]


def downstream(name: str, parents: Parents, sites: Mapping[str, Any]) -> set[str]:
    """The site itself, and those that the guide draws from its value, also indirectly."""
    found = {name}
    while True:
        more = {site for site in sites if parents[f"q.{site}"] & found} - found
        if not more:
            return found
        found |= more


def wiring_of(
    objective: OfSites,
    run: Any,
    parents: Parents,
    scored: tuple[str, ...],
    closed: tuple[str, ...],
    *,
    rowwise: bool,
) -> Wiring:
    """The wiring.

    Args:
        objective: The guide and the program.
        run: An abstract run of both.
        parents: For each term (`p.` or `q.` and its name), the sites whose values it is computed from.
        scored: The sites whose gradient is by the score function.
        closed: The sites whose divergence is in closed form.
        rowwise: Whether a bound for each row is asked for, where every row has its own sites.
    """
    joint, latent = objective.joint, drawn(run.guide)
    plates: dict[str, dict[str, int]] = {}
    terms: dict[str, frozenset[str]] = {}
    for kind, trace in (("q", run.guide), ("p", run.model)):
        for name, site in trace.items():
            if site["type"] != "sample" or (kind == "q" and is_observed(site)):
                continue
            plates[f"{kind}.{name}"] = {frame.name: frame.dim for frame in site["cond_indep_stack"]}
            if name not in closed:
                terms[f"{kind}.{name}"] = parents[f"{kind}.{name}"]
    probed = [name for name in (latent if rowwise else scored) if name != REST and plates[f"q.{name}"]]
    mixed = _entangled(objective, run, plates, probed)
    for name in closed:
        plates[f"p.-divergence of {name}"] = plates[f"q.{name}"]
        both = parents[f"p.{name}"] | parents[f"q.{name}"]
        terms[f"p.-divergence of {name}"] = both - {name}
        for of_site in mixed.values():
            of_site[f"p.-divergence of {name}"] = of_site[f"p.{name}"] | of_site[f"q.{name}"]
    costs: dict[str, tuple[tuple[str, ...], tuple[str, ...]]] = {}
    for name in scored:
        after = {REST} if name == REST else downstream(name, parents, latent)
        touched = [term for term, sites in terms.items() if sites & after]
        of_p, of_q = (tuple(term[2:] for term in touched if term[0] == kind) for kind in "pq")
        costs[name] = (of_p, of_q)
        if name in mixed:
            mixed[name] = _by_way_of(name, after - {name}, terms, plates, mixed[name])
    row_scale = None
    row_plates = set(joint.structure.row_plates)
    if row_plates and all(len(frames) == 1 and set(frames) <= row_plates for frames in plates.values()):
        apart = all(not names & row_plates for of_site in mixed.values() for names in of_site.values())
        row_scale = joint.num_data / objective.rows_a_call if apart else None
    elements = {name: _elements(objective, run, name) for name in scored if name != REST}
    return Wiring(scored, costs, plates, row_scale, mixed, elements)


def _entangled(
    objective: OfSites, run: Any, plates: Mapping[str, Mapping[str, int]], probed: list[str]
) -> dict[str, dict[str, frozenset[str]]]:
    if not probed:
        return {}
    batch = jax.tree.map(lambda array: array[: objective.rows_a_call], objective.data)
    sites = {
        name: [(plate, axis - run.guide[name]["fn"].event_dim) for plate, axis in plates[f"q.{name}"].items()]
        for name in probed
    }

    def terms(values: dict[str, Any], key: Key, batch: Batch) -> tuple[dict[str, Any], dict[str, Any]]:
        guide = objective.guide_trace(values, key, batch)
        draws = drawn(guide)
        size = 0 if objective.family is None else objective.family_size
        x = None if objective.family is None else 0.1 * jax.random.normal(jax.random.fold_in(key, 1), (size,))
        model = objective.model_trace({}, draws, x, key, batch)
        both = (("q", guide), ("p", model))
        found = {f"{kind}.{name}": site for kind, trace in both for name, site in trace.items()}
        return draws, {term: _full(unscaled_log_prob(found[term]), found[term]) for term in plates}

    return entangled(terms, batch, sites, plates)


def _full(log_prob: Any, site: Mapping[str, Any]) -> Any:
    """A log-probability with an axis of full size for every plate, also where all elements have the same."""
    shape = list(jnp.shape(log_prob))
    for frame in site["cond_indep_stack"]:
        shape = [1] * (-frame.dim - len(shape)) + shape
        shape[frame.dim] = frame.size
    return jnp.broadcast_to(log_prob, shape)


def _by_way_of(
    name: str,
    others: set[str],
    terms: Parents,
    plates: Mapping[str, Mapping[str, int]],
    mixed: Mapping[str, frozenset[str]],
) -> dict[str, frozenset[str]]:
    """Adds the terms that a site reaches through a site outside its plate, which all elements share."""
    found = dict(mixed)
    for plate, axis in plates[f"q.{name}"].items():
        outside = {other for other in others if plates[f"q.{other}"].get(plate) != axis}
        for term, sites in terms.items():
            if sites & outside:
                found[term] = found.get(term, frozenset()) | {plate}
    return found


def _elements(objective: OfSites, run: Any, name: str) -> tuple[int, ...]:
    """The shape of a site's log-probability, with 1 for the rows of a minibatch: the next one has others."""
    site = run.guide[name]
    own = jnp.shape(site["value"])
    shape = list(jnp.broadcast_shapes(site["fn"].batch_shape, own[: len(own) - site["fn"].event_dim]))
    for frame in site["cond_indep_stack"]:
        rows = frame.name in objective.joint.structure.row_plates
        if rows and objective.rows_a_call < objective.num_data:
            shape[frame.dim] = 1
    return tuple(shape)
