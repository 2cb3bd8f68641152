"""Normalising flows by flowjax, as a family: x = m + s * flow(e)."""

from __future__ import annotations

import dataclasses
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from langevin.errors import SettingError
from langevin.variational.families import LOG_2PI, MeanField, Parameters, Scaled

LAYERS = 4
KNOTS = 8
INTERVAL = 4.0


@dataclasses.dataclass(frozen=True, eq=False)
class Flow(Scaled):
    """A flow, whose arrays are parameters.

    Args:
        size: Of the vector.
        bijection: flowjax's map from noise to the vector; by default autoregressive rational-quadratic splines, which
            are fast to draw from (Kingma et al. 2016; Durkan et al. 2019).
    """

    size: int
    bijection: Any = None

    # Networks have many ways to be one map.
    identified = False

    @property
    def noise_size(self) -> int:
        """One number a coordinate."""
        return self.size

    def init(self, generator: np.random.Generator, centre: np.ndarray, scale: float) -> Parameters:
        """Parameters of a q around `centre`, as wide as its noise: by the path alone, a narrow flow hardly grows."""
        import equinox as eqx

        del scale
        bijection = self.bijection if self.bijection is not None else _default(self.size, generator)
        arrays = eqx.filter(bijection, eqx.is_inexact_array)
        arrays = jax.tree.map(lambda leaf: np.asarray(leaf, centre.dtype), arrays)
        return MeanField(self.size).init(generator, centre, 1.0) | {"flow": arrays}

    def draw(self, parameters: Parameters, noise: jax.Array) -> tuple[jax.Array, jax.Array]:
        """A draw and its log-probability."""
        turned, log_det = self._map(parameters).transform_and_log_det(noise)
        log_prob = -(jnp.sum(noise**2) + noise.size * LOG_2PI) / 2 - log_det - jnp.sum(parameters["log_scale"])
        return parameters["mean"] + jnp.exp(parameters["log_scale"]) * turned, log_prob

    def log_parts(self, parameters: Parameters, x: jax.Array) -> jax.Array:
        """A single part, by the inverse: of an autoregressive flow one coordinate after the other."""
        turned = (x - parameters["mean"]) * jnp.exp(-parameters["log_scale"])
        noise, log_det = self._map(parameters).inverse_and_log_det(turned)
        log_prob = -(jnp.sum(noise**2) + noise.size * LOG_2PI) / 2 + log_det - jnp.sum(parameters["log_scale"])
        return log_prob[None]

    def held(self, parameters: Parameters, x: jax.Array, noise: jax.Array) -> jax.Array:
        """Log q(x) as a function of x alone: at the noise that makes x, which moves with x by the inverse Jacobian.

        The inverse itself, which in single precision is not always finite, is not needed; but a pass a coordinate is.
        """
        parameters, noise = jax.lax.stop_gradient((parameters, noise))
        jacobian = jax.lax.stop_gradient(jax.jacfwd(lambda e: self.draw(parameters, e)[0])(noise))
        moved = noise + jnp.linalg.solve(jacobian, x - jax.lax.stop_gradient(x))
        return self.draw(parameters, moved)[1]

    def entropy(self, parameters: Parameters) -> None:
        """There is no closed form."""
        del parameters

    def _map(self, parameters: Parameters) -> Any:
        import equinox as eqx
        import paramax

        bijection = self.bijection if self.bijection is not None else _default(self.size, np.random.default_rng(0))
        rest = eqx.filter(bijection, eqx.is_inexact_array, inverse=True)
        return paramax.unwrap(eqx.combine(parameters["flow"], rest))


def flow(size: int, given: Any = None) -> Flow:
    """The family for vectors of this size.

    Args:
        size: Of the vector.
        given: A flowjax bijection, or a distribution that transforms a standard normal one.

    Raises:
        SettingError: If flowjax is not installed, or the flow is of another size.
    """
    try:
        import flowjax.distributions  # noqa: F401
    except ImportError as error:
        raise SettingError("`VI(family='flow')` needs flowjax: pip install 'langevin[flow]'.") from error
    bijection = getattr(given, "bijection", given)
    if bijection is not None and tuple(bijection.shape) != (size,):
        raise SettingError(
            f"`VI`: the flow is of shape {tuple(bijection.shape)}, but the unconstrained position has {size} numbers."
        )
    return Flow(size, bijection)


def is_flow(value: Any) -> bool:
    """Whether this is one of flowjax's bijections, or a distribution made with one."""
    return type(value).__module__.startswith("flowjax.")


def _default(size: int, generator: np.random.Generator) -> Any:
    from flowjax.bijections import RationalQuadraticSpline
    from flowjax.distributions import StandardNormal
    from flowjax.flows import masked_autoregressive_flow

    made = masked_autoregressive_flow(
        jax.random.key(int(generator.integers(2**31))),
        base_dist=StandardNormal((size,)),
        transformer=RationalQuadraticSpline(knots=KNOTS, interval=INTERVAL),
        flow_layers=LAYERS,
        nn_width=max(32, 2 * size),
        invert=False,
    )
    return made.bijection
