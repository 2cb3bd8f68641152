"""What the values of the data say against a program: codes that are no index, observations that cannot be."""

from __future__ import annotations

import functools
from collections.abc import Mapping
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from numpyro import handlers
from numpyro.distributions import constraints

from langevin.culprit import guarded
from langevin.data.table import Table
from langevin.errors import DataError, ModelError
from langevin.models import codes
from langevin.models.outline import HANDLERS, Call, check_same_sites, is_observed, log_prob
from langevin.models.wrappers import unwrapped
from langevin.run.gist import gist_of_trace

# The supports that can be checked without rounding, in words.
WORDS = {
    "Boolean": "it must be 0 or 1",
    "Circular": "it must be from {low:.6g} to {high:.6g}",
    "GreaterThan": "it must be above {low:.6g}",
    "GreaterThanEq": "it must be at least {low:.6g}",
    "IntegerGreaterThan": "it must be a whole number, at least {low}",
    "IntegerInterval": "it must be a whole number from {low} to {high}",
    "IntegerNonnegative": "it must be a whole number, at least 0",
    "IntegerPositive": "it must be a whole number, at least 1",
    "Interval": "it must be from {low:.6g} to {high:.6g}",
    "LessThan": "it must be below {high:.6g}",
    "LessThanEq": "it must be at most {high:.6g}",
    "Nonnegative": "it must be at least 0",
    "OpenInterval": "it must be between {low:.6g} and {high:.6g}",
    "Positive": "it must be above 0",
    "UnitInterval": "it must be from 0 to 1",
}


class Observed(NamedTuple):
    """An observed site: its distribution's name, its support without the numbers in it, and how many there are."""

    name: str
    distribution: str
    support: Any
    num_bounds: int


def check_values(call: Call, table: Table, latent: Mapping[str, tuple[tuple[int, ...], bool]]) -> None:
    """Checks all rows, by abstract runs of the program, and that two runs are the same.

    Args:
        call: The program.
        table: The rows.
        latent: For each latent site the shape of its value, and whether it is discrete.

    Raises:
        DataError: Names the site, the column, the row and the value.
        ModelError: If the program does something else each time.
    """
    observed: list[Observed] = []

    def run(values: dict[str, Any], batch: dict[str, Any]) -> Any:
        program = handlers.substitute(call, data=values)
        with HANDLERS:
            trace = handlers.trace(handlers.seed(program, jax.random.key(0))).get_trace(batch)
        check_same_sites(trace, values)
        sites = {name: site for name, site in trace.items() if site["type"] == "sample"}
        parts = []
        for name, site in sites.items():
            support = site["fn"].support
            if is_observed(site) and _is_checked(site["fn"], support):
                bounds, structure = jax.tree.flatten(support)
                kind = type(unwrapped(site["fn"])).__name__.removesuffix("Logits").removesuffix("Probs")
                observed.append(Observed(name, kind, structure, len(bounds)))
                parts += [site["value"], *bounds]
        log_probs = [guarded(log_prob, f"The log-probability of site {name!r}")(site) for name, site in sites.items()]
        return parts, log_probs

    dtypes = {True: jnp.result_type(int), False: jnp.result_type(float)}
    values = {name: jax.ShapeDtypeStruct(shape, dtypes[discrete]) for name, (shape, discrete) in latent.items()}
    columns = {name: jax.ShapeDtypeStruct(column.shape, column.dtype) for name, column in table.columns.items()}
    # JAX would not trace the same function again.
    before = gist_of_trace(jax.make_jaxpr(functools.partial(run))(values, columns))
    observed.clear()
    trace = jax.make_jaxpr(run)(values, columns)
    if gist_of_trace(trace) != before:
        raise ModelError(
            "The program is not the same each time it is run: it draws random numbers of its own (np.random, random), "
            "or counts its runs. Draw such numbers beforehand and pass them in `constants`; what is to be inferred is "
            "a `numpyro.sample` site."
        )
    # In the order in which JAX flattens dicts.
    inputs = [codes.Value(None, frozenset({f"site {name!r}"})) for name in sorted(values)]
    inputs += [codes.Value(np.asarray(table.columns[n]), frozenset({f"`data[{n!r}]`"})) for n in sorted(columns)]
    followed = codes.follow(trace, inputs)
    parts = list(followed.outputs)
    for site in observed:
        value, *bounds = (parts.pop(0) for _ in range(1 + site.num_bounds))
        if value.known is not None and all(bound.known is not None for bound in bounds):
            support = jax.tree.unflatten(site.support, [bound.known for bound in bounds])
            _check_support(site, support, value, table.num_rows)
    for lookup in followed.lookups:
        if not any(_leaves_out(choice, lookup) for choice in followed.choices):
            raise _out_of_bounds(lookup, table.num_rows)


