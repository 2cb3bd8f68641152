"""Methods that see all rows, and whose draws are from the posterior itself."""

from __future__ import annotations

import abc
import dataclasses
from typing import ClassVar, Literal

from langevin import checks
from langevin.contracts import Needs, Plan
from langevin.engines.exact import ExactEngine
from langevin.errors import SettingError
from langevin.kernels.base import Kernel
from langevin.kernels.hmc import hmc_stepper
from langevin.kernels.mala import mala_stepper
from langevin.kernels.nuts import nuts_stepper
from langevin.kernels.rwm import rwm_stepper
from langevin.kernels.steppers import Stepper, as_kernel
from langevin.methods.base import Method
from langevin.posterior import Posterior
from langevin.tuning import Tuning

ExactMetric = Literal["auto", "unit", "diagonal", "dense", "lowrank"]
METRICS = ("auto", "unit", "diagonal", "dense", "lowrank")


@dataclasses.dataclass(frozen=True)
class Exact(Method):
    """The base of the exact methods: a stepper, and how warm-up adapts its step and its metric."""

    target_accept: float | Literal["auto"]
    metric: ExactMetric
    rank: int
    step_size: float | Literal["auto"]

    role = "kernel"
    # The fewest gradients that a trajectory has, as a rule.
    least_steps: ClassVar[int] = 1
    # What `target_accept="auto"` is at first, and is raised to where trajectories diverge.
    automatic: ClassVar[tuple[float, ...]] = ()

    @property
    def no_block(self) -> str:
        """The metric of a block is of its gradients given the others, and not of low rank."""
        if self.metric != "lowrank":
            return ""
        return "has `metric='lowrank'`, which needs draws of all sites together. Take 'dense' or 'diagonal'."

    @property
    def acceptances(self) -> tuple[float, ...]:
        """What warm-up adapts the step to: the first, and where trajectories diverge the next."""
        return self.automatic if isinstance(self.target_accept, str) else (self.target_accept,)

    @property
    def deepest(self) -> int | None:
        """The most doublings of a trajectory; None if it has none."""
        return None

    def __post_init__(self) -> None:
        name = type(self).__name__
        accept = self.target_accept
        is_share = not isinstance(accept, str) and checks.is_number(accept) and 0 < accept < 1
        if not (is_share or (self.automatic and accept == "auto")):
            raise SettingError(f"`{name}`: `target_accept` must be between 0 and 1; got {accept!r}. Try 0.8.")
        checks.choice(name, "metric", self.metric, METRICS)
        checks.count(name, "rank", self.rank)
        if isinstance(self.step_size, str):
            checks.choice(name, "step_size", self.step_size, ("auto",))
        else:
            checks.positive(name, "step_size", self.step_size, "0.1, or leave it to warm-up")
            object.__setattr__(self, "step_size", float(self.step_size))

    @property
    def needs(self) -> Needs:
        """A log-density on all rows."""
        return Needs("density", minibatches="none")

    def approximation(self, plan: Plan) -> str:
        """The draws are from the posterior itself."""
        del plan
        return ""

    def engine(self, target: Posterior, plan: Plan) -> ExactEngine:
        """The engine of a run."""
        return ExactEngine(self, target, plan)

    @abc.abstractmethod
    def stepper(self) -> Stepper:
        """The stepper that makes its draws."""

    def kernel(self, posterior: Posterior, tuning: Tuning = Tuning()) -> Kernel:
        """The bare kernel."""
        step_size = tuning.step_size if self.step_size == "auto" else self.step_size
        if step_size is None:
            raise SettingError(
                f"`{type(self).__name__}`: `step_size='auto'` is chosen by warm-up. For a bare kernel, give a number."
            )
        return as_kernel(self.stepper(), posterior, step_size, tuning.metric)


