"""Stochastic-gradient samplers with momentum."""

from __future__ import annotations

import dataclasses
import math
from typing import ClassVar, Literal

from langevin import checks
from langevin.contracts import Plan
from langevin.errors import SettingError
from langevin.kernels.base import Kernel
from langevin.kernels.sghmc import sghmc
from langevin.kernels.sgnht import sgnht
from langevin.methods import shared
from langevin.methods.shared import EstimatorName, MetricName, StepSize
from langevin.methods.stochastic import Stochastic
from langevin.posterior import Posterior
from langevin.tuning import SD_BIAS, Landscape, Pace, Tuning


@dataclasses.dataclass(frozen=True)
class SGHMC(Stochastic):
    """Stochastic gradient Hamiltonian Monte Carlo (Chen et al. 2014); see `langevin.kernels.sghmc`.

    Targets the posterior with a bias that shrinks with the step. Gradient noise is measured in warm-up and that much
    less noise is injected, so that at the automatic step sds are right to a few per cent.

    Args:
        step_size: The time that a step takes: a number, a schedule, or "auto".
        friction: How fast the momentum forgets, per unit of time. 2 is critical where the metric is the
            posterior's covariance.
        gradient_noise: The variance of the whitened gradient, a number, or "auto" to measure it in warm-up (and to take
            off none with SVRG, whose noise grows with the age of its anchor).
        metric: As in `SGLD`.
        estimator: Of the gradient; see `langevin.kernels.gradients`.
    """

    step_size: StepSize = "auto"
    friction: float = 2.0
    gradient_noise: float | Literal["auto"] = "auto"
    metric: MetricName = "auto"
    estimator: EstimatorName = "auto"

    accounts_for_noise: ClassVar[bool] = True

    @property
    def takes_noise_off(self) -> bool:
        """Where its mean is known."""
        return self.estimator in shared.KNOWN_NOISE

    def check(self, plan: Plan) -> None:
        """Raises a SettingError for noise to take off where there is none."""
        super().check(plan)
        if plan.batches is None and self.gradient_noise not in ("auto", 0):
            raise SettingError(
                f"`SGHMC(gradient_noise={self.gradient_noise})`: gradients on all rows have no noise to take off. Give "
                "a `batch_size`, or leave `gradient_noise` out."
            )

    def __post_init__(self) -> None:
        super().__post_init__()
        checks.positive("SGHMC", "friction", self.friction)
        if self.gradient_noise != "auto" and self.estimator == "auto":
            # A noise that is given is that of a minibatch's own gradient.
            object.__setattr__(self, "estimator", "minibatch")
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
        if self.gradient_noise == "auto" and self.estimator in shared.KNOWN_NOISE:
            known = landscape.noise
        excess = max(landscape.noise - known, 0.0)
        # What is left of it near its anchor may come from few rows, and is then poorly known: half as far.
        share = 0.5 if self.estimator == "control_variate" else 1.0
        limits = [0.5 / math.sqrt(landscape.stiffest), share * self.friction / max(known, 1e-12)]
        limits.append(4 * SD_BIAS * self.friction / max(excess, 1e-12))
        return shared.underdamped_pace(min(limits), self.friction, landscape)


@dataclasses.dataclass(frozen=True)
class SGNHT(Stochastic):
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
    estimator: EstimatorName = "auto"

    accounts_for_noise: ClassVar[bool] = True

    def __post_init__(self) -> None:
        super().__post_init__()
        checks.positive("SGNHT", "friction", self.friction)

    def approximation(self, plan: Plan) -> str:
        """One thermostat for all directions."""
        del plan
        return "gradient noise that differs between directions is balanced only on average."

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
