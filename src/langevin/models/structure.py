"""What a NumPyro program consists of: which sites are latent, which are rows, and what may be minibatched.

Found by running the program abstractly on all rows and on another number of rows: a plate whose size follows the number
of rows is the plate over the rows. Where minibatches are asked for, the program is also run for real, on one row and on
a few hundred. What differs between the two outside that plate depends on the rows; if the first row's own
log-likelihood differs, the rows are not independent.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Mapping
from typing import Any, NamedTuple

import jax
import numpy as np

from langevin.data.table import Table
from langevin.errors import ModelError
from langevin.models.arguments import check_used
from langevin.models.obstacles import obstacles_of
from langevin.models.outline import (
    Call,
    Outline,
    check_listed,
    check_one_size,
    is_observed,
    log_prob,
    outline_of,
    row_dim,
    trace_of,
    warn_of_nothing_observed,
)
from langevin.models.values import check_values
from langevin.posterior import Batch
from langevin.run import compilation

TAKEN = ("chain", "draw")
MOST_COMPARED = 256
# XLA may fuse, and so round, two runs of the same formula differently; and a row in another minibatch meets matrix
# products of another shape, which some devices round by 1e-3.
SAME = 1e-4
SAME_ROW = 1e-2


class Value(NamedTuple):
    """The value of a latent site.

    Attributes:
        shape: Its shape.
        event_dim: How many of its axes, from the right, are not independent.
        plates: The plates that it is in: name, size and axis, from the right.
        choices: How many values a discrete one can have, if that is finite.
    """

    shape: tuple[int, ...]
    event_dim: int
    plates: tuple[tuple[str, int, int], ...]
    choices: int | None


@dataclasses.dataclass(frozen=True, eq=False)
class Structure:
    """The sites of a program, by what they are.

    Attributes:
        shapes: For each latent site, its unconstrained shape; for a discrete one, the shape of its value.
        reported: The names that a draw reports: latent sites, then deterministic ones.
        dims: For each reported name, the names of its dimensions: the plates it is in, then numbers.
        sizes: For each reported name, the sizes of its dimensions.
        row_plates: The plates over the rows; empty if there are none.
        with_scale: The latent sites that can be non-centred.
        local: The latent sites inside the plate over the rows.
        discrete: The latent sites with discrete values.
        values: For each latent site, what its value is like.
        params: The names of the `numpyro.param` sites.
        obstacles: What stands in the way of a log-density over unconstrained positions, in sentences; empty if nothing.
        barriers: The obstacles without continuous sites of every row, which some engines can handle.
        adjustable: The latent sites whose centring is to be chosen: those with a scale that is unknown itself.
        observed: The sites that have a given value; factors have none.
        left_out: The deterministic sites that a draw does not report: with minibatches, those that depend on the rows.
    """

    shapes: dict[str, tuple[int, ...]]
    reported: tuple[str, ...]
    dims: dict[str, tuple[str, ...]]
    sizes: dict[str, tuple[int, ...]]
    row_plates: tuple[str, ...]
    with_scale: tuple[str, ...]
    local: tuple[str, ...]
    discrete: tuple[str, ...]
    values: dict[str, Value]
    params: tuple[str, ...]
    obstacles: tuple[str, ...]
    barriers: tuple[str, ...]
    adjustable: tuple[str, ...] = ()
    observed: tuple[str, ...] = ()
    left_out: tuple[str, ...] = ()

    def without(self, names: Iterable[str]) -> Structure:
        """The structure of the program with these sites fixed."""
        gone = set(names)
        parts: dict[str, Any] = {field.name: getattr(self, field.name) for field in dataclasses.fields(self)}
        for kind in ("shapes", "dims", "sizes", "values"):
            parts[kind] = {name: value for name, value in parts[kind].items() if name not in gone}
        for kind in ("reported", "with_scale", "local", "discrete", "params"):
            parts[kind] = tuple(name for name in parts[kind] if name not in gone)
        return Structure(**parts)


def find(call: Call, table: Table, rows: str | tuple[str, ...] | None, minibatch: bool) -> Structure:
    """Runs the program abstractly and sorts its sites.

    Args:
        call: The program as a function of its rows.
        table: The rows.
        rows: The name of the plate over them.
        minibatch: Whether the program will be called with some of the rows.

    Raises:
        ModelError: Names the site that no engine can handle, and says what to do.
    """
    outline = outline_of(call, table.columns, table.num_rows)
    fewer = _on_fewer_rows(call, table, minibatch)
    row_plates = _row_plates(table, outline, fewer, rows, minibatch)
    latent = [name for name, site in outline.sites.items() if name in outline.shapes]
    derived = [name for name, site in outline.sites.items() if site["type"] == "deterministic"]
    if not latent and not outline.params:
        raise ModelError("The program has no latent site: there is nothing to infer. Did you observe every site?")
    check_used(table, any(site["is_observed"] for site in outline.sites.values()))
    _check_shapes(outline, row_plates)
    _check_pairs(outline, fewer, table.num_rows)
    check_values(
        call, table, {name: (outline.sites[name]["shape"], outline.sites[name]["discrete"]) for name in latent}
    )
    kept = derived
    if minibatch:
        _check_observed(outline, row_plates)
        kept = _check_global(call, table, outline, row_plates, derived)
    warn_of_nothing_observed(outline, list(table.columns))
    reported = tuple(latent + kept)
    check_listed(reported)
    for name in reported:
        if name in TAKEN:
            raise ModelError(f"Site {name!r} has the name of a dimension of every result. Rename it.")
    return Structure(
        shapes=outline.shapes,
        reported=reported,
        dims={name: dims_of(name, outline) for name in reported},
        sizes={name: tuple(outline.sites[name]["shape"]) for name in reported},
        row_plates=row_plates,
        with_scale=tuple(name for name in latent if outline.sites[name]["with_scale"]),
        local=tuple(name for name in latent if row_dim(outline.sites[name], row_plates) is not None),
        discrete=tuple(name for name in latent if outline.sites[name]["discrete"]),
        values={name: _value(outline.sites[name]) for name in latent},
        params=outline.params,
        observed=tuple(n for n, site in outline.sites.items() if site["is_observed"] and not site["is_factor"]),
        obstacles=tuple(obstacles_of(outline, row_plates if minibatch else ())),
        barriers=tuple(obstacles_of(outline, row_plates if minibatch else (), local=True)),
        left_out=tuple(name for name in derived if name not in kept),
    )


def _value(site: Mapping[str, Any]) -> Value:
    plates = tuple((frame.name, frame.size, frame.dim) for frame in site["cond_indep_stack"])
    return Value(site["shape"], site["event_dim"], plates, site["choices"])


def _on_fewer_rows(call: Call, table: Table, minibatch: bool) -> Outline | None:
    """The program on another number of rows: what differs follows it. None if it does not run, or has no rows."""
    if not table.num_rows:
        return None
    other = table.num_rows - 1 if table.num_rows > 1 else 2
    try:
        return outline_of(call, table.columns, other)
    except Exception as error:
        if minibatch:
            raise ModelError(
                f"The program runs on all {table.num_rows} rows but not on {other}, so it cannot be called with "
                f"minibatches: {error}. Take sizes from the arrays (`x.shape[0]`), not from outside."
            ) from error
    return None


def _row_plates(
    table: Table,
    outline: Outline,
    fewer: Outline | None,
    rows: str | tuple[str, ...] | None,
    minibatch: bool,
) -> tuple[str, ...]:
    if not isinstance(rows, str | list | tuple | None):
        raise ModelError(f"`rows` must be the name of a plate; got {rows!r}.")
    named = (rows,) if isinstance(rows, str) else tuple(rows or ())
    for name in named:
        if name not in outline.plates:
            raise ModelError(f"`rows={name!r}`: the program has no such plate; it has {sorted(outline.plates)}.")
    if not table.num_rows:
        return ()
    sized = [name for name, size in outline.plates.items() if size == table.num_rows]
    candidates = sized
    if fewer is not None:
        candidates = [name for name in sized if fewer.plates.get(name) not in (None, table.num_rows)]
    check_one_size(outline, candidates, table.num_rows)
    for name in named:
        if name not in candidates:
            raise ModelError(
                f"`rows={name!r}`: that plate has size {outline.plates[name]} and does not follow the {table.num_rows} "
                f"rows of the data. Plates that do: {candidates or 'none'}."
            )
    for name, site in outline.sites.items():
        nested = [frame.name for frame in site["cond_indep_stack"] if frame.name in candidates]
        if len(nested) > 1 and minibatch:
            raise ModelError(
                f"Site {name!r} is inside the plates {' and '.join(map(repr, nested))}, which both follow the number "
                "of rows: it is about pairs of rows, and a minibatch holds only a few of them. Leave `batch_size` out."
            )
        if len(nested) > 1 and not named:
            raise ModelError(
                f"Plates {' and '.join(map(repr, nested))} both have the size of the data, {table.num_rows}. Say which "
                f"one is over the rows: `rows={nested[0]!r}`."
            )
    if named:
        return named
    if minibatch and not candidates:
        fixed = f"Plate {sized[0]!r} has that size, but keeps it when there are fewer rows. " if sized else ""
        raise ModelError(
            f"No plate of the program is over the {table.num_rows} rows (its plates: {outline.plates or 'none'}), so "
            f"minibatches cannot be scaled. {fixed}Put the observed site inside "
            '`with numpyro.plate("rows", x.shape[0]):`, or leave `batch_size` out.'
        )
    return tuple(candidates)


def _check_observed(outline: Outline, row_plates: tuple[str, ...]) -> None:
    if not any(site["is_observed"] and row_dim(site, row_plates) is not None for site in outline.sites.values()):
        raise ModelError(f"Nothing is observed inside the plate over the rows, {row_plates[0]!r}.")


def _check_shapes(outline: Outline, row_plates: tuple[str, ...]) -> None:
    """Checks that no column of values, shape (rows, 1), meets a row of distributions, shape (rows,)."""
    for name, site in outline.sites.items():
        dim = row_dim(site, row_plates)
        if site["type"] != "sample" or not is_observed(site) or dim is None:
            continue
        shape = site["shape"][: len(site["shape"]) - site["event_dim"]]
        if len(shape) > len(site["batch_shape"]) and shape[dim] == 1 and site["batch_shape"][dim] > 1:
            raise ModelError(
                f"Observed site {name!r}: values of shape {shape} meet distributions of shape {site['batch_shape']}, "
                "so every row would be compared with every other. Drop the last axis of the values, for instance "
                "with `y[:, 0]`."
            )


def _check_pairs(outline: Outline, fewer: Outline | None, num_rows: int) -> None:
    """Checks that no observed site has a log-probability for every pair of rows, but values for the rows only.

    By how many axes follow the number of rows in each. Programs about pairs have values of pairs, or two plates; a
    matrix of all rows inside one multivariate distribution is one value; and a single value for all is no row's.
    """
    if num_rows < 2:
        return
    for name, site in outline.sites.items():
        if site["type"] != "sample" or not is_observed(site):
            continue
        shapes = _batch_shapes(site)
        if shapes is None:
            raise ModelError(
                f"Observed site {name!r}: values of shape {site['shape']} cannot meet distributions of shape "
                f"{site['batch_shape']}. Give both, and the plates that they are in, the same size."
            )
        # Without another run to compare with, what has the size of the data follows it.
        others = None if fewer is None or name not in fewer.sites else _batch_shapes(fewer.sites[name])
        others = ((-1,) * len(shapes[0]), (-1,) * len(shapes[1])) if others is None else others
        of_values, of_terms = (
            sum(a == num_rows != b for a, b in zip(*pair, strict=False)) for pair in zip(shapes, others, strict=True)
        )
        plates = sum(frame.size == num_rows for frame in site["cond_indep_stack"])
        if of_values == 1 and of_terms > 1 and plates < 2:
            raise ModelError(
                f"Observed site {name!r}: values of shape {shapes[0]} meet distributions of shape "
                f"{site['batch_shape']}, so every one of the {num_rows} rows would be compared with every other. Give "
                "both the same shape: drop an axis of size 1 (`x[:, 0]`), or leave out a `[:, None]`."
            )


def _batch_shapes(site: Mapping[str, Any]) -> tuple[tuple[int, ...], tuple[int, ...]] | None:
    """The shapes of the independent values of a site, and of its log-probability; None if these cannot meet."""
    values = site["shape"][: max(len(site["shape"]) - site["event_dim"], 0)]
    try:
        return values, np.broadcast_shapes(values, site["batch_shape"])
    except ValueError:
        return None


def _check_global(
    call: Call, table: Table, outline: Outline, row_plates: tuple[str, ...], derived: list[str]
) -> list[str]:
    """Checks that what is outside the row plate ignores the rows, and that rows ignore each other.

    Returns the deterministic sites that ignore the rows.
    """
    last = table.num_rows - 1
    spaced = np.linspace(0, last, min(table.num_rows, MOST_COMPARED)).astype(int)
    one, many = _values(call, table, ([0], [last, 0, *spaced]), outline, row_plates)
    for name, (kind, value) in one.items():
        site, other = outline.sites[name], many[name][1]
        if kind == "deterministic":
            continue
        dim = row_dim(site, row_plates)
        if dim is not None:
            _check_independent(name, np.take(value, 0, value.ndim + dim), np.take(other, 1, other.ndim + dim))
            continue
        if _same(value, other, SAME, least=1.0):
            continue
        if is_observed(site):
            raise ModelError(
                f"Observed site {name!r} depends on the rows but is outside the plate over them ({row_plates[0]!r}), "
                "so a minibatch would be counted as if it were all the data. Move it inside the plate, or leave "
                "`batch_size` out."
            )
        raise ModelError(
            f"The prior of site {name!r} depends on the rows, so it would change with every minibatch. Compute what "
            "it needs beforehand and pass it in `constants`."
        )
    return [name for name in derived if _same(one[name][1], many[name][1], SAME)]


def _same(value: np.ndarray, other: np.ndarray, tolerance: float, least: float = 0.0) -> bool:
    """Whether two arrays agree, to a tolerance relative to their largest number (or to `least`, if that is larger)."""
    if value.shape != other.shape:
        return False
    size = max(least, float(np.max(np.abs(value[np.isfinite(value)]), initial=0.0)))
    return np.allclose(value, other, rtol=0.0, atol=tolerance * size, equal_nan=True)


def _check_independent(name: str, alone: np.ndarray, in_company: np.ndarray) -> None:
    if not _same(alone, in_company, SAME_ROW, least=1.0):
        raise ModelError(
            f"Observed site {name!r}: the log-likelihood of a row depends on the other rows that the program is called "
            "with (for instance through x.mean() or x.shape[0]), so it would change with every minibatch. Compute such "
            "numbers beforehand and pass them in `constants`, or leave `batch_size` out."
        )


def _values(
    call: Call, table: Table, indices: tuple[list[int], ...], outline: Outline, row_plates: tuple[str, ...]
) -> list[dict[str, tuple[str, np.ndarray]]]:
    """Runs the program on a few sets of rows. Returns each site's log-probability, or a deterministic one's value.

    Latent sites inside the plates over the rows may follow the number of rows.
    """
    kinds = {name: site["type"] for name, site in outline.sites.items() if site["type"] in ("sample", "deterministic")}

    def run(batch: Batch) -> dict[str, jax.Array]:
        trace, shapes = trace_of(call, batch, row_plates)
        changed = {name for name, site in trace.items() if site["type"] in ("sample", "deterministic")} ^ set(kinds)
        if changed:
            raise ModelError(
                f"Whether the program has site {min(changed)!r} follows the number of rows, and a minibatch has fewer. "
                "Make it depend on `constants`, or leave `batch_size` out."
            )
        for name, shape in shapes.items():
            local = row_dim(outline.sites[name], row_plates) is not None
            if shape != outline.shapes[name] and not local:
                raise ModelError(
                    f"The shape of latent site {name!r} follows the number of rows, and a minibatch sees only a few of "
                    "them. Leave `batch_size` out."
                )
        return {
            name: log_prob(trace[name]) if kind == "sample" else trace[name]["value"] for name, kind in kinds.items()
        }

    sets = [{name: column[np.asarray(index)] for name, column in table.columns.items()} for index in indices]
    values = compilation.run(lambda batches: [run(batch) for batch in batches], sets)
    return [{name: (kinds[name], np.asarray(value)) for name, value in found.items()} for found in values]


def dims_of(name: str, outline: Outline) -> tuple[str, ...]:
    """The names of a site's dimensions: the plates it is in, then numbers."""
    site = outline.sites[name]
    shape, event_dim = site["shape"], site["event_dim"]
    dims = [f"{name}_dim_{axis}" for axis in range(len(shape))]
    for frame in site["cond_indep_stack"]:
        axis = len(shape) - event_dim + frame.dim
        # A dimension has one size in a result.
        usable = frame.name not in TAKEN and outline.plates[frame.name] == frame.size
        if axis >= 0 and shape[axis] == frame.size and usable:
            dims[axis] = frame.name
    return tuple(dims)