@dataclasses.dataclass(frozen=True)
class NUTS(Exact):
    """The No-U-Turn sampler: Hamiltonian trajectories that stop where they turn back (see `langevin.kernels.nuts`).

    Args:
        target_accept: The acceptance that warm-up adapts the step to. "auto" is 0.8, and in steps up to 0.98 where
            trajectories diverge in the later half of warm-up.
        max_depth: A trajectory has at most `2**max_depth - 1` steps.
        metric: What the step is measured in. "dense" follows every correlation, "lowrank" the strongest, "diagonal"
            none. "auto" is dense up to 128 coordinates, then of low rank.
        rank: How many directions "lowrank" follows.
        step_size: A step that warm-up leaves as it is; by default it is adapted.
    """

    target_accept: float | Literal["auto"] = "auto"
    max_depth: int = 10
    metric: ExactMetric = "auto"
    rank: int = 32
    step_size: float | Literal["auto"] = "auto"

    least_steps: ClassVar[int] = 4
    automatic: ClassVar[tuple[float, ...]] = (0.8, 0.93, 0.98)

    def __post_init__(self) -> None:
        super().__post_init__()
        checks.count("NUTS", "max_depth", self.max_depth)
        if self.max_depth > 20:
            raise SettingError(f"`NUTS`: `max_depth` must be at most 20; got {self.max_depth}. Try 10.")

    @property
    def deepest(self) -> int:
        """The most doublings of a trajectory."""
        return self.max_depth

    def stepper(self) -> Stepper:
        """The stepper that makes its draws."""
        return nuts_stepper(self.max_depth)


@dataclasses.dataclass(frozen=True)
class HMC(Exact):
    """Hamiltonian Monte Carlo with trajectories of a given length (see `langevin.kernels.hmc`).

    Args:
        target_accept: As in `NUTS`.
        num_steps: Leapfrog steps of a trajectory; None for as many as `length` takes.
        length: The time of a trajectory, in units of the metric: on a Gaussian, pi/2 leads to an independent draw.
        jitter: The number of steps varies by this part, evenly.
        metric: As in `NUTS`.
        rank: As in `NUTS`.
        step_size: As in `NUTS`.
    """

    target_accept: float | Literal["auto"] = "auto"
    num_steps: int | None = None
    length: float = 1.5
    jitter: float = 0.3
    metric: ExactMetric = "auto"
    rank: int = 32
    step_size: float | Literal["auto"] = "auto"

    least_steps: ClassVar[int] = 2
    automatic: ClassVar[tuple[float, ...]] = NUTS.automatic

    def __post_init__(self) -> None:
        super().__post_init__()
        checks.positive("HMC", "length", self.length, "1.5")
        if self.num_steps is not None:
            checks.count("HMC", "num_steps", self.num_steps)
        if not (checks.is_number(self.jitter) and 0 <= self.jitter < 1):
            raise SettingError(f"`HMC`: `jitter` must be in [0, 1); got {self.jitter!r}. Try 0.3.")

    def stepper(self) -> Stepper:
        """The stepper that makes its draws."""
        return hmc_stepper(self.num_steps, self.length, self.jitter)


@dataclasses.dataclass(frozen=True)
class MALA(Exact):
    """The Metropolis-adjusted Langevin algorithm (see `langevin.kernels.mala`).

    Args:
        target_accept: The acceptance that warm-up adapts the step to; 0.574 is best in many dimensions (Roberts &
            Rosenthal 1998).
        metric: As in `NUTS`.
        rank: As in `NUTS`.
        step_size: As in `NUTS`: the sd of a proposal's noise.
    """

    target_accept: float = 0.574
    metric: ExactMetric = "auto"
    rank: int = 32
    step_size: float | Literal["auto"] = "auto"

    def stepper(self) -> Stepper:
        """The stepper that makes its draws."""
        return mala_stepper()


@dataclasses.dataclass(frozen=True)
class RWM(Exact):
    """Random-walk Metropolis, which takes no gradient (see `langevin.kernels.rwm`).

    Args:
        target_accept: The acceptance that warm-up adapts the step to; 0.234 is best in many dimensions, 0.44 in one
            (Gelman, Roberts & Gilks 1996).
        metric: As in `NUTS`; from the draws alone.
        rank: As in `NUTS`.
        step_size: As in `NUTS`: the sd of a proposal.
    """

    target_accept: float = 0.3
    metric: ExactMetric = "auto"
    rank: int = 32
    step_size: float | Literal["auto"] = "auto"

    def stepper(self) -> Stepper:
        """The stepper that makes its draws."""
        return rwm_stepper()
