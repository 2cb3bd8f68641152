"""Where a run starts that goes on from an earlier fit of the same model."""

from __future__ import annotations

from typing import TYPE_CHECKING

import jax
import numpy as np

from langevin.errors import SettingError
from langevin.posterior import Posterior

if TYPE_CHECKING:
    from langevin.result import Fit

CENTRING = "centring"


def positions_of(init: Fit, target: Posterior) -> np.ndarray:
    """The draws of an earlier fit, flat.

    Raises:
        SettingError: If the fit is of another model, or has no unconstrained draws.
    """
    leaves = jax.tree.leaves(target.start(np.random.default_rng(0)))
    if "unconstrained_posterior" in init.data_tree:
        group = init.data_tree["unconstrained_posterior"].to_dataset()
        parts = [np.asarray(group[name].values) for name in group.attrs["leaves"]]
    else:
        parts = _parts_of_sites(init, target)
    shapes, wanted = [part.shape[2:] for part in parts], [np.shape(leaf) for leaf in leaves]
    if shapes != wanted:
        raise SettingError(
            f"`init` is a fit of another model: its unconstrained positions have the shapes {shapes}, and those of "
            f"this model {wanted}."
        )
    dtype = np.result_type(*(np.asarray(leaf).dtype for leaf in leaves))
    parts = [part.reshape(part.shape[0] * part.shape[1], *part.shape[2:]).astype(dtype) for part in parts]
    if CENTRING in init.data_tree and target.adjustable:
        # A run begins non-centred.
        chosen = init.data_tree[CENTRING].to_dataset()
        listed = {name: name.replace("/", ".") for name in target.adjustable}
        centring = {name: chosen[of_result].values for name, of_result in listed.items() if of_result in chosen}
        positions = jax.tree.unflatten(jax.tree.structure(target.start(np.random.default_rng(0))), parts)
        begun = target.with_centring(centring)
        parts = jax.tree.leaves(jax.vmap(lambda one: begun.recentred(one, target.centring))(positions))
    return np.concatenate([np.reshape(np.asarray(part), (len(part), -1)) for part in parts], axis=1)


def _parts_of_sites(init: Fit, target: Posterior) -> list[np.ndarray]:
    """The leaves of the positions of a network's draws, whose weights are their own positions."""
    network, draws = target.model.network, init.data_tree["posterior"].to_dataset()
    if network is None or any(name not in draws for name in target.model.like):
        raise SettingError("`init`: this fit kept no unconstrained positions. Fit it with lv.Keep(unconstrained=True).")
    position = network.unconstrained({name: np.asarray(draws[name]) for name in target.model.like})
    return [np.asarray(leaf) for leaf in jax.tree.leaves(position)]
