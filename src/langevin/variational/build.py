"""From the settings of `lv.VI` to an approximation of a target."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

import jax
import numpy as np

from langevin.errors import SettingError
from langevin.models.joint import Joint
from langevin.models.spokes import layout_of
from langevin.posterior import Posterior
from langevin.variational import families
from langevin.variational.flow import flow, is_flow
from langevin.variational.hierarchical import Hierarchical
from langevin.variational.markov import markov
from langevin.variational.objective import OfPositions
from langevin.variational.of_network import network_of, of_network
from langevin.variational.pairing import paired, per_site
from langevin.variational.sites import OfSites

if TYPE_CHECKING:
    from langevin.methods.variational import VI


def objective_of(settings: VI, target: Posterior | Joint, batch_size: int | None) -> OfPositions | OfSites:
    """The approximation that the settings ask for, of this target.

    Args:
        settings: An `lv.VI`.
        target: A log-density, or the sites of a program.
        batch_size: Rows in a minibatch; None for all rows.

    Raises:
        SettingError: If the settings do not go with the target.
        ModelError: If a guide does not.
    """
    network = network_of(target)
    if network is None and settings.perturbation not in ("auto", "shared"):
        raise SettingError(
            f"`VI(perturbation={settings.perturbation!r})` is for an lv.Network of an Equinox module, whose layers can "
            "be told. Leave it out."
        )
    if isinstance(target, Joint):
        objective = _of_sites(settings, target, target.num_data if batch_size is None else batch_size)
    else:
        example = target.start(np.random.default_rng(0))
        shapes = tuple(np.shape(leaf) for leaf in jax.tree.leaves(example))
        closed_forms = settings.bound == "elbo"
        family = _of_hierarchy(target, example) if settings.family == "hierarchical" else family_of(settings, shapes)
        if network is None:
            objective = OfPositions(target, example, family, settings.gradient, closed_forms)
        else:
            objective = of_network(settings, target, example, family, closed_forms)
    wiring = objective.wiring
    if settings.bound == "importance" and wiring.scored:
        raise SettingError(
            f"`VI(bound='importance')`: the gradient of site {wiring.scored[0]!r} is by the score function, which goes "
            "with bound='elbo' only."
        )
    if settings.bound == "importance" and batch_size is not None and wiring.row_scale is None:
        raise SettingError(
            "`VI(bound='importance')` with minibatches needs every latent site to be one of a row: the logarithm of an "
            "estimate is not an estimate of the logarithm. Leave `batch_size` out."
        )
    return objective


def _of_hierarchy(target: Posterior, example: Any) -> Hierarchical:
    layout = layout_of(target, example)
    if layout is None:
        raise SettingError(
            "`VI('hierarchical')` is for programs with sites in plates (groups) and at most 128 coordinates in none. "
            "Choose 'meanfield' or 'fullrank'."
        )
    return Hierarchical(layout)


def _of_sites(settings: VI, joint: Joint, rows_a_call: int) -> OfSites:
    family, guide = settings.family, settings.local
    make: Callable[[Any], families.Family] | None = None
    if isinstance(family, Mapping):
        if guide is not None:
            raise SettingError("`VI`: give a site's distribution in the guide `local`, or in `family`, but not both.")
        guide = per_site(joint, family, rows_a_call)
        rest = dataclasses.replace(settings, family="meanfield")
        make = lambda shapes: family_of(rest, shapes)  # noqa: E731
    elif isinstance(family, str) or is_flow(family):
        make = lambda shapes: family_of(settings, shapes)  # noqa: E731
    elif guide is None:
        guide = family
    else:
        raise SettingError("`VI`: `family` is a guide already, and `local` another. Put both into one.")
    return paired(joint, guide, make, settings.gradient, rows_a_call, closed_forms=settings.bound == "elbo")


def family_of(settings: VI, shapes: tuple[tuple[int, ...], ...]) -> families.Family:
    """The family, for a position made of arrays of these shapes."""
    size = sum(math.prod(shape) for shape in shapes)
    if not isinstance(settings.family, str):
        return flow(size, settings.family)
    if settings.family == "hierarchical":
        raise SettingError("`VI('hierarchical')` has no sites to leave to a guide. Choose 'meanfield' beside one.")
    makers: dict[str, Callable[[], families.Family]] = {
        "auto": lambda: families.MeanField(size),
        "meanfield": lambda: families.MeanField(size),
        "fullrank": lambda: families.FullRank(size),
        "lowrank": lambda: families.LowRankGaussian(size, min(settings.rank, families.identified_rank(size))),
        "markov": lambda: markov(shapes),
        "flow": lambda: flow(size),
    }
    return makers[settings.family]()
