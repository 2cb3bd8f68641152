"""Step sizes as functions of the step: any `step -> step_size`, such as an Optax schedule, is one."""

from __future__ import annotations

import dataclasses
import math
import warnings
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp

from langevin.errors import LangevinWarning, SettingError

Schedule = Callable[[Any], Any]


@dataclasses.dataclass(frozen=True)
class Constant:
    """The same step size throughout."""

    value: Any

    def __call__(self, step: Any) -> Any:
        """The step size at a step."""
        del step
        return self.value


@dataclasses.dataclass(frozen=True)
class Polynomial:
    """a (b + t)^(-gamma) (Welling & Teh 2011).

    For gamma in (0.5, 1] the steps sum to infinity and their squares do not (Robbins & Monro 1951): the chain
    can go anywhere, and its bias dies out. Outside, it warns.

    Example:
        >>> round(float(Polynomial(0.01, 1.0, 0.55)(0)), 6)
        0.01
    """

    a: float
    b: float = 1.0
    gamma: float = 0.55

    def __post_init__(self) -> None:
        if not self.a > 0:
            raise SettingError(f"`Polynomial`: `a` must be > 0; got {self.a}.")
        if not self.b > 0:
            raise SettingError(f"`Polynomial`: `b` must be > 0, so that the first step is finite; got {self.b}. Try 1.")
        if not 0.5 < self.gamma <= 1:
            fault = "their squares sum to infinity, so the bias stays"
            if self.gamma > 1:
                fault = "they sum to a finite length, so the chain may never arrive"
            warnings.warn(
                f"`Polynomial`: with gamma={self.gamma} the steps do not satisfy the Robbins-Monro conditions: {fault}."
                " Take gamma in (0.5, 1].",
                LangevinWarning,
                stacklevel=3,
            )

    def __call__(self, step: Any) -> jax.Array:
        """The step size at a step."""
        return self.a * (self.b + step) ** (-self.gamma)


@dataclasses.dataclass(frozen=True)
class CosineCycles:
    """Cosine descents from `peak` to zero, or to a share of it, again and again (Zhang et al. 2020, eq. 1).

    step_size = peak * (lowest + (1 - lowest) / 2 * (cos(pi * (t mod length) / length) + 1))
    """

    peak: Any
    length: int
    lowest: Any = 0.0

    def __call__(self, step: Any) -> jax.Array:
        """The step size at a step."""
        height = (jnp.cos(math.pi * (step % self.length) / self.length) + 1) / 2
        return self.peak * (self.lowest + (1 - self.lowest) * height)


def as_schedule(step_size: Any) -> Schedule:
    """A number as a constant schedule; a schedule as it is."""
    return step_size if callable(step_size) else Constant(step_size)
