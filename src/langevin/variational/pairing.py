"""From a program and a guide to an objective: what the guide has, what it lacks, and how gradients pass its sites."""

from __future__ import annotations

import contextlib
import math
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from numpyro import distributions as dist
from numpyro.distributions import biject_to, constraints
from numpyro.infer.autoguide import AutoGuide
from numpyro.ops.provenance import eval_provenance

from langevin.errors import ModelError
from langevin.models.joint import Joint, Trace
from langevin.models.outline import is_observed
from langevin.models.wrappers import unwrapped
from langevin.posterior import Batch
from langevin.variational.elbo import Wiring
from langevin.variational.families import Family
from langevin.variational.sites import REST, OfSites, drawn
from langevin.variational.wiring import downstream, wiring_of

MakeFamily = Callable[[tuple[tuple[int, ...], ...]], Family]


class _Run(NamedTuple):
    """The guide and the program, run abstractly on so many rows.

    Attributes:
        guide: The sites of the guide.
        model: The sites of the program.
        known: The sites whose divergence NumPyro has in closed form.
    """

    guide: Trace
    model: Trace
    known: tuple[str, ...]


def paired(
    joint: Joint,
    guide: Callable[..., Any] | None,
    make_family: MakeFamily | None,
    gradient: str,
    rows_a_call: int,
    *,
    closed_forms: bool = True,
) -> OfSites:
    """The objective.

    Args:
        joint: The program.
        guide: Gives values to its latent sites; None if the family does for all.
        make_family: Makes the family for the sites that the guide leaves, of these shapes; None if it may leave none.
        gradient: "pathwise", "stl" or "score".
        rows_a_call: How many rows the program and the guide will be called with.
        closed_forms: Whether divergences that are known in closed form are not sampled.

    Raises:
        ModelError: Names the site at which program and guide do not fit together.
    """
    if isinstance(guide, AutoGuide):
        # It looks at the program once, for real.
        joint.trace(guide, _rows(joint, rows_a_call), {}, jax.random.key(0))
    structure = joint.structure
    first = OfSites(joint, guide, None, (), {}, (), Wiring(), gradient, rows_a_call)
    traced = _trace_guide(first, rows_a_call)
    latent = drawn(traced)
    _check_shapes(joint, traced, rows_a_call)
    left = tuple((name, structure.shapes[name]) for name in structure.shapes if name not in latent)
    _check_left(joint, left, latent, make_family, rows_a_call)
    family = make_family(tuple(shape for _, shape in left)) if make_family and left else None
    partial = OfSites(joint, guide, family, left if family else (), {}, (), Wiring(), gradient, rows_a_call)
    run = _run(partial, rows_a_call)
    _check_sites(joint, run)
    if rows_a_call < joint.num_data:
        _check_params(partial, run, rows_a_call)
    points = _points(run.guide)
    scored = tuple(
        name
        for name in latent
        if not isinstance(unwrapped(run.guide[name]["fn"]), dist.Delta)
        and (gradient == "score" or not run.guide[name]["fn"].has_rsample)
    )
    if scored and any(site["type"] == "control_flow" for site in run.guide.values()):
        raise ModelError(
            f"Site {scored[0]!r} has its gradient by the score function, which does not go with a guide that has a "
            "`scan` or `cond`. Write out the steps in a loop, or take distributions with a pathwise gradient."
        )
    if family is not None and gradient == "score":
        scored += (REST,)
    parents = _parents(partial, run, rows_a_call)
    closed = _in_closed_form(run, parents, scored) if gradient == "pathwise" and closed_forms else ()
    params = {
        name: site["kwargs"].get("constraint", constraints.real)
        for trace in (run.guide, run.model)
        for name, site in trace.items()
        if site["type"] == "param"
    }
    wiring = wiring_of(partial, run, parents, scored, closed, rowwise=not closed_forms)
    return OfSites(joint, guide, family, partial.rest, params, closed, wiring, gradient, rows_a_call, points)


def per_site(joint: Joint, families: Mapping[str, Any], rows_a_call: int) -> Callable[..., Any]:
    """A guide in which these sites have independent distributions of the given kinds, with parameters to be found.

    Args:
        joint: The program.
        families: Kinds of NumPyro's distributions by site, such as `dist.Gamma` or `dist.Laplace`.
        rows_a_call: How many rows the program will be called with.

    Raises:
        ModelError: If there is no such site, or a kind has arguments that we cannot make parameters of, or rows have
            sites of their own and come in minibatches.
    """
    import numpyro

    from langevin.variational.kinds import parameters_of

    for name in families:
        if name not in joint.structure.shapes:
            raise ModelError(
                f"`VI(family=...)`: there is no latent site {name!r}; there are {', '.join(joint.structure.shapes)}."
            )
        _check_rows(joint, name, rows_a_call)

    def guide(**arguments: Any) -> None:
        del arguments
        for name, kind in families.items():
            site = joint.structure.values[name]
            made, arguments_of_kind = parameters_of(name, kind, site)
            values = {
                argument: numpyro.param(f"{name}.{argument}", value, constraint=constraint)
                for argument, (value, constraint) in arguments_of_kind.items()
            }
            fn = made(**values)
            with contextlib.ExitStack() as plates:
                for plate, size, dim in site.plates:
                    plates.enter_context(numpyro.plate(plate, size, dim=dim))
                numpyro.sample(name, fn.to_event(site.event_dim - fn.event_dim))

    return guide


