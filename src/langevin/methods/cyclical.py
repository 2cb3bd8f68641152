"""Stochastic-gradient samplers with cycles of the step size."""

from __future__ import annotations

import dataclasses
from typing import ClassVar, Literal

from langevin import checks
from langevin.contracts import Plan
from langevin.engines.stochastic import StochasticEngine
from langevin.errors import SettingError
from langevin.kernels import preconditioners
from langevin.kernels.base import Kernel
from langevin.kernels.schedules import CosineCycles
from langevin.kernels.sghmc import sghmc
from langevin.kernels.sgld import sgld
from langevin.methods import shared
from langevin.methods.shared import EstimatorName, MetricName
from langevin.methods.stochastic import SGLD, Stochastic
from langevin.methods.underdamped import SGHMC
from langevin.posterior import Posterior
from langevin.tuning import Landscape, Pace, Tuning

EXPLORE, EXPLORE_OF_NETWORK = 0.25, 0.8
NUM_CYCLES, NUM_CYCLES_OF_NETWORK = 10, 5


@dataclasses.dataclass(frozen=True)
class Cyclical(Stochastic):
    """The base of methods with cycles of the step size."""

    num_cycles: int | None
    explore: float | None

    has_cycles: ClassVar[bool] = True
    # With a quarter of the cycle exploring, the mean of the rest, weighted by the step itself, is 0.57 of the peak.
    peak: ClassVar[float] = 1.75

    def __post_init__(self) -> None:
        super().__post_init__()
        name = type(self).__name__
        if callable(self.step_size):
            raise SettingError(f"`{name}`: `step_size` is the peak of a cycle, a number; got a schedule.")
        if self.num_cycles is not None:
            checks.count(name, "num_cycles", self.num_cycles)
        if self.explore is not None and not (checks.is_number(self.explore) and 0 <= self.explore < 1):
            raise SettingError(f"`{name}`: `explore` must be in [0, 1); got {self.explore!r}. Try 0.25.")

    @property
    def no_block(self) -> str:
        """Cycles are of a whole chain."""
        kin = type(self).__name__.removeprefix("Cyclical")
        return f"has cycles, in which all sites would have to take part. Take lv.{kin}()."

    def check(self, plan: Plan) -> None:
        """Raises a SettingError if the draws are not a multiple of the cycles."""
        super().check(plan)
        num_cycles = self.num_cycles or (NUM_CYCLES_OF_NETWORK if plan.network_size else NUM_CYCLES)
        if plan.num_draws % num_cycles:
            raise SettingError(
                f"`num_draws` must be a multiple of the {num_cycles} cycles, so that each gives as many; got "
                f"{plan.num_draws}."
            )

    def approximation(self, plan: Plan) -> str:
        """The balance of modes; of a network, also the bias of the step."""
        of_network = f"{super().approximation(plan)} Besides, " if plan.network_size else ""
        return f"{of_network}the balance between modes that the chain does not cross by itself is that of their basins."

    def engine(self, target: Posterior, plan: Plan) -> StochasticEngine:
        """The engine of a run; of networks, draws come from the ends of cycles only."""
        if target.model.network is None:
            return super().engine(target, plan)
        explore = EXPLORE_OF_NETWORK if self.explore is None else self.explore
        resolved = dataclasses.replace(self, explore=explore, num_cycles=self.num_cycles or NUM_CYCLES_OF_NETWORK)
        return Stochastic.engine(resolved, target, plan)

    def cycle(self, num_draws: int, thin: int) -> tuple[int, int, int]:
        """Draws in a cycle, its steps, and how many of them explore."""
        draws = num_draws // (self.num_cycles or NUM_CYCLES)
        explore = EXPLORE if self.explore is None else self.explore
        exploring = round(draws * thin * explore / (1 - explore))
        return draws, draws * thin + exploring, exploring


@dataclasses.dataclass(frozen=True)
class CyclicalSGLD(Cyclical):
    """SGLD with cosine cycles of the step size (Zhang et al. 2020).

    Each cycle starts with large steps without noise, which look for another mode, and ends with small ones, which
    sample it. Only the latter are kept. The balance between modes that the chain does not cross by itself is that of
    the modes' basins, not of their masses: approximate.

    Args:
        step_size: The peak of a cycle: a number, or "auto", which is 1.75 times the automatic step of `SGLD`.
        num_cycles: How many cycles the draws come from; by default 10, and of networks 5.
        explore: The share of each cycle that explores; by default 0.25, and of networks 0.8, with noise.
        metric: As in `SGLD`.
        estimator: Of the gradient; see `langevin.kernels.gradients`.
    """

    step_size: float | Literal["auto"] = "auto"
    num_cycles: int | None = None
    explore: float | None = None
    metric: MetricName = "auto"
    estimator: EstimatorName = "auto"

    def kernel(self, posterior: Posterior, tuning: Tuning = Tuning()) -> Kernel:
        """The bare kernel, with what warm-up found."""
        length, explore = tuning.cycle
        return sgld(
            posterior,
            CosineCycles(shared.step_size_of(self, tuning), length, tuning.lowest),
            estimator=shared.estimator_of(self.estimator, posterior, tuning),
            preconditioner=preconditioners.fixed(tuning.metric),
            noise_free_steps=lambda step: step % length < explore,
        )

    def pace(self, landscape: Landscape) -> Pace:
        """The step of `SGLD` as the mean over the sampling phase, weighted as the draws are."""
        pace = SGLD(estimator=self.estimator).pace(landscape)
        return Pace(self.peak * pace.step_size, pace.autocorrelation_time)


@dataclasses.dataclass(frozen=True)
class CyclicalSGHMC(Cyclical):
    """SGHMC with cosine cycles of the step size (Zhang et al. 2020); see `CyclicalSGLD` and `SGHMC`.

    Args:
        step_size: The peak of a cycle: a number, or "auto", which is 1.75 times the automatic step of `SGHMC`.
        friction: As in `SGHMC`.
        num_cycles: How many cycles the draws come from; by default 10, and of networks 5.
        explore: The share of each cycle that explores; by default 0.25, and of networks 0.8, with noise.
        metric: As in `SGLD`.
        estimator: Of the gradient; see `langevin.kernels.gradients`.
    """

    step_size: float | Literal["auto"] = "auto"
    friction: float = 2.0
    num_cycles: int | None = None
    explore: float | None = None
    metric: MetricName = "auto"
    estimator: EstimatorName = "auto"

    accounts_for_noise: ClassVar[bool] = True

    def __post_init__(self) -> None:
        super().__post_init__()
        checks.positive("CyclicalSGHMC", "friction", self.friction)

    @property
    def takes_noise_off(self) -> bool:
        """As `SGHMC` does."""
        return self.estimator in shared.KNOWN_NOISE

    def kernel(self, posterior: Posterior, tuning: Tuning = Tuning()) -> Kernel:
        """The bare kernel, with what warm-up found."""
        length, explore = tuning.cycle
        return sghmc(
            posterior,
            CosineCycles(shared.step_size_of(self, tuning), length, tuning.lowest),
            friction=self.friction,
            gradient_noise=shared.noise_to_take_off("auto", self.estimator, tuning),
            estimator=shared.estimator_of(self.estimator, posterior, tuning),
            metric=tuning.metric,
            noise_free_steps=lambda step: step % length < explore,
        )

    def pace(self, landscape: Landscape) -> Pace:
        """The step of `SGHMC` as the mean over the sampling phase, weighted as the draws are."""
        pace = SGHMC(friction=self.friction, estimator=self.estimator).pace(landscape)
        return Pace(self.peak * pace.step_size, pace.autocorrelation_time)
