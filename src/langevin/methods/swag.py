"""SWAG: a Gaussian of the iterates of SGD."""

from __future__ import annotations

import dataclasses

from langevin import checks
from langevin.contracts import Needs, Plan
from langevin.engines.swag import SWAGEngine
from langevin.errors import SettingError
from langevin.methods.base import Counts, Method
from langevin.methods.point import MAP
from langevin.posterior import Posterior


@dataclasses.dataclass(frozen=True)
class SWAG(Method):
    """A Gaussian around a trained point, from the iterates of SGD at a constant rate (Maddox et al. 2019).

    Each chain climbs, takes `num_warmup` steps of SGD, and then its positions after every epoch give the mean, the
    variances and up to `rank` directions of its Gaussian. Several chains are several Gaussians (multi-SWAG).

    Args:
        rank: How many of the latest deviations from the mean make the low-rank part of the covariance.
        learning_rate: Of SGD, for the gradient of `-log_density / num_data`. By default 0.03 for a network, and less
            where the curvature at the trained point asks for less; else the one at which the iterates of SGD are about
            as wide as the posterior, by the gradient noise there (see `langevin.geometry.stationary`).
        momentum: Of SGD; 0 for none.
        num_snapshots: How many positions; by default twice the rank for a network, and 20 times the rank otherwise.
        steps_between: Steps from one to the next; by default an epoch.
        climb: How the point is trained.

    Example:
        >>> import langevin as lv, numpy as np
        >>> normal = lv.Density(lambda m: -m**2 / 2, lambda m, rows: -(rows["x"] - m)**2 / 2, init=0.0)
        >>> rows = {"x": np.random.default_rng(0).normal(2.0, 1.0, 1000)}
        >>> fit = lv.fit(normal, rows, lv.SWAG(), batch_size=50, progress=False)
        >>> bool(abs(fit.posterior["position"].std() * 1001**0.5 - 1) < 0.25)
        True
    """

    rank: int = 20
    learning_rate: float | None = None
    momentum: float = 0.9
    num_snapshots: int | None = None
    steps_between: int | None = None
    climb: MAP = dataclasses.field(default_factory=MAP)

    def __post_init__(self) -> None:
        checks.count("SWAG", "rank", self.rank, least=2)
        if self.learning_rate is not None:
            checks.positive("SWAG", "learning_rate", self.learning_rate, "0.01, or leave it out")
            object.__setattr__(self, "learning_rate", float(self.learning_rate))
        if not (checks.is_number(self.momentum) and 0 <= self.momentum < 1):
            raise SettingError(f"`SWAG`: `momentum` must be in [0, 1); got {self.momentum!r}. Try 0.9.")
        if self.num_snapshots is not None:
            checks.count("SWAG", "num_snapshots", self.num_snapshots, least=2)
        if self.steps_between is not None:
            checks.count("SWAG", "steps_between", self.steps_between)
        if not isinstance(self.climb, MAP):
            raise SettingError(f"`SWAG`: `climb` must be an lv.MAP; got {self.climb!r}.")

    @property
    def needs(self) -> Needs:
        """Independent minibatches: in a sweep their errors cancel, and the iterates would be too narrow."""
        return Needs(minibatches="independent")

    def counts(self, network_size: int) -> Counts:
        """Of a network one chain, where nobody says how many: every chain trains it."""
        usual = super().counts(network_size)
        return usual._replace(num_chains=1) if network_size else usual

    def check(self, plan: Plan) -> None:
        """Raises a SettingError without minibatches."""
        if plan.batches is None:
            raise SettingError(
                "`SWAG` takes its width from the noise of minibatches, and with all rows there is none: give "
                "lv.fit(..., batch_size=100), or take lv.Ensemble() or 'vi'."
            )

    def approximation(self, plan: Plan) -> str:
        """SGD's noise, not the posterior's width."""
        starts = "a trained point" if plan.num_chains == 1 else f"each of {plan.num_chains} trained points"
        return (
            f"a Gaussian around {starts}, of a diagonal and {self.rank} directions, as wide as the iterates of SGD at "
            "a constant rate, which need not be as wide as the posterior."
        )

    def engine(self, target: Posterior, plan: Plan) -> SWAGEngine:
        """The engine of a run."""
        return SWAGEngine(self, target, plan)
