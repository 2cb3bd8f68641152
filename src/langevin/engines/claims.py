"""Which block of a model each site belongs to, by the keys of `lv.Hybrid`."""

from __future__ import annotations

import fnmatch
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import jax
import numpy as np

from langevin import spelling
from langevin.contracts import Position
from langevin.errors import SettingError
from langevin.posterior import Posterior

Key = str | Callable[..., bool]
"""Names or patterns, with commas between several; or a predicate on sites."""
REST = "..."


class Site(NamedTuple):
    """What a predicate sees of a latent site.

    Attributes:
        name: Its name.
        shape: Its unconstrained shape.
        size: How many numbers it has.
        discrete: Whether its values are discrete.
        by_row: Whether every row has its own.
    """

    name: str
    shape: tuple[int, ...]
    size: int
    discrete: bool
    by_row: bool


class Block(NamedTuple):
    """Sites, and the method that updates them."""

    names: tuple[str, ...]
    method: Any


def sites_of(target: Posterior, example: Position) -> list[Site]:
    """The latent sites of a target, discrete ones too.

    Raises:
        SettingError: If its positions have no names.
    """
    if not isinstance(example, dict):
        raise SettingError(
            "`Hybrid` gives blocks to sites by name, and the positions of this model are not dicts. Give the `Density` "
            f"an `init` that is a dict; it is {jax.tree.structure(example)}."
        )
    local = target.model.local
    sites = []
    for name, leaf in example.items():
        shape = np.shape(leaf) if not isinstance(leaf, dict) else ()
        size = sum(np.size(part) for part in jax.tree.leaves(leaf))
        sites.append(Site(name, shape, size, False, name in local))
    for name in target.summed_out:
        sites.append(Site(name, (), 0, True, name in local))
    return sites


def claimed(blocks: Mapping[Key, Any], sites: list[Site]) -> tuple[Block, ...]:
    """The sites of each block, in the order of the keys. Discrete sites that none names stay summed out.

    Raises:
        SettingError: If a site has no block or two, or a key names no site.
    """
    owner: dict[str, Key] = {}
    found: dict[Key, list[str]] = {}
    for key in blocks:
        if key == REST:
            continue
        found[key] = _matched(key, sites)
        for name in found[key]:
            if name in owner:
                raise SettingError(
                    f"`Hybrid`: two blocks claim site {name!r}: {shown(owner[name])} and {shown(key)}. Leave it in one."
                )
            owner[name] = key
    rest = [site.name for site in sites if site.name not in owner]
    if REST in blocks:
        kind = "labels" if blocks[REST].role == "labels" else "others"
        found[REST] = [name for name in rest if (kind == "labels") == _site(name, sites).discrete]
        if not found[REST] and kind == "labels":
            raise SettingError("`Hybrid`: `...` has lv.Enumerate(), and no discrete site is left for it. Leave it out.")
        if not found[REST]:
            left = ", ".join(map(repr, owner))
            raise SettingError(f"`Hybrid`: no site is left for `...`: {left} have blocks of their own. Leave it out.")
    taken = {name for names in found.values() for name in names}
    called = f"lv.{type(next(iter(blocks.values()))).__name__}"
    for site in sites:
        if site.name not in taken and not site.discrete:
            raise SettingError(
                f"`Hybrid`: site {site.name!r} has no block. Name it in one, or give all sites that are left a method, "
                f"with `...` as the key: lv.Hybrid({{{shown(next(iter(blocks)))}: {called}(), ...: lv.NUTS()}})."
            )
    return tuple(Block(tuple(found[key]), method) for key, method in blocks.items())


def check_able(blocks: tuple[Block, ...], sites: list[Site]) -> None:
    """Checks that every method can update its block.

    Raises:
        SettingError: Names the site and a method that can.
    """
    for block in blocks:
        called = type(block.method).__name__
        for name in block.names:
            discrete = _site(name, sites).discrete
            if discrete and block.method.role != "labels":
                raise SettingError(
                    f"`Hybrid`: site {name!r} is discrete, and `{called}` is for continuous ones. Draw it by "
                    f"{{{name!r}: lv.Enumerate()}}, or leave it out: it is then summed out."
                )
            if not discrete and block.method.role == "labels":
                raise SettingError(
                    f"`Hybrid`: site {name!r} is not discrete, and `{called}` draws discrete sites. Give it "
                    "lv.NUTS(), or lv.SGLD() with minibatches."
                )
    drawn = {name for block in blocks if block.method.role == "labels" for name in block.names}
    left = [site.name for site in sites if site.discrete and site.name not in drawn]
    if drawn and left:
        raise SettingError(
            f"`Hybrid`: the discrete sites {', '.join(map(repr, sorted(drawn)))} are drawn, and {left[0]!r} is not: "
            f"they are drawn together or summed out together. Name {left[0]!r} in the same block."
        )
    bounds = [block.names for block in blocks if block.method.role == "bound"]
    if len(bounds) > 1:
        raise SettingError(
            f"`Hybrid`: two blocks have a `VI`: {bounds[0]} and {bounds[1]}. Put their sites into one, "
            "with a tuple of names as the key."
        )
    if bounds and all(block.method.role in ("bound", "labels") for block in blocks):
        raise SettingError(
            "`Hybrid`: every continuous site has a `VI`. Give some to a sampler, or fit the whole model by method="
            "lv.VI()."
        )


def shown(key: Any) -> str:
    """A key as a user wrote it."""
    if isinstance(key, str) and key != REST:
        names = [repr(name) for name in key.split(", ")]
        return names[0] if len(names) == 1 else f"({', '.join(names)})"
    return getattr(key, "__qualname__", str(key))


def _site(name: str, sites: list[Site]) -> Site:
    return next(site for site in sites if site.name == name)


def _matched(key: Key, sites: list[Site]) -> list[str]:
    names = [site.name for site in sites]
    if isinstance(key, str):
        matched = []
        for pattern in key.split(", "):
            fits = [name for name in names if name == pattern or fnmatch.fnmatchcase(name, pattern)]
            if not fits:
                meant = spelling.nearest(pattern, names)
                remedy = f"Did you mean {meant!r}? " if meant else ""
                raise SettingError(
                    f"`Hybrid`: there is no site {pattern!r}. {remedy}The latent sites are "
                    f"{', '.join(map(repr, names))}."
                )
            matched += [name for name in fits if name not in matched]
        return matched
    chosen = [site.name for site in sites if key(site)]
    if not chosen:
        raise SettingError(
            f"`Hybrid`: the predicate {shown(key)} chooses no site. The latent sites are {', '.join(map(repr, names))}."
        )
    return chosen
