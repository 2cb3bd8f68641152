"""Discrete latent sites with finitely many values, summed out of a program's log-density.

The program is run for every value of every such site at once, by `jax.vmap`. All elements of a site (all rows, say)
have the same value in a run, which is enough, since what one row adds depends on its own values only. What the run
leaves are tables, and `langevin.models.elimination` sums over them. Sites that no table has in common share an axis of
the `vmap`: a chain in a Python loop needs two, however long it is. Chains inside NumPyro's `scan` are in
`langevin.models.chains`.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any, NamedTuple, Protocol

import jax
import jax.numpy as jnp
import numpy as np
from numpyro.primitives import Messenger

from langevin.models import outline
from langevin.models.chains import Chain, Chains, Site, Trace, factor_of, label_value
from langevin.models.elimination import Factor, LogSum, eliminated, log_sum
from langevin.models.placing import log_det_of
from langevin.models.structure import Structure
from langevin.posterior import Batch, Centring, Position

NOTHING: Mapping[str, Any] = {}


class Traced(Protocol):
    """What is needed of a program."""

    def trace(
        self, position: Position, batch: Batch, centring: Centring, place: Any = None, around: Messenger | None = None
    ) -> Trace:
        """The sites of a run; `place` may give further ones their values."""
        ...

    def terms_of(self, found: Structure, trace: Trace) -> Iterator[tuple[str, dict[str, Any]]]:
        """The sites whose log-probabilities count."""
        ...


class Group(NamedTuple):
    """Discrete sites that are summed out together.

    Attributes:
        labels: The sites; none for a single chain.
        terms: The names of the terms that depend on them.
        by_row: Whether each row has its own, so that there is one sum a row.
        observed: Whether they enter the likelihood.
    """

    labels: frozenset[str]
    terms: tuple[str, ...]
    by_row: bool
    observed: bool


class Run(NamedTuple):
    """The tables of one run.

    Attributes:
        factors: By the name of the term.
        sites: What is static of each.
    """

    factors: dict[str, Factor]
    sites: dict[str, Site]


@dataclasses.dataclass(frozen=True, eq=False)
class Enumeration:
    """A program without its discrete sites.

    Attributes:
        program: The program.
        found: Its sites, without the discrete ones.
        choices: The discrete sites outside `scan`, and how many values each has.
        chains: The scans with discrete sites, by their place among the program's.
        depends: For each term, the discrete sites outside `scan` that it depends on, in the order of their axes.
        axis: For each discrete site, its axis of the `vmap`.
        compact: Whether a discrete site's value has size 1 along plates.
        supports: The values of each discrete site.
        dims: The names of each one's dimensions.
        groups: The sites that are summed out together.
        plates: For each discrete site outside `scan`, the names and sizes of the plates it is in.
        tied: The other latent sites whose distribution depends on a discrete site.
    """

    program: Traced
    found: Structure
    choices: dict[str, int]
    chains: dict[int, Chain]
    depends: dict[str, tuple[str, ...]]
    axis: dict[str, int]
    compact: bool
    supports: dict[str, np.ndarray]
    dims: dict[str, tuple[str, ...]]
    groups: tuple[Group, ...] = ()
    plates: dict[str, dict[str, int]] = dataclasses.field(default_factory=dict)
    tied: frozenset[str] = frozenset()
    _known: dict[str, frozenset[str]] = dataclasses.field(default_factory=dict)

    @property
    def names(self) -> tuple[str, ...]:
        """The discrete sites that are summed out."""
        return (*self.choices, *(name for chain in self.chains.values() for name in chain.labels))

    def terms(self, position: Position, batch: Batch, centring: Centring) -> tuple[jax.Array, jax.Array]:
        """The log-prior, a scalar, and the log-likelihood: one value a row, or one a part where rows share a label."""
        run = self.run(position, batch, centring)
        log_prior: Any = 0.0
        by_row: list[jax.Array] = []
        whole: list[jax.Array] = []
        for value, is_by_row, observed in self._sums(run, self.groups, NOTHING, log_sum):
            if is_by_row:
                by_row.append(value)
            elif observed:
                whole.append(value)
            else:
                log_prior = log_prior + value
        if by_row and not whole:
            return jnp.asarray(log_prior), sum(by_row[1:], by_row[0])
        return jnp.asarray(log_prior), jnp.stack([*whole, *map(jnp.sum, by_row)]) if whole else jnp.zeros(0)

    def total(
        self, position: Position, batch: Batch, centring: Centring, tilts: Mapping[str, jax.Array], log_sum: LogSum
    ) -> jax.Array:
        """The sum of all sums over discrete sites, with `tilts` added to the log-probabilities of their values.

        Its gradient in the tilts is the posterior probability of each value; see `langevin.models.drawing`.
        """
        run = self.run(position, batch, centring, tilts, log_sum)
        values = self._sums(run, self.groups, tilts, log_sum)
        return sum((jnp.sum(value) for value, _, _ in values), jnp.zeros((), jnp.result_type(float)))

    def explained(
        self, position: Position, batch: Batch, centring: Centring, sites: dict[str, tuple[bool, int | None]]
    ) -> dict[str, jax.Array]:
        """Each term at the value of the discrete sites that suits it best: where that is not finite, nothing is.

        Args:
            position: As in `terms`.
            batch: As in `terms`.
            centring: As in `terms`.
            sites: Filled with whether each term is observed, and the axis of its rows, from the right.
        """
        run = self.run(position, batch, centring)
        rows = self.found.row_plates[:1]
        best = {}
        for name, factor in run.factors.items():
            labels = len(self.depends.get(name, ()))
            best[name] = jnp.max(factor.array, axis=tuple(range(labels)))
            axes = factor.axes[labels:]
            row_dim = axes.index(rows[0]) - len(axes) if rows and rows[0] in axes else None
            sites[name] = (run.sites[name].observed, row_dim)
        return best

    def run(
        self,
        position: Position,
        batch: Batch,
        centring: Centring,
        tilts: Mapping[str, jax.Array] = NOTHING,
        log_sum: LogSum = log_sum,
    ) -> Run:
        """Runs the program for every value of its discrete sites."""
        sizes = [0] * (max(self.axis.values(), default=-1) + 1)
        for name, axis in self.axis.items():
            sizes[axis] = self.choices[name]
        sites: dict[str, Site] = {}

        def once(*index: Any) -> dict[str, jax.Array]:
            def place(site: dict[str, Any]) -> Any:
                if site["type"] != "sample" or site["name"] not in self.choices:
                    return None
                return label_value(site, index[self.axis[site["name"]]], compact=self.compact)

            around = Chains(self.chains, self.terms_of, log_sum, tilts, self._known)
            trace = self.program.trace(position, batch, centring, place, around)
            terms = {}
            for name, log_prob, static in self.terms_of(trace):
                terms[name], sites[name] = log_prob, static
            sites.update(around.sites)
            return terms | around.terms

        def on(axis: int) -> Callable[..., dict[str, jax.Array]]:
            """The run over the axes from this one on."""
            if axis == len(sizes):
                return once
            inner = on(axis + 1)

            def over(*index: Any) -> dict[str, jax.Array]:
                def split(value: Any) -> tuple[dict[str, jax.Array], dict[str, jax.Array]]:
                    terms = inner(*index, value)
                    mapped = {name for name in terms if axis in map(self.axis.__getitem__, self.depends.get(name, ()))}
                    return (
                        {name: term for name, term in terms.items() if name in mapped},
                        {name: term for name, term in terms.items() if name not in mapped},
                    )

                mapped, same = jax.vmap(split, out_axes=(0, None))(jnp.arange(sizes[axis]))
                return mapped | same

            return over

        terms = on(0)()
        factors = {name: factor_of(term, self.depends.get(name, ()), sites[name]) for name, term in terms.items()}
        return Run(factors, sites)

    def static(self, position: Position, batch: Batch, centring: Centring) -> tuple[dict[str, Site], dict[str, Any]]:
        """What is static of every term, and the shapes of the factors, by a run that computes nothing."""
        sites: dict[str, Site] = {}
        axes: dict[str, tuple[str, ...]] = {}

        def run() -> dict[str, jax.Array]:
            ran = self.run(position, batch, centring)
            sites.update(ran.sites)
            axes.update({name: factor.axes for name, factor in ran.factors.items()})
            return {name: factor.array for name, factor in ran.factors.items()}

        shapes = jax.eval_shape(run)
        return sites, {name: Factor(shape, axes[name]) for name, shape in shapes.items()}

    def _sums(
        self, run: Run, groups: Iterable[Group], tilts: Mapping[str, jax.Array], log_sum: LogSum
    ) -> Iterator[tuple[jax.Array, bool, bool]]:
        """Every part of the log-density, whether it is one of each row, and whether it is of the likelihood."""
        rows = self.found.row_plates[:1]
        grouped = {name for group in groups for name in group.terms}
        for group in groups:
            plates = {name: frozenset(self.plates[name]) for name in sorted(group.labels)}
            factors = [run.factors[name] for name in group.terms]
            factors += [Factor(tilts[name], (name, *self.plates[name])) for name in plates if name in tilts]
            kept = frozenset(rows) if group.by_row else frozenset()
            summed = eliminated(factors, plates, kept, log_sum)
            yield (summed.array, group.by_row, group.observed)
        for name, factor in run.factors.items():
            if name in grouped:
                continue
            site, of_rows = run.sites[name], bool(rows) and rows[0] in factor.axes
            by_row = of_rows and site.observed
            observed = site.observed and (by_row or not rows)
            gone = [axis for axis in factor.axes if not by_row or axis not in rows]
            yield (factor.summed(gone).array, by_row, observed)

    def terms_of(self, trace: Trace) -> Iterator[tuple[str, jax.Array, Site]]:
        """The log-probabilities of a trace that count, with what is static of them."""
        log_dets = {log_det_of(name) for name in self.found.shapes}
        rows = self.found.row_plates
        for name, site in self.program.terms_of(self.found, trace):
            log_prob = outline.log_prob(site)
            frames = {frame.dim: frame for frame in site["cond_indep_stack"]}
            plates, sizes = {}, {}
            for axis in range(-max(jnp.ndim(log_prob), *map(abs, (0, *frames))), 0):
                size = log_prob.shape[axis] if -axis <= jnp.ndim(log_prob) else 1
                if axis in frames:
                    plates[axis] = rows[0] if frames[axis].name in rows else frames[axis].name
                elif size > 1:
                    # Elements of a site that is in no plate are independent as well.
                    plates[axis] = f"axis {axis} of size {size}"
                else:
                    continue
                sizes[plates[axis]] = size
            yield name, log_prob, Site(plates, sizes, outline.is_observed(site) and name not in log_dets)
