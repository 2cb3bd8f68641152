"""The discrete sites that were summed out of a fit, drawn back or averaged over its draws."""

from __future__ import annotations

import functools
import math
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any, Literal

import jax
import jax.numpy as jnp
import numpy as np
import xarray as xr

from langevin import checks
from langevin.errors import DataError, SettingError
from langevin.models.arguments import brought_again
from langevin.models.drawing import drawn, probabilities
from langevin.models.program import Program
from langevin.posterior import Batch, Position, Posterior, num_rows

if TYPE_CHECKING:
    from langevin.models.enumeration import Enumeration
    from langevin.result import Fit

# Elements of one table, and bytes of all draws.
MOST_AT_ONCE = 1 << 20
MOST_BYTES = 1 << 32
UNCONSTRAINED, CENTRING = "unconstrained_posterior", "centring"


def infer_discrete(
    fit: Fit, data: Any, kind: Literal["draws", "probabilities"], batch_size: int | None, seed: int
) -> xr.Dataset:
    """See `Fit.infer_discrete`."""
    checks.choice("infer_discrete", "kind", kind, ("draws", "probabilities"))
    if not fit.settings.get("summed_out"):
        raise SettingError(
            "`infer_discrete`: no discrete site was summed out of this fit. Discrete sites to which a guide gives "
            "distributions are in fit.posterior."
        )
    target, rows = _target_and_rows(fit, data)
    labels: Enumeration = target.model.labels
    positions, weights = _positions(fit, target), fit.weights.transpose("chain", "draw").values
    num_chains, num_draws = weights.shape
    if kind == "draws":
        # The smallest type that holds the values, with a sign: users subtract.
        kinds = {name: np.min_scalar_type(-int(np.abs(s).max()) - 1) for name, s in labels.supports.items()}
        _check_bytes(labels, target, rows, kinds, num_chains * num_draws)
        keys = jax.random.split(jax.random.key(seed), num_chains * num_draws)
        parts = [
            {name: labels.supports[name].astype(kinds[name])[np.asarray(index)] for name, index in found.items()}
            for found in _in_batches(functools.partial(_drawn, keys=keys), target, rows, positions, batch_size)
        ]
    else:
        # A chain that stopped is no longer anywhere, and has no weight.
        counted = np.flatnonzero(weights.ravel() > 0)
        positions = jax.tree.map(lambda leaf: leaf[counted], positions)
        shares = jnp.asarray(weights.ravel()[counted] / weights.sum(), jnp.result_type(float))
        averages = _in_batches(functools.partial(_averaged, shares=shares), target, rows, positions, batch_size)
        parts = [{name: np.asarray(found) for name, found in part.items()} for part in averages]
    arrays = {name: _joined([part[name] for part in parts], labels.dims[name], target) for name in labels.names}
    if kind == "probabilities":
        values = {name: ((*labels.dims[name], f"{name}_value"), arrays[name][0]) for name in labels.names}
        return xr.Dataset(values, {f"{name}_value": labels.supports[name] for name in labels.names})
    values = {
        name: (("chain", "draw", *labels.dims[name]), array.reshape(num_chains, num_draws, *array.shape[1:]))
        for name, array in arrays.items()
    }
    chosen = {name: fit.posterior[name] for name in ("chain", "draw")}
    return xr.Dataset(values, chosen | {"weight": (("chain", "draw"), weights)})


def _target_and_rows(fit: Fit, data: Any) -> tuple[Posterior, Batch]:
    """The posterior of the fit, and the rows to label."""
    table, constants = None, {}
    if data is not None and fit.source is not None:
        given = (fit.source.constants, fit.levels, fit.settings.get("counts", {}))
        table, constants = brought_again(fit.source.model, data, *given)
    if fit.target is not None:
        if table is None:
            return fit.target, fit.target.rows
        if set(table.columns) != set(fit.target.data):
            raise DataError(
                f"`infer_discrete`: `data` must have the columns of the fit, {sorted(fit.target.data)}; got "
                f"{sorted([*table.columns, *table.left])}."
            )
        rows = {name: jnp.asarray(column) for name, column in table.columns.items()}
        return fit.target, rows
    if fit.source is None or table is None:
        raise SettingError(
            "`infer_discrete`: this fit was loaded, and neither its model nor its rows are stored. Load it with its "
            "model, lv.load(path, model=model), and give the rows: fit.infer_discrete(data)."
        )
    settings = fit.settings
    noncentred = settings["noncentred"]
    noncentred = tuple(noncentred) if isinstance(noncentred, list) else noncentred
    program = Program(fit.source.model, constants, None, noncentred)
    target = program.posterior(table, minibatch=settings["batches"] is not None)
    if CENTRING in fit.tree:
        chosen = fit.tree[CENTRING].to_dataset()
        target = target.with_centring({str(name): values.values for name, values in chosen.items()})
    return target, target.rows