def _points(guide: Trace) -> tuple[str, ...]:
    """The sites that have one value. In an automatic guide, what is made from an auxiliary draw is not one of them."""
    if any(site["type"] == "sample" and site["infer"].get("is_auxiliary", False) for site in guide.values()):
        return ()
    return tuple(name for name in drawn(guide) if isinstance(unwrapped(guide[name]["fn"]), dist.Delta))


def _rows(joint: Joint, count: int) -> Batch:
    return jax.tree.map(lambda array: array[:count], joint.data)


def _abstract(joint: Joint, count: int) -> Batch:
    return jax.tree.map(lambda a: jax.ShapeDtypeStruct((count, *a.shape[1:]), a.dtype), joint.data)


def _trace_guide(objective: OfSites, count: int) -> Trace:
    found: Trace = {}

    def run(batch: Batch) -> int:
        found.update(objective.guide_trace({}, jax.random.key(0), batch))
        return 0

    jax.eval_shape(run, _abstract(objective.joint, count))
    return found


def _run(objective: OfSites, count: int) -> _Run:
    found: list[_Run] = []

    def run(batch: Batch) -> int:
        guide = objective.guide_trace({}, jax.random.key(0), batch)
        size = sum(math.prod(shape) for _, shape in objective.rest)
        x = jnp.zeros(size) if objective.family is not None else None
        model = objective.model_trace({}, drawn(guide), x, jax.random.key(1), batch)
        both = [name for name in drawn(guide) if name in model and model[name]["type"] == "sample"]
        unscaled = [name for name in both if guide[name]["scale"] is None and model[name]["scale"] is None]
        known = tuple(name for name in unscaled if _has_divergence(guide[name]["fn"], model[name]["fn"]))
        found.append(_Run(guide, model, known))
        return 0

    jax.eval_shape(run, _abstract(objective.joint, count))
    return found[-1]


def _has_divergence(q: Any, p: Any) -> bool:
    if isinstance(q, dist.Delta):
        return False
    try:
        divergence = dist.kl_divergence(q, p)
    except Exception:  # what NumPyro's rules raise, for distributions that they do not fit, is of many kinds
        return False
    return jnp.shape(divergence) == jnp.broadcast_shapes(q.batch_shape, p.batch_shape)


def _check_left(
    joint: Joint,
    left: tuple[tuple[str, tuple[int, ...]], ...],
    latent: Mapping[str, Any],
    make_family: MakeFamily | None,
    rows_a_call: int,
) -> None:
    for name, _ in left:
        if make_family is None:
            had = ", ".join(map(repr, latent)) or "none"
            raise ModelError(
                f"The guide misses site {name!r} of the program; it has {had}. Add a `numpyro.sample({name!r}, ...)`."
            )
        if name in joint.structure.discrete:
            many = name in joint.structure.local and rows_a_call < joint.num_data
            own = "" if many else f"give it a kind, `VI({{{name!r}: dist.Bernoulli}})`, or "
            raise ModelError(f"Site {name!r} is discrete: a Gaussian family cannot have it; {own}write a guide.")
        _check_rows(joint, name, rows_a_call)


def _check_rows(joint: Joint, name: str, rows_a_call: int) -> None:
    if name in joint.structure.local and rows_a_call < joint.num_data:
        raise ModelError(
            f"Site {name!r} has a value for each row, and a minibatch sees only a few of them. Write an amortised "
            "guide (an encoder), `VI(local=guide)`, or leave `batch_size` out."
        )


def _check_shapes(joint: Joint, guide: Trace, rows_a_call: int) -> None:
    for name, value in drawn(guide).items():
        if name not in joint.structure.values:
            continue
        if name in joint.structure.local and rows_a_call < joint.num_data:
            continue
        shape = joint.structure.values[name].shape
        if jnp.shape(value) != shape:
            raise ModelError(f"Site {name!r} is of shape {shape} in the program, but {jnp.shape(value)} in the guide.")


