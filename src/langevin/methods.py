"""The methods a user can ask for: small frozen settings, each of which makes its kernel.

A name in lower case stands for a method with its defaults: `"sgld"` is `SGLD()`.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable
from typing import Any, ClassVar, Literal

import optax

from langevin import checks
from langevin.errors import SettingError
from langevin.kernels import gradients, preconditioners
from langevin.kernels.ascent import ascent
from langevin.kernels.base import Kernel
from langevin.kernels.gradients import Estimator
from langevin.kernels.schedules import CosineCycles, Schedule
from langevin.kernels.sghmc import sghmc
from langevin.kernels.sgld import sgld
from langevin.kernels.sgnht import sgnht
from langevin.posterior import Posterior
from langevin.tuning import SD_BIAS, Landscape, Pace, Tuning

StepSize = float | Schedule | Literal["auto"]
EstimatorName = Literal["minibatch", "control_variate", "svrg"]
MetricName = Literal["auto", "unit", "diagonal", "dense"]


@dataclasses.dataclass(frozen=True)
class RMSprop:
    """The RMSprop preconditioner of SGLD (text 000, eq. 28).

    Args:
        decay: How slowly squared gradients are forgotten.
        damping: Keeps the metric finite; lambda in the text.
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

    driver: ClassVar[str] = "chains"

    @property
    def independent_batches(self) -> bool:
        """Sweeps lower the bias; but an exact accept step needs minibatches that are independent of the position."""
        return self.accept is not None

    def __post_init__(self) -> None:
        _check_stochastic(self)
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
        if self._adapts:
            preconditioner = self.warmup_preconditioner(posterior)
        return sgld(
            posterior,
            _step_size(self, tuning),
            estimator=_estimator(self.estimator, posterior, tuning),
            preconditioner=preconditioner,
            accept=self.accept,
        )

    def warmup_preconditioner(self, posterior: Posterior) -> preconditioners.Preconditioner:
        """The adapting preconditioner, which warm-up runs even where the draws come from a frozen one."""
        assert isinstance(self.preconditioner, RMSprop)
        settings = self.preconditioner
        return preconditioners.rmsprop(posterior, settings.decay, settings.damping, settings.gamma)

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

    driver: ClassVar[str] = "chains"
    independent_batches: ClassVar[bool] = True

    def __post_init__(self) -> None:
        _check_stochastic(self)
        checks.positive("SGHMC", "friction", self.friction)
        if self.gradient_noise != "auto" and not (checks.is_number(self.gradient_noise) and self.gradient_noise >= 0):
            raise SettingError(f"`SGHMC`: `gradient_noise` must be 'auto' or >= 0; got {self.gradient_noise!r}.")

    def kernel(self, posterior: Posterior, tuning: Tuning = Tuning()) -> Kernel:
        """The bare kernel, with what warm-up found."""
        return sghmc(
            posterior,
            _step_size(self, tuning),
            friction=self.friction,
            gradient_noise=_gradient_noise(self.gradient_noise, self.estimator, tuning),
            estimator=_estimator(self.estimator, posterior, tuning),
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
        return _underdamped_pace(min(limits), self.friction, landscape)


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

    driver: ClassVar[str] = "chains"
    independent_batches: ClassVar[bool] = True

    def __post_init__(self) -> None:
        _check_stochastic(self)
        checks.positive("SGNHT", "friction", self.friction)

    def kernel(self, posterior: Posterior, tuning: Tuning = Tuning()) -> Kernel:
        """The bare kernel, with what warm-up found."""
        return sgnht(
            posterior,
            _step_size(self, tuning),
            friction=self.friction,
            estimator=_estimator(self.estimator, posterior, tuning),
            metric=tuning.metric,
        )

    def pace(self, landscape: Landscape) -> Pace:
        """At the chosen step the gradient noise adds no more than half again to the friction."""
        step_size = min(0.25 / math.sqrt(landscape.stiffest), self.friction / max(landscape.noise, 1e-12))
        return _underdamped_pace(step_size, self.friction + step_size * landscape.noise / 2, landscape)


@dataclasses.dataclass(frozen=True)
class CyclicalSGLD:
    """SGLD with cosine cycles of the step size (Zhang et al. 2020).

    Each cycle starts with large steps without noise, which look for another mode, and ends with small ones, which
    sample it. Only the latter are kept. The balance between modes that the chain does not cross by itself is that of
    the modes' basins, not of their masses: approximate.

    Args:
        step_size: The peak of a cycle: a number, or "auto", which is four times the automatic step of `SGLD`.
        num_cycles: How many cycles the draws come from.
        explore: The share of each cycle that explores.
        metric: As in `SGLD`.
        estimator: Of the gradient; see `langevin.kernels.gradients`.
    """

    step_size: float | Literal["auto"] = "auto"
    num_cycles: int = 10
    explore: float = 0.25
    metric: MetricName = "auto"
    estimator: EstimatorName = "minibatch"

    driver: ClassVar[str] = "chains"
    independent_batches: ClassVar[bool] = False

    def __post_init__(self) -> None:
        _check_stochastic(self)
        _check_cycles(self)

    def kernel(self, posterior: Posterior, tuning: Tuning = Tuning()) -> Kernel:
        """The bare kernel, with what warm-up found."""
        length, explore = tuning.cycle
        return sgld(
            posterior,
            CosineCycles(_step_size(self, tuning), length),
            estimator=_estimator(self.estimator, posterior, tuning),
            preconditioner=preconditioners.fixed(tuning.metric),
            noise_free_steps=lambda step: step % length < explore,
        )

    def pace(self, landscape: Landscape) -> Pace:
        """Four times the step of `SGLD` at the peak, so that it is about the mean of the sampling phase."""
        pace = SGLD().pace(landscape)
        return Pace(4 * pace.step_size, pace.steps_to_forget)


@dataclasses.dataclass(frozen=True)
class CyclicalSGHMC:
    """SGHMC with cosine cycles of the step size (Zhang et al. 2020); see `CyclicalSGLD` and `SGHMC`.

    Args:
        step_size: The peak of a cycle: a number, or "auto", which is twice the automatic step of `SGHMC`.
        friction: As in `SGHMC`.
        num_cycles: How many cycles the draws come from.
        explore: The share of each cycle that explores.
        metric: As in `SGLD`.
        estimator: Of the gradient; see `langevin.kernels.gradients`.
    """

    step_size: float | Literal["auto"] = "auto"
    friction: float = 2.0
    num_cycles: int = 10
    explore: float = 0.25
    metric: MetricName = "auto"
    estimator: EstimatorName = "minibatch"

    driver: ClassVar[str] = "chains"
    independent_batches: ClassVar[bool] = True

    def __post_init__(self) -> None:
        _check_stochastic(self)
        checks.positive("CyclicalSGHMC", "friction", self.friction)
        _check_cycles(self)

    def kernel(self, posterior: Posterior, tuning: Tuning = Tuning()) -> Kernel:
        """The bare kernel, with what warm-up found."""
        length, explore = tuning.cycle
        return sghmc(
            posterior,
            CosineCycles(_step_size(self, tuning), length),
            friction=self.friction,
            gradient_noise=_gradient_noise("auto", self.estimator, tuning),
            estimator=_estimator(self.estimator, posterior, tuning),
            metric=tuning.metric,
            noise_free_steps=lambda step: step % length < explore,
        )

    def pace(self, landscape: Landscape) -> Pace:
        """Twice the step of `SGHMC` at the peak: the sampling phase is at or below it."""
        pace = SGHMC(friction=self.friction, estimator=self.estimator).pace(landscape)
        return Pace(2 * pace.step_size, 2 * pace.steps_to_forget)


@dataclasses.dataclass(frozen=True)
class MAP:
    """The mode of the (unconstrained) log-density, by Optax. One point, no uncertainty.

    Every chain climbs from its own start, and the highest point is returned.

    Args:
        optimizer: "adam", "rmsprop", "sgd" (with momentum 0.9), or any Optax optimiser.
        learning_rate: At the start; it decays to a thousandth. For the gradient of `-log_density / num_data`.
        num_steps: How many steps to climb.
    """

    optimizer: Literal["adam", "rmsprop", "sgd"] | optax.GradientTransformation = "adam"
    learning_rate: float = 0.1
    num_steps: int = 3000

    driver: ClassVar[str] = "optimise"
    independent_batches: ClassVar[bool] = False

    def __post_init__(self) -> None:
        if isinstance(self.optimizer, str):
            checks.choice("MAP", "optimizer", self.optimizer, ("adam", "rmsprop", "sgd"))
        elif not hasattr(self.optimizer, "update"):
            raise SettingError(f"`MAP`: `optimizer` must be a name or an Optax optimiser; got {self.optimizer!r}.")
        checks.positive("MAP", "learning_rate", self.learning_rate)
        checks.count("MAP", "num_steps", self.num_steps)

    def kernel(self, posterior: Posterior, tuning: Tuning = Tuning()) -> Kernel:
        """The bare kernel."""
        del tuning
        return ascent(posterior, self._optax())

    def _optax(self) -> Any:
        if not isinstance(self.optimizer, str):
            return self.optimizer
        decay = optax.exponential_decay(self.learning_rate, self.num_steps, 1e-3)
        makers: dict[str, Callable[..., Any]] = {
            "adam": optax.adam,
            "rmsprop": optax.rmsprop,
            "sgd": lambda rate: optax.sgd(rate, momentum=0.9),
        }
        return makers[self.optimizer](decay)


Method = SGLD | SGHMC | SGNHT | CyclicalSGLD | CyclicalSGHMC | MAP
Sampler = SGLD | SGHMC | SGNHT | CyclicalSGLD | CyclicalSGHMC

BY_NAME: dict[str, Callable[[], Method]] = {
    "sgld": SGLD,
    "psgld": lambda: SGLD(preconditioner="rmsprop"),
    "sghmc": SGHMC,
    "sgnht": SGNHT,
    "cyclicalsgld": CyclicalSGLD,
    "cyclicalsghmc": CyclicalSGHMC,
    "map": MAP,
}


def as_method(method: str | Method) -> Method:
    """A name as the method with its defaults; a method as it is.

    Raises:
        SettingError: For an unknown name, with the names there are.
    """
    if isinstance(method, Method):
        return method
    if isinstance(method, str):
        if method.lower() in BY_NAME:
            return BY_NAME[method.lower()]()
        raise SettingError(f"`method`: {method!r} is not known. Known are {', '.join(map(repr, BY_NAME))}.")
    if isinstance(method, type) and issubclass(method, Method):
        return method()
    raise SettingError(f"`method` must be a name or a method such as lv.SGLD(); got {method!r}.")


def _step_size(method: Sampler, tuning: Tuning) -> Any:
    if method.step_size != "auto":
        return method.step_size
    if tuning.step_size is None:
        raise SettingError(
            f"`{type(method).__name__}`: `step_size='auto'` is chosen by warm-up. For a bare kernel, give a number."
        )
    return tuning.step_size


def _estimator(name: EstimatorName, posterior: Posterior, tuning: Tuning) -> Estimator:
    if name == "control_variate":
        return gradients.control_variate(posterior, tuning.centre)
    if name == "svrg":
        return gradients.svrg(posterior, tuning.epoch)
    return gradients.minibatch(posterior)


def _gradient_noise(setting: float | str, estimator: EstimatorName, tuning: Tuning) -> Any:
    """The noise to take off. That of an anchored estimator grows with the distance from the anchor: none is known."""
    if setting != "auto":
        return setting
    return 0.0 if tuning.gradient_noise is None or estimator != "minibatch" else tuning.gradient_noise


def _underdamped_pace(step_size: float, friction: float, landscape: Landscape) -> Pace:
    """Positions forget at the rate softest / friction, energies at the rate friction."""
    time = max(2 * friction / landscape.softest, 4 / friction)
    return Pace(step_size, time / step_size)


def _check_stochastic(method: Any) -> None:
    name = type(method).__name__
    if isinstance(method.step_size, str):
        checks.choice(name, "step_size", method.step_size, ("auto",))
    elif not callable(method.step_size):
        checks.positive(name, "step_size", method.step_size, "1e-4, or leave it to warm-up")
    checks.choice(name, "metric", method.metric, ("auto", "unit", "diagonal", "dense"))
    checks.choice(name, "estimator", method.estimator, ("minibatch", "control_variate", "svrg"))


def _check_cycles(method: Any) -> None:
    name = type(method).__name__
    if callable(method.step_size):
        raise SettingError(f"`{name}`: `step_size` is the peak of a cycle, a number; got a schedule.")
    checks.count(name, "num_cycles", method.num_cycles)
    if not (checks.is_number(method.explore) and 0 <= method.explore < 1):
        raise SettingError(f"`{name}`: `explore` must be in [0, 1); got {method.explore!r}. Try 0.25.")
