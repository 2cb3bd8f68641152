"""Priors of the weights of a network.

fan-in          w ~ N(0, scale^2 / inputs of its unit), so that activations keep their size from layer to layer
scale mixture   w ~ share N(0, wide^2) + (1 - share) N(0, narrow^2)     (Blundell et al. 2015, their eq. 7)
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Mapping
from typing import Any

import jax
import jax.numpy as jnp
from jax.scipy.stats import norm
from numpyro import distributions as dist

from langevin import checks
from langevin.errors import ModelError, SettingError
from langevin.models.networks.nets import Net, matched


@dataclasses.dataclass(frozen=True)
class FanIn:
    """Normal priors whose variance falls with the number of inputs of a unit.

    Args:
        scale: Of a weight with one input. The square root of 2 keeps the size of activations in a network of ReLUs, and
            proved too narrow for samplers: on held-back rows SGHMC was better with 3, of 1.4, 3 and 6 on MNIST and
            digits, and of 1.4, 2 and 3 on Boston and concrete. Point estimates from few rows want a narrower one.
        bias: The scale of biases. Gains (as in LayerNorm) are this far around 1.
    """

    scale: float = 3.0
    bias: float = 1.0

    def __post_init__(self) -> None:
        checks.positive("FanIn", "scale", self.scale)
        checks.positive("FanIn", "bias", self.bias)


class ScaleMixture(dist.Distribution):
    """A mixture of a wide and a narrow Gaussian around zero (Blundell et al. 2015).

    Args:
        share: Of the wide one.
        wide: Its scale.
        narrow: The scale of the other.
    """

    support = dist.constraints.real
    arg_constraints = {  # noqa: RUF012
        "share": dist.constraints.unit_interval,
        "wide": dist.constraints.positive,
        "narrow": dist.constraints.positive,
    }
    pytree_data_fields = ("share", "wide", "narrow")

    def __init__(
        self, share: Any = 0.25, wide: Any = 1.0, narrow: Any = math.exp(-6), *, validate_args: bool | None = None
    ) -> None:
        checks.positive("ScaleMixture", "wide", wide)
        checks.positive("ScaleMixture", "narrow", narrow, "0.0025")
        if not (checks.is_number(share) and 0 < share < 1):
            raise SettingError(f"`ScaleMixture`: `share` must be between 0 and 1; got {share!r}. Try 0.25.")
        self.share, self.wide, self.narrow = share, wide, narrow
        super().__init__(batch_shape=(), event_shape=(), validate_args=validate_args)

    def sample(self, key: jax.Array | None, sample_shape: tuple[int, ...] = ()) -> jax.Array:
        """Draws."""
        assert key is not None
        of_which, noise = jax.random.split(key)
        scale = jnp.where(jax.random.uniform(of_which, sample_shape) < self.share, self.wide, self.narrow)
        return scale * jax.random.normal(noise, sample_shape)

    def log_prob(self, value: Any, intermediates: list[Any] | None = None) -> jax.Array:
        """The logarithm of the density."""
        del intermediates
        wide = jnp.log(self.share) + norm.logpdf(value, scale=self.wide)
        return jnp.logaddexp(wide, jnp.log1p(-self.share) + norm.logpdf(value, scale=self.narrow))

    @property
    def mean(self) -> jax.Array:
        """Zero."""
        return jnp.zeros(())

    @property
    def variance(self) -> jax.Array:
        """The mean of the squares of the scales."""
        return self.share * self.wide**2 + (1 - self.share) * self.narrow**2


def priors_of(prior: Any, net: Net) -> dict[str, dist.Distribution]:
    """The prior of each weight that is inferred.

    Args:
        prior: None or a `FanIn`; a NumPyro distribution of one number; `(name, shape) -> distribution`; or a dict of
            pattern -> one of these, of which the first that matches counts (others are `FanIn()`).
        net: The network.

    Raises:
        ModelError: If it is none of these, or a distribution is not one of real numbers.
    """
    names = list(net.shapes)
    if isinstance(prior, Mapping):
        chosen = {}
        for pattern, one in prior.items():
            for name in matched(pattern, names, "prior"):
                chosen.setdefault(name, one)
        return {name: _prior(chosen.get(name), name, net) for name in names}
    return {name: _prior(prior, name, net) for name in names}


def _prior(prior: Any, name: str, net: Net) -> dist.Distribution:
    shape = net.shapes[name]
    if callable(prior) and not isinstance(prior, dist.Distribution | FanIn):
        prior = prior(name, shape)
    if prior is None or isinstance(prior, FanIn):
        prior = _normal(prior or FanIn(), net.fan_ins[name], is_gain=name in net.gains)
    if not isinstance(prior, dist.Distribution):
        raise ModelError(f"`Network`: the prior of {name!r} must be a NumPyro distribution or FanIn; got {prior!r}.")
    if not _is_real(prior.support):
        raise ModelError(f"`Network`: the prior of {name!r} must be over all real numbers; got {prior!r}.")
    if prior.shape() == shape:
        return prior.to_event(len(shape) - prior.event_dim)
    if prior.shape() != ():
        raise ModelError(
            f"`Network`: the prior of {name!r} must be of one number, which all weights of it then have, or have the "
            f"shape of these weights, {shape}; got one of shape {prior.shape()}."
        )
    return prior.expand(shape).to_event(len(shape))


def _is_real(support: Any) -> bool:
    """Whether all real numbers are in it."""
    while isinstance(support, dist.constraints.independent):
        support = support.base_constraint
    return support is dist.constraints.real


def _normal(prior: FanIn, fan_in: int, *, is_gain: bool) -> dist.Normal:
    if fan_in:
        return dist.Normal(0.0, prior.scale / math.sqrt(fan_in))
    return dist.Normal(1.0 if is_gain else 0.0, prior.bias)


PriorOfWeights = FanIn | dist.Distribution | Mapping[str, Any] | Callable[[str, tuple[int, ...]], dist.Distribution]