def _check_sites(joint: Joint, run: _Run) -> None:
    for name, site in run.guide.items():
        if site["type"] != "sample" or is_observed(site):
            continue
        other = run.model.get(name)
        if other is None or other["type"] != "sample":
            if site["infer"].get("is_auxiliary", False):
                continue
            there = ", ".join(map(repr, joint.structure.shapes))
            raise ModelError(f"The guide has site {name!r}, which the program does not; it has {there}.")
        if is_observed(other):
            raise ModelError(f"The guide has site {name!r}, which is observed in the program. Leave it out.")
        _check_support(name, site["fn"], other["fn"])
        plates, wanted = ({frame.name for frame in s["cond_indep_stack"]} for s in (site, other))
        for plate in joint.structure.row_plates:
            if plate in wanted and plate not in plates:
                raise ModelError(
                    f"Site {name!r} is inside the plate {plate!r} over the rows in the program, but not in the guide. "
                    f"Put it inside a plate of that name and size."
                )


def _check_support(name: str, q: Any, p: Any) -> None:
    """Checks that q draws nothing where p has no density."""
    q = unwrapped(q)
    if isinstance(q, dist.Delta):
        return
    of_q, of_p = (_plain(fn.support) for fn in (q, p))
    if of_q is of_p:
        return
    if of_q.is_discrete or of_p.is_discrete:
        # Kinds of whole numbers contain one another in many ways; a draw outside has probability zero, and shows.
        fits = of_q.is_discrete == of_p.is_discrete
    elif of_q.event_dim or of_p.event_dim:
        fits = type(of_q) is type(of_p)
    else:
        try:
            points = biject_to(of_q)(jnp.linspace(-8.0, 8.0, 65))
            fits = bool(jnp.all(of_p(points)))
        except (jax.errors.UnexpectedTracerError, jax.errors.TracerBoolConversionError, NotImplementedError):
            # Bounds that are computed cannot be compared before there are numbers; a draw outside shows then.
            return
    if not fits:
        raise ModelError(
            f"Site {name!r}: the guide draws from {_called(of_q)}, but in the program its support is {_called(of_p)}. "
            "Give it a distribution with that support, or one that is transformed to it."
        )


def _plain(support: Any) -> Any:
    while hasattr(support, "base_constraint"):
        support = support.base_constraint
    return support


def _called(support: Any) -> str:
    return type(support).__name__.strip("_")


def _check_params(objective: OfSites, run: _Run, count: int) -> None:
    """Checks that no parameter has a value for each row: the next minibatch has other rows."""
    other = _run(objective, count + 1 if count < objective.num_data else count - 1)
    for before, after in ((run.guide, other.guide), (run.model, other.model)):
        for name, site in before.items():
            if site["type"] != "param":
                continue
            shapes, others = (jax.tree.map(jnp.shape, s["value"]) for s in (site, after[name]))
            if shapes != others:
                raise ModelError(
                    f"The shape of parameter {name!r} follows the number of rows, and a minibatch has other rows each "
                    "time. Compute it from the row by a network, or leave `batch_size` out."
                )


def _parents(objective: OfSites, run: _Run, count: int) -> dict[str, frozenset[str]]:
    """For each term (`p.` or `q.` and its name), the sites whose values it is computed from."""
    shapes = {name: (jnp.shape(v), v.dtype) for name, v in drawn(run.guide).items()}
    if objective.family is not None:
        size = sum(math.prod(shape) for _, shape in objective.rest)
        shapes[REST] = ((size,), jnp.result_type(float))
    batch = jax.tree.map(lambda a: np.zeros(a.shape, a.dtype), _abstract(objective.joint, count))
    keys = {f"site {number}": name for number, name in enumerate(shapes)}

    def terms(**values: Any) -> dict[str, Any]:
        named = {keys[key]: value for key, value in values.items()}
        x = named.pop(REST, None)
        guide = objective.guide_trace(named, jax.random.key(0), batch)
        model = objective.model_trace({}, named, x, jax.random.key(1), batch)
        return {
            f"{kind}.{name}": site["fn"].log_prob(site["value"])
            for kind, trace in (("q", guide), ("p", model))
            for name, site in trace.items()
            if site["type"] == "sample" and (kind == "p" or not is_observed(site))
        }

    zeros = {key: np.zeros(*shapes[name]) for key, name in keys.items()}
    found = eval_provenance(terms, **zeros)
    return {term: frozenset(keys[key] for key in sites) for term, sites in found.items()}


def _in_closed_form(run: _Run, parents: Mapping[str, frozenset[str]], scored: tuple[str, ...]) -> tuple[str, ...]:
    """The sites with a known divergence, which is the one that is asked for: given values drawn without the site's."""
    latent = drawn(run.guide)
    return tuple(
        name
        for name in run.known
        if name not in scored and not (parents[f"p.{name}"] - {name}) & downstream(name, parents, latent)
    )
