"""What the stochastic-gradient methods have in common."""

from __future__ import annotations

from typing import Any, Literal

from langevin import checks
from langevin.errors import SettingError
from langevin.kernels import gradients
from langevin.kernels.gradients import Estimator
from langevin.kernels.schedules import Schedule
from langevin.posterior import Posterior
from langevin.tuning import Landscape, Pace, Tuning

StepSize = float | Schedule | Literal["auto"]
EstimatorName = Literal["auto", "minibatch", "control_variate", "svrg"]
# Their noise can be taken off: its variance at typical positions is measured. "auto" is one of the two. That of SVRG
# grows with the age of its anchor.
KNOWN_NOISE = ("auto", "minibatch", "control_variate")
MetricName = Literal["auto", "unit", "diagonal", "dense"]


def step_size_of(method: Any, tuning: Tuning) -> Any:
    """The step size that was given, or that warm-up found."""
    if method.step_size != "auto":
        return method.step_size
    if tuning.step_size is None:
        raise SettingError(
            f"`{type(method).__name__}`: `step_size='auto'` is chosen by warm-up. For a bare kernel, give a number."
        )
    return tuning.step_size


def estimator_of(name: EstimatorName, posterior: Posterior, tuning: Tuning) -> Estimator:
    """The estimator of this name."""
    if name == "control_variate":
        return gradients.control_variate(posterior, tuning.centre)
    if name == "svrg":
        return gradients.svrg(posterior, tuning.epoch)
    return gradients.minibatch(posterior)


def noise_to_take_off(setting: float | str, estimator: EstimatorName, tuning: Tuning) -> Any:
    """The noise to take off: with its mean, the variance of the draws is right also where it is not constant."""
    if setting != "auto":
        return setting
    return 0.0 if tuning.gradient_noise is None or estimator not in KNOWN_NOISE else tuning.gradient_noise


def underdamped_pace(step_size: float, friction: float, landscape: Landscape) -> Pace:
    """Positions forget at the rate softest / friction, energies at the rate friction."""
    time = max(2 * friction / landscape.softest, 4 / friction)
    return Pace(step_size, time / step_size)


def check_stochastic(method: Any) -> None:
    """Checks the settings that every stochastic-gradient method has."""
    name = type(method).__name__
    if isinstance(method.step_size, str):
        checks.choice(name, "step_size", method.step_size, ("auto",))
    elif not callable(method.step_size):
        checks.positive(name, "step_size", method.step_size, "1e-4, or leave it to warm-up")
        object.__setattr__(method, "step_size", float(method.step_size))
    checks.choice(name, "metric", method.metric, ("auto", "unit", "diagonal", "dense"))
    if method.step_size != "auto" and method.metric in ("diagonal", "dense"):
        raise SettingError(
            f"`{name}`: `metric={method.metric!r}` is made by warm-up together with the step, and needs "
            "step_size='auto'."
        )
    checks.choice(name, "estimator", method.estimator, ("auto", "minibatch", "control_variate", "svrg"))
