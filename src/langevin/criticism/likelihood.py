"""The log-likelihood of the draws of a fit, computed in compiled pieces of draws and rows."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import xarray as xr

from langevin.criticism import sites as of_sites
from langevin.criticism.sites import Draw, Sites
from langevin.errors import SettingError
from langevin.models.structure import SAME_ROW
from langevin.posterior import Batch, Posterior
from langevin.run import compilation

# Values of a piece: as many as stay in a cache of the processor, and are still worth a call.
PIECE = 2**20
MOST_ROWS = 2**17
MOST_COMPARED = 64


class Likelihood:
    """What the rows say of each draw.

    Args:
        target: The posterior, with its rows in the order of the user.
        tree: The draws, with equal weights or not.

    Raises:
        SettingError: If the draws do not hold what the likelihood needs; names the site.
    """

    def __init__(self, target: Posterior, tree: xr.DataTree) -> None:
        self.target = target
        self.sites: Sites = of_sites.find(target)
        self._group = _draws_of(self.sites, tree)
        self._programs: dict[Any, Callable[..., Any]] = {}

    @property
    def num_chains(self) -> int:
        """How many chains there are."""
        return self._group.sizes["chain"]

    @property
    def num_draws(self) -> int:
        """How many draws a chain has."""
        return self._group.sizes["draw"]

    @property
    def num_units(self) -> int:
        """How many parts the data has that can be left out: rows, or else values of the observed sites."""
        if self.has_rows:
            return self.target.num_data
        return sum(int(np.prod(site.shape)) for site in self.sites.observed.values())

    @property
    def has_rows(self) -> bool:
        """Whether an observed site has a value a row."""
        return bool(self._row_axes)

    @property
    def _row_axes(self) -> dict[str, int]:
        """The observed sites with a value a row, and which of their axes the rows are."""
        return {name: site.row_axis for name, site in self.sites.observed.items() if site.row_axis is not None}

    def read(self, name: str, chains: np.ndarray, draws: np.ndarray, rows: np.ndarray | None = None) -> np.ndarray:
        """The log-likelihood of one site: chains, draws, and the axes of the site, with these rows; None for all."""
        return self._read((name,), chains, draws, rows)[name]

    def by_unit(self, draws: np.ndarray, units: np.ndarray | None = None) -> np.ndarray:
        """The log-likelihood of parts of the data, of shape (chains, draws, units); None for all.

        A row counts with all that was observed in it. What is observed outside the rows counts with none of them.
        """
        chains = np.arange(self.num_chains)
        if not self.has_rows:
            found = self._read(tuple(self.sites.observed), chains, draws, None)
            flat = [values.reshape(len(chains), len(draws), -1) for values in found.values()]
            joined = np.concatenate(flat, axis=2)
            return joined if units is None else joined[:, :, units]
        found = self._read(tuple(self._row_axes), chains, draws, units)
        return np.sum([_to_rows(found[name], 2, axis) for name, axis in self._row_axes.items()], axis=0)

    def at(self, draw: Draw) -> np.ndarray:
        """The log-likelihood of all parts of the data at one point, which need not be a draw."""
        alone = jax.tree.map(lambda leaf: np.asarray(leaf)[None], draw)
        if not self.has_rows:
            found = self._pieces(tuple(self.sites.observed), alone, None)
            return np.concatenate([values.ravel() for values in found.values()])
        found = self._pieces(tuple(self._row_axes), alone, np.arange(self.target.num_data))
        return np.sum([_to_rows(found[name], 1, axis)[0] for name, axis in self._row_axes.items()], axis=0)

    def draws(self, chain: int, index: Any) -> Draw:
        """Some draws of one chain, with the draws in front."""
        part = self._group.isel(chain=chain, draw=index)
        leaves = {str(name): np.asarray(values.values) for name, values in part.items()}
        if not self.sites.by_position:
            return leaves
        like = self.target.start(np.random.default_rng(0))
        ordered = [
            np.asarray(leaves[name], leaf.dtype) for name, leaf in zip(leaves, jax.tree.leaves(like), strict=True)
        ]
        return jax.tree.unflatten(jax.tree.structure(like), ordered)

    @functools.cached_property
    def rows_apart(self) -> bool:
        """Whether the likelihood of some rows can be computed from these rows alone.

        A program that was fitted in minibatches was checked. Any other is called with a few rows, at the first draw,
        and must give them the values that they have among all rows.
        """
        if not self.has_rows:
            return False
        if self.target.by_rows:
            return True
        # Fewer than all, or a program whose rows depend on one another would not show it.
        few = np.arange(min(self.target.num_data // 2, MOST_COMPARED)) * 2
        if not len(few):
            return False
        first = self.draws(0, slice(0, 1))
        names = tuple(self._row_axes)
        among_all = self._piece(names, first, self.target.rows)
        try:
            alone = self._piece(names, first, self._rows(few))
        except Exception:
            # Whatever a program does that cannot be called with fewer rows.
            return False
        for name, axis in self._row_axes.items():
            expected = np.take(among_all[name], few, 1 + axis)
            size = max(1.0, float(np.max(np.abs(expected), initial=0.0)))
            if alone[name].shape != expected.shape or not np.allclose(alone[name], expected, 0.0, SAME_ROW * size):
                return False
        return True

    def _read(
        self, names: tuple[str, ...], chains: np.ndarray, draws: np.ndarray, rows: np.ndarray | None
    ) -> dict[str, np.ndarray]:
        found = [self._pieces(names, self.draws(int(chain), draws), rows) for chain in chains]
        return {name: np.stack([values[name] for values in found]) for name in names}

    def _pieces(self, names: tuple[str, ...], draws: Draw, rows: np.ndarray | None) -> dict[str, np.ndarray]:
        """One value for each draw and row, from pieces of both."""
        count = len(jax.tree.leaves(draws)[0])
        if rows is None and self.has_rows and self.target.num_data > MOST_ROWS:
            rows = np.arange(self.target.num_data)
        chunks: list[np.ndarray | None] = [None]
        if rows is not None and (len(rows) < self.target.num_data or len(rows) > MOST_ROWS) and self.rows_apart:
            chunks = list(_chunks(rows, min(len(rows), MOST_ROWS)))
        found: dict[str, list[np.ndarray]] = {name: [] for name in names}
        for chunk in chunks:
            batch = self.target.rows if chunk is None else self._rows(chunk)
            width = max(self.target.num_data if chunk is None else len(chunk), 1)
            taken = rows if chunk is None else None
            for name, values in self._over_draws(names, draws, count, batch, max(PIECE // width, 1), taken).items():
                found[name].append(values)
        joined = {}
        for name, parts in found.items():
            axis = self.sites.observed[name].row_axis
            values = parts[0] if axis is None else np.concatenate(parts, 1 + axis)
            joined[name] = values if axis is None or rows is None else np.take(values, np.arange(len(rows)), 1 + axis)
        return joined

    def _over_draws(
        self, names: tuple[str, ...], draws: Draw, count: int, batch: Batch, at_once: int, taken: np.ndarray | None
    ) -> dict[str, np.ndarray]:
        """Pieces of draws on one set of rows, of which only some are kept."""
        parts: list[dict[str, np.ndarray]] = []
        for index in _chunks(np.arange(count), min(count, at_once)):
            part = self._piece(names, jax.tree.map(lambda leaf, index=index: leaf[index], draws), batch)
            if taken is not None:
                part |= {n: np.take(part[n], taken, 1 + axis) for n, axis in self._row_axes.items() if n in part}
            parts.append(part)
        return {name: np.concatenate([part[name] for part in parts])[:count].astype(np.float64) for name in names}

    def _piece(self, names: tuple[str, ...], draws: Draw, batch: Batch) -> dict[str, np.ndarray]:
        arguments = (self.target, draws, batch)
        key = (names, tuple(np.shape(leaf) for leaf in jax.tree.leaves((draws, batch))))
        if key not in self._programs:
            static = (names, self.sites.by_position)
            self._programs[key] = compilation.compiled(_by_draw, static, *arguments, largest=PIECE)
        return jax.tree.map(np.asarray, self._programs[key](*arguments))

    def _rows(self, index: np.ndarray) -> Batch:
        return jax.tree.map(lambda column: jnp.take(column, index, axis=0), self.target.data)


def as_position(target: Posterior, leaves: dict[str, np.ndarray]) -> Any:
    """The leaves of positions, in their order, as positions."""
    like = target.start(np.random.default_rng(0))
    pairs = zip(leaves.values(), jax.tree.leaves(like), strict=True)
    return jax.tree.unflatten(jax.tree.structure(like), [np.asarray(values, leaf.dtype) for values, leaf in pairs])


def _by_draw(static: tuple[tuple[str, ...], bool], target: Posterior, draws: Draw, batch: Batch) -> Any:
    names, by_position = static
    return jax.vmap(lambda draw: of_sites.log_likelihoods(target, draw, batch, names, by_position))(draws)


def _draws_of(sites: Sites, tree: xr.DataTree) -> xr.Dataset:
    """The variables of a tree that a draw consists of.

    Raises:
        SettingError: If one is missing.
    """
    if sites.by_position:
        if "unconstrained_posterior" not in tree.children:
            raise SettingError(
                "This fit kept no unconstrained positions, which the likelihood is a function of. Fit it with "
                "lv.Keep(unconstrained=True)."
            )
        group = tree["unconstrained_posterior"].to_dataset()
        return group[list(group.attrs["leaves"])]  # type: ignore[return-value]
    if sites.params:
        raise SettingError(
            f"The likelihood depends on {sites.params[0]!r}, a `numpyro.param`, which is no part of a draw. Make it a "
            "`numpyro.sample` site."
        )
    posterior = tree["posterior"].to_dataset()
    missing = [name for name in sites.latent if name not in posterior]
    if missing:
        raise SettingError(
            f"The likelihood needs the latent site {missing[0]!r}, of which this fit kept no draws; it has "
            f"{', '.join(map(str, posterior))}. Fit it without `keep`, and, if the site is one of every row, without "
            "`batch_size`."
        )
    return posterior[list(sites.latent)]  # type: ignore[return-value]


def _chunks(index: np.ndarray, size: int) -> Iterator[np.ndarray]:
    """Pieces of one size; the last is filled up with its last index."""
    for start in range(0, len(index), size):
        part = index[start : start + size]
        yield np.pad(part, (0, size - len(part)), mode="edge")


def _to_rows(values: np.ndarray, lead: int, row_axis: int) -> np.ndarray:
    """Sums over the axes of a site, which come after the leading ones, but the one of its rows."""
    return values.sum(axis=tuple(axis for axis in range(lead, values.ndim) if axis != lead + row_axis))
