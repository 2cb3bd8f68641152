"""A positive number, a power of which has a gamma distribution.

    z^p ~ Gamma(a, b)        log p(z) = (p a - 1) log z - b z^p - A

    A = log Gamma(a) - a log b - log |p|        E log z = (digamma(a) - log b) / p        E z^p = a / b

The power 1 is the gamma distribution itself, -1 the inverse gamma distribution; 2 and -2 are those of a standard
deviation whose square, or whose precision, has a gamma distribution. The Jacobian |p| z^(p-1) makes eta_log = p a - 1
for either sign of p.
"""

from __future__ import annotations

import dataclasses

import jax
import jax.numpy as jnp
from jax.scipy.special import digamma, gammaln

from langevin.conjugacy.families.base import Family, Statistics, finite, like_of, static_field


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class PoweredGamma(Family):
    """Independent z > 0 with z^power ~ Gamma; t = {"log": log z, "power": z^power}.

    Attributes:
        shape: The shape of z.
        power: Any number but 0.

    Example:
        >>> family = PoweredGamma((), power=-1)
        >>> eta = {"log": jnp.asarray(-4.0), "power": jnp.asarray(-2.0)}
        >>> {name: float(value) for name, value in family.described(eta).items()}
        {'concentration': 3.0, 'rate': 2.0}
    """

    shape: tuple[int, ...] = static_field()
    power: float = static_field()

    @property
    def value_shape(self) -> tuple[int, ...]:
        """The shape of z."""
        return self.shape

    @property
    def precision_power(self) -> float:
        """That which multiplies squares."""
        return self.power

    def like(self) -> dict[str, jax.ShapeDtypeStruct]:
        """A logarithm and a power of each element."""
        return like_of(log=self.shape, power=self.shape)

    def statistics(self, value: jax.Array) -> Statistics:
        """Log z and z^power."""
        return {"log": jnp.log(value), "power": jnp.power(value, self.power)}

    def log_normalizer(self, eta: Statistics) -> jax.Array:
        """A(eta), summed over the elements."""
        concentration, rate = self._usual(eta)
        return jnp.sum(gammaln(concentration) - concentration * jnp.log(rate) - jnp.log(abs(self.power)))

    def expected(self, eta: Statistics) -> Statistics:
        """E log z and E z^power."""
        concentration, rate = self._usual(eta)
        return {"log": (digamma(concentration) - jnp.log(rate)) / self.power, "power": concentration / rate}

    def sample(self, key: jax.Array, eta: Statistics) -> jax.Array:
        """A draw, made on the logarithmic scale lest a small concentration gives 0."""
        concentration, rate = self._usual(eta)
        value = jnp.exp(
            (jax.random.loggamma(key, concentration, dtype=concentration.dtype) - jnp.log(rate)) / self.power
        )
        limits = jnp.finfo(value.dtype)
        return jnp.clip(value, limits.tiny, limits.max)

    def proper(self, eta: Statistics) -> jax.Array:
        """Whether the concentration and the rate are positive."""
        concentration, rate = self._usual(eta)
        return finite(eta) & jnp.all((concentration > 0) & (rate > 0))

    def described(self, eta: Statistics) -> dict[str, jax.Array]:
        """The concentration and the rate of z^|power|'s gamma or inverse gamma distribution."""
        concentration, rate = self._usual(eta)
        usual = {"concentration": concentration, "rate": rate}
        return usual if abs(self.power) == 1 else {**usual, "power": jnp.full_like(rate, self.power)}

    def _usual(self, eta: Statistics) -> tuple[jax.Array, jax.Array]:
        return (eta["log"] + 1) / self.power, -eta["power"]
