"""Point estimates."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Literal

from langevin import checks
from langevin.contracts import Plan
from langevin.engines.climb import ClimbEngine
from langevin.errors import SettingError
from langevin.kernels.ascent import ascent
from langevin.kernels.base import Kernel
from langevin.methods.base import Method
from langevin.posterior import Posterior
from langevin.tuning import Tuning

if TYPE_CHECKING:
    import optax


@dataclasses.dataclass(frozen=True)
class MAP(Method):
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

    def __post_init__(self) -> None:
        if isinstance(self.optimizer, str):
            checks.choice("MAP", "optimizer", self.optimizer, ("adam", "rmsprop", "sgd"))
        elif not hasattr(self.optimizer, "update"):
            raise SettingError(f"`MAP`: `optimizer` must be a name or an Optax optimiser; got {self.optimizer!r}.")
        checks.positive("MAP", "learning_rate", self.learning_rate)
        checks.count("MAP", "num_steps", self.num_steps)

    def total_draws(self, plan: Plan) -> int:
        """One."""
        del plan
        return 1

    def approximation(self, plan: Plan) -> str:
        """A point, not a density."""
        del plan
        return "a mode of the unconstrained log-density, not the posterior."

    def engine(self, target: Posterior, plan: Plan) -> ClimbEngine:
        """The engine of a run."""
        return ClimbEngine(self, target, plan)

    def kernel(self, posterior: Posterior, tuning: Tuning = Tuning()) -> Kernel:
        """The bare kernel."""
        del tuning
        return ascent(posterior, self._optax())

    def _optax(self) -> Any:
        if not isinstance(self.optimizer, str):
            return self.optimizer
        import optax  # here, since it takes a tenth of a second that no other method should pay

        decay = optax.exponential_decay(self.learning_rate, self.num_steps, 1e-3)
        makers: dict[str, Callable[..., Any]] = {
            "adam": optax.adam,
            "rmsprop": optax.rmsprop,
            "sgd": lambda rate: optax.sgd(rate, momentum=0.9),
        }
        return makers[self.optimizer](decay)
