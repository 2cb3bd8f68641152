"""The one target that every engine sees.

    log p(position, batch) = log_prior(position) + (num_data / rows in batch) * sum(log_likelihood(position, batch))

`batch=None` means all rows, with no scaling. Positions are unconstrained pytrees; the Jacobian of the map to the
constrained space is part of `log_prior`.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from langevin.errors import ModelError

Position = Any
Batch = Any
Key = jax.Array
Dims = tuple[tuple[str, tuple[str, ...]], ...]
Centring = Mapping[str, Any]
TILT = "_tilt"


@dataclasses.dataclass(frozen=True, eq=False)
class Model:
    """What a model says of its positions. It knows no rows: they are arguments.

    `centring` says, for each site that can be anywhere between non-centred (0) and centred (1), how far it is.

    Attributes:
        terms: `(position, batch, centring) -> (log_prior, log_likelihood)`, a scalar and one value a row. Both come
            from one call because a NumPyro program computes both in one pass.
        report: `(position, data, hidden, centring) -> dict of name -> array`: what is reported of a draw, without the
            sites that are hidden.
        start: `generator -> position`: a random point to start from, made by NumPy's generator.
        like: A position with shapes (`jax.ShapeDtypeStruct`) in place of arrays: what every position must be like.
        dims: For each reported name, the names of its dimensions.
        explain: `(position, data, centring) -> str`: says which part of the model is not finite at a position.
        gaussian_priors: `(position, batch, centring) -> dict of name -> Normal`: the leaves of the position that have a
            Gaussian prior, given the others, with that prior. For divergences in closed form.
        adjustable: The sites whose centring can be chosen, each like a position has it.
        recentred: `(position, batch, centring, other) -> position`: the same point under another centring.
        program: The NumPyro program and its constants (`langevin.models.joint.Called`); None for a density.
        sites: All sites of the program, discrete ones too (`langevin.models.structure.Structure`); None for a density.
        row_plates: The program's plates over the rows.
        observed: The sites that have a given value.
        labels: The discrete sites that were summed out, if there are any (`langevin.models.enumeration`).
        left_out: The names that are not reported, because they depend on the rows of a minibatch.
        judged_by: The names by which it is judged whether chains have mixed, and that are shown; empty for all.
        remark: What the target is, where it is not the posterior.
        local: The latent sites that every row has its own of.
        log_probs: `(position, batch, centring) -> dict of name -> scalar`: the log-probability of each site of a
            program, latent or observed; None for a density.
        network: The `lv.Network`, if the model is one: engines ask it for layers, and take other defaults.
    """

    terms: Callable[[Position, Batch, Centring], tuple[jax.Array, jax.Array]]
    report: Callable[[Position, Batch, frozenset[str], Centring], dict[str, jax.Array]]
    start: Callable[[np.random.Generator], Position]
    like: Position
    dims: Dims = ()
    explain: Callable[[Position, Batch, Centring], str] = lambda position, data, centring: ""
    gaussian_priors: Callable[[Position, Batch, Centring], dict[str, Any]] = lambda position, batch, centring: {}
    adjustable: Mapping[str, Any] = dataclasses.field(default_factory=dict)
    recentred: Callable[[Position, Batch, Centring, Centring], Position] = lambda position, batch, old, new: position
    program: Any = None
    sites: Any = None
    row_plates: tuple[str, ...] = ()
    observed: tuple[str, ...] = ()
    labels: Any = None
    left_out: tuple[str, ...] = ()
    judged_by: tuple[str, ...] = ()
    remark: str = ""
    local: tuple[str, ...] = ()
    log_probs: Callable[[Position, Batch, Centring], dict[str, jax.Array]] | None = None
    network: Any = None


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class Posterior:
    """A log-density over unconstrained positions that knows its rows; a `langevin.contracts.Target`.

    It is a pytree whose only leaves are the data and the values of fixed sites, so that it can be an argument of a
    compiled function: the same program serves other arrays of the same shape, and a large data set never becomes a
    constant in it. Every position is checked when a function is traced, which costs nothing in compiled code.

    Attributes:
        data: Arrays whose first `num_data` rows are the data. More rows may follow: minibatches need the
            first ones again after the last (see `langevin.data.batches`).
        model: What is known of a position and some rows.
        num_data: How many rows there are; 0 for a density without data.
        by_rows: Whether the model was checked to have rows that are independent given the position, so that a batch of
            any number of them can be taken. A NumPyro program is checked only where minibatches are asked for.
        fixed: The unconstrained values of the sites that are no longer part of the position: see `given`.
        centring: For each site whose centring can be chosen, how far its elements are centred, from 0 (the unknown is
            the noise of the site) to 1 (it is the site); see `langevin.models.centring`.
    """

    data: Batch
    model: Model = dataclasses.field(metadata={"static": True})
    num_data: int = dataclasses.field(metadata={"static": True})
    by_rows: bool = dataclasses.field(metadata={"static": True})
    fixed: dict[str, Any] = dataclasses.field(default_factory=dict)
    centring: dict[str, Any] = dataclasses.field(default_factory=dict)

    @property
    def rows(self) -> Batch:
        """All rows, and nothing but the rows."""
        return jax.tree.map(lambda array: array[: self.num_data], self.data) if self.num_data else self.data

    @property
    def dims(self) -> Dims:
        """For each reported name, the names of its dimensions."""
        return tuple((name, dims) for name, dims in self.model.dims if name not in self.fixed)

    @property
    def observed(self) -> tuple[str, ...]:
        """The sites that have a given value."""
        return self.model.observed

    @property
    def summed_out(self) -> tuple[str, ...]:
        """The discrete sites of the program that are summed out of the log-density."""
        return () if self.model.labels is None else self.model.labels.names

    @property
    def left_out(self) -> tuple[str, ...]:
        """The names that are not reported, because they depend on the rows of a minibatch."""
        return self.model.left_out

    def log_density(self, position: Position, batch: Batch | None = None) -> jax.Array:
        """The log posterior up to a constant, estimated from `batch`, or exact from all rows.

        Raises:
            ModelError: If the position lacks a site, has one that the model does not know, or one of another shape.

        Example:
            >>> import jax.numpy as jnp, langevin as lv
            >>> density = lv.Density(lambda m: -m**2 / 2, lambda m, rows: -(rows["x"] - m)**2 / 2, init=0.0)
            >>> posterior = density.posterior({"x": jnp.arange(4.0)})
            >>> float(posterior.log_density(1.0)), float(posterior.log_density(1.0, {"x": jnp.array([3.0])}))
            (-3.5, -8.5)
        """
        if batch is None:
            log_prior, log_likelihood = self.terms(position, self.rows)
            return log_prior + jnp.sum(log_likelihood)
        log_prior, log_likelihood = self.terms(position, batch)
        return log_prior + (self.num_data / num_rows(batch)) * jnp.sum(log_likelihood)

    def terms(self, position: Position, batch: Batch) -> tuple[jax.Array, jax.Array]:
        """The log-prior, a scalar, and the log-likelihood, one value a row, not scaled."""
        return self.model.terms(self._whole(position), batch, self.centring)

    def log_prior(self, position: Position) -> jax.Array:
        """The part of the log-density that no row enters."""
        return self.terms(position, self._few)[0]

    def log_likelihood(self, position: Position, batch: Batch | None = None) -> jax.Array:
        """One value a row, not scaled."""
        return self.terms(position, self.rows if batch is None else batch)[1]

    def priors(self, position: Position, batch: Batch | None = None) -> dict[str, Any]:
        """The Gaussian priors of leaves of the position, given the others."""
        rows = self.rows if batch is None else batch
        priors = self.model.gaussian_priors(self._whole(position), rows, self.centring)
        return {name: prior for name, prior in priors.items() if name not in self.fixed}

    def constrain(self, position: Position) -> dict[str, jax.Array]:
        """What is reported of a position: constrained sites that are not fixed, and deterministic ones."""
        return self.model.report(self._whole(position), self._few, frozenset(self.fixed), self.centring)

    def explain(self, position: Position, data: Batch) -> str:
        """Says which part of the model is not finite at a position."""
        return self.model.explain(self._whole(position), data, self.centring)

    def start(self, generator: np.random.Generator) -> Position:
        """A random point to start from, made by NumPy's generator."""
        position = self.model.start(generator)
        return {name: position[name] for name in position if name not in self.fixed} if self.fixed else position

    def init(self, key: Key) -> Position:
        """A random point to start from. Not for compiled code."""
        words = np.asarray(jax.random.key_data(key)).ravel().tolist()
        return jax.tree.map(jnp.asarray, self.start(np.random.default_rng(words)))

    def given(self, fixed: Mapping[str, Any]) -> Posterior:
        """The same with some sites fixed at unconstrained values: they are no longer part of the position.

        The values are leaves of the pytree: a compiled function takes others without compiling again.

        Raises:
            ModelError: If there is no such site, its value has another shape, or positions have no names.

        Example:
            >>> import langevin as lv
            >>> density = lv.Density(lambda x: -x["a"]**2 - (x["b"] - x["a"])**2, init={"a": 0.0, "b": 0.0})
            >>> float(density.posterior().given({"a": 1.0}).log_density({"b": 3.0}))
            -5.0
        """
        like = self.model.like
        if not isinstance(like, dict):
            raise ModelError(
                "`given` fixes parts of a position by name, and the positions of this model are not dicts. Give the "
                f"`Density` an `init` that is a dict; it is {jax.tree.structure(like)}."
            )
        check_fixed(fixed, like)
        values = jax.tree.map(lambda leaf: jnp.asarray(leaf, jnp.result_type(float, leaf)), dict(fixed))
        for name in values:
            check_position(values[name], like[name], name)
        return dataclasses.replace(self, fixed=self.fixed | values)

    def given_again(self, fixed: Mapping[str, Any]) -> Posterior:
        """The same with other values of sites that are fixed already."""
        return dataclasses.replace(self, fixed={**self.fixed, **jax.tree.map(jnp.asarray, dict(fixed))})

    def with_data(self, data: Batch) -> Posterior:
        """The same on other rows, or on the same in another order."""
        return dataclasses.replace(self, data=data)

    def with_few_rows(self) -> Posterior:
        """The same up to a constant, on a single row: for sites that no row tells of."""
        return dataclasses.replace(self, data=self._few, num_data=min(self.num_data, 1))

    def tilted(self, slope: Position) -> Posterior:
        """The same with the inner product of the position and a slope added: it shifts every gradient by that much."""
        terms = self.model.terms

        def with_slope(position: Position, batch: Batch, centring: Centring) -> tuple[jax.Array, jax.Array]:
            whole = {name: value for name, value in position.items() if name != TILT}
            log_prior, log_likelihood = terms(whole, batch, centring)
            added = jax.tree.map(lambda s, x: jnp.sum(s * x), position[TILT], {n: whole[n] for n in position[TILT]})
            return log_prior + sum(jax.tree.leaves(added)), log_likelihood

        like = jax.tree.map(lambda leaf: jax.ShapeDtypeStruct(jnp.shape(leaf), leaf.dtype), slope)
        model = dataclasses.replace(self.model, terms=with_slope, like={**self.model.like, TILT: like})
        return dataclasses.replace(self, model=model, fixed={**self.fixed, TILT: slope})

    @property
    def adjustable(self) -> tuple[str, ...]:
        """The sites whose centring can be chosen."""
        return tuple(name for name in self.model.adjustable if name not in self.fixed)

    def with_centring(self, centring: Centring) -> Posterior:
        """The same density over other positions: see `centring`."""
        values = {name: jnp.asarray(value, jnp.result_type(float)) for name, value in centring.items()}
        return dataclasses.replace(self, centring=self.centring | values)

    def recentred(self, position: Position, centring: Centring) -> Position:
        """The position of the same point under another centring."""
        moved = self.model.recentred(self._whole(position), self._few, self.centring, {**self.centring, **centring})
        return {name: moved[name] for name in position} if self.model.adjustable else position

    def with_start(self, start: Callable[[np.random.Generator], Position]) -> Posterior:
        """The same with other starts: `generator -> position`, with all sites."""
        return dataclasses.replace(self, model=dataclasses.replace(self.model, start=start))

    @property
    def _few(self) -> Batch:
        """Rows enough for what no row enters."""
        few = self.by_rows and not any(name in self.model.like for name in self.model.local)
        return jax.tree.map(lambda array: array[:1], self.data) if few else self.rows

    def _whole(self, position: Position) -> Position:
        """The position with the fixed sites, checked."""
        whole = position
        if self.fixed:
            check_names(position, [name for name in self.model.like if name not in self.fixed], fixed=self.fixed)
            whole = {**self.fixed, **position}
        check_position(whole, self.model.like)
        return whole


