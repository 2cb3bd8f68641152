"""What is kept of a draw."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Iterable
from typing import Any, Literal

import jax
import jax.numpy as jnp
import numpy as np

from langevin import culprit, spelling
from langevin.errors import SettingError


@dataclasses.dataclass(frozen=True)
class Keep:
    """What is kept of a draw, so that draws of a million weights need not be stored twice, or at all.

    Args:
        sites: The names to keep of what the model reports; None for all.
        function: `sites -> dict of name -> array`: kept in place of the sites. It is compiled.
        unconstrained: Whether the unconstrained position is kept too: `init=fit` and the Stein discrepancy need it. By
            default it is, unless sites were chosen or a function was given; of an `lv.Network` it is not, whose
            weights are their own positions.
        precision: "half" keeps floating-point numbers in 16 bits; None as they are.
        predict: Rows, for an `lv.Network`: kept is what the network puts out for them, in place of its weights, so that
            `fit.predict` and `fit.evaluate` know these rows, and no others. `sites` may name weights to keep beside.

    Example:
        >>> Keep(sites="w").sites
        ('w',)
    """

    sites: tuple[str, ...] | str | None = None
    function: Callable[[dict[str, Any]], dict[str, Any]] | None = None
    unconstrained: bool | None = None
    precision: Literal["half"] | None = None
    predict: Any = None

    def __post_init__(self) -> None:
        if self.sites is not None:
            sites: Any = (self.sites,) if isinstance(self.sites, str) else self.sites
            if not isinstance(sites, Iterable) or not all(isinstance(name, str) for name in sites):
                raise SettingError(f"`Keep`: `sites` must be names of sites; got {self.sites!r}.")
            sites = tuple(sites)
            object.__setattr__(self, "sites", sites)
        if self.function is not None and not callable(self.function):
            raise SettingError(f"`Keep`: `function` must be a function of the sites; got {self.function!r}.")
        if self.precision not in (None, "half"):
            raise SettingError(f"`Keep`: `precision` must be None or 'half'; got {self.precision!r}.")

    @property
    def with_position(self) -> bool:
        """Whether the unconstrained position is kept."""
        if self.unconstrained is None:
            return self.sites is None and self.function is None
        return self.unconstrained

    def bytes_of(self, position: Any, reported: Any) -> int:
        """The size of what is kept of one draw.

        Args:
            position: Like a position.
            reported: Like what `reported` returns.
        """
        kept = [*jax.tree.leaves(reported), *(jax.tree.leaves(position) if self.with_position else ())]
        return sum(math.prod(leaf.shape) * self._type(leaf.dtype).itemsize for leaf in kept)

    def reported(self, sites: dict[str, Any]) -> dict[str, jax.Array]:
        """What is kept of the sites that a model reports. For compiled code.

        Raises:
            SettingError: If there is no such site, or the function returns something else than a dict of arrays.
        """
        kept = sites
        if self.function is not None:
            kept = culprit.guarded(self.function, "`Keep`: `function`")(sites)
            if not isinstance(kept, dict):
                raise SettingError(f"`Keep`: `function` must return a dict of name -> array; it returned {kept!r}.")
            taken = [name for name in kept if name in ("chain", "draw")]
            if taken:
                raise SettingError(f"`Keep`: {taken[0]!r} is the name of a dimension of every result. Rename it.")
        elif self.sites is not None:
            unknown = [name for name in self.sites if name not in sites]
            if unknown:
                raise SettingError(f"`Keep`: there is no site {unknown[0]!r}; there are {', '.join(sites)}.")
            kept = {name: sites[name] for name in self.sites}
        return {name: self._rounded(jnp.asarray(value)) for name, value in kept.items()}

    def grouped(
        self, reported: dict[str, np.ndarray], position: Any, stats: dict[str, np.ndarray]
    ) -> dict[str, dict[str, np.ndarray]]:
        """Draws by group, as a sink takes them: what was kept of the sites, the position if it is kept, and numbers."""
        groups = {"posterior": reported, "sample_stats": stats}
        if self.with_position:
            leaves = jax.tree_util.tree_flatten_with_path(position)[0]
            groups["unconstrained_posterior"] = {leaf_name(path): self._rounded(leaf) for path, leaf in leaves}
        return groups

    def _rounded(self, value: Any) -> Any:
        dtype = self._type(value.dtype)
        return value if value.dtype == dtype else value.astype(dtype)

    def _type(self, dtype: Any) -> np.dtype:
        is_float = jnp.issubdtype(dtype, jnp.floating)
        return np.dtype(np.float16) if self.precision == "half" and is_float else dtype


spelling.check_keywords(Keep)


def as_keep(keep: Any) -> Keep:
    """None as everything; a name, names or a function as a `Keep`; a `Keep` as it is."""
    if keep is None:
        return Keep()
    if isinstance(keep, Keep):
        return keep
    return Keep(function=keep) if callable(keep) else Keep(sites=keep)


def leaf_name(path: Any) -> str:
    """The name of a leaf of a position: `"layer.weight"`; that of a bare array is `"position"`."""
    return jax.tree_util.keystr(path, simple=True, separator=".").replace("/", ".") or "position"
