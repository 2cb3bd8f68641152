"""Coordinate ascent and Gibbs sampling, from conditionals that are derived from the program."""

from __future__ import annotations

import dataclasses
from typing import Any, Literal

from langevin import checks
from langevin.contracts import Needs, Plan
from langevin.engines.coordinate import CoordinateEngine
from langevin.engines.gibbs import GibbsEngine
from langevin.errors import SettingError
from langevin.methods.base import Method

Blocks = Literal["auto", "sites"] | tuple[tuple[str, ...], ...]


@dataclasses.dataclass(frozen=True)
class CAVI(Method):
    """Coordinate ascent variational inference, with updates that are derived from the program (Hoffman et al. 2018).

    Targets the product of block distributions that is nearest to the posterior, KL(q || p), each in the family of its
    complete conditional: dependence within a block is exact, and that between blocks is lost, so that sds are too
    small where blocks depend on one another. With all unknowns in one block it is the posterior. Every sweep raises
    the bound; it may end at a local maximum.

    With `batch_size`, stochastic natural-gradient steps (Hoffman et al. 2013), which have the same fixed points.

    Args:
        blocks: Which real sites have a joint Gaussian: "auto" for those that meet in the log-density, as far as it
            stays Gaussian and of moderate size; "sites" for each site alone; or tuples of names.
        num_restarts: Ascents from so many starts, of which the best after a few sweeps (on minibatches, of the first
            one) goes on. By default more than one only where labels can be exchanged for others, and of many rows
            one of them from the best ascent on a sample of these.
        tolerance: An ascent ends where less than so many nats are left to gain.
        num_sweeps: So many sweeps at most; with minibatches so many passes over the rows.
        logistic: "polya-gamma" makes logistic likelihoods conjugate, by auxiliary sites: the bound is that of Jaakkola
            and Jordan (2000).
        delay: Of the steps on minibatches, rho_t = (t + delay)^-forgetting.
        forgetting: In (0.5, 1].

    Example:
        >>> import langevin as lv, numpy as np, numpyro, numpyro.distributions as dist
        >>> def coin(y):
        ...     p = numpyro.sample("p", dist.Beta(2.0, 2.0))
        ...     with numpyro.plate("rows", len(y)):
        ...         numpyro.sample("y", dist.Bernoulli(p), obs=y)
        >>> fit = lv.fit(coin, {"y": np.array([1, 1, 0, 1])}, "cavi", progress=False)
        >>> fit.data_tree["parameters"]["p.concentration1"].item()
        5.0
    """

    blocks: Blocks = "auto"
    num_restarts: int | None = None
    tolerance: float = 1e-4
    num_sweeps: int | None = None
    logistic: Literal["polya-gamma"] | None = None
    delay: float = 1.0
    forgetting: float = 0.7

    def __post_init__(self) -> None:
        object.__setattr__(self, "blocks", as_blocks("CAVI", self.blocks))
        if self.num_restarts is not None:
            checks.count("CAVI", "num_restarts", self.num_restarts)
        if self.num_sweeps is not None:
            checks.count("CAVI", "num_sweeps", self.num_sweeps)
        checks.positive("CAVI", "tolerance", self.tolerance, "1e-4")
        if self.logistic is not None:
            checks.choice("CAVI", "logistic", self.logistic, ("polya-gamma", None))
        if not 0.5 < self.forgetting <= 1:
            raise SettingError(
                f"`CAVI`: `forgetting` must be above 0.5 and at most 1 (Robbins and Monro); got {self.forgetting!r}."
            )
        if not self.delay >= 0:
            raise SettingError(f"`CAVI`: `delay` must be at least 0; got {self.delay!r}.")

    @property
    def needs(self) -> Needs:
        """The sites of a program, on all rows or on any minibatches."""
        return Needs("joint", in_memory=False)

    def approximation(self, plan: Plan) -> str:
        """A product of conditionals' families."""
        del plan
        return (
            "the product of blocks that is nearest to the posterior, each in the family of its complete conditional; "
            "dependence between blocks is lost."
        )

    def engine(self, target: Any, plan: Plan) -> CoordinateEngine:
        """The engine of a run."""
        return CoordinateEngine(self, target, plan)


@dataclasses.dataclass(frozen=True)
class Gibbs(Method):
    """Gibbs sampling from the complete conditionals, which are derived from the program.

    Targets the posterior exactly: every block of sites is drawn from its distribution given all others, in turn. Slow
    where blocks depend strongly on one another; labels of a mixture seldom change places. In an `lv.Hybrid` it draws
    the sites of its block, whatever moves the others.

    Args:
        blocks: As in `lv.CAVI`: sites in one block are drawn together.
        logistic: As in `lv.CAVI`; with auxiliary draws the posterior is still exact.

    Example:
        >>> import langevin as lv, numpy as np, numpyro, numpyro.distributions as dist
        >>> def normal(x):
        ...     mean = numpyro.sample("mean", dist.Normal(0.0, 10.0))
        ...     precision = numpyro.sample("precision", dist.Gamma(1.0, 1.0))
        ...     with numpyro.plate("rows", len(x)):
        ...         numpyro.sample("x", dist.Normal(mean, precision**-0.5), obs=x)
        >>> fit = lv.fit(normal, {"x": np.arange(10.0)}, "gibbs", progress=False)
        >>> abs(float(fit.posterior["mean"].mean()) - 4.5) < 0.1
        True
    """

    blocks: Blocks = "auto"
    logistic: Literal["polya-gamma"] | None = None

    role = "conditional"

    def __post_init__(self) -> None:
        object.__setattr__(self, "blocks", as_blocks("Gibbs", self.blocks))
        if self.logistic is not None:
            checks.choice("Gibbs", "logistic", self.logistic, ("polya-gamma", None))

    @property
    def needs(self) -> Needs:
        """The sites of a program, on all rows."""
        return Needs("joint", minibatches="none")

    def approximation(self, plan: Plan) -> str:
        """Nothing is approximated."""
        del plan
        return ""

    def engine(self, target: Any, plan: Plan) -> GibbsEngine:
        """The engine of a run."""
        return GibbsEngine(self, target, plan)


def as_blocks(owner: str, blocks: Any) -> Any:
    """Blocks as a name, or as tuples of names.

    Raises:
        SettingError: If they are neither.
    """
    if isinstance(blocks, str):
        checks.choice(owner, "blocks", blocks, ("auto", "sites"))
        return blocks
    groups = tuple(tuple(group) if isinstance(group, list | tuple) else group for group in blocks)
    if not all(isinstance(group, tuple) and all(isinstance(name, str) for name in group) for group in groups):
        raise SettingError(f"`{owner}`: `blocks` must be 'auto', 'sites' or tuples of names of sites; got {blocks!r}.")
    return groups
