"""Names of the dimensions of a result, and labels of their elements.

A dimension is named by the plate that it comes from, or by `dims`. Its elements are labelled by `coords`; or, where it
has the name and the size of a column of categories, by the levels of that column.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import jax
import numpy as np

from langevin.data.levels import Label, listed, plain
from langevin.errors import SettingError
from langevin.models.joint import Joint
from langevin.posterior import Posterior
from langevin.run.keep import Keep
from langevin.run.layout import file_name

TAKEN = ("chain", "draw")
_AROUND = re.compile(r"^(num|n|plate|group|by|per)_|_(plate|group|groups|dim|id|ids|idx|index|level|levels|effects?)$")


class Names(NamedTuple):
    """The names in a result.

    Attributes:
        dims: For each reported name, the names of its dimensions.
        labels: For each dimension that has them, the labels of its elements.
    """

    dims: dict[str, tuple[str, ...]]
    labels: dict[str, np.ndarray]


def dims_asked(dims: Any) -> dict[str, tuple[str, ...]]:
    """The argument `dims`, checked as far as it can be without a model."""
    if not isinstance(dims, Mapping | None):
        raise SettingError(f"`dims` must be a dict of names by site, such as {{'w': ('feature',)}}; got {dims!r}.")
    asked: dict[str, tuple[str, ...]] = {}
    for site, names in (dims or {}).items():
        if not isinstance(names, str | Iterable):
            raise SettingError(f"`dims[{site!r}]` must be names of dimensions, such as ('feature',); got {names!r}.")
        asked[site] = (names,) if isinstance(names, str) else tuple(names)
        for name in asked[site]:
            _check_name(site, name)
        if len(set(asked[site])) < len(asked[site]):
            raise SettingError(
                f"`dims[{site!r}]` has a name twice: {asked[site]}. Each axis needs one of its own, as 'row', 'column'."
            )
    return asked


def coords_asked(coords: Any) -> dict[str, tuple[Label, ...]]:
    """The argument `coords`, as JSON can hold it."""
    if not isinstance(coords, Mapping | None):
        raise SettingError(f"`coords` must be a dict of labels by dimension; got {coords!r}.")
    asked = {}
    for dim, labels in (coords or {}).items():
        if isinstance(labels, str) or np.ndim(labels) != 1:
            raise SettingError(f"`coords[{dim!r}]` must be a list of labels; got {labels!r}.")
        _check_name("coords", dim)
        asked[dim] = tuple(plain(label) for label in np.asarray(labels, object))
    return asked


def names_of(
    target: Posterior | Joint,
    keep: Keep,
    levels: Mapping[str, Sequence[Label]],
    dims: Mapping[str, Sequence[str]],
    coords: Mapping[str, Sequence[Label]],
) -> Names:
    """The names in the result of a run.

    Args:
        target: What is sampled.
        keep: What is kept of a draw.
        levels: Of the columns of categories.
        dims: What `dims_asked` made.
        coords: What `coords_asked` made.

    Raises:
        SettingError: If there is no such site or dimension, or something has another length.
    """
    own = dict(target.dims)
    if not (levels or dims or coords):
        return Names(own, {})
    shapes = _shapes(target, keep)
    for site in dims:
        if site not in shapes:
            raise SettingError(f"`dims`: no site {site!r} is reported; there are {', '.join(shapes)}.")
    named, sizes = {}, {}
    for name, shape in shapes.items():
        named[name] = _named(name, shape, own.get(name), dims.get(name))
        clashes = [dim for dim, size in zip(named[name], shape, strict=True) if sizes.get(dim, size) != size]
        if clashes and name in dims:
            raise SettingError(
                f"`dims[{name!r}]`: the dimension {clashes[0]!r} has another size elsewhere, {sizes[clashes[0]]}; here "
                f"the sizes are {shape}. Give them different names."
            )
        if clashes:
            # What is kept of a site in place of it may have another size than its plate.
            named[name] = _numbered(name, shape)
        sizes |= dict(zip(named[name], shape, strict=True))
    for name, names in dims.items():
        if set(names) & set(shapes):
            raise SettingError(f"`dims[{name!r}]`: {names} has the name of a site. Name the dimension otherwise.")
    for dim, labels in coords.items():
        if dim not in sizes:
            raise SettingError(f"`coords`: no site has the dimension {dim!r}; there are {listed(sizes) or 'none'}.")
        if len(labels) != sizes[dim]:
            raise SettingError(f"`coords[{dim!r}]` has {len(labels)} labels, and the dimension has size {sizes[dim]}.")
    labels = {**dict(_levels_of(sizes, levels)), **coords}
    return Names(named, {dim: as_array(of_dim) for dim, of_dim in labels.items()})


def as_array(labels: Sequence[Label]) -> np.ndarray:
    """Labels as an array of one kind: as text, where they are of several."""
    kinds = {type(label) for label in labels}
    return np.array(labels if len(kinds) == 1 else [str(label) for label in labels])


def _check_name(where: str, name: Any) -> None:
    if not isinstance(name, str) or name in TAKEN or file_name(name) != name:
        raise SettingError(
            f"`dims` and `coords`, {where!r}: {name!r} cannot be the name of a dimension. Take a plain name that is "
            "not 'chain' or 'draw'."
        )


def _shapes(target: Posterior | Joint, keep: Keep) -> dict[str, tuple[int, ...]]:
    """The shapes of what is reported, in the order in which a user reads it."""
    if isinstance(target, Joint):
        return dict(target.structure.sizes)
    order = [name for name, _ in target.dims]
    reported = jax.eval_shape(lambda position: keep.reported(target.constrain(position)), target.model.like)
    names = sorted(reported, key=lambda name: order.index(name) if name in order else len(order))
    return {name: reported[name].shape for name in names}


def _named(
    name: str, shape: tuple[int, ...], own: tuple[str, ...] | None, asked: Sequence[str] | None
) -> tuple[str, ...]:
    """The names of a site's dimensions: all as asked for, or those asked for in place of those without a name."""
    numbered = _numbered(name, shape)
    known = own if own is not None and len(own) == len(shape) else numbered
    if asked is None:
        return known
    if len(asked) == len(shape):
        return tuple(asked)
    if len(asked) == sum(dim in numbered for dim in known):
        rest = iter(asked)
        return tuple(next(rest) if dim in numbered else dim for dim in known)
    raise SettingError(f"`dims[{name!r}]` has {len(asked)} names, and site {name!r} has the dimensions {known}.")


def _numbered(name: str, shape: tuple[int, ...]) -> tuple[str, ...]:
    return tuple(f"{name}_dim_{axis}" for axis in range(len(shape)))


def _levels_of(sizes: Mapping[str, int], levels: Mapping[str, Sequence[Label]]) -> Iterator[tuple[str, Any]]:
    """The levels of the one column that each dimension is named after."""
    for dim, size in sizes.items():
        fitting = [column for column, names in levels.items() if len(names) == size]
        alike = [column for column in fitting if column == dim] or [c for c in fitting if _is_alike(dim, c)]
        if len(alike) == 1 and file_name(dim) == dim:
            yield dim, levels[alike[0]]


def _is_alike(dim: str, column: str) -> bool:
    """Whether a plate is named after a column: "carriers", "carrier_plate", "num_carrier"."""
    core, name = (_AROUND.sub("", text).lower() for text in (dim, column))
    return core in (name, f"{name}s", f"{name}es", f"{name[:-1]}ies" if name.endswith("y") else name)