def num_rows(batch: Batch) -> int:
    """How many rows a batch has."""
    return jnp.shape(jax.tree.leaves(batch)[0])[0]


def check_names(position: Any, expected: Any, *, optional: Any = (), fixed: Any = ()) -> None:
    """Raises a ModelError that names the site which a position lacks, or which is not one of the model's.

    Args:
        position: By site.
        expected: The names of the sites.
        optional: Names that a position may do without.
        fixed: Names of sites that are fixed, and so no longer part of the position.
    """
    listed = ", ".join(map(repr, expected)) or "none"
    if not isinstance(position, Mapping):
        raise ModelError(f"The position must be a dict with the sites {listed}; got {type(position).__name__}.")
    for name in expected:
        if name not in position:
            raise ModelError(f"The position lacks site {name!r}; its sites are {listed}.")
    for name in position:
        if name in fixed:
            raise ModelError(f"The position has site {name!r}, which is fixed. Its sites are {listed}.")
        if name not in expected and name not in optional:
            raise ModelError(f"The position has site {name!r}, which the model does not know; its sites are {listed}.")


def check_fixed(fixed: Mapping[str, Any], known: Any) -> None:
    """Raises a ModelError if a site that is to be fixed is not among the known ones."""
    for name in fixed:
        if name not in known:
            raise ModelError(f"`given`: there is no site {name!r}; there are {', '.join(map(repr, known))}.")


def check_position(position: Position, like: Position, site: str = "") -> None:
    """Raises a ModelError if a position, or its part of this name, has other parts than it should, or other shapes."""
    if isinstance(like, dict) and not site:
        check_names(position, list(like))
        for name, part in like.items():
            check_position(position[name], part, name)
        return
    what = f"Site {site!r} of the position" if site else "The position"
    leaves, structure = jax.tree_util.tree_flatten_with_path(position)
    expected = jax.tree.structure(like)
    if structure != expected:
        raise ModelError(f"{what} must have the structure {expected}, as in `init`; got {structure}.")
    for (path, leaf), other in zip(leaves, jax.tree.leaves(like), strict=True):
        if jnp.shape(leaf) != other.shape:
            at = f", at {jax.tree_util.keystr(path)}," if path else ""
            raise ModelError(f"{what}{at} must have shape {other.shape}; got {jnp.shape(leaf)}.")
