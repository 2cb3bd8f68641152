"""A model given as plain functions over any pytree."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from langevin import culprit, spelling
from langevin.data.table import Table, as_arrays, as_table
from langevin.errors import ModelError
from langevin.posterior import Batch, Centring, Model, Position, Posterior

# A density has no sites, and so none whose centring could be chosen.
NOTHING: Centring = {}


@dataclasses.dataclass(frozen=True, eq=False)
class Density:
    """A posterior given by its log-densities, over any pytree of unconstrained arrays.

    Args:
        log_prior: `position -> scalar`. Include the Jacobian if `constrain` is not the identity.
        log_likelihood: `(position, rows) -> one value a row`, where `rows` is a dict of arrays like the data. None for
            a density without data: `log_prior` is then the whole of it.
        init: A position to start from, or `key -> position`.
        constrain: `position -> dict of name -> array`, what is reported of a draw. By default the leaves of the
            position, named by their place in it (`"layer.weight"`); a bare array is called `"position"`.
        predictive: `(position, rows) -> dict of name -> NumPyro distribution`, one for each row, for `fit.predict`. The
            rows come without the columns of these names.

    Example:
        >>> import langevin as lv
        >>> normal = lv.Density(lambda m: -m**2 / 2, lambda m, rows: -(rows["x"] - m)**2 / 2, init=0.0)
        >>> posterior = normal.posterior({"x": [0.0, 2.0]})
        >>> posterior.num_data, float(posterior.log_density(1.0))
        (2, -1.5)
    """

    log_prior: Callable[[Position], Any]
    log_likelihood: Callable[[Position, Batch], Any] | None = None
    init: Any = None
    constrain: Callable[[Position], dict[str, Any]] | None = None
    predictive: Callable[[Position, Batch], dict[str, Any]] | None = None

    def __post_init__(self) -> None:
        for name in ("log_prior", "log_likelihood", "constrain", "predictive"):
            value = getattr(self, name)
            if value is not None and not callable(value):
                raise ModelError(f"`Density`: `{name}` must be a function; got {value!r}.")
        if not callable(self.log_prior):
            raise ModelError("`Density`: `log_prior` must be a function; got None.")
        if self.init is None:
            raise ModelError("`Density`: `init` is missing. Give a position to start from, or a function of a key.")

    def posterior(self, data: Any = None, *, minibatch: bool = False) -> Posterior:
        """The target on this data.

        Args:
            data: A dict of arrays, or a frame.
            minibatch: Whether the data is about to be laid out for minibatches. That copies it, so this does not.

        Raises:
            ModelError: Names the function that cannot be used, and says what to do.
        """
        table = data if isinstance(data, Table) else as_table(data)
        if self.log_likelihood is not None and table.num_rows == 0:
            raise ModelError("`Density` has a `log_likelihood`, which needs rows; got no `data`.")
        if self.log_likelihood is None and table.num_rows:
            raise ModelError("`Density` has no `log_likelihood`, so nothing would use `data`. Give it one.")
        like = self._checked(table)
        model = Model(self._terms, self._report, self._start, like, explain=self._explain)
        # A likelihood of one value a row was checked to follow the number of rows.
        by_rows = self.log_likelihood is not None
        return Posterior(as_arrays(table, copy=not minibatch), model, table.num_rows, by_rows)

    def shapes(self) -> Position:
        """A position with shapes (`jax.ShapeDtypeStruct`) in place of arrays."""
        return jax.eval_shape(lambda: self._start(np.random.default_rng(0)))

    def _terms(self, position: Position, batch: Batch, _: Centring = NOTHING) -> tuple[jax.Array, jax.Array]:
        log_prior = self._call("log_prior", position)
        if self.log_likelihood is None:
            return log_prior, jnp.zeros(0)
        return log_prior, self._call("log_likelihood", position, batch)

    def _call(self, name: str, *arguments: Any) -> jax.Array:
        """Calls one of the functions; what goes wrong in it is said with its line."""
        return culprit.guarded(lambda: jnp.asarray(getattr(self, name)(*arguments)), f"`Density`: `{name}`")()

    def _start(self, generator: np.random.Generator) -> Position:
        position = self.init
        if callable(position):
            position = position(jax.random.key(int(generator.integers(2**32))))
        return jax.tree.map(lambda leaf: jnp.asarray(leaf, jnp.result_type(float, jnp.asarray(leaf).dtype)), position)

    def _report(
        self, position: Position, data: Batch, hidden: frozenset[str], _: Centring = NOTHING
    ) -> dict[str, jax.Array]:
        """What is reported of a position; what `constrain` makes of it has names of its own, and is never hidden."""
        del data
        if self.constrain is not None:
            reported = culprit.guarded(self.constrain, "`Density`: `constrain`")(position)
            return {name: jnp.asarray(value) for name, value in reported.items()}
        shown = {name: position[name] for name in position if name not in hidden} if hidden else position
        leaves, _ = jax.tree_util.tree_flatten_with_path(shown)
        return {jax.tree_util.keystr(path, simple=True, separator=".") or "position": leaf for path, leaf in leaves}

    def _checked(self, table: Table) -> Position:
        """Checks the functions. Returns the shapes of a position."""
        try:
            position = self.shapes()
        except (TypeError, ValueError) as error:
            raise ModelError(f"`Density`: `init` must give arrays of numbers: {str(error).splitlines()[0]}") from error
        if not jax.tree.leaves(position):
            raise ModelError(f"`Density`: `init` holds no array, so there is nothing to infer; got {position!r}.")
        self._check_names(position)
        try:
            log_prior, log_likelihood = jax.eval_shape(self._terms, position, _abstract(table, table.num_rows))
        except KeyError as error:
            if error.args[0] not in table.left:
                raise
            raise ModelError(
                f"`Density`: `log_likelihood` asks for the column {error.args[0]!r}, which can be no numbers. Make "
                f"numbers of it; there are {', '.join(map(repr, table.columns))}."
            ) from error
        if log_prior.shape != ():
            raise ModelError(f"`Density`: `log_prior` must return a scalar; it returned shape {log_prior.shape}.")
        if log_likelihood.shape != (table.num_rows,):
            raise ModelError(
                f"`Density`: `log_likelihood` must return one value a row, shape ({table.num_rows},); it returned "
                f"shape {log_likelihood.shape}. Do not sum over the rows: langevin does, and scales minibatches."
            )
        if self.log_likelihood is not None:
            self._check_other_rows(position, table)
        return position

    def _check_names(self, position: Position) -> None:
        if self.constrain is not None:
            reported = jax.eval_shape(culprit.guarded(self.constrain, "`Density`: `constrain`"), position)
            if not isinstance(reported, dict):
                raise ModelError(
                    f"`Density`: `constrain` must return a dict of name -> array; it returned {reported!r}."
                )
        reported = jax.eval_shape(lambda x: self._report(x, None, frozenset()), position)
        if self.constrain is None and len(reported) < len(jax.tree.leaves(position)):
            raise ModelError(
                f"`Density`: two parts of the position would have one name in {sorted(reported)}. Rename one, or give "
                "`constrain`."
            )
        for name in reported:
            if name in ("chain", "draw"):
                raise ModelError(f"`Density`: {name!r} is the name of a dimension of every result. Rename that part.")

    def _check_other_rows(self, position: Position, table: Table) -> None:
        """Checks that the likelihood follows the number of rows, and has not closed over an array of them."""
        other = table.num_rows + 1
        remedy = "Take every array that has a row for each observation from `rows`, not from outside."
        try:
            shape = jax.eval_shape(self._terms, position, _abstract(table, other))[1].shape
        except (TypeError, ValueError) as error:
            raise ModelError(
                f"`Density`: `log_likelihood` works on {table.num_rows} rows but not on {other}: "
                f"{str(error).splitlines()[0]} {remedy}"
            ) from error
        if shape != (other,):
            raise ModelError(f"`Density`: `log_likelihood` returned shape {shape} for {other} rows. {remedy}")

    def _explain(self, position: Position, data: Batch, _: Centring = NOTHING) -> str:
        log_prior, log_likelihood = self._terms(position, data)
        if not np.isfinite(log_prior):
            return f"`log_prior` is {float(log_prior)} there"
        bad = np.flatnonzero(~np.isfinite(np.asarray(log_likelihood)))
        if len(bad):
            return f"`log_likelihood` is {float(log_likelihood[bad[0]])} for row {bad[0]} ({len(bad)} such rows)"
        return "the gradient is not finite there"


spelling.check_keywords(Density)


def _abstract(table: Table, num_rows: int) -> dict[str, jax.ShapeDtypeStruct]:
    return {name: jax.ShapeDtypeStruct((num_rows, *col.shape[1:]), col.dtype) for name, col in table.columns.items()}
