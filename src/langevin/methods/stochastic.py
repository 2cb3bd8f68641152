"""Stochastic-gradient samplers."""

from __future__ import annotations

import dataclasses
import math
from typing import ClassVar, Literal

from langevin import checks
from langevin.errors import SettingError
from langevin.kernels import preconditioners
from langevin.kernels.base import Kernel
from langevin.kernels.sghmc import sghmc
from langevin.kernels.sgld import sgld
from langevin.kernels.sgnht import sgnht
from langevin.methods import shared
from langevin.methods.shared import EstimatorName, MetricName, StepSize
from langevin.posterior import Posterior
from langevin.tuning import SD_BIAS, Landscape, Pace, Tuning


@dataclasses.dataclass(frozen=True)
class RMSprop:
    """The RMSprop preconditioner of SGLD (Li et al. 2016).

    Args:
        decay: How slowly squared gradients are forgotten.
        damping: Keeps the metric finite; lambda in Li et al.
        adapt: "warmup" freezes the metric after warm-up, which makes the chain correct; "throughout" does not, and is
        biased.
        gamma: Whether an adapting metric comes with its gamma term, or drops it.
    """

    decay: float = 0.99
    damping: float = 1e-5
    adapt: Literal["warmup", "throughout"] = "warmup"
    gamma: bool = True

    def __post_init__(self) -> None:
        if not 0 <= self.decay < 1:
            raise SettingError(f"`RMSprop`: `decay` must be in [0, 1); got {self.decay}. Try 0.99.")
        if not self.damping > 0:
            raise SettingError(f"`RMSprop`: `damping` must be > 0; got {self.damping}. Try 1e-5.")
        checks.choice("RMSprop", "adapt", self.adapt, ("warmup", "throughout"))


@dataclasses.dataclass(frozen=True)
class SGLD:
    """Stochastic gradient Langevin dynamics (Welling & Teh 2011); see `langevin.kernels.sgld`.

    Targets the posterior with a bias that shrinks with the step: with `step_size="auto"`, sds are up to about 3 % too
    wide. With `accept="full"` it is exact, and reads all rows in every step.

    Args:
        step_size: A number, a schedule, or "auto": then warm-up finds the mode, the curvature and the gradient noise
            there, and from them the metric and the step.
        metric: The constant metric that warm-up makes from the curvature. "auto" is dense for up to 128 coordinates
            and diagonal above where the step is "auto", and the identity where it is given.
        preconditioner: None, "rmsprop" or an `RMSprop`; it takes the place of `metric`.
        estimator: Of the gradient; see `langevin.kernels.gradients`.
        accept: None, "full" (exact) or "minibatch" (approximate: the minibatch's noise enters the decision).

    Example:
        >>> SGLD(step_size=-0.1)
        Traceback (most recent call last):
        ...
        langevin.errors.SettingError: `SGLD`: `step_size` must be > 0; got -0.1. Try 1e-4, or leave it to warm-up.
    """

    step_size: StepSize = "auto"
    metric: MetricName = "auto"
    preconditioner: Literal["rmsprop"] | RMSprop | None = None
    estimator: EstimatorName = "minibatch"
    accept: Literal["minibatch", "full"] | None = None

    @property
    def independent_batches(self) -> bool:
        """Sweeps lower the bias; but an exact accept step needs minibatches that are independent of the position."""
        return self.accept is not None

    def __post_init__(self) -> None:
        shared.check_stochastic(self)
        if self.preconditioner is not None and self.metric != "auto":
            raise SettingError("`SGLD`: `preconditioner` takes the place of `metric`. Give one of them.")
        if self.preconditioner == "rmsprop":
            object.__setattr__(self, "preconditioner", RMSprop())
        if not isinstance(self.preconditioner, (RMSprop, type(None))):
            raise SettingError(
                f"`SGLD`: `preconditioner` must be None, 'rmsprop' or an RMSprop; got {self.preconditioner!r}."
            )
        checks.choice("SGLD", "accept", self.accept, (None, "minibatch", "full"))
        if self.accept and self.estimator == "svrg":
            raise SettingError(
                "`SGLD`: `accept` needs a proposal that does not depend on the chain's past, and `estimator='svrg'` "
                "does. Try estimator='control_variate'."
            )
        if self.accept and self._adapts:
            raise SettingError("`SGLD`: `accept` needs a fixed metric. Try RMSprop(adapt='warmup').")

    @property
    def _adapts(self) -> bool:
        return isinstance(self.preconditioner, RMSprop) and self.preconditioner.adapt == "throughout"

    def kernel(self, posterior: Posterior, tuning: Tuning = Tuning()) -> Kernel:
        """The bare kernel, with what warm-up found."""
        preconditioner = preconditioners.fixed(tuning.metric)
        if isinstance(self.preconditioner, RMSprop) and self._adapts:
            settings = self.preconditioner
            preconditioner = preconditioners.rmsprop(posterior, settings.decay, settings.damping, settings.gamma)
        return sgld(
            posterior,
            shared.step_size_of(self, tuning),
            estimator=shared.estimator_of(self.estimator, posterior, tuning),
            preconditioner=preconditioner,
            accept=self.accept,
        )

    def pace(self, landscape: Landscape) -> Pace:
        """The largest step whose bias is acceptable; see `langevin.kernels.sgld.sgld` for the bias."""
        step_size = 8 * SD_BIAS / (landscape.stiffest + landscape.noise)
        if self.accept:
            by_size = landscape.size ** (-1 / 3) / landscape.stiffest
            by_noise = 1 / max(landscape.size * landscape.noise, 1e-12)
            step_size = min(by_size, by_noise)
        return Pace(step_size, 4 / (step_size * landscape.softest))


