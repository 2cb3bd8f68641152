"""Blocks of a model, each with a method of its own."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any

from langevin import checks
from langevin.contracts import Engine, Needs, Plan
from langevin.engines import hybrid
from langevin.engines.claims import REST, Key, shown
from langevin.errors import SettingError
from langevin.methods.base import Method
from langevin.methods.exact import NUTS
from langevin.posterior import Posterior
from langevin.variational.subsequences import Subsequences

# How a predicate is described, from which it cannot be made again.
FUNCTION = "function "


@dataclasses.dataclass(frozen=True)
class Enumerate(Method):
    """Exact draws of discrete sites given all others, by enumeration of their values: a block of `Hybrid`.

    Labels are drawn together, by forward filtering and backward sampling where they hang together. With minibatches
    the labels of the rows of the batch are drawn anew in every step.
    """

    role = "labels"

    def approximation(self, plan: Plan) -> str:
        """Exact."""
        del plan
        return ""

    def engine(self, target: Any, plan: Plan) -> Engine:
        """Only as a block.

        Raises:
            SettingError: Says how.
        """
        del target, plan
        raise SettingError(
            "`Enumerate` is for the discrete sites of a `Hybrid`: lv.Hybrid({'z': lv.Enumerate(), ...: lv.NUTS()}). "
            "Other methods sum discrete sites out, and `fit.infer_discrete` draws them back."
        )


def _nuts_for_all() -> Mapping[Any, Method]:
    return {REST: NUTS()}


@dataclasses.dataclass(frozen=True)
class Hybrid(Method):
    """A method for each block of sites; see docs/hybrid.md for what each combination targets.

    Samplers take turns (Gibbs): each moves its sites given the current values of the others, under the one joint
    density. Exact samplers on all rows, `Gibbs` for sites with conditionals of known families, and `Enumerate` for
    discrete sites, target the posterior itself. A `VI` is
    nested instead: the bound of its block given the rest, with all prior terms, stands for the block's log-marginal,
    the samplers target that, and the block is drawn from its q given each draw of theirs.

    Args:
        blocks: Methods by the name of a site, a pattern (`"beta_*"`), a tuple of these, a predicate on sites
            (`lambda site: site.size > 100`), or `...` for all that is left.
        subsequences: How a long time series is cut: an `lv.Subsequences`, for `VI("markov")` with stochastic gradients.

    Example:
        >>> import langevin as lv
        >>> density = lv.Density(lambda x: -x["a"]**2 - (x["b"] - x["a"])**2, init={"a": 0.0, "b": 0.0})
        >>> fit = lv.fit(density, method=lv.Hybrid({"a": lv.RWM(), ...: lv.NUTS()}), num_draws=2000, progress=False)
        >>> abs(float(fit.posterior["b"].mean())) < 0.2
        True
    """

    blocks: Mapping[Any, Method] = dataclasses.field(default_factory=_nuts_for_all)
    subsequences: Subsequences | None = None

    def __post_init__(self) -> None:
        if not isinstance(self.blocks, Mapping) or not self.blocks:
            raise SettingError(
                "`Hybrid`: `blocks` must be a dict of methods by site, such as {'s': lv.VI('markov'), ...: lv.NUTS()}; "
                f"got {self.blocks!r:.80}."
            )
        blocks: dict[Key, Method] = {}
        for key, method in self.blocks.items():
            if _as_key(key) in blocks:
                raise SettingError(
                    f"`Hybrid`: two keys of `blocks` are the same: {shown(_as_key(key))}. Leave one out."
                )
            blocks[_as_key(key)] = _as_block(key, method)
        object.__setattr__(self, "blocks", blocks)
        checks.instance("Hybrid", "subsequences", self.subsequences, Subsequences)

    @property
    def _methods(self) -> list[Method]:
        return list(self.blocks.values())

    @property
    def needs(self) -> Needs:
        """A log-density, with sites of every row where a `VI` has a block; minibatches where a sampler takes them."""
        wanted = [method.needs.minibatches for method in self._methods if method.role == "kernel"]
        minibatches = "independent" if "independent" in wanted else "any" if "any" in wanted else "none"
        nested = any(method.role == "bound" for method in self._methods)
        return Needs("local" if nested else "density", minibatches)

    def check(self, plan: Plan) -> None:
        """Each sampler is checked against the plan, and so is whether the blocks can take what was asked for."""
        for method in self._methods:
            if method.role == "kernel":
                method.check(plan)
        hybrid.check_plan(self._methods, self.subsequences, plan)

    def approximation(self, plan: Plan) -> str:
        """What the combination targets, and its bias."""
        return hybrid.target_in_words(self._methods, self.subsequences, plan)

    def engine(self, target: Posterior, plan: Plan) -> Engine:
        """The engine of a run."""
        return hybrid.engine_of(self.blocks, self.subsequences, target, plan)


def _as_key(key: Any) -> Key:
    if key is ... or key == REST:
        return REST
    if isinstance(key, tuple) and key and all(isinstance(name, str) for name in key):
        return ", ".join(key)
    if callable(key) or (isinstance(key, str) and not key.startswith(FUNCTION)):
        return key
    raise SettingError(
        f"`Hybrid`: a key must be the name of a site, a tuple of names, a predicate on sites, or `...`; got {key!r}."
    )


def _as_block(key: Any, method: Any) -> Method:
    if not isinstance(method, Method):
        raise SettingError(
            f"`Hybrid`: the block {shown(key)} must have a method, such as lv.NUTS(); got {method!r:.80}."
        )
    if not method.role:
        raise SettingError(
            f"`Hybrid`: `{type(method).__name__}` cannot update one block of a model. For {shown(key)}, take a sampler "
            "(lv.NUTS(), lv.SGLD(), lv.Gibbs()), lv.VI() or, for discrete sites, lv.Enumerate()."
        )
    if method.no_block:
        raise SettingError(f"`Hybrid`: the block {shown(key)} {method.no_block}")
    return method
