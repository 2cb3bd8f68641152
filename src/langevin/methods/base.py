"""What every method is: frozen settings that know what they need, check themselves, and make their engine."""

from __future__ import annotations

import abc
from typing import Any, ClassVar, Literal, NamedTuple

from langevin.contracts import Engine, Needs, Plan

NUM_CHAINS, NUM_DRAWS = 4, 1000
# Draws of a large network take at most about so many bytes, in all chains, but there are so many at least.
MOST_BYTES, LEAST_DRAWS = 200_000_000, 20


class Counts(NamedTuple):
    """How many chains and draws of each there are, where nobody says so."""

    num_chains: int
    num_draws: int


class Method(abc.ABC):
    """The base of all methods. A new one is a frozen dataclass that inherits from it, or from a base with an engine.

    `langevin.methods.exact.Exact` is the base of those that a stepper makes, `langevin.methods.stochastic.Stochastic`
    of those that a kernel with stochastic gradients makes.
    """

    # What it can do for a block of a `Hybrid`: "kernel" moves it by `kernel(posterior, tuning)`, "conditional" draws it
    # from conditionals that are derived from the program, "labels" draws discrete sites, "bound" stands for its
    # log-marginal; empty for nothing.
    role: ClassVar[Literal["", "kernel", "conditional", "labels", "bound"]] = ""

    @property
    def no_block(self) -> str:
        """Why these settings make no sense for a block of a `Hybrid`, and what does; empty if they do."""
        return ""

    @property
    def acceptances(self) -> tuple[float, ...]:
        """What warm-up adapts a step to, the first first: empty where no step adapts to an acceptance."""
        return ()

    @property
    def needs(self) -> Needs:
        """What the method needs of the target: by default a log-density, on all rows or on any minibatches."""
        return Needs()

    def check(self, plan: Plan) -> None:
        """Raises a SettingError if settings and plan do not go together: by default they do."""
        del plan

    def total_draws(self, plan: Plan) -> int:
        """How many draws there will be in all: by default those of every chain."""
        return plan.num_chains * plan.num_draws

    def counts(self, network_size: int) -> Counts:
        """Chains and draws, where nobody says how many: of a large network fewer draws, a multiple of ten.

        Args:
            network_size: How many weights the model has, if it is a network, and else 0.
        """
        affordable = MOST_BYTES // (NUM_CHAINS * 4 * max(network_size, 1))
        return Counts(NUM_CHAINS, min(max(affordable // 10 * 10, LEAST_DRAWS), NUM_DRAWS))

    @abc.abstractmethod
    def approximation(self, plan: Plan) -> str:
        """Which density the draws are from, in a sentence; empty if it is the posterior."""

    @abc.abstractmethod
    def engine(self, target: Any, plan: Plan) -> Engine:
        """The engine of a run."""
