"""Ensembles: one method from many starts."""

from __future__ import annotations

import dataclasses
from typing import Any

from langevin import checks
from langevin.contracts import Needs, Plan
from langevin.engines.ensemble import EnsembleEngine, alone
from langevin.errors import SettingError
from langevin.methods.base import Counts, Method
from langevin.methods.point import MAP
from langevin.posterior import Posterior


@dataclasses.dataclass(frozen=True)
class Ensemble(Method):
    """Fits by one method from many starts, each with its own seed and order of minibatches; all count the same.

    With `lv.MAP()`, the default, it is a deep ensemble (Lakshminarayanan et al. 2017): one point a member. Of samplers,
    VI or SWAG each member has `num_draws` draws. A member is one chain of the result, and `num_chains` is not asked.
    The starts are the model's own: of an `lv.Density`, give `init` as a function of a key.

    Args:
        method: The method of every member, or its name.
        num_members: How many.

    Example:
        >>> import jax, jax.numpy as jnp, langevin as lv
        >>> two = lv.Density(lambda x: jnp.logaddexp(-8 * (x - 1) ** 2, -8 * (x + 1) ** 2), init=jax.random.normal)
        >>> fit = lv.fit(two, method=lv.Ensemble(num_members=8), progress=False)
        >>> sorted(set(fit.posterior["position"].values.ravel().round(1).tolist()))
        [-1.0, 1.0]
    """

    method: Method | str = dataclasses.field(default_factory=MAP)
    num_members: int = 5

    def __post_init__(self) -> None:
        from langevin.methods import as_method

        object.__setattr__(self, "method", as_method(self.method))
        if isinstance(self.method, Ensemble):
            raise SettingError(
                "`Ensemble`: `method` must not be an ensemble itself: its members would be counted as one. Raise "
                "`num_members`."
            )
        checks.count("Ensemble", "num_members", self.num_members)

    @property
    def needs(self) -> Needs:
        """Those of its members."""
        return self._member.needs

    def counts(self, network_size: int) -> Counts:
        """Draws as a member has them; chains are not asked."""
        return self._member.counts(network_size)

    def total_draws(self, plan: Plan) -> int:
        """Those of every member."""
        return self.num_members * self._member.total_draws(alone(plan, 0))

    def check(self, plan: Plan) -> None:
        """Raises a SettingError if the settings of its members and the plan do not go together."""
        self._member.check(alone(plan, 0))

    def approximation(self, plan: Plan) -> str:
        """What the members are, and that all count the same."""
        each = self._member.approximation(alone(plan, 0))
        members = f"{self.num_members} fits by {type(self._member).__name__} from starts of their own"
        what = f"{members}, of which each counts as much as any other, whatever the mass around it."
        return f"{what} Each is {each}" if each else what

    def engine(self, target: Any, plan: Plan) -> EnsembleEngine:
        """The engine of a run."""
        if isinstance(target, Posterior) and target.adjustable:
            # Members may choose different centrings: their unconstrained positions are not those of one density.
            plan = plan._replace(keep=dataclasses.replace(plan.keep, unconstrained=False))
        return EnsembleEngine(self._member, self.num_members, target, plan)

    @property
    def _member(self) -> Method:
        assert isinstance(self.method, Method)
        return self.method
