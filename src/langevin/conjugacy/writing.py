"""Complete conditionals as a person would write them."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from langevin.conjugacy.blocks import Block
from langevin.conjugacy.families import Beta, Categorical, CategoricalChain, Dirichlet, PoweredGamma, Wishart
from langevin.conjugacy.indexing import Access, At, Label, Number, Taken
from langevin.conjugacy.terms import INDICATOR, LOG, LOG1M, LOGDET, VALUE, Factor, Term

MOST_LETTERS = "ijklmpqrstuvwabcde"


class Line(NamedTuple):
    """A parameter of a conditional: its name, and what its terms are multiplied by and added to."""

    name: str
    factor: float
    offset: float


LINES: dict[type, dict[Any, Line]] = {
    Beta: {LOG: Line("concentration1", 1.0, 1.0), LOG1M: Line("concentration0", 1.0, 1.0)},
    Dirichlet: {LOG: Line("concentration", 1.0, 1.0)},
    Wishart: {LOGDET: Line("(degrees of freedom - size - 1) / 2", 1.0, 0.0), VALUE: Line("rate matrix / 2", -1.0, 0.0)},
    Categorical: {INDICATOR: Line("log probability", 1.0, 0.0)},
}
LINES[CategoricalChain] = LINES[Categorical]
GAUSSIAN = {1: Line("precision * mean", 1.0, 0.0), 2: Line("precision", -2.0, 0.0)}


class Writer:
    """Writes the conditionals of one program.

    Args:
        terms: The terms of its log joint density, with numbers for data.
        blocks: Its blocks.
        columns: The data by name, whose arrays are known again among the numbers.
    """

    def __init__(self, terms: Sequence[Term], blocks: Sequence[Block], columns: Mapping[str, Any]) -> None:
        self._terms, self._blocks = terms, blocks
        self._columns = {name: np.asarray(column) for name, column in columns.items()}
        self._others: list[np.ndarray] = []

    def written(self) -> str:
        """All of them."""
        parts = [self._block(block) for block in self._blocks]
        legend = [
            f"{self._other(i)}: numbers made of the data, of shape {array.shape}"
            for i, array in enumerate(self._others)
        ]
        return "\n\n".join([*parts, *(["\n".join(legend)] if legend else [])])

    def _block(self, block: Block) -> str:
        lines: dict[str, dict[str, float]] = {}
        for term in self._terms:
            own = [factor for factor in term.factors if factor.site in block.sites]
            if not own:
                continue
            line = self._line(block, own)
            weight, text, index = self._term(term, own, several=len(block.sites) > 1)
            sums = lines.setdefault(line.name + index, {})
            sums[text] = sums.get(text, 0.0) + weight * line.factor
        written = []
        for name in sorted(lines, key=lambda name: ("mean" in name, name)):
            sums = lines[name]
            offset = sums.pop("", 0.0) + self._offset(block, name)
            parts = [f"{offset:.6g}"] if offset or not sums else []
            parts += [_times(weight, text) for text, weight in sums.items() if weight]
            written.append(f"    {name} = {' + '.join(parts).replace('+ -', '- ')}")
        return "\n".join([f"{', '.join(block.sites)} | rest ~ {self._kind(block)}", *written])

    def _offset(self, block: Block, name: str) -> float:
        known = LINES.get(type(block.family), {}).values()
        if isinstance(block.family, PoweredGamma):
            return 1.0 / block.family.power if name.startswith("concentration") else 0.0
        return next((line.offset for line in known if name.startswith(line.name)), 0.0)

    def _kind(self, block: Block) -> str:
        family = block.family
        if block.layouts:
            first = block.layouts[0]
            size = sum(layout.size for layout in block.layouts)
            if first.chain is not None:
                return f"Gaussian Markov chain of {first.shape[first.chain]} steps (Kalman smoothing)"
            many = f", {int(np.prod(first.batch_shape))} of them" if first.batch_shape else ""
            return f"Normal{many}" if size == 1 else f"MultivariateNormal of {size}{many}"
        if isinstance(family, PoweredGamma):
            names = {1.0: "Gamma", -1.0: "InverseGamma"}
            return names.get(family.power, f"a variable whose power {family.power:g} is Gamma")
        if isinstance(family, CategoricalChain):
            return f"Markov chain of {family.length} steps over {family.num_values} values (forward-backward)"
        if isinstance(family, Categorical):
            return f"Categorical over {family.num_values} values"
        return type(family).__name__

    def _line(self, block: Block, own: list[Factor]) -> Line:
        if block.layouts:
            return GAUSSIAN[round(sum(factor.exponent for factor in own))]
        if isinstance(block.family, PoweredGamma):
            power = block.family.power
            return Line("concentration", 1 / power, 0.0) if own[0].function == LOG else Line("rate", -1.0, 0.0)
        known = LINES.get(type(block.family), {VALUE: Line("c^2 / 2", -1.0, 0.0)})
        return known[own[0].function]

    def _term(self, term: Term, own: list[Factor], several: bool) -> tuple[float, str, str]:
        """A term without the factors of its block: its weight, its text, and the index that these factors have.

        Args:
            term: The term.
            own: The factors of the block.
            several: Whether the block has more than one site, so that an index has to name them.
        """
        letters = Letters(term, len(next(iter(self._columns.values()))) if self._columns else 0)
        mine: list[Label] = []
        conditions, index = [], []
        for factor in own:
            places = []
            for access in factor.access:
                if isinstance(access, At):
                    mine.append(access.label)
                    places.append(letters.of(access.label, access.offset))
                elif access.labels:
                    letter = letters.fresh()
                    conditions.append(f"[{self._index(access, letters)} = {letter}]")
                    places.append(letter)
                else:
                    places.append(str(int(np.asarray(access.index))))
            inside = ", ".join(places)
            index.append((f"{factor.site}[{inside}]" if inside else factor.site) if several else inside)
        rest = [factor for factor in term.factors if all(factor is not known for known in own)]
        weight, arrays = self._split(term)
        summed = [label for label in term.labels() if not any(label is known for known in mine)]
        if not arrays and not conditions:
            used = Term((), tuple(rest)).labels()
            for label in [label for label in summed if not any(label is other for other in used)]:
                weight *= label.size
                summed.remove(label)
        parts = [*conditions, *(self._factor(factor, letters) for factor in rest)]
        parts += _powers(sorted(self._array(number, letters) for number in arrays))
        index = [place for place in dict.fromkeys(index) if place]
        shown = f"[{'; '.join(index)}]" if index else ""
        sums = "".join(f"sum_{letter} " for letter in sorted(letters.of(label) for label in summed))
        return weight, f"{sums}{' '.join(parts)}".rstrip(), shown

    def _split(self, term: Term) -> tuple[float, list[Number]]:
        """The numbers of a term: the product of those that are constant, and the others."""
        weight, arrays = 1.0, []
        for number in term.numbers:
            array = np.asarray(number.array)
            if array.size and np.ptp(array) == 0:
                weight *= float(array.ravel()[0])
            else:
                arrays.append(number)
        return weight, arrays

    def _factor(self, factor: Factor, letters: Letters) -> str:
        site = factor.site + self._bracket(factor.access, letters)
        if factor.function == INDICATOR:
            values = self._bracket(factor.access[:1], letters)[1:-1]
            return f"[{factor.site}{self._bracket(factor.access[1:], letters)} = {values}]"
        names = {LOG: f"log {site}", LOG1M: f"log(1 - {site})", LOGDET: f"logdet {site}"}
        if factor.function in names:
            return names[factor.function]
        return site if factor.exponent == 1 else f"{site}^{factor.exponent:g}"

    def _array(self, number: Number, letters: Letters) -> str:
        name = self._known(np.asarray(number.array))
        index = ", ".join(letters.of(label) for label in number.labels)
        base, _, power = name.partition("^")
        return f"{base}[{index}]{'^' + power if power else ''}"

    def _index(self, access: Taken, letters: Letters) -> str:
        return f"{self._known(np.asarray(access.index))}[{', '.join(letters.of(label) for label in access.labels)}]"

    def _bracket(self, access: Sequence[Access], letters: Letters) -> str:
        inside = []
        for one in access:
            if isinstance(one, At):
                inside.append(letters.of(one.label, one.offset))
            elif one.labels:
                inside.append(self._index(one, letters))
            else:
                inside.append(str(int(np.asarray(one.index))))
        return f"[{', '.join(inside)}]" if inside else ""

    def _known(self, array: np.ndarray) -> str:
        """The name of an array: of a column, or of a power of it; else a name of its own."""
        for name, values in self._made():
            if values.shape == array.shape and np.allclose(values, array, rtol=1e-5):
                return name
        for i, other in enumerate(self._others):
            if other.shape == array.shape and np.array_equal(other, array):
                return self._other(i)
        self._others.append(array)
        return self._other(len(self._others) - 1)

    def _made(self) -> Iterator[tuple[str, np.ndarray]]:
        """What is often made of columns: themselves, squares, what is left to 1 or to another column."""
        columns = {
            name: column.reshape([size for size in column.shape if size != 1]).astype(float)
            for name, column in self._columns.items()
            if column.dtype.kind in "fiub"
        }
        for name, column in columns.items():
            yield name, column
            yield f"{name}^2", column**2
            yield f"(1 - {name})", 1 - column
        for (name, column), (other, less) in itertools.permutations(columns.items(), 2):
            if column.shape == less.shape:
                yield f"({name} - {other})", column - less

    def _other(self, number: int) -> str:
        return f"c{number + 1}"


def _times(weight: float, text: str) -> str:
    if abs(weight - 1) < 1e-9:
        return text
    return f"-{text}" if abs(weight + 1) < 1e-9 else f"{weight:.6g} {text}"


def _powers(parts: list[str]) -> list[str]:
    """Equal parts as squares."""
    counted = {part: parts.count(part) for part in parts}
    return [part if count == 1 else f"{part}^{count}" for part, count in counted.items()]


class Letters:
    """Letters for the labels of one term: "n" for rows."""

    def __init__(self, term: Term, num_rows: int) -> None:
        self._letters: dict[int, str] = {}
        self._left: Iterator[str] = iter(MOST_LETTERS)
        self._count = itertools.count(1)
        for label in term.labels():
            if label.size == num_rows and "n" not in self._letters.values():
                self._letters[id(label)] = "n"

    def of(self, label: Label, offset: int = 0) -> str:
        """The letter of a label."""
        if id(label) not in self._letters:
            self._letters[id(label)] = self.fresh()
        letter = self._letters[id(label)]
        return f"{letter}+{offset}" if offset else letter

    def fresh(self) -> str:
        """A letter that was not used."""
        return next(self._left, None) or f"i{next(self._count)}"
