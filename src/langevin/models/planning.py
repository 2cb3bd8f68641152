"""Whether the discrete sites of a program can be summed out, and how.

Found from two things: which site depends on which (by the provenance of its log-probability), and which plates each
is in. That an element of a plate depends on no other element's discrete values cannot be seen in this way, and is
tried: at random values of the discrete sites the program must say what the tables say.
"""

from __future__ import annotations

import dataclasses
import zlib
from collections.abc import Mapping
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from numpyro.ops.provenance import eval_provenance
from numpyro.primitives import Messenger

from langevin.errors import ModelError
from langevin.models import outline
from langevin.models.chains import Chain, factor_of, label_value, support_of
from langevin.models.elimination import Factor, components
from langevin.models.enumeration import Enumeration, Group, Traced
from langevin.models.structure import Structure
from langevin.posterior import Batch
from langevin.run import compilation

MOST_COMPARED = 256
SAME = 1e-3


class Dependence(NamedTuple):
    """Which discrete sites what depends on.

    Attributes:
        terms: For each sample site, those that its log-probability depends on.
        values: The same for the values of deterministic and of latent sites.
        shapes: For each sample site, the shape of its log-probability.
        scans: For each sample site inside a `scan`, which one it is, by its place among the program's.
        supports: The values of each discrete site.
    """

    terms: dict[str, frozenset[str]]
    values: dict[str, frozenset[str]]
    shapes: dict[str, tuple[int, ...]]
    scans: dict[str, int]
    supports: dict[str, np.ndarray]


def enumeration_of(program: Traced, sites: Structure, data: Batch, *, by_rows: bool) -> Enumeration:
    """The program without its discrete sites.

    Args:
        program: The program, with no site non-centred.
        sites: Its sites; every discrete one has finitely many values.
        data: The rows.
        by_rows: Whether the program may be called with some of the rows.

    Raises:
        ModelError: If they cannot be summed out; says which, and what to do.
    """
    labels = sites.discrete
    rest = sites.without(labels)
    dtype = jnp.result_type(float)
    generator = np.random.default_rng(0)
    position = {name: jnp.asarray(generator.uniform(-1.0, 1.0, shape), dtype) for name, shape in rest.shapes.items()}
    on, compact = _dependence(program, sites, rest, position, data)
    chains = _chains(sites, on)
    choices = {name: sites.values[name].choices or 0 for name in labels if name not in on.scans}
    depends = _depends(on, chains, set(choices))
    axis = _axes(choices, depends)
    ordered = {name: tuple(sorted(found, key=axis.__getitem__)) for name, found in depends.items()}
    hidden = [name for name, found in on.values.items() if found and name not in rest.shapes]
    tied = frozenset(name for name in rest.shapes if on.terms[name])
    rest = rest.without(hidden)
    rest = dataclasses.replace(rest, with_scale=tuple(name for name in rest.with_scale if name not in tied))
    dims = {name: sites.dims[name] for name in labels}
    plan = Enumeration(program, rest, choices, chains, ordered, axis, compact, on.supports, dims, tied=tied)
    plan = _grouped(plan, position, data)
    # The sums are tried abstractly: what cannot be summed is said before a run.
    jax.eval_shape(lambda data: plan.terms(position, data, {}), data)
    _check_elements(plan, set(on.scans), position, _few(data) if by_rows else data)
    return plan


def _dependence(
    program: Traced, sites: Structure, rest: Structure, position: Any, data: Batch
) -> tuple[Dependence, bool]:
    """Who depends on whom, and whether the program can do with values of size 1 along plates."""
    whole = _traced_dependence(program, sites, rest, position, data, compact=False)
    try:
        small = _traced_dependence(program, sites, rest, position, data, compact=True)
    except Exception:
        # The program does something with the shape of a discrete site's value: it gets them in full.
        return whole, False
    return whole, small.shapes == whole.shapes


def _traced_dependence(
    program: Traced, sites: Structure, rest: Structure, position: Any, data: Batch, *, compact: bool
) -> Dependence:
    keys = {name: f"label_{i}" for i, name in enumerate(sites.discrete)}
    shapes: dict[str, tuple[int, ...]] = {}
    scans: dict[str, int] = {}
    supports: dict[str, np.ndarray] = {}

    def run(**index: Any) -> Any:
        counter = _Counter()

        def place(site: dict[str, Any]) -> Any:
            if site["type"] != "sample":
                return None
            name = site["name"]
            inside = "_scan_current_index" in site["infer"]
            if inside:
                scans[name] = counter.count
            if name not in keys:
                return None
            supports[name] = support_of(site["fn"])
            return label_value(site, index[keys[name]], compact=compact and not inside)

        trace = program.trace(position, data, {}, place, counter)
        terms = {name: outline.log_prob(site) for name, site in trace.items() if site["type"] == "sample"}
        shapes.update({name: jnp.shape(term) for name, term in terms.items()})
        values = {
            name: site["value"]
            for name, site in trace.items()
            if site["type"] == "deterministic" or (name in rest.shapes and name not in scans)
        }
        return terms, values

    found = eval_provenance(run, **{key: jnp.asarray(0) for key in keys.values()})
    names = {key: name for name, key in keys.items()}
    terms, values = ({name: frozenset(names[key] for key in _union(on)) for name, on in part.items()} for part in found)
    for name in rest.shapes:
        if values.get(name):
            raise ModelError(
                f"Which values site {name!r} can have depends on the discrete site {min(values[name])!r}, so that the "
                "latter cannot be summed out. Give the former a support of its own, or fit the program by `lv.VI` with "
                "a guide."
            )
    return Dependence(terms, values, shapes, scans, supports)