def _positions(fit: Fit, target: Posterior) -> Position:
    """The draws, one after another."""
    if UNCONSTRAINED not in fit.tree:
        raise SettingError(
            "`infer_discrete`: this fit kept no unconstrained positions. Fit it with lv.Keep(unconstrained=True)."
        )
    group = fit.tree[UNCONSTRAINED].to_dataset()
    structure = jax.tree.structure(target.model.like)
    parts = [np.asarray(group[name].values) for name in group.attrs["leaves"]]
    dtype = jnp.result_type(float)
    return jax.tree.unflatten(structure, [jnp.asarray(part.reshape(-1, *part.shape[2:]), dtype) for part in parts])


def _in_batches(
    compute: Any, target: Posterior, rows: Batch, positions: Position, batch_size: int | None
) -> Iterator[dict[str, jax.Array]]:
    """What is computed of the rows, a batch at a time where the rows are independent."""
    if not target.by_rows:
        if batch_size is not None:
            raise SettingError(
                "`infer_discrete`: `batch_size` is for fits by minibatches, whose rows are independent. Leave it out."
            )
        yield compute(target, positions, rows, at_once=1)
        return
    count, table = num_rows(rows), _table_size(target.model.labels)
    size = min(checks.count("infer_discrete", "batch_size", batch_size or max(MOST_AT_ONCE // table, 1)), count)
    at_once = max(MOST_AT_ONCE // (table * size), 1)
    for first in range(0, count, size):
        # The last batch is as long as the others, so that nothing is compiled again: what was there is dropped.
        start = min(first, count - size)
        batch = {name: column[start : start + size] for name, column in rows.items()}
        found = compute(target, positions, batch, at_once=at_once)
        new = slice(first - start, None)
        yield {name: _sliced(array, new, target.model.labels.dims[name], target) for name, array in found.items()}


@functools.partial(jax.jit, static_argnames="at_once")
def _drawn(target: Posterior, positions: Position, batch: Batch, *, at_once: int, keys: Any) -> dict[str, jax.Array]:
    def one(inputs: Any) -> dict[str, jax.Array]:
        position, key = inputs
        return drawn(target.model.labels, key, position, batch, target.centring)

    return jax.lax.map(one, (positions, keys), batch_size=at_once)


@functools.partial(jax.jit, static_argnames="at_once")
def _averaged(target: Posterior, positions: Position, batch: Batch, *, at_once: int, shares: Any) -> Any:
    del at_once

    def of(position: Position, share: Any) -> dict[str, jax.Array]:
        found = probabilities(target.model.labels, position, batch, target.centring)
        return {name: share * array for name, array in found.items()}

    def add(total: Any, inputs: Any) -> Any:
        return jax.tree.map(jnp.add, total, of(*inputs)), None

    shapes = jax.eval_shape(of, jax.tree.map(lambda leaf: leaf[0], positions), shares[0])
    nothing = jax.tree.map(lambda leaf: jnp.zeros(leaf.shape, leaf.dtype), shapes)
    total = jax.lax.scan(add, nothing, (positions, shares))[0]
    # In the place of the draws, their average.
    return jax.tree.map(lambda leaf: leaf[None], total)


def _row_axis(dims: tuple[str, ...], target: Posterior) -> int:
    """The axis of the rows, where the draws are in front."""
    rows = target.model.labels.found.row_plates
    return 1 + next(axis for axis, name in enumerate(dims) if name in rows)


def _sliced(array: Any, which: slice, dims: tuple[str, ...], target: Posterior) -> Any:
    return array[(slice(None),) * _row_axis(dims, target) + (which,)]


def _joined(parts: list[np.ndarray], dims: tuple[str, ...], target: Posterior) -> np.ndarray:
    return parts[0] if len(parts) == 1 else np.concatenate(parts, axis=_row_axis(dims, target))


def _table_size(labels: Enumeration) -> int:
    """How many numbers the tables of a row have, about."""
    chains = sum(chain.num_states**2 for chain in labels.chains.values())
    return max(math.prod(labels.choices.values()), 1) + chains


def _check_bytes(labels: Enumeration, target: Posterior, rows: Batch, kinds: dict[str, Any], num_draws: int) -> None:
    """Refuses draws that would not fit into memory."""
    if not target.by_rows:
        return
    needed = num_rows(rows) * num_draws * sum(kinds[name].itemsize for name in labels.names)
    if needed > MOST_BYTES:
        raise SettingError(
            f"`infer_discrete`: draws of {', '.join(labels.names)} for {num_rows(rows)} rows and {num_draws} draws "
            f"take {needed / 2**30:.0f} GB. Ask for kind='probabilities', or give some of the rows."
        )
