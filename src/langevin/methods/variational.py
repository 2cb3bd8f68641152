"""Variational inference."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, Literal

from langevin import checks
from langevin.contracts import Needs, Plan
from langevin.engines.nearest import NearestEngine, affordable_family, has_nearest
from langevin.engines.variational import VariationalEngine
from langevin.errors import SettingError
from langevin.methods.base import Method
from langevin.posterior import Posterior
from langevin.variational.build import objective_of
from langevin.variational.flow import is_flow
from langevin.variational.objective import OfPositions
from langevin.variational.of_network import RATE, network_of, num_steps_of

if TYPE_CHECKING:
    import optax

FAMILIES = ("auto", "meanfield", "fullrank", "hierarchical", "lowrank", "markov", "flow")


@dataclasses.dataclass(frozen=True)
class VI(Method):
    """The member q of a family that is nearest to the posterior in KL(q, posterior), by stochastic gradients.

    Targets the family's best approximation, not the posterior: a mean-field q is too narrow wherever coordinates are
    correlated. The fit's verdict says how far off q is (the shape k of its importance ratios). Without `num_steps`, the
    learning rate falls whenever the bound stops rising, and the fit ends when it is small; q has the parameters'
    average over the last stage.

    Args:
        family: "meanfield", "fullrank", "hierarchical" (globals with a full covariance, and groups that depend on them
            linearly), "lowrank", "markov" (for time series), "flow"; a flow of flowjax; kinds of distributions by site,
            such as `{"rate": dist.Gamma}` (other sites are mean-field); or a NumPyro guide, automatic or written by
            hand, called as the program is. "auto" is the first that can be afforded of "fullrank", "hierarchical" and
            "meanfield"; and "meanfield" if another setting says how to find it, and for networks (Bayes by backprop).
        local: An amortised guide (encoder) for the sites that every row has its own of. The family is then for the
            others.
        gradient: "pathwise" (where a distribution has none, by the score function), "stl" (sticking the landing), or
            "score" (needs no gradient of the model).
        num_particles: Draws of q in a step.
        bound: "elbo", or "importance" for the importance-weighted bound, tighter with more particles.
        baseline: What is taken off the cost in the score function: "leave_one_out" (the other particles' mean),
            "learned" (a running mean for each element), None; "auto" is the first if there are several particles.
        rao_blackwell: Whether the score function leaves out what a site's draw has no part in.
        optimizer: An Optax optimiser for the gradient of `-bound / num_data`; by default Adam with `learning_rate`.
        learning_rate: At the start; by default 0.05, and 0.003 for flows and for guides with over 1,000 parameters. For
            networks 0.001.
        num_steps: How many steps to take; by default as many as it needs. For networks 60 passes over the rows, but at
            least 10,000 steps and at most 100,000; the learning rate falls along a cosine.
        perturbation: How the weights of an `lv.Network` are drawn for a minibatch: "shared", the same for all rows;
            "local", the outputs of each layer for each row (of a layer that a row calls several times, as a
            convolution does at every place, as "flipout"); "flipout", with signs of its own for each row. The bound is
            the same, and the last two have gradients of less variance. "auto" is "local" where the network is an
            Equinox module with linear layers or convolutions. Other weights are shared.
        num_restarts: Fits from so many starts side by side; the best is kept.
        rank: Of family "lowrank", at most; few coordinates have a smaller one.

    Example:
        >>> import langevin as lv
        >>> density = lv.Density(lambda x: -((x - 3.0) ** 2) / 8, init=0.0)
        >>> fit = lv.fit(density, method=lv.VI(), progress=False)
        >>> round(float(fit.posterior["position"].std()), 1)
        2.0
    """

    family: Any = "auto"
    local: Callable[..., Any] | None = None
    gradient: Literal["pathwise", "stl", "score"] = "pathwise"
    num_particles: int = 1
    bound: Literal["elbo", "importance"] = "elbo"
    baseline: Literal["auto", "leave_one_out", "learned"] | None = "auto"
    rao_blackwell: bool = True
    optimizer: optax.GradientTransformation | None = None
    learning_rate: float | None = None
    num_steps: int | None = None
    perturbation: Literal["auto", "shared", "local", "flipout"] = "auto"
    num_restarts: int = 1
    rank: int = 8

    role = "bound"

    def __post_init__(self) -> None:
        if isinstance(self.family, str):
            checks.choice("VI", "family", self.family, FAMILIES)
        elif not callable(self.family) and not isinstance(self.family, Mapping) and not hasattr(self.family, "shape"):
            raise SettingError(
                f"`VI`: `family` must be a name, a guide, a flow, or distributions by site; got {self.family!r}."
            )
        checks.choice("VI", "gradient", self.gradient, ("pathwise", "stl", "score"))
        checks.choice("VI", "bound", self.bound, ("elbo", "importance"))
        checks.choice("VI", "baseline", self.baseline, ("auto", "leave_one_out", "learned", None))
        checks.choice("VI", "perturbation", self.perturbation, ("auto", "shared", "local", "flipout"))
        if self.learning_rate is not None:
            checks.positive("VI", "learning_rate", self.learning_rate, "0.05")
        for name in ("num_particles", "num_restarts", "rank"):
            checks.count("VI", name, getattr(self, name))
        if self.num_steps is not None:
            checks.count("VI", "num_steps", self.num_steps)
        if self.optimizer is not None and not hasattr(self.optimizer, "update"):
            raise SettingError(f"`VI`: `optimizer` must be an Optax optimiser; got {self.optimizer!r}.")
        if self.baseline == "leave_one_out" and self.num_particles < 2:
            raise SettingError("`VI`: `baseline='leave_one_out'` needs `num_particles` of at least 2; got 1.")
        if self.bound == "importance" and self.gradient != "pathwise":
            raise SettingError("`VI`: `bound='importance'` goes with `gradient='pathwise'` only.")
        if self.local is not None and not callable(self.local):
            raise SettingError(f"`VI`: `local` must be a guide; got {self.local!r}.")

    @property
    def needs(self) -> Needs:
        """A log-density where the program has one; its sites, for guides and for distributions by site."""
        by_site = not (isinstance(self.family, str) or is_flow(self.family))
        return Needs("joint" if by_site or self.local is not None else "either")

    def approximation(self, plan: Plan) -> str:
        """The nearest member of a family."""
        del plan
        return "the member of a family that is nearest to the posterior, in the divergence that favours narrow ones."

    def engine(self, target: Any, plan: Plan) -> VariationalEngine | NearestEngine:
        """The engine of a run."""
        settings = self
        batch_size = None if plan.batches is None else plan.batches.size
        if network_of(target) is not None:
            return self._of_network(target, plan, batch_size)
        if self.family == "auto" and self.leaves_it_open and isinstance(target, Posterior):
            settings = dataclasses.replace(self, family=affordable_family(target))
        objective = objective_of(settings, target, batch_size)
        if self.leaves_it_open and isinstance(objective, OfPositions) and has_nearest(objective.family):
            return NearestEngine(settings, objective, plan)
        return VariationalEngine(self, objective, plan)

    def _of_network(self, target: Posterior, plan: Plan, batch_size: int | None) -> VariationalEngine:
        """Networks have a learning rate and a number of steps of their own."""
        num_steps = self.num_steps or num_steps_of(target.num_data, batch_size)
        settings = dataclasses.replace(self, num_steps=num_steps, learning_rate=self.learning_rate or RATE)
        return VariationalEngine(settings, objective_of(settings, target, batch_size), plan)

    @property
    def leaves_it_open(self) -> bool:
        """Whether no setting says how q is to be found."""
        settings = ("gradient", "num_particles", "bound", "optimizer", "learning_rate", "num_steps")
        return all(getattr(self, name) == getattr(type(self), name) for name in settings)

    @property
    def baseline_used(self) -> str | None:
        """The baseline, with "auto" replaced by what it stands for."""
        if self.baseline != "auto":
            return self.baseline
        return "leave_one_out" if self.num_particles > 1 else "learned"
