"""Point estimates."""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING

from langevin import checks
from langevin.contracts import Plan
from langevin.engines import training
from langevin.engines.climb import ClimbEngine
from langevin.errors import SettingError
from langevin.kernels.ascent import OptimizerName, ascent, optimizer_of
from langevin.kernels.base import Kernel
from langevin.methods.base import Counts, Method
from langevin.posterior import Posterior
from langevin.tuning import Tuning

if TYPE_CHECKING:
    import optax

RATE, NUM_STEPS = 0.1, 3000


@dataclasses.dataclass(frozen=True)
class MAP(Method):
    """The mode of the (unconstrained) log-density, by Optax. One point, no uncertainty.

    Every chain climbs from its own start, and the highest point is returned. Of a network it is what is called training
    with weight decay: that of a prior Normal(0, s) is 1 / (s^2 num_data) on the mean loss.

    Args:
        optimizer: "adam", "rmsprop", "sgd" (with momentum 0.9), or any Optax optimiser.
        learning_rate: At the start. For the gradient of `-log_density / num_data`. By default 0.1, and it decays to a
            thousandth; of networks a share of the size of their first weights (1e-3 for hundreds of inputs; 0.02 with
            "sgd"), and it decays to zero along half a cosine.
        num_steps: How many steps to climb. By default 3000; of networks 10 epochs, if these are 3,000 to 20,000 steps.
    """

    optimizer: OptimizerName | optax.GradientTransformation = "adam"
    learning_rate: float | None = None
    num_steps: int | None = None

    def __post_init__(self) -> None:
        if isinstance(self.optimizer, str):
            checks.choice("MAP", "optimizer", self.optimizer, ("adam", "rmsprop", "sgd"))
        elif not hasattr(self.optimizer, "update"):
            raise SettingError(f"`MAP`: `optimizer` must be a name or an Optax optimiser; got {self.optimizer!r}.")
        if self.learning_rate is not None:
            checks.positive("MAP", "learning_rate", self.learning_rate)
        if self.num_steps is not None:
            checks.count("MAP", "num_steps", self.num_steps)

    def total_draws(self, plan: Plan) -> int:
        """One."""
        del plan
        return 1

    def approximation(self, plan: Plan) -> str:
        """A point, not a density."""
        del plan
        return "a mode of the unconstrained log-density, not the posterior."

    def counts(self, network_size: int) -> Counts:
        """One climb, where the model is a network: others would end about as high."""
        return Counts(1, 1) if network_size else super().counts(network_size)

    def engine(self, target: Posterior, plan: Plan) -> ClimbEngine:
        """The engine of a run."""
        return ClimbEngine(self, target, plan)

    def rate(self, target: Posterior) -> float:
        """The learning rate at the start."""
        if self.learning_rate is not None:
            return self.learning_rate
        return RATE if target.model.network is None else training.rate_of(target, str(self.optimizer))

    def steps(self, target: Posterior, plan: Plan) -> int:
        """How many steps to climb."""
        if self.num_steps is not None:
            return self.num_steps
        return NUM_STEPS if target.model.network is None else training.training_steps(target, plan)

    def kernel(self, posterior: Posterior, tuning: Tuning = Tuning()) -> Kernel:
        """The bare kernel."""
        del tuning
        if not isinstance(self.optimizer, str):
            return ascent(posterior, self.optimizer)
        of_network = posterior.model.network is not None
        rate = self.rate(posterior)
        num_steps = self.num_steps or (training.LEAST_STEPS if of_network else NUM_STEPS)
        return ascent(
            posterior, optimizer_of(self.optimizer, rate, num_steps, "cosine" if of_network else "exponential")
        )
