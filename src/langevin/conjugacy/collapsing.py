"""A program with conjugate sites integrated out: any engine can then run on what is left.

    log p(rest, data) = F(rest, t = 0) + A(eta(rest)),      eta = dF / dt

where t are the statistics of the block that is integrated out, eta the natural parameters of its complete conditional,
and A the normaliser of its family. The block is drawn back, from its conditional, for every draw of the rest.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import jax
import jax.numpy as jnp
import numpyro
from numpyro import distributions as dist
from numpyro.distributions import constraints

from langevin.conjugacy.ascent import blank
from langevin.conjugacy.conditionals import Conditionals, Equations
from langevin.conjugacy.latents import Latent
from langevin.errors import ModelError, NotConjugateError, SettingError
from langevin.keys import mix
from langevin.models.joint import Joint
from langevin.run.seeds import Seed, key_of

NAME = "_collapsed"


def collapsed(joint: Joint, sites: tuple[str, ...], seed: Seed) -> Callable[..., None]:
    """A program of the other sites; the integrated ones are deterministic sites of it, drawn from their conditional.

    The draw is a function of the other sites, by a hash of their bits: another draw for each point, and the same at
    the same point.

    Args:
        joint: The program and its rows.
        sites: The sites to integrate out.
        seed: For the check of the formulas at random points.

    Raises:
        NotConjugateError: If a site has no conditional of a known family.
        SettingError: If there is no such site.
        ModelError: If what is left has discrete sites, or the sites cannot be integrated out together.
    """
    for name in sites:
        if name not in joint.structure.shapes:
            raise SettingError(
                f"`collapse`: there is no latent site {name!r}; there are {', '.join(joint.structure.shapes)}."
            )
    conditionals = Conditionals(joint, joint.num_data, sites)
    rest = {name: latent for name, latent in conditionals.latents.items() if name not in sites}
    if not rest:
        raise ModelError("`collapse`: every site would be integrated out. Their posterior is that of lv.Gibbs.")
    for name, latent in rest.items():
        if latent.constraint is None:
            what = "is discrete" if latent.values is not None else "has a support that depends on other sites"
            raise ModelError(f"`collapse`: site {name!r}, which is left, {what}. Take method='gibbs'.")
    conditionals.check(seed.child("check"), joint.rows)

    def program(**arguments: Any) -> None:
        rows = {name: arguments[name] for name in joint.data}
        values = {name: numpyro.sample(name, _improper(latent)) for name, latent in rest.items()}
        equations = conditionals.at(rows, values)
        blanks = {block.name: blank(block) for block in conditionals.blocks}
        _check_apart(equations)
        total, drawn = equations.log_joint(blanks), {}
        key = _key(values)
        for number, block in enumerate(conditionals.blocks):
            eta = equations.natural(block.name, blanks)
            family = equations.families[block.name]
            total = total + family.log_normalizer(eta)
            drawn |= block.from_value(family.sample(jax.random.fold_in(key, number), eta))
        numpyro.factor(NAME, total)
        for name, value in _reported(joint, rows, {**values, **drawn}).items():
            if name not in values:
                numpyro.deterministic(name, value)

    return program


def _check_apart(equations: Equations) -> None:
    meeting = equations.meeting()
    if meeting is not None:
        raise NotConjugateError(
            f"`collapse`: {meeting[0]!r} and {meeting[1]!r} are multiplied in the log-density, so that they cannot "
            "both be integrated out. Collapse one of them.",
            meeting[0],
        )


def _improper(latent: Latent) -> Any:
    """A flat distribution on the support of a site: its log-density is in the factor."""
    axes = len(latent.shape) - latent.constraint.event_dim
    support = constraints.independent(latent.constraint, axes) if axes else latent.constraint
    return dist.ImproperUniform(support, (), latent.shape)


def _key(values: Mapping[str, Any]) -> jax.Array:
    """A key that is a hash of values."""
    leaves = [jnp.ravel(jnp.asarray(value, jnp.float32)) for value in values.values()]
    bits = jax.lax.bitcast_convert_type(jnp.concatenate(leaves), jnp.uint32)
    place = jnp.arange(bits.size, dtype=jnp.uint32)
    words = [jnp.sum(mix(bits ^ mix(place + jnp.uint32(start))), dtype=jnp.uint32) for start in (1, 2**31)]
    return key_of(jnp.stack(words))


def _reported(joint: Joint, rows: Any, values: Mapping[str, Any]) -> dict[str, Any]:
    """Values and deterministic sites of the program, by a run that adds no site to the one around it."""
    with numpyro.handlers.block():
        trace = joint.trace(joint.function, rows, dict(values), jax.random.key(0))
    return {name: jnp.asarray(trace[name]["value"]) for name in joint.structure.reported}
