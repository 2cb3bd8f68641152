"""A NumPyro program, unchanged, as a `Posterior`.

The program is called with rows and constants as keywords. Its latent sites live on the real line through `biject_to`,
and the log-determinants of those maps belong to `log_prior`. The observed sites inside the plate over the rows are the
likelihood; everything else is `log_prior`, and must then be the same whatever rows the program is called with. Discrete
latent sites are summed out (`langevin.models.enumeration`).
"""

from __future__ import annotations

import dataclasses
import functools
import inspect
import re
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, nullcontext
from types import MappingProxyType
from typing import Any, Literal

import jax
import jax.numpy as jnp
import numpy as np
from numpyro import distributions as dist
from numpyro import handlers
from numpyro.ops.provenance import eval_provenance

from langevin import culprit
from langevin.data.table import Table, as_arrays
from langevin.errors import ModelError, SettingError
from langevin.models import outline, structure
from langevin.models.centring import can_be_noncentred, is_adjustable, recentred, scale_of
from langevin.models.enumeration import Enumeration
from langevin.models.explaining import explained, summed_to_rows
from langevin.models.joint import Called, Joint
from langevin.models.placing import log_det_of, place_site
from langevin.models.planning import enumeration_of
from langevin.models.structure import Structure
from langevin.models.wrappers import unwrapped
from langevin.posterior import Batch, Centring, Model, Position, Posterior

INIT_RADIUS = 2.0
Noncentred = bool | tuple[str, ...] | Literal["auto"]


def as_noncentred(value: Any) -> Noncentred:
    """What a user asked for: a name alone stands for itself.

    Raises:
        SettingError: If it is neither True, False, "auto" nor names.
    """
    if isinstance(value, bool) or value == "auto":
        return value
    names = (value,) if isinstance(value, str) else value
    if not isinstance(names, list | tuple) or not all(isinstance(name, str) for name in names):
        raise SettingError(f"`noncentred` must be True, False, 'auto' or names of sites; got {value!r}.")
    return tuple(names)


