"""Sites that are updated together, and the exponential family of their conditional.

Which family it is follows from what the log-density does with a site: a positive one with its logarithm and one power
has a (power of a) gamma distribution, whatever its prior is called. Real sites are Gaussian; where elements meet in
the log-density they belong to one Gaussian, along an axis, along a chain, or all of them.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from langevin.conjugacy.families import (
    Beta,
    Categorical,
    CategoricalChain,
    Dirichlet,
    Family,
    Gaussian,
    GaussianChain,
    PolyaGamma,
    PoweredGamma,
    Wishart,
)
from langevin.conjugacy.indexing import Access, At, Number, read
from langevin.conjugacy.terms import INDICATOR, LOG, LOG1M, LOGDET, VALUE, Factor

# Which statistic of a family a factor is.
STATISTICS: dict[type, dict[str, str]] = {
    Beta: {LOG: "log", LOG1M: "log1m"},
    Dirichlet: {LOG: "log"},
    PoweredGamma: {LOG: "log", VALUE: "power"},
    PolyaGamma: {VALUE: "omega"},
    Wishart: {VALUE: "matrix", LOGDET: "logdet"},
    Categorical: {INDICATOR: "onehot"},
}


class Layout(NamedTuple):
    """How a real site is laid out in a Gaussian.

    Attributes:
        name: The site.
        shape: The shape of its value.
        batch: The axes along which its elements are independent.
        joint: The axes along which they are not.
        chain: The axis of a chain; None if there is none.
    """

    name: str
    shape: tuple[int, ...]
    batch: tuple[int, ...]
    joint: tuple[int, ...]
    chain: int | None = None

    @property
    def size(self) -> int:
        """How many elements are in one vector."""
        return math.prod(self.shape[axis] for axis in self.joint)

    @property
    def batch_shape(self) -> tuple[int, ...]:
        """The sizes of the axes along which elements are independent."""
        return tuple(self.shape[axis] for axis in self.batch)

    @property
    def order(self) -> tuple[int, ...]:
        """Its axes as they are in the arrays of the family."""
        return (*self.batch, *(() if self.chain is None else (self.chain,)), *self.joint)

    def packed(self, value: jax.Array) -> jax.Array:
        """A value with the axes of the family: batch, (time,) vector."""
        lead = [value.shape[axis] for axis in self.order[: len(self.order) - len(self.joint)]]
        return jnp.transpose(value, self.order).reshape(*lead, self.size)

    def unpacked(self, array: jax.Array) -> jax.Array:
        """The inverse of `packed`."""
        shape = [self.shape[axis] for axis in self.order]
        return jnp.transpose(array.reshape(shape), np.argsort(self.order).tolist())


class Block(NamedTuple):
    """Sites that are updated together.

    Attributes:
        name: Its name.
        sites: The names of its sites.
        family: Of their conditional.
        layouts: For a Gaussian, how its sites are laid out.
        local: Whether each row has its own.
        values: What a discrete site can be.
    """

    name: str
    sites: tuple[str, ...]
    family: Family
    layouts: tuple[Layout, ...] = ()
    local: bool = False
    values: tuple[int, ...] = ()

    def read(self, statistics: Mapping[str, jax.Array], factors: Sequence[Factor]) -> Number:
        """The statistic that some factors are, by label."""
        if self.layouts:
            return self._read_gaussian(statistics, factors)
        if isinstance(self.family, CategoricalChain):
            return self._read_chain(statistics, factors)
        factor = factors[0]
        key = STATISTICS[type(self.family)][factor.function]
        return read(statistics[key], factor.access)

    def to_value(self, values: Mapping[str, Any]) -> jax.Array:
        """The values of the sites as one value of the family."""
        if self.layouts:
            return jnp.concatenate([layout.packed(values[layout.name]) for layout in self.layouts], axis=-1)
        value = values[self.sites[0]]
        if self.values:
            return jnp.searchsorted(jnp.asarray(self.values), value)
        return value

    def from_value(self, value: jax.Array) -> dict[str, jax.Array]:
        """The inverse of `to_value`."""
        if self.layouts:
            ends = np.cumsum([layout.size for layout in self.layouts])[:-1]
            parts = jnp.split(value, ends, axis=-1)
            return {layout.name: layout.unpacked(part) for layout, part in zip(self.layouts, parts, strict=True)}
        if self.values:
            return {self.sites[0]: jnp.asarray(self.values)[value]}
        return {self.sites[0]: value}

    def _read_chain(self, statistics: Mapping[str, jax.Array], factors: Sequence[Factor]) -> Number:
        """Of a chain of labels: one time, or two that follow one another."""
        if len(factors) == 1:
            return read(statistics["onehot"], factors[0].access)
        early, late = sorted(factors, key=lambda factor: _offset(factor.access[1]))
        access = (early.access[0], late.access[0], *early.access[1:])
        return read(statistics["pair"], access)

    def _read_gaussian(self, statistics: Mapping[str, jax.Array], factors: Sequence[Factor]) -> Number:
        doubled = [factor for factor in factors for _ in range(round(factor.exponent))]
        spans = [self._span(factor.site) for factor in doubled]
        if len(doubled) == 1:
            (layout, (start, end)), factor = spans[0], doubled[0]
            array = statistics["x"][..., start:end]
            array = array.reshape([layout.shape[axis] for axis in layout.order])
            return read(array, [factor.access[axis] for axis in layout.order])
        key = "xx"
        chains = [layout.chain for layout, _ in spans]
        if None not in chains:
            times = [_offset(f.access[axis or 0]) for f, axis in zip(doubled, chains, strict=True)]
            if times[0] != times[1]:
                key = "cross"
            if times[0] > times[1]:
                doubled, spans = doubled[::-1], spans[::-1]
        (one, (a, b)), (two, (c, d)) = spans
        array = statistics[key][..., a:b, c:d]
        lead = one.order[: len(one.order) - len(one.joint)]
        shape = (
            *array.shape[: len(lead)],
            *(one.shape[axis] for axis in one.joint),
            *(two.shape[axis] for axis in two.joint),
        )
        access: list[Access] = [doubled[0].access[axis] for axis in (*lead, *one.joint)]
        access += [doubled[1].access[axis] for axis in two.joint]
        return read(array.reshape(shape), access)

    def _span(self, site: str) -> tuple[Layout, tuple[int, int]]:
        start = 0
        for layout in self.layouts:
            if layout.name == site:
                return layout, (start, start + layout.size)
            start += layout.size
        raise KeyError(site)


def _offset(access: Access) -> int:
    return access.offset if isinstance(access, At) else int(np.asarray(access.index))


def gaussian(name: str, layouts: Sequence[Layout], local: bool) -> Block:
    """A block of real sites, which have the same batch."""
    size = sum(layout.size for layout in layouts)
    first = layouts[0]
    if first.chain is None:
        family: Family = Gaussian(first.batch_shape, size)
    else:
        family = GaussianChain(first.batch_shape, first.shape[first.chain], size)
    return Block(name, tuple(layout.name for layout in layouts), family, tuple(layouts), local)
