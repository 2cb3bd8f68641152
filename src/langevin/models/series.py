"""Time series as distributions: autoregressions of first order and random walks, in O(length).

    x_1 ~ N(level, start_scale^2),   x_t ~ N(level + persistence (x_{t-1} - level), scale^2)

A random walk has persistence 1. Given what depends on one state each, the posterior of the path has a tridiagonal
precision, which is what `lv.VI("markov")` in an `lv.Hybrid` is for.
"""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
from numpyro.distributions import Distribution, Normal, constraints
from numpyro.distributions.util import promote_shapes, validate_sample


class Autoregression(Distribution):
    """An autoregression of first order as a distribution over paths.

    Args:
        persistence: Of the state: 1 for a random walk.
        scale: The sd of a step.
        num_steps: How long a path is.
        level: Where it returns to.
        start_scale: The sd of the first state; by default that of the stationary process, and of a random walk 1.

    Example:
        >>> import jax
        >>> path = Autoregression(0.9, 0.1, 500).sample(jax.random.key(0))
        >>> path.shape, bool(abs(path).max() < 2)
        ((500,), True)
    """

    arg_constraints = {  # noqa: RUF012
        "persistence": constraints.real,
        "scale": constraints.positive,
        "level": constraints.real,
        "start_scale": constraints.positive,
    }
    support = constraints.real_vector
    reparametrized_params = ["persistence", "scale", "level", "start_scale"]  # noqa: RUF012
    pytree_aux_fields = ("num_steps",)

    def __init__(
        self,
        persistence: Any,
        scale: Any,
        num_steps: int,
        *,
        level: Any = 0.0,
        start_scale: Any = None,
        validate_args: bool | None = None,
    ) -> None:
        if start_scale is None:
            left = 1 - jnp.square(persistence)
            start_scale = jnp.where(left > 0, scale / jnp.sqrt(jnp.where(left > 0, left, 1.0)), 1.0)
        self.persistence, self.scale, self.level, self.start_scale = promote_shapes(
            persistence, scale, level, start_scale
        )
        shapes = [jnp.shape(part) for part in (persistence, scale, level, start_scale)]
        self.num_steps = num_steps
        super().__init__(jnp.broadcast_shapes(*shapes), (num_steps,), validate_args=validate_args)

    def sample(self, key: jax.Array | None, sample_shape: tuple[int, ...] = ()) -> jax.Array:
        """Paths, step by step."""
        assert key is not None
        noise = jax.random.normal(key, (self.num_steps, *sample_shape, *self.batch_shape))
        pushes = noise * self.scale
        first = noise[0] * self.start_scale

        def step(state: jax.Array, push: jax.Array) -> tuple[jax.Array, jax.Array]:
            state = self.persistence * state + push
            return state, state

        rest = jax.lax.scan(step, first, pushes[1:])[1]
        return self.level + jnp.moveaxis(jnp.concatenate([first[None], rest]), 0, -1)

    @validate_sample
    def log_prob(self, value: Any) -> jax.Array:
        """The log-density of paths."""
        centred = value - jnp.expand_dims(self.level, -1)
        steps = centred[..., 1:] - jnp.expand_dims(self.persistence, -1) * centred[..., :-1]
        first = Normal(0.0, self.start_scale).log_prob(centred[..., 0])
        return first + jnp.sum(Normal(0.0, jnp.expand_dims(self.scale, -1)).log_prob(steps), axis=-1)


class RandomWalk(Autoregression):
    """A Gaussian random walk as a distribution over paths, with a start of its own width.

    Args:
        scale: The sd of a step.
        num_steps: How long a path is.
        start: The mean of the first state.
        start_scale: Its sd.
    """

    def __init__(
        self,
        scale: Any,
        num_steps: int,
        *,
        start: Any = 0.0,
        start_scale: Any = 1.0,
        validate_args: bool | None = None,
    ) -> None:
        super().__init__(1.0, scale, num_steps, level=start, start_scale=start_scale, validate_args=validate_args)
