"""What the draws of a run look like on disk: names, types and shapes, and how many draws make a block."""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from langevin.errors import SettingError

if TYPE_CHECKING:
    from langevin.contracts import Draws

POSTERIOR, STATS, UNCONSTRAINED = "posterior", "sample_stats", "unconstrained_posterior"
FIT_FORMAT = "langevin fit 2"
BLOCK_BYTES = 1 << 20
MOST_DRAWS = 4096
_LONGEST_NAME = 200
# What some file system cannot have in a name, and "%", by which it is quoted.
_QUOTED = re.compile(r'[\x00-\x1f\x7f%\\:*?"<>|]|^[.]|[. ]$|[\ud800-\udfff]')


class Variable(NamedTuple):
    """An array of draws.

    Attributes:
        group: Its group in the result.
        source: Its name among the draws that engines bring.
        name: Its name in the result, which is that of its folder.
        dtype: Of the array.
        shape: Of one draw.
    """

    group: str
    source: str
    name: str
    dtype: np.dtype
    shape: tuple[int, ...]

    @property
    def draw_bytes(self) -> int:
        """The bytes of one draw."""
        return self.dtype.itemsize * math.prod(self.shape)


class Layout(NamedTuple):
    """The arrays of a run, and how many draws of a chain make a block: the same number for all."""

    variables: tuple[Variable, ...]
    block: int

    def taken(self, draws: Draws) -> dict[tuple[str, str], np.ndarray]:
        """The draws of one chain as arrays of this layout, by group and name.

        Raises:
            ValueError: If the draws have other names, types, shapes or numbers of draws.
        """
        there = {(group, source) for group, arrays in draws.items() for source in arrays}
        odd = there ^ {(variable.group, variable.source) for variable in self.variables}
        if odd:
            raise ValueError(f"All draws of a run must have the same arrays; these differ in {sorted(odd)}.")
        num_draws = length(draws)
        arrays = {}
        for group, source, name, dtype, shape in self.variables:
            array = storable(draws[group][source], f"{group} {source!r}")
            if (array.dtype, array.shape) != (dtype, (num_draws, *shape)):
                expected = f"{dtype} {(num_draws, *shape)}"
                raise ValueError(f"{group} {source!r} is {array.dtype} {array.shape} in place of {expected}.")
            arrays[group, name] = array
        return arrays

    def as_state(self) -> dict[str, Any]:
        """The layout as a checkpoint can hold it."""
        return {"block": self.block, "variables": [(*part[:3], part.dtype.str, part.shape) for part in self.variables]}

    @staticmethod
    def of_state(state: dict[str, Any]) -> Layout:
        """The layout that `as_state` wrote."""
        parts = (Variable(group, *names, np.dtype(dtype), shape) for group, *names, dtype, shape in state["variables"])
        return Layout(tuple(parts), state["block"])


def layout_of(draws: Draws) -> Layout:
    """The layout of a run whose first draws these are.

    Raises:
        SettingError: If a name cannot be that of an array in a folder.
    """
    variables = []
    for group, arrays in draws.items():
        names: dict[str, str] = {}
        for source, array in arrays.items():
            name = "lp" if (group, source) == (STATS, "log_density") else file_name(source)
            if name in names:
                raise SettingError(f"The names {names[name]!r} and {source!r} are both {name!r} on disk. Rename one.")
            names[name] = source
            array = storable(array, f"{group} {source!r}")
            variables.append(Variable(group, source, name, array.dtype, array.shape[1:]))
    largest = max((variable.draw_bytes for variable in variables), default=1)
    return Layout(tuple(variables), min(max(BLOCK_BYTES // max(largest, 1), 1), MOST_DRAWS))


def length(draws: Draws) -> int:
    """How many draws there are; 0 if there are no arrays."""
    return next((len(array) for arrays in draws.values() for array in arrays.values()), 0)


def storable(values: Any, what: str) -> np.ndarray:
    """Values as an array that Zarr can hold: bfloat16 and its kin as float32, the bytes in the machine's order.

    Raises:
        TypeError: If they are objects.
    """
    array = np.asarray(values)
    if array.dtype.kind == "V" and array.dtype.fields is None:
        array = array.astype(np.float32)
    if array.dtype.kind not in "biufcUS":
        raise TypeError(f"{what} is an array of {array.dtype}, which cannot be stored. Use numbers, bools or strings.")
    return array.astype(array.dtype.newbyteorder("="), copy=False)


def file_name(name: str) -> str:
    """The name of a site in a result, which is also that of its folder: "/" becomes ".", as in names of leaves.

    What a file cannot have in its name is quoted by "%".

    Example:
        >>> file_name("layer/weight"), file_name("../x"), file_name("a:b")
        ('layer.weight', '%2E..x', 'a%3Ab')

    Raises:
        SettingError: If the name is empty, too long, or that of a dimension of every result.
    """
    quoted = _QUOTED.sub(lambda match: "".join(f"%{ord(c):02X}" for c in match[0]), name.replace("/", "."))
    if not quoted or len(quoted.encode()) > _LONGEST_NAME:
        raise SettingError(f"{name!r} cannot be the name of a file: it is empty or too long. Rename the site.")
    if quoted in ("chain", "draw"):
        raise SettingError(f"{name!r} is the name of a dimension of every result. Rename the site.")
    return quoted


def dimensions(variables: Iterable[Variable], dims: Mapping[str, tuple[str, ...]]) -> dict[str, tuple[str, ...]]:
    """The names of the dimensions of the arrays of one group, after chain and draw.

    Those that a model gives are used where they fit: one for each axis, and none for axes of different lengths.

    Args:
        variables: The arrays of the group.
        dims: Names by the name of a reported site.
    """
    variables = list(variables)
    taken = {"chain", "draw", *(variable.name for variable in variables)}
    sizes: dict[str, int] = {}
    named = {}
    for group, source, name, _, shape in variables:
        stem = f"{name}_unconstrained" if group == UNCONSTRAINED else name
        given = dims.get(source, ()) if group == POSTERIOR else ()
        fits = len(given) == len(shape) == len(set(given)) and not taken & set(given)
        fits = fits and all(sizes.get(dim, size) == size for dim, size in zip(given, shape, strict=True))
        named[name] = tuple(given) if fits else tuple(f"{stem}_dim_{axis}" for axis in range(len(shape)))
        sizes.update(zip(named[name], shape, strict=True))
    return named