@dataclasses.dataclass(frozen=True)
class SGHMC:
    """Stochastic gradient Hamiltonian Monte Carlo (Chen et al. 2014); see `langevin.kernels.sghmc`.

    Targets the posterior with a bias that shrinks with the step. Gradient noise is measured in warm-up and that much
    less noise is injected, so that at the automatic step sds are right to a few per cent.

    Args:
        step_size: The time that a step takes: a number, a schedule, or "auto".
        friction: How fast the momentum forgets, per unit of time. 2 is critical where the metric is the
            posterior's covariance.
        gradient_noise: The variance of the whitened gradient, a number, or "auto" to measure it in warm-up (and to take
            off none with an anchored estimator, whose noise is not constant).
        metric: As in `SGLD`.
        estimator: Of the gradient; see `langevin.kernels.gradients`.
    """

    step_size: StepSize = "auto"
    friction: float = 2.0
    gradient_noise: float | Literal["auto"] = "auto"
    metric: MetricName = "auto"
    estimator: EstimatorName = "minibatch"

    independent_batches: ClassVar[bool] = True

    def __post_init__(self) -> None:
        shared.check_stochastic(self)
        checks.positive("SGHMC", "friction", self.friction)
        if self.gradient_noise != "auto" and not (checks.is_number(self.gradient_noise) and self.gradient_noise >= 0):
            raise SettingError(f"`SGHMC`: `gradient_noise` must be 'auto' or >= 0; got {self.gradient_noise!r}.")

    def kernel(self, posterior: Posterior, tuning: Tuning = Tuning()) -> Kernel:
        """The bare kernel, with what warm-up found."""
        return sghmc(
            posterior,
            shared.step_size_of(self, tuning),
            friction=self.friction,
            gradient_noise=shared.noise_to_take_off(self.gradient_noise, self.estimator, tuning),
            estimator=shared.estimator_of(self.estimator, posterior, tuning),
            metric=tuning.metric,
        )

    def pace(self, landscape: Landscape) -> Pace:
        """Where the noise is known, half of what the momentum gets comes from the minibatches, and half is injected."""
        known = 0.0 if self.gradient_noise == "auto" else float(self.gradient_noise)
        if self.gradient_noise == "auto" and self.estimator == "minibatch":
            known = landscape.noise
        excess = max(landscape.noise - known, 0.0)
        limits = [0.5 / math.sqrt(landscape.stiffest), self.friction / max(known, 1e-12)]
        limits.append(4 * SD_BIAS * self.friction / max(excess, 1e-12))
        return shared.underdamped_pace(min(limits), self.friction, landscape)


@dataclasses.dataclass(frozen=True)
class SGNHT:
    """Stochastic gradient Nose-Hoover thermostat (Ding et al. 2014); see `langevin.kernels.sgnht`.

    Targets the posterior with a bias that shrinks with the step, if the gradient noise is about the same in all
    directions.

    Args:
        step_size: The time that a step takes: a number, a schedule, or "auto".
        friction: The diffusion that is added on purpose, and where the thermostat starts.
        metric: As in `SGLD`.
        estimator: Of the gradient; see `langevin.kernels.gradients`.
    """

    step_size: StepSize = "auto"
    friction: float = 1.0
    metric: MetricName = "auto"
    estimator: EstimatorName = "minibatch"

    independent_batches: ClassVar[bool] = True

    def __post_init__(self) -> None:
        shared.check_stochastic(self)
        checks.positive("SGNHT", "friction", self.friction)

    def kernel(self, posterior: Posterior, tuning: Tuning = Tuning()) -> Kernel:
        """The bare kernel, with what warm-up found."""
        return sgnht(
            posterior,
            shared.step_size_of(self, tuning),
            friction=self.friction,
            estimator=shared.estimator_of(self.estimator, posterior, tuning),
            metric=tuning.metric,
        )

    def pace(self, landscape: Landscape) -> Pace:
        """At the chosen step the gradient noise adds no more than half again to the friction."""
        step_size = min(0.25 / math.sqrt(landscape.stiffest), self.friction / max(landscape.noise, 1e-12))
        return shared.underdamped_pace(step_size, self.friction + step_size * landscape.noise / 2, landscape)