def _union(on: Any) -> frozenset[str]:
    """A value may be a tree, each leaf of which has its own."""
    parts = jax.tree.leaves(on, is_leaf=lambda part: isinstance(part, frozenset))
    return frozenset().union(*parts)


class _Counter(Messenger):
    """Counts the control flow of a program."""

    def __init__(self) -> None:
        super().__init__()
        self.count = -1

    def process_message(self, msg: dict[str, Any]) -> None:
        self.count += msg["type"] == "control_flow"


def _chains(sites: Structure, on: Dependence) -> dict[int, Chain]:
    """The scans that have discrete sites."""
    chains: dict[int, Chain] = {}
    for name in sites.discrete:
        if name in on.scans:
            before = chains.get(on.scans[name], Chain((), ()))
            size = sites.values[name].choices or 0
            chains[on.scans[name]] = Chain((*before.labels, name), (*before.sizes, size))
    return chains


def _depends(on: Dependence, chains: Mapping[int, Chain], plain: set[str]) -> dict[str, frozenset[str]]:
    """For each term of a run, the discrete sites outside scans that it depends on."""
    depends: dict[str, frozenset[str]] = {}
    for name, found in on.terms.items():
        chain = chains.get(on.scans.get(name, -1))
        own = set(chain.labels) if chain else set()
        after = found - plain - own
        if after:
            raise ModelError(
                f"Site {name!r} depends on the discrete site {min(after)!r} of a `scan` that it is not in. What "
                "depends on a state must be inside the `scan`, at the step of that state."
            )
        outside = found & plain
        if chain is None:
            depends[name] = outside
        else:
            depends[name] = outside
            depends[chain.name] = depends.get(chain.name, frozenset()) | outside
    return depends


def _axes(choices: Mapping[str, int], depends: Mapping[str, frozenset[str]]) -> dict[str, int]:
    """An axis for each discrete site: sites with one axis have as many values, and meet in no term."""
    axis: dict[str, int] = {}
    size: list[int] = []
    for name, count in choices.items():
        met = {axis[other] for found in depends.values() if name in found for other in found if other in axis}
        free = [i for i, n in enumerate(size) if n == count and i not in met]
        if not free:
            size.append(count)
        axis[name] = free[0] if free else len(size) - 1
    return axis


def _grouped(plan: Enumeration, position: Any, data: Batch) -> Enumeration:
    """The plan with the discrete sites that are summed out together."""
    statics, factors = plan.static(position, data, {})
    rows = plan.found.row_plates[:1]
    groups = []
    for labels, terms in components((name, frozenset(plan.depends.get(name, ()))) for name in factors):
        by_row = bool(rows) and all(rows[0] in statics[name].sizes for name in (*labels, *terms))
        groups.append(Group(labels, terms, by_row, any(statics[name].observed for name in terms)))
    plates = {name: dict(statics[name].sizes) for name in plan.choices}
    return dataclasses.replace(plan, groups=tuple(groups), plates=plates)


def _few(data: Batch) -> Batch:
    """Evenly spread rows."""
    num_rows = len(next(iter(data.values())))
    index = np.linspace(0, num_rows - 1, min(num_rows, MOST_COMPARED)).astype(int)
    return {name: column[index] for name, column in data.items()}


def _check_elements(plan: Enumeration, in_scans: set[str], position: Any, data: Batch) -> None:
    """Checks that what an element of a plate adds depends on that element's discrete values only."""
    # A site of one element has no others.
    tried = {name for name, labels in plan.depends.items() if any(plan.plates[label] for label in labels)}
    tried -= in_scans
    if not tried:
        return

    def both(position: Any, data: Batch) -> Any:
        factors = plan.run(position, data, {}).factors
        chosen: dict[str, Any] = {}

        def place(site: dict[str, Any]) -> Any:
            name = site["name"]
            if site["type"] != "sample" or name not in plan.choices:
                return None
            key = jax.random.fold_in(jax.random.key(1), zlib.crc32(name.encode()))
            index = jax.random.randint(key, site["fn"].shape(), 0, plan.choices[name])
            chosen[name] = jax.nn.one_hot(index, plan.choices[name], axis=0, dtype=bool)
            return jnp.asarray(support_of(site["fn"]))[index]

        trace = plan.program.trace(position, data, {}, place)
        found = {name: (log_prob, static) for name, log_prob, static in plan.terms_of(trace)}
        picked = {name: factor_of(which, (name,), found[name][1]) for name, which in chosen.items()}
        pairs = {}
        for name in sorted(tried & set(found)):
            by_table = _at(factors[name], [picked[label] for label in plan.depends[name]])
            pairs[name] = (by_table, factor_of(found[name][0], (), found[name][1]).array)
        return pairs

    for name, (by_table, at_once) in compilation.run(both, position, data).items():
        by_table, at_once = np.asarray(by_table), np.asarray(at_once)
        size = max(1.0, float(np.max(np.abs(at_once[np.isfinite(at_once)]), initial=0.0)))
        if not np.allclose(by_table, at_once, rtol=SAME, atol=SAME * size, equal_nan=True):
            raise ModelError(
                f"Site {name!r} depends on other elements of the discrete site {plan.depends[name][0]!r} than its own "
                "(for instance through a sum, a mean or an order of them), so that they cannot be summed out one by "
                "one. Write a chain as `numpyro.contrib.control_flow.scan`, or fit the program by `lv.VI` with "
                "distributions of its discrete sites."
            )


def _at(table: Factor, picked: list[Factor]) -> jax.Array:
    """A table at one value of each of its discrete sites."""
    for which in picked:
        table = Factor(jnp.where(which.aligned(table.axes), table.array, 0.0), table.axes).summed(which.axes[:1])
    return table.array
