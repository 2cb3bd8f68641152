"""A block of a sweep that is drawn from its complete conditionals, which are derived from the program.

    x_b ~ p(x_b | x_others, rows)

exactly, site by site of the block, or in Gaussians of several sites, as `lv.Gibbs` does; see `langevin.conjugacy`.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from numpyro.distributions import biject_to

from langevin.conjugacy.ascent import blank
from langevin.conjugacy.conditionals import Conditionals
from langevin.contracts import Batch, Position
from langevin.engines.gibbs import MOST_TOGETHER
from langevin.errors import SettingError
from langevin.kernels.base import Kernel
from langevin.models.centring import centred_unknown
from langevin.models.joint import Joint
from langevin.models.labelled import values_of
from langevin.posterior import Key, Posterior
from langevin.run.seeds import Seed


class State(NamedTuple):
    """Where the block is."""

    position: Position


class Info(NamedTuple):
    """Nothing: an exact draw is always as good."""


def conditionals_of(method: Any, names: tuple[str, ...], target: Posterior, seed: Seed) -> Conditionals:
    """The conditionals of the sites of a block, checked at random points.

    Args:
        method: The settings, an `lv.Gibbs`.
        names: The sites.
        target: The posterior of all sites.
        seed: Of the points.

    Raises:
        NotConjugateError: Names the site that has no conditional of a known family, and what stands in the way.
        SettingError: If the model is no program, or positions are not those of its sites.
    """
    model = target.model
    if model.sites is None:
        raise SettingError(
            f"`Hybrid`: `Gibbs` derives the conditional of {names[0]!r} from a NumPyro program, and the model is a "
            "density. Give the block to lv.NUTS()."
        )
    joint = Joint(target.rows, model.program, model.sites, target.num_data)
    derived = Conditionals(joint, joint.num_data, names, method.blocks, method.logistic, MOST_TOGETHER)
    derived.check(seed, joint.rows)
    _check_positions(target, joint, names)
    return derived


def kernel(derived: Conditionals, names: tuple[str, ...], target: Posterior, others: Position, labels: Any) -> Kernel:
    """The kernel of a block given all other sites.

    Args:
        derived: Its conditionals.
        names: Its sites.
        target: The posterior of all sites.
        others: Unconstrained values of the other continuous sites.
        labels: Which of their values the discrete sites have.
    """

    def init(key: Key, position: Position, batch: Batch | None) -> State:
        del key, batch
        return State(position)

    def step(key: Key, state: State, batch: Batch | None) -> tuple[State, Info]:
        del batch
        values = _values(target, {**others, **state.position})
        if labels:
            values |= {name: value.astype(int) for name, value in values_of(target.model.labels, labels).items()}
        drawn = _drawn(derived, key, target.rows, values)
        position = _unconstrained(derived.joint, target.rows, {**values, **drawn}, names)
        return State(jax.tree.map(lambda new, old: new.astype(old.dtype), position, state.position)), Info()

    return Kernel(init, step)


def _drawn(derived: Conditionals, key: Key, rows: Batch, values: Mapping[str, Any]) -> dict[str, jax.Array]:
    """One draw of each block of conditionals in turn; auxiliary sites, of which nothing is kept, come first."""
    own = {name for block in derived.blocks for name in block.sites}
    equations = derived.at(rows, {name: value for name, value in values.items() if name not in own})
    hidden = {block.name for block in derived.blocks if not set(block.sites) <= set(values)}
    statistics = {
        block.name: blank(block) if block.name in hidden else block.family.statistics(block.to_value(values))
        for block in derived.blocks
    }
    drawn: dict[str, jax.Array] = {}
    for number, block in enumerate(sorted(derived.blocks, key=lambda block: block.name not in hidden)):
        eta = equations.natural(block.name, statistics)
        value = equations.families[block.name].sample(jax.random.fold_in(key, number), eta)
        statistics[block.name] = block.family.statistics(value)
        if block.name not in hidden:
            drawn |= block.from_value(value)
    return drawn


def _values(target: Posterior, position: Position) -> dict[str, jax.Array]:
    """The values of the continuous sites."""
    reported = target.model.report(position, target.rows, frozenset(), target.centring)
    return {name: reported[name] for name in position}


def _unconstrained(joint: Joint, rows: Batch, values: Mapping[str, Any], names: tuple[str, ...]) -> Position:
    trace = joint.trace(joint.function, rows, values, jax.random.key(0))

    def of_site(name: str) -> jax.Array:
        centred = centred_unknown(trace[name]["fn"], values[name])
        return biject_to(trace[name]["fn"].support).inv(values[name]) if centred is None else centred

    return {name: of_site(name) for name in names}


def _check_positions(target: Posterior, joint: Joint, names: tuple[str, ...]) -> None:
    """Checks that a position leads to values and back: not where the unknown is the noise of a site."""
    position = target.start(np.random.default_rng(0))
    values = _values(target, position)
    # The first value of each discrete site will do.
    indices = {name: jnp.zeros(joint.structure.values[name].shape, int) for name in joint.structure.discrete}
    values = {**values, **(values_of(target.model.labels, indices) if indices else {})}
    back = _unconstrained(joint, target.rows, values, names)
    for name in names:
        if not np.allclose(back[name], position[name], rtol=1e-3, atol=1e-3):
            raise SettingError(
                f"`Hybrid`: `Gibbs` draws {name!r} itself, and its noise was asked for. Leave `noncentred` out."
            )
