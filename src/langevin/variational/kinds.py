"""Kinds of distributions with free parameters: what a site can be given in place of a Gaussian."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any

import jax.numpy as jnp
from numpyro import distributions as dist
from numpyro.distributions import biject_to, constraints

from langevin.errors import ModelError
from langevin.models.structure import Value

# A function of NumPyro that chooses a distribution by its arguments.
CHOSEN = {dist.Bernoulli: dist.BernoulliLogits, dist.Categorical: dist.CategoricalLogits}
# Of several arguments for one thing, the one that is best moved freely.
OTHERS = ("covariance_matrix", "precision_matrix", "probs", "cov_diag")
FIRST_DEGREES = 10.0
# Not zero, where NumPyro's derivative of a Bernoulli's log-probability is not the right one.
FIRST_LOGIT = 0.01


def parameters_of(name: str, kind: Any, site: Value) -> tuple[Callable[..., Any], dict[str, tuple[Any, Any]]]:
    """The distribution, and for each of its arguments a first value and where it may be.

    Args:
        name: Of the site.
        kind: A class of NumPyro's distributions, or `dist.Bernoulli` or `dist.Categorical`.
        site: The site's value.

    Raises:
        ModelError: If the arguments cannot be made parameters of.
    """
    made = CHOSEN.get(kind, kind)
    if not (isinstance(made, type) and issubclass(made, dist.Distribution)):
        raise ModelError(
            f"`VI(family={{{name!r}: ...}})` takes a kind of distribution such as dist.Gamma; got {kind!r}."
        )
    needed = inspect.signature(made.__init__).parameters.values()
    given = [p.name for p in needed if p.name not in ("self", "validate_args") and p.default is p.empty]
    if any(name not in made.arg_constraints for name in given if name not in ("args", "kwargs")):
        raise ModelError(
            f"`VI(family={{{name!r}: dist.{made.__name__}}})`: it has arguments that are not parameters, {given}. "
            "Write a guide."
        )
    found = {}
    for argument, constraint in made.arg_constraints.items():
        if argument in OTHERS:
            continue
        value = _first(argument, constraint, site)
        if value is None:
            raise ModelError(
                f"`VI(family={{{name!r}: dist.{made.__name__}}})`: we cannot make a parameter of the argument "
                f"{argument!r}. Write a guide with `numpyro.param`."
            )
        found[argument] = (value, constraint)
    return made, found


def _first(argument: str, constraint: Any, site: Value) -> Any:
    """A value near the middle of where the argument may be; None if there is no telling."""
    shape = site.shape
    if constraint is constraints.lower_cholesky:
        return jnp.broadcast_to(0.1 * jnp.eye(shape[-1]), (*shape, shape[-1]))
    if argument == "df":
        return jnp.full(shape, FIRST_DEGREES)
    if argument == "logits":
        if constraint.event_dim and site.choices is None:
            return None
        return jnp.full((*shape, site.choices) if constraint.event_dim else shape, FIRST_LOGIT)
    while hasattr(constraint, "base_constraint"):
        constraint = constraint.base_constraint
    try:
        return biject_to(constraint)(jnp.zeros(shape))
    except NotImplementedError:
        return None
