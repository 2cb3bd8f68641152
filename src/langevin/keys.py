"""Random keys, derived outside compiled code."""

from __future__ import annotations

import jax

from langevin.posterior import Key


def derive(key: Key, count: int) -> list[Key]:
    """So many independent keys.

    By `fold_in`, which compiles once for all uses, where splitting and unpacking compile anew for every count.
    """
    return [jax.random.fold_in(key, number) for number in range(count)]