def _is_checked(distribution: Any, support: Any) -> bool:
    """Whether there is something to check: not where any number will do, and not where a mask may leave a value out.

    NumPyro gives a value outside the support the log-probability -inf, unless `validate_args` is False.
    """
    is_masked = unwrapped(distribution) is not unwrapped(distribution, masks=False)
    if is_masked or not getattr(unwrapped(distribution), "_validate_args", True):
        return False
    return _kind(support) in WORDS


def _check_support(site: Observed, support: Any, value: codes.Value, num_rows: int) -> None:
    values = np.asarray(value.known)
    wrong = ~np.asarray(support(values))
    if not wrong.any():
        return
    where = tuple(np.argwhere(wrong)[0])
    count = int(wrong.sum())
    raise DataError(
        f"Observed site {site.name!r} has the value {_shown(values[where])}{_at(where, wrong, num_rows)}"
        f"{f' ({count} such values)' if count > 1 else ''}, which its distribution, {site.distribution}, cannot have: "
        f"{_words(support, where, values.shape)}. Correct {_listed(value.origins)}, or choose another "
        "distribution; where it is meant so, give the distribution `validate_args=False`."
    )


def _out_of_bounds(lookup: codes.Lookup, num_rows: int) -> DataError:
    where = tuple(np.argwhere(lookup.where)[0])
    array = _listed(lookup.array) if lookup.array else "an array"
    negative = lookup.values[where] < 0
    how = "would be counted from the end" if negative else "would stand for the last element, in silence"
    missing = "; pandas writes -1 for a missing category" if lookup.values[where] == -1 else ""
    return DataError(
        f"{_listed(lookup.index)} gives the index {lookup.values[where]}{_at(where, lookup.where, num_rows)}, in "
        f"{array}, which has the size {lookup.size} there: indices go from 0 to {lookup.size - 1}, and this one {how}"
        f"{missing}. Make the plate or the array as large as there are codes, or correct the codes."
    )


def _leaves_out(choice: codes.Value, lookup: codes.Lookup) -> bool:
    """Whether a choice that the program makes tells the elements that are out of bounds from others: it knows of them.

    A choice by the codes themselves (`g > 0`) may leave out more than those; one by something else, just those.
    """
    chosen, wrong = np.asarray(choice.known).ravel(), lookup.where.ravel()
    if chosen.shape != wrong.shape or chosen.dtype.kind != "b":
        return False
    if choice.origins == lookup.index:
        return bool(_is_one(chosen[wrong]) and not _is_one(chosen))
    return bool((chosen == wrong).all() or (chosen == ~wrong).all())


def _is_one(chosen: np.ndarray) -> bool:
    return bool(chosen.all() or not chosen.any())


def _at(where: tuple[int, ...], wrong: np.ndarray, num_rows: int) -> str:
    return f" at row {where[0]}" if where and wrong.shape[0] == num_rows else ""


def _listed(names: frozenset[str]) -> str:
    return " and ".join(sorted(names)) or "the program"


def _shown(value: Any) -> str:
    return np.array2string(np.asarray(value), threshold=6, precision=6)


def _kind(support: Any) -> str:
    """The name of a support, whether it is of one number or of several."""
    return type(_of_one(support)).__name__.lstrip("_")


def _of_one(support: Any) -> Any:
    while isinstance(support, type(constraints.independent(constraints.real, 1))):
        support = support.base_constraint
    return support


def _words(support: Any, where: tuple[int, ...], shape: tuple[int, ...]) -> str:
    """A support in words, with the bounds of one value."""
    at = where + (0,) * (len(shape) - len(where))
    bounds = {
        name: np.broadcast_to(np.asarray(getattr(_of_one(support), name, 0)), shape)[at].item()
        for name in ("lower_bound", "upper_bound")
    }
    return WORDS[_kind(support)].format(low=bounds["lower_bound"], high=bounds["upper_bound"])
