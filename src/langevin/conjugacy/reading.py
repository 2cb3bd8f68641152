"""A program's log joint density as polynomials, a statement for each of its sites.

The program runs once, abstractly, with its latent sites as arguments. Of each site the arguments of its distribution
are kept, as a jaxpr of latent sites and data, and read as polynomials (`interpreter`); with the density of the
distribution (`densities`) that makes the site's log-density. Discrete latent sites have all their values side by side,
each site along an axis of its own to the left of all plates, and each value counts with its indicator.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from numpyro import distributions as dist

from langevin.conjugacy import augmentation
from langevin.conjugacy import polynomial as poly
from langevin.conjugacy.densities import DENSITIES, GAUSSIAN, OF_SHARES
from langevin.conjugacy.families import PolyaGamma
from langevin.conjugacy.indexing import At, Label, Taken
from langevin.conjugacy.interpreter import Interpreter
from langevin.conjugacy.latents import POSITIVE, Latent, constraint_of, peeled, support_name, values_of
from langevin.conjugacy.numbers import abstract, as_traced, floats, without_gaps
from langevin.conjugacy.polynomial import Opaque, Polynomial
from langevin.conjugacy.products import plain
from langevin.conjugacy.sites import SUM, Site, event_axes, site_of
from langevin.conjugacy.stepping import FIRST, LATER, Inside, Unrolled
from langevin.conjugacy.terms import INDICATOR, Factor, Term
from langevin.errors import ModelError
from langevin.models import outline
from langevin.models.joint import Joint
from langevin.posterior import Batch, num_rows


class Statement(NamedTuple):
    """The log-density of a site: a polynomial in the latent sites, summed over everything.

    Attributes:
        name: The site.
        distribution: The name of its distribution.
        log_density: A scalar.
        by_rows: Whether it is inside the plate over the rows, and so scaled in minibatches.
        count: The numbers of trials, where it has an auxiliary site.
        is_gaussian: Whether positive sites in it are precisions, or powers of them.
    """

    name: str
    distribution: str
    log_density: Any
    by_rows: bool
    count: Any = None
    is_gaussian: bool = False


class Reader:
    """Reads a program: once what is static, and its statements wherever a compiled function needs them.

    Args:
        joint: The program and its rows.
        num_rows: With how many rows it will be called.
        symbolic: The sites that statements are polynomials in; None for all. The others are numbers.
        logistic: Whether logistic likelihoods get auxiliary sites ("polya-gamma").

    Attributes:
        latents: The latent sites, and auxiliary ones.
        augmented: The auxiliary ones, with their families.
        like_given: What the values of the sites are like that are numbers.
    """

    def __init__(
        self, joint: Joint, num_rows: int, symbolic: tuple[str, ...] | None = None, logistic: str | None = None
    ) -> None:
        if joint.structure.params:
            raise ModelError(
                f"The program has a parameter without a prior, {joint.structure.params[0]!r}, and conditionals are of "
                "sites. Make it a `numpyro.sample`."
            )
        self._joint, self._num_rows, self._logistic = joint, num_rows, logistic
        self.augmented: dict[str, PolyaGamma] = {}
        self._sites: list[Site] = []
        self._depth = 0
        self._num_places = 0
        self.latents = self._found()
        self._symbolic = tuple(self.latents) if symbolic is None else symbolic
        like = {name: self._like(latent) for name, latent in self.latents.items()}
        self.like_given = {name: like[name] for name in like if name not in self._symbolic}
        batch = abstract(joint, num_rows)
        self._jaxpr = self._traced(like, batch)
        self._augment()

    @property
    def has_single(self) -> bool:
        """Whether anything that the program computes is in single precision.

        Of short whole numbers JAX computes functions in it, such as the log-gamma function of a number of trials.
        """
        jaxpr = self._jaxpr.jaxpr
        made = (variable for equation in jaxpr.eqns for variable in equation.outvars)
        if any(variable.aval.dtype == jnp.float32 for variable in (*jaxpr.constvars, *made)):
            return True
        return any(variable.aval.dtype == jnp.int32 for variable in jaxpr.constvars)

    def _traced(self, like: dict[str, Any], batch: Batch) -> Any:
        """The program as a jaxpr.

        Raises:
            ModelError: If it fails; where labels have all their values side by side, that may be why.
        """
        try:
            return jax.make_jaxpr(self._arguments)(like, batch, self._joint.fixed)
        except ModelError as error:
            spread = [name for name, latent in self.latents.items() if self._is_spread(latent)]
            if not spread:
                raise
            raise ModelError(
                f"The program fails where {spread[0]!r} has all its values side by side, along an axis of its own to "
                "the left of the plates. A label may be used element by element in its plate: several labels in one "
                "sum, as in x @ (slope * label), have no conditionals of their own that are derived here. Take a prior "
                f"without labels there, such as a horseshoe. ({error})"
            ) from error

    def statements(
        self, batch: Batch, values: Mapping[str, Any] | None = None, *, as_all: bool = False
    ) -> list[Statement]:
        """The log-densities of all sites at these rows.

        Args:
            batch: Rows.
            values: Of the sites that are not symbolic.
            as_all: Whether these count as all rows there are, and nothing is scaled.
        """
        symbols: dict[str, Any] = {}
        for name, latent in self.latents.items():
            if name in self.augmented:
                continue
            if name not in self._symbolic:
                symbols[name] = (values or {})[name]
            elif latent.values is not None:
                symbols[name] = self._side_by_side(latent)
            else:
                symbols[name] = poly.variable(name, latent.shape, positive=latent.support in POSITIVE)
        leaves = jax.tree.leaves((symbols, batch, self._joint.fixed), is_leaf=poly.is_symbolic)
        typed = map(as_traced, leaves, self._jaxpr.in_avals)
        outputs = iter(Interpreter().run(self._jaxpr, list(typed)))
        statements = []
        for site in self._sites:
            given = {name: next(outputs) for name in site.given}
            scale = given.pop("_scale", None)
            scale = scale if as_all else self._scale(site, scale, batch)
            statements.append(self._statement(site, given, scale))
        return statements

    def _statement(self, site: Site, given: dict[str, Any], scale: Any) -> Statement:
        mask = given.pop("_mask", None)
        name, count = site.kind.__name__, None
        if SUM in given:
            array = plain(given[SUM])
        else:
            as_taken = floats if site.kind in OF_SHARES else lambda argument: floats(plain(argument))
            value = plain(given.pop("value"))
            numbers = {key: as_taken(argument) for key, argument in given.items()}
            if augmentation.auxiliary(site.name) in self.augmented:
                count = numbers.setdefault("total_count", np.ones(()))
                array = self._augmented_density(site, value, numbers["logits"], count)
            else:
                array = self._density_at(site, value if mask is None else without_gaps(value), numbers)
            shape = np.broadcast_shapes(np.shape(array), site.batch_shape)
            array = poly.broadcast_to(array, shape)
            if site.num_events:
                array = poly.total(array, range(-site.num_events, 0))
        for weight in (mask, scale):
            if weight is not None:
                weight = weight * 1.0 if not isinstance(weight, bool) else float(weight)
                array = poly.multiply(array, weight)
        return Statement(site.name, name, self._summed(site, array), site.by_rows, count, site.kind in GAUSSIAN)

    def _density_at(self, site: Site, value: Any, numbers: dict[str, Any]) -> Any:
        """The log-density of a site.

        Raises:
            ModelError: If the shapes do not fit: of labels, which have all their values side by side, that is why.
        """
        try:
            return DENSITIES[site.kind].log_density(value, **numbers)
        except ValueError as error:
            spread = [name for name, latent in self.latents.items() if self._is_spread(latent)]
            if not spread:
                raise
            listed = " or ".join(map(repr, spread))
            raise ModelError(
                f"Site {site.name!r} ({site.kind.__name__}) depends on several elements of {listed} at a time, or on "
                "them along other axes than their plate's, and a label may be used element by element in its plate. "
                "Put both into the same plates; pairs of labels, as in block models of networks, are not derived here. "
                f"({error})"
            ) from error

    def _summed(self, site: Site, array: Any) -> Any:
        """The sum, over the values of labels with their indicators."""
        if isinstance(array, Opaque):
            return array
        labels = list(self._labels_of(array))
        if not poly.is_symbolic(array) and not labels:
            return jnp.sum(array)
        array = poly.as_polynomial(array)
        axes = list(array.axes)
        # Of later steps, the axis of time is to the left of everything.
        time = axes[0] if site.steps == LATER else None
        for latent, axis, before in labels:
            self._check_plates(site, latent)
            values = axes[axis]
            access: list[Any] = [Taken(np.asarray(0), ()) if values is None else At(values)]
            shape = latent.shape
            if latent.time is not None:
                if site.steps == LATER and time is not None:
                    access.append(At(time, 0 if before else 1))
                else:
                    access.append(Taken(np.asarray(0 if site.steps == FIRST or before else 1), ()))
                shape = shape[1:]
            for own, size in enumerate(shape):
                place = array.ndim - len(shape) + own
                if size == 1:
                    access.append(Taken(np.asarray(0), ()))
                    continue
                label = axes[place] = axes[place] or Label(size)
                access.append(At(label))
            factor = Factor(latent.name, INDICATOR, 1.0, tuple(access))
            terms = tuple(term.times(Term((), (factor,))) for term in array.terms)
            array = Polynomial(array.shape, array.axes, terms)
        shape = tuple(size if label is None else label.size for size, label in zip(array.shape, axes, strict=True))
        return poly.total(Polynomial(shape, tuple(axes), array.terms))

    def _labels_of(self, array: Any) -> Iterator[tuple[Latent, int, bool]]:
        """The discrete sites that an array depends on, the axis of their values, and whether of the step before."""
        shape = np.shape(array) if not poly.is_symbolic(array) else array.shape
        for name, latent in self.latents.items():
            if name not in self._symbolic or latent.values is None:
                continue
            for place in filter(None, (latent.place, latent.place_before)):
                axis = len(shape) - self._depth - place
                if axis >= 0 and shape[axis] > 1:
                    yield latent, axis, place == latent.place_before

    def _augment(self) -> None:
        """Makes the auxiliary sites of logistic likelihoods."""
        if self._logistic is None:
            return
        for site in self._sites:
            if site.kind not in (dist.BernoulliLogits, dist.BinomialLogits) or site.name in self.latents:
                continue
            if "_scale" in site.given:
                raise ModelError(
                    f"Site {site.name!r} ({site.kind.__name__}) has the handler `scale`, and with it no auxiliary "
                    "variables that are known. A row that counts several times is a binomial one: "
                    "dist.Binomial(total_count, logits=...)."
                )
            name = augmentation.auxiliary(site.name)
            shape = site.batch_shape
            self.augmented[name] = PolyaGamma(shape)
            self.latents[name] = Latent(name, shape, "positive", None, 0, 0, (), site.by_rows, None, "PolyaGamma")
        self._symbolic = (*self._symbolic, *self.augmented)

    def _augmented_density(self, site: Site, value: Any, logits: Any, count: Any) -> Any:
        name = augmentation.auxiliary(site.name)
        omega = poly.variable(name, self.latents[name].shape, positive=True)
        return augmentation.log_density(omega, value, logits, count)

    def _check_plates(self, site: Site, latent: Latent) -> None:
        missing = [name for axis, name in latent.plates if (axis, name) not in site.plates]
        if missing:
            raise ModelError(
                f"Discrete site {latent.name!r} is in the plate {missing[0]!r}, and site {site.name!r}, which depends "
                "on it, is not: each of its elements may concern that element of the plate alone. Put both into the "
                "same plate."
            )

    def _scale(self, site: Site, scale: Any, batch: Batch) -> Any:
        """What the handler `scale` and minibatches multiply a site by."""
        if site.by_rows and num_rows(batch) != self._joint.num_data:
            of_rows = self._joint.num_data / num_rows(batch)
            return of_rows if scale is None else scale * of_rows
        return scale

    def _found(self) -> dict[str, Latent]:
        """The latent sites, from an abstract run."""
        joint, structure = self._joint, self._joint.structure
        found: dict[str, Latent] = {}

        def run(batch: Batch) -> int:
            call = lambda rows: joint.function(**rows, **joint.program.constants)  # noqa: E731
            inside = Inside()
            with inside:
                trace, _ = outline.trace_of(call, batch)
            places = iter(range(1, 2 * len(trace) + 1))
            for name, site in trace.items():
                if site["type"] != "sample":
                    continue
                shape = jnp.shape(site["value"])
                axes = (len(shape) - site["fn"].event_dim, len(site["fn"].batch_shape))
                self._depth = max(self._depth, *axes)
                if name not in structure.shapes:
                    continue
                values, place, before = None, 0, 0
                time = 0 if name in inside.names else None
                if name in structure.discrete:
                    values, place = values_of(name, site["fn"]), next(places)
                    before = 0 if time is None else next(places)
                    self._num_places = max(place, before)
                in_plates = {frame.dim: frame.name for frame in site["cond_indep_stack"]}
                found[name] = Latent(
                    name,
                    tuple(shape),
                    support_name(site["fn"], name in structure.discrete),
                    values,
                    place,
                    before,
                    tuple(
                        (dim, plate)
                        for dim, plate in in_plates.items()
                        if -dim <= len(shape) and shape[dim - site["fn"].event_dim] > 1
                    ),
                    any(plate in structure.row_plates for plate in in_plates.values()),
                    time,
                    type(peeled(site["fn"])[0]).__name__,
                    constraint_of(site["fn"]),
                )
            return 0

        jax.eval_shape(run, abstract(joint, self._num_rows))
        return found

    def _arguments(self, values: dict[str, Any], batch: Batch, fixed: dict[str, Any]) -> list[Any]:
        """What the distributions of all sites are given, as a function of the latent sites."""
        joint = self._joint.given(fixed) if fixed else self._joint
        inside = {
            name: (value, self._moved_left(value, latent)) if self._is_spread(latent) else value
            for name, value in values.items()
            for latent in [self.latents[name]]
            if latent.time is not None
        }
        outside = {name: value for name, value in values.items() if name not in inside}
        unrolled = Unrolled(inside, self._told)
        with unrolled:
            trace = joint.trace(joint.function, batch, outside, jax.random.key(0))
        self._sites = []
        outputs: list[Any] = []
        for name, site in trace.items():
            if site["type"] == "sample":
                static, given = self._told(name, site, padded=False)
                self._sites.append(static)
                outputs += [given[key] for key in static.given]
        for _, which, static, given in unrolled.sites:
            self._sites.append(static._replace(steps=which))
            outputs += [given[key] for key in static.given]
        return outputs

    def _is_spread(self, latent: Latent) -> bool:
        return latent.values is not None and latent.name in self._symbolic

    def _moved_left(self, value: Any, latent: Latent) -> Any:
        """The values of a discrete site along the axis of the step before."""
        return jnp.reshape(value, self._spread_shape(latent, latent.place_before))

    def _spread_shape(self, latent: Latent, place: int) -> tuple[int, ...]:
        return (len(latent.values or ()),) + (1,) * (self._depth + place - 1)

    def _side_by_side(self, latent: Latent) -> np.ndarray:
        """All values of a discrete site, along its own axis to the left of the plates."""
        return np.asarray(latent.values).reshape(self._spread_shape(latent, latent.place))

    def _like(self, latent: Latent) -> jax.ShapeDtypeStruct:
        """What a site is like as an argument of the abstract run."""
        if self._is_spread(latent):
            return jax.ShapeDtypeStruct(self._spread_shape(latent, latent.place), jnp.result_type(int))
        kind = float if latent.values is None else int
        return jax.ShapeDtypeStruct(latent.shape, jnp.result_type(kind))

    def _told(self, name: str, site: dict[str, Any], padded: bool = True) -> tuple[Site, dict[str, Any]]:
        """What is kept of a site; inside a `scan` with axes to the full number, so that time can come before them."""
        static, given = site_of(name, site, self._joint.sites.row_plates)
        if not padded:
            return static, given
        rank = self._depth + self._num_places
        events = {key: event_axes(site, key, static) for key in given}
        return static, {
            key: jnp.reshape(value, (1,) * (rank + events[key] - jnp.ndim(value)) + jnp.shape(value))
            for key, value in given.items()
        }
