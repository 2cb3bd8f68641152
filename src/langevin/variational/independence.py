"""Which terms of the bound an element of a plate has a part in: its own only, or others' too.

Within a plate, elements are independent given everything else: so says a plate, and NumPyro does not check it. A
program may still compute from all of them at once (a cumulative sum, a mean, a neighbour), and then the cost of one
element is not its own term alone. So it is tried: the value of one element is changed, and the others' must stay.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable, Mapping
from typing import Any

import jax
import numpy as np

from langevin.posterior import Batch
from langevin.run import compilation

TRIES = 8
SAME = 1e-4
Frames = Iterable[tuple[str, int]]
Terms = Callable[[dict[str, Any], jax.Array, Batch], tuple[dict[str, Any], dict[str, Any]]]


def entangled(
    terms: Terms, batch: Batch, sites: Mapping[str, Frames], plates: Mapping[str, Mapping[str, int]]
) -> dict[str, dict[str, frozenset[str]]]:
    """For each site and term, the plates that they share and in which an element changes others' terms.

    Args:
        terms: `values, key, batch -> draws, terms`: a run of guide and program, with some sites at given values.
        batch: Rows.
        sites: For each site, the plates that it is in and their axes in its value, from the right.
        plates: For each term, the plates of its axes.
    """
    keys = list(jax.random.split(jax.random.key(0), TRIES))
    draw = compilation.prepared(terms, {}, keys[0], batch)
    runs = [draw({}, key, batch) for key in keys]
    found: dict[str, dict[str, frozenset[str]]] = {}
    for site, frames in sites.items():
        mixed: dict[str, set[str]] = {term: set() for term in plates}
        again = compilation.prepared(terms, {site: runs[0][0][site]}, keys[0], batch)
        # At one draw a change may happen to leave a term as it is.
        for (plate, axis), number in itertools.product(frames, range(TRIES // 2)):
            draws, plain = runs[number]
            size = draws[site].shape[axis]
            for element in {0, size // 2, size - 1}:
                changed = _with_another(draws[site], [other[site] for other, _ in runs], axis, element)
                now = None if changed is None else again({site: changed}, keys[number], batch)[1]
                for term, own in plates.items():
                    if own.get(plate) is None or size == 1:
                        continue
                    # Where no draw is different, nothing is known.
                    if now is None or not _others_stay(plain[term], now[term], own[plate], element):
                        mixed[term].add(plate)
        found[site] = {term: frozenset(names) for term, names in mixed.items()}
    return found


def _with_another(value: Any, others: list[Any], axis: int, element: int) -> np.ndarray | None:
    """The value with one element along an axis as in another draw in which it is different."""
    value = np.array(value)
    index: list[Any] = [slice(None)] * value.ndim
    index[axis] = element
    for other in others:
        if (np.asarray(other)[tuple(index)] != value[tuple(index)]).any():
            value[tuple(index)] = np.asarray(other)[tuple(index)]
            return value
    return None


def _others_stay(before: Any, after: Any, axis: int, element: int) -> bool:
    before, after = (np.delete(np.asarray(term), element, axis=axis) for term in (before, after))
    size = max(1.0, float(np.max(np.abs(before[np.isfinite(before)]), initial=0.0)))
    return np.allclose(before, after, rtol=0.0, atol=SAME * size, equal_nan=True)
