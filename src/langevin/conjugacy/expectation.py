"""The expectation of a polynomial in statistics: sums of products, as `einsum`s.

A term is multilinear in the statistics of the blocks. Where blocks are independent its expectation is that of the
product of expected statistics; at values of the sites it is the term itself, with the statistics of the values.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from langevin.conjugacy.indexing import At, Label, Number, Taken, aligned, is_known, labels_of, same
from langevin.conjugacy.polynomial import Polynomial
from langevin.conjugacy.terms import Factor, Term

MOST_GROWTH, ALWAYS = 4, 1_000_000

Statistics = Mapping[str, Mapping[str, jax.Array]]
Reading = Callable[[Mapping[str, jax.Array], Sequence[Factor]], Number]


class Reader(NamedTuple):
    """How the factors of some sites are read from the statistics of their block."""

    block: str
    read: Reading


class Product(NamedTuple):
    """A term with its numbers summed as far as possible, and its factors by block."""

    numbers: tuple[Number, ...]
    factors: tuple[tuple[str, tuple[Factor, ...]], ...]

    @property
    def blocks(self) -> frozenset[str]:
        """The blocks that it depends on."""
        return frozenset(name for name, _ in self.factors)


def contracted(numbers: Sequence[Number], kept: Sequence[Label] = ()) -> jax.Array:
    """The sum of the product over all labels but those that are kept, whose order the axes then have."""
    names: dict[int, int] = {}
    operands: list[Any] = []
    for number in numbers:
        operands += [jnp.asarray(number.array), [names.setdefault(id(label), len(names)) for label in number.labels]]
    if len(numbers) == 1 and len(numbers[0].labels) == len(kept) and not kept:
        return jnp.asarray(numbers[0].array)
    return jnp.einsum(*operands, [names[id(label)] for label in kept], optimize="greedy")


def products(
    terms: Sequence[Term], block_of: Mapping[str, str], shapes: Mapping[str, tuple[int, ...]]
) -> list[Product]:
    """Terms with their numbers summed as far as factors allow; like terms as one.

    Args:
        terms: Those of a scalar polynomial.
        block_of: For each site the name of its block.
        shapes: For each site the shape that its accesses read.
    """
    found: dict[Any, list[Product]] = {}
    for term in terms:
        product = _product(_tabulated(term, shapes), block_of)
        found.setdefault(_signature(product), []).append(product)
    return [one for group in found.values() for one in _joined(group)]


def _product(term: Term, block_of: Mapping[str, str]) -> Product:
    by_block: dict[str, list[Factor]] = {}
    for factor in sorted(term.factors, key=lambda factor: (factor.site, factor.function, factor.exponent)):
        by_block.setdefault(block_of[factor.site], []).append(factor)
    factors = tuple((name, tuple(group)) for name, group in sorted(by_block.items()))
    outer = Term((), term.factors).labels()
    kept = [label for label in outer if any(label is own for number in term.numbers for own in number.labels)]
    numbers = term.numbers or (Number(np.asarray(1.0), ()),)
    size = np.prod([1.0, *(label.size for label in kept)])
    largest = max(np.size(number.array) for number in numbers)
    if size <= max(MOST_GROWTH * largest, ALWAYS) or not term.factors:
        numbers = (Number(contracted(numbers, kept), tuple(kept)),)
    return Product(numbers, factors)


def _tabulated(term: Term, shapes: Mapping[str, tuple[int, ...]]) -> Term:
    """The numbers of all rows that read the same elements of sites, as one: sums by group.

    A label that factors read only through indices, `a[group[n]]`, becomes the labels of what they read, if there are
    no more combinations of these than rows. So an update costs what there are groups, and not rows.
    """
    for label in Term((), term.factors).labels():
        indices: list[tuple[Taken, int]] = []
        places: dict[tuple[int, int], int] = {}
        for at, factor in enumerate(term.factors):
            for axis, access in enumerate(factor.access):
                if not any(label is own for own in labels_of(access)):
                    continue
                if not isinstance(access, Taken) or len(access.labels) > 1:
                    break
                size = shapes[factor.site][axis]
                known = (
                    i for i, (other, other_size) in enumerate(indices) if same(access, other) and size == other_size
                )
                places[at, axis] = next(known, len(indices))
                if places[at, axis] == len(indices):
                    indices.append((access, size))
            else:
                continue
            break
        else:
            if indices and math.prod(size for _, size in indices) <= label.size:
                term = _summed_by(term, label, indices, places)
    return term


def _summed_by(
    term: Term, label: Label, indices: list[tuple[Taken, int]], places: Mapping[tuple[int, int], int]
) -> Term:
    sizes = tuple(size for _, size in indices)
    flat = jnp.ravel_multi_index([jnp.asarray(access.index) for access, _ in indices], sizes, mode="clip")
    mine = [number for number in term.numbers if any(label is own for own in number.labels)]
    rest = tuple(number for number in term.numbers if all(number is not own for own in mine))
    mine = mine or [Number(np.ones(label.size), (label,))]
    others: dict[int, Label] = {}
    for number in mine:
        others.update((id(own), own) for own in number.labels if own is not label)
    kept = tuple(others.values())
    rows = contracted(mine, (label, *kept))
    made = tuple(Label(size) for size in sizes)
    table = jax.ops.segment_sum(rows, flat, math.prod(sizes)).reshape(*sizes, *rows.shape[1:])
    factors = []
    for at, factor in enumerate(term.factors):
        access = tuple(
            At(made[places[at, axis]]) if (at, axis) in places else own for axis, own in enumerate(factor.access)
        )
        factors.append(factor._replace(access=access))
    return Term((*rest, Number(table, (*made, *kept))), tuple(factors))


def _signature(product: Product) -> Any:
    places: dict[int, int] = {}

    def place(label: Label) -> tuple[int, int]:
        return places.setdefault(id(label), len(places)), label.size

    signature: list[Any] = []
    for name, group in product.factors:
        for factor in group:
            accesses = tuple(
                ("at", place(access.label), access.offset)
                if isinstance(access, At)
                else ("taken", _identity(access.index), tuple(map(place, access.labels)))
                for access in factor.access
            )
            signature.append((name, factor.site, factor.function, factor.exponent, accesses))
    if len(product.numbers) != 1:
        return id(product.numbers[0].array), len(signature), tuple(signature)
    return tuple(signature), tuple(sorted(place(label) for label in product.numbers[0].labels))


def _identity(index: Any) -> Any:
    if is_known(index):
        array = np.asarray(index)
        return array.shape, array.tobytes()
    return id(index)


def _joined(group: list[Product]) -> list[Product]:
    """Like terms as one: their labels are those of the first, by place."""
    if len(group) == 1 or len(group[0].numbers) != 1:
        return group
    orders = [Term((), tuple(f for _, factors in product.factors for f in factors)).labels() for product in group]
    total: Any = 0.0
    for product, order in zip(group, orders, strict=True):
        mine = [label for label in order if any(label is own for own in product.numbers[0].labels)]
        total = total + aligned(product.numbers[0], mine)
    labels = tuple(label for label in orders[0] if any(label is own for own in group[0].numbers[0].labels))
    return [Product((Number(total, labels),), group[0].factors)]


def expected(product: Product, readers: Mapping[str, Reading], statistics: Statistics) -> jax.Array:
    """The expectation of one term."""
    readings = [readers[name](statistics[name], factors) for name, factors in product.factors]
    return contracted([*product.numbers, *readings])


def total(chosen: Sequence[Product], readers: Mapping[str, Reading], statistics: Statistics) -> jax.Array:
    """The expectation of a sum of terms."""
    return sum((expected(product, readers, statistics) for product in chosen), jnp.zeros((), jnp.result_type(float)))


def terms_of(log_density: Any) -> tuple[Term, ...]:
    """The terms of a scalar: a polynomial, or a number."""
    if isinstance(log_density, Polynomial):
        return log_density.terms
    return (Term((Number(log_density, ()),)),)