@dataclasses.dataclass(frozen=True, eq=False)
class Program:
    """A NumPyro program with the constants it is called with.

    Args:
        function: The program.
        constants: Keyword arguments that are passed whole, and are not rows.
        rows: The name (or names) of the plate over the rows, where it cannot be told by its size.
        noncentred: Sites whose noise is inferred in place of the site (see `langevin.models.centring`); True for all
            that can be. "auto" leaves it to an engine how far to centre each site whose scale is unknown itself.

    Example:
        >>> import numpyro, numpyro.distributions as dist
        >>> def model(x):
        ...     scale = numpyro.sample("scale", dist.HalfNormal(1.0))
        ...     with numpyro.plate("rows", len(x)):
        ...         numpyro.sample("x", dist.Normal(0.0, scale), obs=x)
        >>> from langevin.data.table import as_table
        >>> posterior = Program(model).posterior(as_table({"x": [0.0, 1.0]}))
        >>> posterior.num_data, posterior.dims
        (2, (('scale', ()),))
    """

    function: Callable[..., Any]
    constants: Mapping[str, Any] = dataclasses.field(default_factory=dict)
    rows: str | tuple[str, ...] | None = None
    noncentred: Noncentred = False

    def posterior(self, table: Table, *, minibatch: bool = False) -> Posterior:
        """The target on these rows.

        Args:
            table: The rows.
            minibatch: Whether engines will see minibatches. If so, the program must be one whose rows are independent
                given its global sites; deterministic sites that depend on the rows are then not reported.

        Raises:
            ModelError: Names the site that cannot be handled, and says what to do.
        """
        sites = self._structure(table, minibatch)
        return self._posterior(table, sites, minibatch, sites.obstacles)

    def joint(self, table: Table, *, minibatch: bool = False) -> Joint:
        """The program as the joint distribution of its sites: it may have parameters, and latent sites of any kind.

        Args:
            table: The rows.
            minibatch: Whether it will be called with minibatches.

        Raises:
            ModelError: Names the site that cannot be handled, and says what to do.
        """
        return self._joint(table, self._structure(table, minibatch), minibatch)

    def target(
        self, table: Table, kind: Literal["density", "joint", "either", "local"], *, minibatch: bool = False
    ) -> Posterior | Joint:
        """The posterior ("density") or the joint; "either" is the posterior, unless something stands in its way.

        "local" is the posterior, and may have sites of every row.

        Raises:
            ModelError: Names the site that cannot be handled, and says what to do.
        """
        sites = self._structure(table, minibatch)
        if kind == "joint" or (kind == "either" and sites.obstacles):
            return self._joint(table, sites, minibatch)
        return self._posterior(table, sites, minibatch, sites.barriers if kind == "local" else sites.obstacles)

    def call(self, batch: Batch) -> Any:
        """Runs the program on these rows."""
        return culprit.guarded(self.function, "The program")(**batch, **self.constants)

    def _structure(self, table: Table, minibatch: bool) -> Structure:
        self._check_names(table)
        return structure.find(self.call, table, self.rows, minibatch)

    def _posterior(self, table: Table, sites: Structure, minibatch: bool, obstacles: tuple[str, ...]) -> Posterior:
        if obstacles:
            raise ModelError(obstacles[0])
        data = as_arrays(table, copy=not minibatch)
        if sites.discrete:
            return self._without_discrete(table, sites, data, minibatch)
        self._check_noncentred(sites)
        sites = dataclasses.replace(sites, adjustable=self._adjustable(sites, data))
        return self._made(table, sites, sites, data, minibatch)

    def _without_discrete(self, table: Table, sites: Structure, data: Batch, minibatch: bool) -> Posterior:
        """The posterior with the discrete sites summed out."""
        centred = dataclasses.replace(self, noncentred=False)
        plan = enumeration_of(centred, sites, data, by_rows=minibatch)
        # A site whose distribution depends on a discrete one has no location and scale until that is known.
        noncentred = plan.found.with_scale if self.noncentred is True else self.noncentred
        program = dataclasses.replace(self, noncentred=noncentred)
        program._check_noncentred(plan.found)
        found = dataclasses.replace(plan.found, adjustable=program._adjustable(plan.found, data))
        labels = dataclasses.replace(plan, program=program, found=found)
        return program._made(table, sites, found, data, minibatch, labels)

    def _made(
        self,
        table: Table,
        whole: Structure,
        sites: Structure,
        data: Batch,
        minibatch: bool,
        labels: Enumeration | None = None,
    ) -> Posterior:
        """The posterior over these sites of the whole program, where the others (`labels`) are summed out."""
        dtype = jnp.result_type(float)
        like = {name: jax.ShapeDtypeStruct(shape, dtype) for name, shape in sites.shapes.items()}
        model = Model(
            terms=functools.partial(self._terms, sites, minibatch) if labels is None else labels.terms,
            report=functools.partial(self._report, sites),
            start=lambda generator: _start(sites, generator),
            like=like,
            dims=tuple((name, sites.dims[name]) for name in sites.reported),
            explain=functools.partial(explained, self, sites, labels),
            gaussian_priors=functools.partial(self._gaussian_priors, sites, labels),
            adjustable={name: like[name] for name in sites.adjustable},
            recentred=functools.partial(self._recentred, sites),
            program=Called(self.function, self.constants),
            sites=whole,
            row_plates=sites.row_plates,
            observed=sites.observed,
            labels=labels,
            left_out=sites.left_out,
            local=sites.local,
            log_probs=functools.partial(self._log_probs, sites) if labels is None else None,
        )
        # Where minibatches are asked for, `structure.find` checked that the rows are independent.
        target = Posterior(data, model, table.num_rows, by_rows=minibatch)
        return target.with_centring({name: np.zeros(like[name].shape) for name in sites.adjustable})

    def _joint(self, table: Table, sites: Structure, minibatch: bool) -> Joint:
        if self.noncentred not in (False, "auto"):
            raise ModelError("`noncentred` is not for a guide, which has its own sites. Leave it out.")
        called = Called(self.function, self.constants)
        return Joint(as_arrays(table, copy=not minibatch), called, sites, table.num_rows)

    def _check_names(self, table: Table) -> None:
        overlap = {*table.columns, *table.left} & set(self.constants)
        if overlap:
            raise ModelError(f"`data` and `constants` both have {sorted(overlap)}. Keep each in one place.")
        try:
            signature = inspect.signature(self.function)
        except ValueError:
            return
        try:
            bound = signature.bind(**table.columns, **self.constants)
        except TypeError as error:
            raise ModelError(
                f"The program cannot be called with the names in `data` and `constants`: {error}. It has the arguments "
                f"{signature}; `data` has {sorted([*table.columns, *table.left])} and `constants` "
                f"{sorted(self.constants)}."
            ) from error
        for name in signature.parameters:
            alike = [other for other in table.left if _bare(other) == _bare(name)]
            if alike and name not in bound.arguments:
                raise ModelError(
                    f"The program has the argument {name!r}, and `data` the column {alike[0]!r}. Give them one name."
                )

    def _check_noncentred(self, found: Structure) -> None:
        if isinstance(self.noncentred, bool) or self.noncentred == "auto":
            return
        for name in self.noncentred:
            if name not in found.shapes:
                raise ModelError(
                    f"`noncentred`: there is no latent site {name!r}; there are {', '.join(found.shapes)}."
                )
            if name not in found.with_scale:
                raise ModelError(
                    f"`noncentred`: site {name!r} has no location and scale. Those that have: "
                    f"{', '.join(found.with_scale) or 'none'}."
                )

    def _adjustable(self, found: Structure, data: Batch) -> tuple[str, ...]:
        """The sites whose centring is to be chosen: those whose scale depends on other sites."""
        if self.noncentred != "auto" or not found.with_scale or len(found.shapes) < 2:
            return ()

        def scales(**position: jax.Array) -> dict[str, jax.Array]:
            trace = self.trace(position, data, {})
            sites = {name: trace[name] for name in found.with_scale}
            return {
                name: scale_of(site["fn"])
                for name, site in sites.items()
                # Inside `scan`, a site's distribution is that of all its times.
                if is_adjustable(site["fn"]) and site["fn"].shape() == found.values[name].shape
            }

        dtype = jnp.result_type(float)
        zeros = {name: np.zeros(shape, dtype) for name, shape in found.shapes.items()}
        depends = eval_provenance(scales, **zeros)
        return tuple(name for name, on in depends.items() if on)

    def _is_noncentred(self, site: dict[str, Any]) -> bool:
        asked = self.noncentred is True or (isinstance(self.noncentred, tuple) and site["name"] in self.noncentred)
        return asked and can_be_noncentred(site["fn"])

    def _has_own_density(self, found: Structure, site: dict[str, Any]) -> bool:
        """Whether the position holds the site itself, and not something that was given its log-density already."""
        return site["name"] not in found.adjustable and not self._is_noncentred(site)

    def trace(
        self,
        position: Position,
        batch: Batch,
        centring: Centring,
        place: Callable[[dict[str, Any]], Any] = lambda site: None,
        around: AbstractContextManager[Any] | None = None,
    ) -> dict[str, Any]:
        """The sites of a run at a position.

        Args:
            position: Unconstrained values by site.
            batch: Rows.
            centring: How far sites are centred.
            place: Gives further sites their values, or None.
            around: A handler around the run.
        """

        def substitute(site: dict[str, Any]) -> Any:
            value = place(site)
            if value is not None:
                return value
            noncentred = site["type"] == "sample" and self._is_noncentred(site)
            return place_site(position, site, noncentred=noncentred, centring=centring.get(site["name"]))

        program = handlers.substitute(self.call, substitute_fn=substitute)
        with outline.HANDLERS, around or nullcontext():
            trace = handlers.trace(handlers.seed(program, jax.random.key(0))).get_trace(batch)
        if around is None:
            outline.check_same_sites(trace, position)
        return trace

    def terms_of(self, found: Structure, trace: dict[str, Any]) -> Iterator[tuple[str, dict[str, Any]]]:
        """The sites whose log-probabilities are terms of the log-density; that of a noise is already among them."""
        for name, site in trace.items():
            if site["type"] == "sample" and (outline.is_observed(site) or self._has_own_density(found, site)):
                yield name, site

    def _terms(
        self, found: Structure, minibatch: bool, position: Position, batch: Batch, centring: Centring
    ) -> tuple[jax.Array, jax.Array]:
        local = (name for latent in found.local for name in (latent, log_det_of(latent)))
        return self.terms_given(found, position, batch, centring, with_rows=frozenset(local if minibatch else ()))

    def terms_given(
        self,
        found: Structure,
        position: Position,
        batch: Batch,
        centring: Centring,
        given: Mapping[str, Any] = MappingProxyType({}),
        with_rows: frozenset[str] = frozenset(),
    ) -> tuple[jax.Array, jax.Array]:
        """The log-prior and the log-likelihood, with further sites at given values.

        Args:
            found: The sites of the program.
            position: Unconstrained values by site.
            batch: Rows.
            centring: How far sites are centred.
            given: Values of discrete sites. Those inside the plate over the rows count with the row.
            with_rows: Other latent sites that do.
        """
        log_prior: Any = 0.0
        by_row, whole = [], []
        log_dets = {log_det_of(name) for name in found.shapes}
        trace = self.trace(position, batch, centring, lambda site: given.get(site["name"]))
        for name, site in self.terms_of(found, trace):
            log_prob = outline.log_prob(site)
            row_dim = outline.row_dim(site, found.row_plates)
            observed = name in given or name in with_rows or (outline.is_observed(site) and name not in log_dets)
            if observed and row_dim is not None:
                by_row.append(summed_to_rows(log_prob, row_dim))
            elif observed and not found.row_plates:
                whole.append(jnp.sum(log_prob))
            else:
                log_prior = log_prior + jnp.sum(log_prob)
        if by_row:
            return jnp.asarray(log_prior), sum(by_row[1:], by_row[0])
        return jnp.asarray(log_prior), jnp.stack(whole) if whole else jnp.zeros(0)

    def _log_probs(
        self, found: Structure, position: Position, batch: Batch, centring: Centring
    ) -> dict[str, jax.Array]:
        """The log-probability of each site, with that of its map to the real line."""
        sums: dict[str, jax.Array] = {}
        owner = {log_det_of(name): name for name in found.shapes}
        for name, site in self.terms_of(found, self.trace(position, batch, centring)):
            key = owner.get(name, name)
            sums[key] = sums.get(key, jnp.zeros(())) + jnp.sum(outline.log_prob(site))
        return sums

    def _recentred(
        self, found: Structure, position: Position, batch: Batch, centring: Centring, other: Centring
    ) -> Position:
        trace = self.trace(position, batch, centring)
        moved = {
            name: recentred(trace[name]["fn"], position[name], centring[name], other[name]) for name in found.adjustable
        }
        return {**position, **moved}

    def _gaussian_priors(
        self, found: Structure, labels: Enumeration | None, position: Position, batch: Batch, centring: Centring
    ) -> dict[str, Any]:
        priors = {}
        for name, site in self.trace(position, batch, centring).items():
            if labels is not None and name in labels.tied:
                continue
            if name not in found.shapes or site["scale"] is not None or not self._has_own_density(found, site):
                continue
            prior = unwrapped(site["fn"], masks=False)
            if type(prior) is dist.Normal:
                priors[name] = prior
        return priors

    def _report(
        self, sites: Structure, position: Position, batch: Batch, hidden: frozenset[str], centring: Centring
    ) -> dict[str, jax.Array]:
        trace = self.trace(position, batch, centring)
        return {name: jnp.asarray(trace[name]["value"]) for name in sites.reported if name not in hidden}


def _bare(name: str) -> str:
    """A name without what people write in different ways: capitals, blanks, dots."""
    return re.sub(r"[\W_]+", "", name).casefold()


def _start(found: Structure, generator: np.random.Generator) -> Position:
    """Uniform within two units of zero on the unconstrained scale, as Stan does."""
    dtype = jnp.result_type(float)
    return {
        name: np.asarray(generator.uniform(-INIT_RADIUS, INIT_RADIUS, shape), dtype)
        for name, shape in found.shapes.items()
    }
