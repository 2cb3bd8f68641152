"""Sums over discrete variables, one after another: tensor variable elimination (Obermeyer et al. 2019).

A factor is a table of log-probabilities whose axes have names: the discrete variables it depends on, and the plates it
is in. A variable that is in the plates P is summed out of the product of all factors that depend on it:

    log sum_z exp( sum over factors f of  sum over the plates of f that are not in P  f(z, ...) )

Deeper plates come first, and among equals the variable that leaves the smallest table, so that a chain is summed from
its end: the forward algorithm.

Reference:
    Obermeyer et al. (2019), Tensor variable elimination for plated factor graphs.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from langevin.errors import ModelError

MOST_COMBINATIONS = 10_000
Plates = Mapping[str, frozenset[str]]
LogSum = Callable[[jax.Array, int, Any], jax.Array]
"""How a variable is summed out: the table, the axis of the variable, and the step of a chain (0 outside chains)."""


class Factor(NamedTuple):
    """Log-probabilities by the values of variables and the elements of plates.

    Attributes:
        array: The table.
        axes: The name of each of its axes: variables, then plates.
    """

    array: jax.Array
    axes: tuple[str, ...]

    def summed(self, gone: Iterable[str]) -> Factor:
        """The sum over some axes, as far as it has them: the product over plates."""
        index = tuple(self.axes.index(name) for name in gone if name in self.axes)
        rest = tuple(name for i, name in enumerate(self.axes) if i not in index)
        return Factor(jnp.sum(self.array, axis=index) if index else self.array, rest)

    def aligned(self, axes: tuple[str, ...]) -> jax.Array:
        """The table with these axes, which are at least its own, and of size 1 where it has none."""
        order = [self.axes.index(name) for name in axes if name in self.axes]
        shape = [self.array.shape[self.axes.index(name)] if name in self.axes else 1 for name in axes]
        return jnp.reshape(jnp.transpose(self.array, order), shape)


def log_sum(array: jax.Array, axis: int, step: Any = 0) -> jax.Array:
    """The logarithm of the sum of exponentials over an axis."""
    del step
    return jax.nn.logsumexp(array, axis=axis)


def product(factors: list[Factor]) -> Factor:
    """The product of factors, which is a sum of their logarithms."""
    axes = tuple(dict.fromkeys(name for factor in factors for name in factor.axes))
    return Factor(sum((factor.aligned(axes) for factor in factors[1:]), factors[0].aligned(axes)), axes)


def components(factors: Iterable[tuple[str, frozenset[str]]]) -> list[tuple[frozenset[str], tuple[str, ...]]]:
    """Groups factors that share a variable, directly or through others.

    Args:
        factors: The name of each factor, and the variables it depends on; those without any are left out.

    Returns:
        The variables of each group, and the names of its factors.
    """
    groups: list[tuple[frozenset[str], tuple[str, ...]]] = []
    for name, variables in factors:
        if not variables:
            continue
        touching = [group for group in groups if group[0] & variables]
        groups = [group for group in groups if not group[0] & variables]
        names = tuple(known for group in touching for known in group[1])
        groups.append((variables.union(*(group[0] for group in touching)), (*names, name)))
    return groups


def eliminated(
    factors: list[Factor], plates: Plates, kept: frozenset[str] = frozenset(), log_sum: LogSum = log_sum
) -> Factor:
    """Sums every variable out of a product of factors.

    Args:
        factors: The factors of one component.
        plates: The variables, each with the plates that it is in.
        kept: Plates that every variable is in, and over which no product is taken.
        log_sum: How a variable is summed out; another function draws it (see `langevin.models.drawing`).

    Returns:
        A factor without variables, over the plates that are kept.

    Raises:
        ModelError: If a variable is used outside its plates, or too many of them meet in one factor.
    """
    left = list(plates)
    factors = list(factors)
    while left:
        deepest = max(len(plates[name]) for name in left)
        name = min((name for name in left if len(plates[name]) == deepest), key=lambda name: _size(factors, name))
        left.remove(name)
        of_name = [factor for factor in factors if name in factor.axes]
        factors = [factor for factor in factors if name not in factor.axes]
        if not of_name:
            continue
        for factor in of_name:
            _check(name, factor, plates)
        inside = plates[name]
        # A product over the other plates that a factor is in: its values there all have this one value of the variable.
        parts = [
            factor.summed([axis for axis in factor.axes if axis not in plates and axis not in inside])
            for factor in of_name
        ]
        _check_size(name, parts, plates)
        joined = product(parts)
        axis = joined.axes.index(name)
        rest = Factor(log_sum(joined.array, axis, 0), tuple(other for other in joined.axes if other != name))
        has_variables = any(other in plates for other in rest.axes)
        factors.append(rest if has_variables else rest.summed([other for other in rest.axes if other not in kept]))
    return product([factor.summed([axis for axis in factor.axes if axis not in kept]) for factor in factors])


def _size(factors: list[Factor], name: str) -> int:
    """How large the table is that eliminating a variable leaves."""
    sizes = {axis: n for f in factors if name in f.axes for axis, n in zip(f.axes, f.array.shape, strict=True)}
    return math.prod(n for axis, n in sizes.items() if axis != name)


def _check(name: str, factor: Factor, plates: Plates) -> None:
    """Checks that a factor of a variable is in its plates, and in no others that another of its variables is in."""
    outside = sorted(plates[name] - set(factor.axes))
    if outside:
        raise ModelError(
            f"Discrete site {name!r} is in the plate {outside[0]!r}, and something that is not in that plate depends "
            "on it: it can be summed out only where each of its elements concerns that element of the plate alone. Put "
            "what depends on it into the same plate (of a group's rows: a plate inside that of the groups), or fit it "
            f"by `lv.VI` with a distribution of its own: lv.VI({{{name!r}: dist.Categorical}})."
        )
    for other in factor.axes:
        if other in plates and not plates[other] <= plates[name]:
            raise ModelError(
                f"Discrete sites {name!r} and {other!r} meet in one site, and are in different plates "
                f"({_listed(plates[name])}; {_listed(plates[other])}): every element of one is tied to every element "
                "of the other, which no sum can undo. Fit the program by `lv.VI` with distributions of these sites."
            )


def _check_size(name: str, factors: list[Factor], plates: Plates) -> None:
    sizes = {axis: n for f in factors for axis, n in zip(f.axes, f.array.shape, strict=True) if axis in plates}
    combinations = math.prod(sizes.values())
    if combinations > MOST_COMBINATIONS:
        raise ModelError(
            f"To sum out the discrete site {name!r}, {combinations} combinations of values of "
            f"{', '.join(map(repr, sizes))} would be computed at each element; at most {MOST_COMBINATIONS} are. Give "
            "them fewer values, or fit the program by `lv.VI` with distributions of these sites."
        )


def _listed(plates: frozenset[str]) -> str:
    return " and ".join(map(repr, sorted(plates))) or "none"
