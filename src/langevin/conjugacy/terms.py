"""Products of numbers and of functions of sites, by label: the terms of a polynomial."""

from __future__ import annotations

from typing import NamedTuple

from langevin.conjugacy.indexing import Access, Label, Moves, Number, labels_of, same

VALUE, LOG, LOG1M, INDICATOR, LOGDET = "value", "log", "log1m", "indicator", "logdet"


class Factor(NamedTuple):
    """A function of an element of a site, to a power.

    Attributes:
        site: The name of the site.
        function: "value", "log", "log1m" (the logarithm of 1 - value), "indicator" (that a discrete site has a value:
            the first access says which), or "logdet" (of a matrix).
        exponent: The power.
        access: How the site is read along each of its axes.
        positive: Whether it is always positive.
    """

    site: str
    function: str
    exponent: float
    access: tuple[Access, ...]
    positive: bool = False

    def matches(self, other: Factor) -> bool:
        """Whether the two are powers of the same."""
        return (
            self.site == other.site
            and self.function == other.function
            and all(same(a, b) for a, b in zip(self.access, other.access, strict=True))
        )


class Term(NamedTuple):
    """A product of numbers and factors."""

    numbers: tuple[Number, ...] = ()
    factors: tuple[Factor, ...] = ()

    def labels(self) -> list[Label]:
        """The labels that it has, each once."""
        found: dict[int, Label] = {}
        for number in self.numbers:
            found.update((id(label), label) for label in number.labels)
        for factor in self.factors:
            for access in factor.access:
                found.update((id(label), label) for label in labels_of(access))
        return list(found.values())

    def moved(self, moves: Moves) -> Term:
        """The term with other labels."""
        if not moves.mapping:
            return self
        factors = (factor._replace(access=tuple(map(moves.access, factor.access))) for factor in self.factors)
        return Term(tuple(map(moves.number, self.numbers)), tuple(factors))

    def times(self, other: Term) -> Term:
        """The product, in which powers of the same are put together."""
        factors = list(self.factors)
        for factor in other.factors:
            for place, known in enumerate(factors):
                if known.matches(factor):
                    factors[place] = known._replace(exponent=known.exponent + factor.exponent)
                    break
            else:
                factors.append(factor)
        numbers = self.numbers + other.numbers
        scalars = [number.array for number in numbers if not number.labels]
        if len(scalars) > 1:
            value = scalars[0]
            for scalar in scalars[1:]:
                value = value * scalar
            numbers = (Number(value, ()), *(number for number in numbers if number.labels))
        return Term(numbers, tuple(factor for factor in factors if factor.exponent))
