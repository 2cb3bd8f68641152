"""The groups that ArviZ reads besides the draws: what was observed, how likely it was, and what might have been.

They are computed when their values are read (see `langevin.criticism.lazy`), so that they can always be there.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

import jax
import numpy as np
import xarray as xr

from langevin import checks
from langevin.criticism import lazy
from langevin.criticism import sites as of_sites
from langevin.criticism.lazy import MOST_VALUES, Limit
from langevin.criticism.likelihood import PIECE, Likelihood
from langevin.criticism.models import target_for
from langevin.errors import LangevinError, SettingError
from langevin.posterior import Batch, Posterior
from langevin.run import compilation
from langevin.run.seeds import Seed, key_of

if TYPE_CHECKING:
    from langevin.result import Fit

NAMES = (
    "observed_data",
    "constant_data",
    "log_likelihood",
    "log_prior",
    "posterior_predictive",
    "prior",
    "prior_predictive",
)
# The same number as the prior's draws in PyMC.
NUM_PRIOR = 500
REMEDIES = {
    "log_likelihood": "For cross-validation with many rows there is fit.loo(num_rows=1000), which takes a sample of "
    "them.",
    "posterior_predictive": "For many rows there is fit.predict, which goes through them in pieces.",
    "prior_predictive": "For many rows there is lv.prior_predictive, with fewer rows or draws.",
}
ALL = 'fit.with_groups("{name}", most_values=...) computes it all the same.'


class Groups:
    """The further groups of a result.

    Args:
        target: The posterior, with its rows in the order of the user.
        tree: The draws. Groups with a value a draw belong to them, draw by draw.
        seed: Of what is simulated.
        most: How many values of a variable are computed at once.
    """

    def __init__(self, target: Posterior, tree: xr.DataTree, seed: Seed, most: int = MOST_VALUES) -> None:
        self._target, self._tree, self._seed, self._most = target, tree, seed, most
        self._sites = of_sites.find(target)
        self._posterior = tree["posterior"].to_dataset()

    def make(self, name: str) -> xr.Dataset | None:
        """One group; None if this model or these draws have none.

        Raises:
            SettingError: If the draws lack a site that it needs; names it.
        """
        makers: dict[str, Callable[[], dict[str, xr.Variable]]] = {
            "observed_data": self._observed,
            "constant_data": self._constant,
            "log_likelihood": self._log_likelihood,
            "log_prior": self._log_prior,
            "posterior_predictive": self._posterior_predictive,
            "prior": self._prior,
            "prior_predictive": self._prior_predictive,
        }
        variables = makers[name]()
        if not variables:
            return None
        sizes = {dim: size for variable in variables.values() for dim, size in variable.sizes.items()}
        coords = {
            dim: self._posterior.coords[dim].variable
            for dim, size in sizes.items()
            if dim in self._posterior.coords and self._posterior.sizes[dim] == size
        }
        numbered = {dim: np.arange(sizes[dim]) for dim in ("chain", "draw") if dim in sizes and dim not in coords}
        return xr.Dataset(variables, coords | numbered)

    @functools.cached_property
    def _likelihood(self) -> Likelihood:
        return Likelihood(self._target, self._tree)

    def _limit(self, name: str) -> Limit:
        remedies = (REMEDIES.get(name, ""), ALL.format(name=name))
        return Limit(f"`{name}`", " ".join(remedy for remedy in remedies if remedy), self._most)

    def _observed(self) -> dict[str, xr.Variable]:
        with_values = {name: site for name, site in self._sites.observed.items() if site.value_dims is not None}
        if not with_values:
            return {}
        shapes = jax.eval_shape(self._observed_values, self._target)
        limit = self._limit("observed_data")
        return {
            name: lazy.whole(
                site.value_dims or (),
                site.value_shape,
                shapes[name].dtype,
                lambda name=name: np.asarray(compilation.run(self._observed_values, self._target)[name]),
                limit,
            )
            for name, site in with_values.items()
        }

    def _observed_values(self, target: Posterior) -> dict[str, jax.Array]:
        names = tuple(name for name, site in self._sites.observed.items() if site.value_dims is not None)
        return of_sites.observed_values(target, target.rows, names)

    def _constant(self) -> dict[str, xr.Variable]:
        limit = self._limit("constant_data")
        variables = {}
        program = self._target.model.program
        constants = {} if program is None else _numbers(program.constants)
        for name, column in {**self._target.data, **constants}.items():
            if name in self._sites.columns:
                continue
            dims = [f"{name}_dim_{axis}" for axis in range(column.ndim)]
            shape = column.shape
            if name not in constants:
                shape = (self._target.num_data, *shape[1:])
                dims[0] = self._sites.row_dim if self._sites.row_dim != name else dims[0]
            read = functools.partial(_first, column, self._target.num_data if name not in constants else None)
            variables[name] = lazy.whole(dims, shape, column.dtype, read, limit)
        return variables

    def _log_likelihood(self) -> dict[str, xr.Variable]:
        if not self._sites.observed:
            return {}
        likelihood, limit = self._likelihood, self._limit("log_likelihood")
        variables = {}
        for name, site in self._sites.observed.items():
            shape = (likelihood.num_chains, likelihood.num_draws, *site.shape)
            read = functools.partial(_read_likelihood, likelihood, name)
            variables[name] = lazy.variable(("chain", "draw", *site.dims), shape, np.float64, read, limit)
        return variables

    def _log_prior(self) -> dict[str, xr.Variable]:
        likelihood, limit = self._likelihood, self._limit("log_prior")
        names = ("log_prior",) if self._sites.by_position else self._sites.latent
        shape = (likelihood.num_chains, likelihood.num_draws)

        @functools.cache
        def values() -> dict[str, np.ndarray]:
            few = self._few
            run = functools.partial(_log_priors, names, self._sites.by_position)
            found = [
                compilation.run(run, self._target, likelihood.draws(chain, slice(None)), few)
                for chain in range(likelihood.num_chains)
            ]
            return {name: np.stack([np.asarray(part[name], np.float64) for part in found]) for name in names}

        return {
            name: lazy.whole(("chain", "draw"), shape, np.float64, lambda name=name: values()[name], limit)
            for name in names
        }

    def _posterior_predictive(self) -> dict[str, xr.Variable]:
        sites = self._simulated_sites()
        if not sites or self._sites.by_position:
            return {}
        likelihood, seed = self._likelihood, self._seed.child("posterior predictive")
        sample = (likelihood.num_chains, likelihood.num_draws)

        @functools.cache
        def values() -> dict[str, np.ndarray]:
            found = [
                self._simulate(likelihood.draws(chain, slice(None)), seed.child(chain), sample[1], tuple(sites))
                for chain in range(sample[0])
            ]
            return {name: np.stack([part[name] for part in found]) for name in sites}

        return self._simulated("posterior_predictive", sites, sample, values)

    def _prior(self) -> dict[str, xr.Variable]:
        names = [str(name) for name in self._posterior]
        like = self._of_prior(self._few)
        sites = {name: like[name] for name in names if name in like and like[name].shape == self._shape(name)}

        @functools.cache
        def values() -> dict[str, np.ndarray]:
            return _alone(self._simulate({}, self._seed.child("prior"), NUM_PRIOR, tuple(sites), self._few))

        return self._simulated("prior", sites, (1, NUM_PRIOR), values)

    def _prior_predictive(self) -> dict[str, xr.Variable]:
        sites = self._simulated_sites()

        @functools.cache
        def values() -> dict[str, np.ndarray]:
            return _alone(self._simulate({}, self._seed.child("prior"), NUM_PRIOR, tuple(sites)))

        return self._simulated("prior_predictive", sites, (1, NUM_PRIOR), values)

    def _simulated(
        self, group: str, sites: Mapping[str, Any], sample: tuple[int, int], values: Callable[[], Any]
    ) -> dict[str, xr.Variable]:
        limit, variables = self._limit(group), {}
        for name, like in sites.items():
            dims = self._dims(name, len(like.shape))
            make = lambda name=name: values()[name]  # noqa: E731
            variables[name] = lazy.whole(("chain", "draw", *dims), (*sample, *like.shape), like.dtype, make, limit)
        return variables

    def _dims(self, name: str, count: int) -> tuple[str, ...]:
        if name in self._sites.observed:
            return self._sites.observed[name].value_dims or ()
        return tuple(map(str, self._posterior[name].dims[2:]))[:count]

    def _shape(self, name: str) -> tuple[int, ...]:
        return self._posterior[name].shape[2:]

    @property
    def _few(self) -> Batch:
        """Rows enough for what no row enters."""
        target = self._target
        return jax.tree.map(lambda column: column[:1], target.data) if target.by_rows else target.rows

    def _simulated_sites(self) -> dict[str, Any]:
        """The observed sites whose values can be simulated, and what these are like."""
        like = self._of_prior(self._target.rows)
        return {
            name: like[name]
            for name, site in self._sites.observed.items()
            if name in like and site.value_dims is not None and like[name].shape == site.value_shape
        }

    def _of_prior(self, batch: Batch) -> dict[str, Any]:
        """What a run of the program from its prior is like; nothing for a density, or where a prior is improper."""
        program = self._target.model.program
        if program is None or self._sites.params:
            return {}
        names = (*map(str, self._posterior), *(n for n, s in self._sites.observed.items() if s.value_dims is not None))
        run = lambda batch: of_sites.simulated(program, {}, batch, jax.random.key(0), names)  # noqa: E731
        try:
            return jax.eval_shape(run, batch)
        except NotImplementedError:
            return {}

    def _simulate(
        self, draws: Mapping[str, Any], seed: Seed, count: int, names: tuple[str, ...], batch: Batch | None = None
    ) -> dict[str, np.ndarray]:
        batch = self._target.rows if batch is None else batch
        at_once = max(PIECE // max(self._target.num_data, 1), 1)
        run = functools.partial(_simulate, names, count, at_once)
        found = compilation.run(run, self._target, dict(draws), batch, seed.key_words())
        return {name: np.asarray(value) for name, value in found.items()}


def with_lazy_groups(fit: Fit, tree: xr.DataTree) -> xr.DataTree:
    """The tree with all groups that it lacks and that the model can make; none where there is no model."""
    try:
        groups = Groups(target_for(fit, None, "with_groups"), tree, _seed_of(fit))
    except LangevinError:
        # `with_groups` says why.
        return tree
    whole = tree.copy()
    for name in NAMES:
        if name in tree.children:
            continue
        try:
            made = groups.make(name)
        except SettingError:
            # The draws lack a site; `with_groups` says so.
            continue
        if made is not None:
            whole[name] = xr.DataTree(made)
    return whole


def with_groups(fit: Fit, names: tuple[str, ...], data: Any, most_values: int, seed: int | None) -> Fit:
    """See `Fit.with_groups`."""
    from langevin.result import Fit

    checks.count("with_groups", "most_values", most_values)
    for name in names:
        checks.choice("with_groups", "names", name, NAMES)
    target = target_for(fit, data, "with_groups")
    groups = Groups(target, fit.tree, _seed_of(fit) if seed is None else Seed.of(seed), most_values)
    tree = fit.tree.copy()
    for name in names or NAMES:
        made = groups.make(name)
        if made is not None:
            tree[name] = xr.DataTree(made.load())
        elif names:
            raise SettingError(f"`with_groups`: this model has no {name!r}: {_reason(target, name)}")
    return Fit(tree, fit.target, fit._guide, fit.source)


def _seed_of(fit: Fit) -> Seed:
    return Seed(tuple(fit.settings["seed"]))


def _reason(target: Posterior, name: str) -> str:
    if target.model.program is None and "data" not in name:
        return "it is an lv.Density, which says how likely rows are, and not how to draw them."
    if "prior" in name:
        return "the prior of one of its sites cannot be drawn from."
    if name == "constant_data":
        return "all its columns are observed."
    return "it observes nothing."


def _read_likelihood(likelihood: Likelihood, name: str, indices: tuple[np.ndarray, ...]) -> np.ndarray:
    chains, draws, *rest = indices
    site = likelihood.sites.observed[name]
    rows = None if site.row_axis is None else rest[site.row_axis]
    if rows is not None and np.array_equal(rows, np.arange(site.shape[site.row_axis or 0])):
        rows = None
    values = likelihood.read(name, chains, draws, rows)
    for axis, index in enumerate(rest):
        if axis != site.row_axis:
            values = np.take(values, index, axis + 2)
    return values


def _log_priors(names: tuple[str, ...], by_position: bool, target: Posterior, draws: Any, batch: Batch) -> Any:
    return jax.lax.map(lambda draw: of_sites.log_priors(target, draw, batch, names, by_position), draws, batch_size=64)


def _simulate(
    names: tuple[str, ...], count: int, at_once: int, target: Posterior, draws: Any, batch: Batch, words: Any
) -> Any:
    keys = jax.random.split(key_of(words), count)
    one = lambda inputs: of_sites.simulated(target.model.program, inputs[0], batch, inputs[1], names)  # noqa: E731
    return jax.lax.map(one, (draws, keys), batch_size=min(at_once, count))


def _alone(values: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
    """With one chain in front."""
    return {name: value[None] for name, value in values.items()}


def _first(column: Any, count: int | None) -> np.ndarray:
    return np.asarray(column[:count]) if count is not None else np.asarray(column)


def _numbers(constants: Mapping[str, Any]) -> dict[str, np.ndarray]:
    """The constants that are numbers or arrays of numbers."""
    arrays = {}
    for name, value in constants.items():
        try:
            arrays[name] = np.asarray(value)
        except ValueError:
            # Lists of different lengths.
            continue
    return {name: array for name, array in arrays.items() if array.dtype.kind in "biuf"}
