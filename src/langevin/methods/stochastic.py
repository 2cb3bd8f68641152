"""Stochastic-gradient samplers."""

from __future__ import annotations

import abc
import dataclasses
from typing import Any, ClassVar, Literal

import jax
import numpy as np

from langevin import checks
from langevin.contracts import Needs, Plan, Position
from langevin.engines.network import MOST_HEAT, NetworkEngine
from langevin.engines.stochastic import StochasticEngine
from langevin.errors import SettingError
from langevin.kernels import preconditioners
from langevin.kernels.base import Kernel
from langevin.kernels.metrics import Diagonal, Metric
from langevin.kernels.sgld import sgld
from langevin.methods import shared
from langevin.methods.base import Method
from langevin.methods.shared import EstimatorName, MetricName, StepSize
from langevin.posterior import Posterior
from langevin.tuning import SD_BIAS, Landscape, Pace, Tuning

OF_NETWORK = (
    f"the step was chosen so that the noise of minibatches costs at most about {MOST_HEAT:g} nats a row; directions in "
    "which the data say much are wider than they should be, and chains need not reach each other's modes."
)


@dataclasses.dataclass(frozen=True)
class Stochastic(Method):
    """The base of the stochastic-gradient methods: a kernel, its pace, and what it takes from warm-up.

    A new one needs a kernel and a pace. The rest are answers to what the engine asks, with the usual ones here.
    """

    step_size: StepSize
    metric: MetricName
    estimator: EstimatorName

    role = "kernel"
    # The automatic step as a multiple of its mean over a cycle.
    peak: ClassVar[float] = 1.0
    # Whether the step goes through cycles.
    has_cycles: ClassVar[bool] = False
    # Whether minibatches must be independent from step to step: where their noise is accounted for.
    accounts_for_noise: ClassVar[bool] = False

    def __post_init__(self) -> None:
        shared.check_stochastic(self)

    @property
    def needs(self) -> Needs:
        """A log-density."""
        return Needs("density", "independent" if self.accounts_for_noise else "any")

    @property
    def needs_warmup(self) -> bool:
        """Whether warm-up finds something that the kernel cannot do without."""
        return self.step_size == "auto" or self.estimator == "control_variate"

    def check(self, plan: Plan) -> None:
        """Raises a SettingError if the method needs a warm-up and gets none."""
        if plan.num_warmup == 0 and self.needs_warmup:
            raise SettingError(
                f"`num_warmup=0`: {type(self).__name__} with these settings gets its "
                f"{'step' if self.step_size == 'auto' else 'centre or metric'} from warm-up. Leave `num_warmup` out."
            )

    def approximation(self, plan: Plan) -> str:
        """The bias of a step of finite length."""
        if self.step_size == "auto" and plan.network_size:
            return OF_NETWORK
        if self.step_size == "auto":
            return f"the step was chosen so that sds are at most about {100 * SD_BIAS:.0f} % too wide."
        kind = "gradients from minibatches and a" if plan.batches is not None else "a"
        return f"{kind} step of finite length, without a Metropolis correction: the bias shrinks with the step."

    def engine(self, target: Posterior, plan: Plan) -> StochasticEngine:
        """The engine of a run: on a network with an automatic step, one that trains it first."""
        of_network = target.model.network is not None and self.step_size == "auto"
        return (NetworkEngine if of_network else StochasticEngine)(self, target, plan)

    @abc.abstractmethod
    def kernel(self, posterior: Posterior, tuning: Tuning = Tuning()) -> Kernel:
        """The bare kernel, with what warm-up found."""

    @abc.abstractmethod
    def pace(self, landscape: Landscape) -> Pace:
        """The largest step whose bias is acceptable, and the autocorrelation time of a chain with that step."""

    @property
    def no_block(self) -> str:
        """What would need a centre that the other blocks leave, or weights of its own for the draws of all blocks."""
        if callable(self.step_size):
            return (
                "has a schedule for a step, and draws of all blocks would have the weights of one. Give it a number, "
                "or leave `step_size` out."
            )
        if self.estimator in ("minibatch", "auto"):
            return ""
        return (
            f"has `estimator={self.estimator!r}`, around a point that the other blocks leave. Leave `estimator` out: a "
            "control variate around a centre of all blocks is taken where it is worth its price."
        )

    @property
    def takes_noise_off(self) -> bool:
        """Whether the kernel uses the gradient noise that was measured: by default not."""
        return False

    @property
    def burn_in(self) -> Stochastic:
        """What burns in where the step is given: the method itself."""
        return self

    def cycle(self, num_draws: int, thin: int) -> tuple[int, int, int]:
        """Draws in a cycle of the step size, its steps, and how many of them explore: there are no cycles."""
        del num_draws, thin
        return 1, 1, 0

    def metric_of_gradients(self, mean_square: Position, num_data: int) -> Diagonal | None:
        """The metric of squared gradients: none, so that warm-up makes one of the curvature."""
        del mean_square, num_data

    def metric_of_burn_in(self, state: Any) -> Metric | None:
        """The metric that a plain burn-in has learned: none."""
        del state


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
class SGLD(Stochastic):
    """Stochastic gradient Langevin dynamics (Welling & Teh 2011); see `langevin.kernels.sgld`.

    Targets the posterior with a bias that shrinks with the step: with `step_size="auto"`, sds are up to about 3 % too
    wide. With `accept="full"` it is exact, and reads all rows in every step.

    Args:
        step_size: A number, a schedule, or "auto": then warm-up finds the mode, the curvature and the gradient noise
            there, and from them the metric and the step.
        metric: The constant metric that warm-up makes from the curvature. "auto" is dense for up to 128 coordinates
            and diagonal above where the step is "auto", and the identity where it is given.
        preconditioner: None, "rmsprop" or an `RMSprop`; it takes the place of `metric`.
        estimator: Of the gradient: "minibatch", "control_variate", "svrg" (see `langevin.kernels.gradients`); "auto"
            has a control variate where the noise of minibatches is worth its price.
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
    estimator: EstimatorName = "auto"
    accept: Literal["minibatch", "full"] | None = None

    def __post_init__(self) -> None:
        super().__post_init__()
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

    @property
    def _learns(self) -> bool:
        return isinstance(self.preconditioner, RMSprop) and self.preconditioner.adapt == "warmup"

    @property
    def no_block(self) -> str:
        """Also where an acceptance reads all rows, or a metric would be learned in a burn-in of its own."""
        if self.accept == "full":
            return "has `accept='full'`, which reads all rows in a step. lv.MALA() does that, with larger steps."
        if self._learns and self.step_size != "auto":
            return (
                "has a preconditioner that is learned in warm-up, and a step that is given. Leave `step_size` out, or "
                "take lv.RMSprop(adapt='throughout')."
            )
        return super().no_block

    @property
    def needs(self) -> Needs:
        """Sweeps lower the bias; but an exact accept step needs minibatches that are independent of the position."""
        return Needs("density", "any" if self.accept is None else "independent")

    @property
    def needs_warmup(self) -> bool:
        """Also for a metric that is frozen after warm-up."""
        return super().needs_warmup or self._learns

    def approximation(self, plan: Plan) -> str:
        """Exact with an accept step on all rows; else the bias of the step, or of what adapts."""
        if self.accept == "full":
            return ""
        if self.accept == "minibatch":
            return "proposals are accepted by the minibatch alone, whose noise widens the posterior."
        if self._adapts:
            return "the metric adapts throughout, and remembers earlier positions."
        return super().approximation(plan)

    @property
    def burn_in(self) -> SGLD:
        """With a metric that warm-up learns, SGLD that adapts."""
        if not (self._learns and isinstance(self.preconditioner, RMSprop)):
            return self
        adapting = dataclasses.replace(self.preconditioner, adapt="throughout", gamma=False)
        return SGLD(step_size=self.step_size, estimator=self.estimator, preconditioner=adapting)

    def metric_of_gradients(self, mean_square: Position, num_data: int) -> Diagonal | None:
        """That of RMSprop, if it is asked for."""
        if not isinstance(self.preconditioner, RMSprop):
            return None
        count = max(num_data, 1)
        memory = preconditioners.RMSpropState(jax.tree.map(lambda s: s / count**2, mean_square))
        return preconditioners.rmsprop_metric(memory, self.preconditioner.damping)

    def metric_of_burn_in(self, state: Any) -> Metric | None:
        """That of RMSprop's memory, averaged over the chains, if warm-up is to learn it."""
        if not (self._learns and isinstance(self.preconditioner, RMSprop)):
            return None
        memory = jax.tree.map(lambda leaf: np.mean(np.asarray(leaf), axis=0), state.preconditioner)
        return preconditioners.rmsprop_metric(memory, self.preconditioner.damping)

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
