"""The engine of Gaussian families at their defaults: the nearest q is found by `geometry`, and draws are taken from it.

Phases: "start" (a point with a finite log-density), "mode", "shape" and "groups" (see `langevin.geometry.finding`), and
"drawing", in blocks of draws.
"""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING, Any

import jax
import numpy as np

from langevin.contracts import Chunk, Group, Outcome, Plan, State
from langevin.engines.drawing import Blocks, parameter_group, ratios_of
from langevin.engines.space import Space
from langevin.geometry import beyond
from langevin.geometry.finding import MOST_DENSE, Finder, Found, has_affordable_covariance
from langevin.geometry.starts import flattened
from langevin.models.spokes import layout_of
from langevin.posterior import Posterior
from langevin.run.compilation import import_beside
from langevin.variational.families import Family, FullRank, MeanField
from langevin.variational.fitted import Guide
from langevin.variational.hierarchical import Hierarchical
from langevin.variational.objective import OfPositions

if TYPE_CHECKING:
    from langevin.methods.variational import VI

LEAST_STARTS = 4
# A mean that is not known to so many scales, or a scale to this ratio, is said not to be settled.
MOST_ERROR = 0.1


def has_nearest(family: Family) -> bool:
    """Whether geometry finds the nearest q of a family."""
    return isinstance(family, MeanField | Hierarchical) or (isinstance(family, FullRank) and family.size <= MOST_DENSE)


def affordable_family(target: Posterior) -> str:
    """The name of the widest family whose nearest q is found in reasonable time."""
    example = target.start(np.random.default_rng(0))
    if has_affordable_covariance(target, flattened(example).size):
        return "fullrank"
    return "meanfield" if layout_of(target, example) is None else "hierarchical"


def _covariance_of(family: Family) -> Any:
    if isinstance(family, Hierarchical):
        return family.layout
    return "independent" if isinstance(family, MeanField) else "full"


class NearestEngine:
    """The q of a Gaussian family that is nearest to one target.

    Args:
        method: The settings, an `lv.VI`.
        objective: The family and its target.
        plan: What was asked of the run.
    """

    def __init__(self, method: VI, objective: OfPositions, plan: Plan) -> None:
        import_beside()
        self._objective, self._plan = objective, plan
        starts = plan._replace(num_chains=max(method.num_restarts, LEAST_STARTS))
        self._space = Space(objective.posterior, starts)
        self._finder = Finder(
            self._space.laid_out,
            self._space.example,
            plan.batches,
            self._space.programs,
            plan.seed.child("geometry"),
            covariance=_covariance_of(objective.family),
        )
        self._example = objective.init(np.random.default_rng(0))
        self._blocks = Blocks(objective, plan, self._example, self._space.programs)

    @property
    def num_chains(self) -> int:
        """As many as were asked for."""
        return self._plan.num_chains

    def begin(self) -> State:
        """Starts that nothing is known of."""
        return {
            "phase": "start",
            "attempt": 0,
            "positions": self._space.starts(0),
            "finder": None,
            "found": None,
            "drawn": 0,
            "judged": np.zeros((2, 0)),
        }

    def advance(self, state: State, limit: int) -> tuple[State, Chunk]:
        """At most so many steps; of the draws, a block."""
        if state["phase"] == "start":
            return self._space.search(state, "mode")
        if state["phase"] == "drawing":
            return self._draw(state)
        state, chunk = self._space.find(self._finder, state, limit, "drawing")
        if state["phase"] == "drawing":
            state |= {"found": state["finder"]["found"], "finder": None}
        return state, chunk

    def finish(self, state: State) -> Outcome:
        """How far q is from the posterior, and how well it is known."""
        found = Found(**state["found"])
        evidence: dict[str, dict[str, Any]] = {
            "finite": {"density": False},
            "optimisation": {"settled": bool(found.error < MOST_ERROR), "skipped": 0, "error": float(found.error)},
        }
        if self._finder.is_dense:
            others = np.abs(found.modes - found.centre).max(axis=1) > 0
            modes = {"modes": int(others.sum()), "starts": len(others)}
            evidence["elsewhere"] = modes | {"missed": beyond.missed(found.beyond)}
        evidence |= ratios_of(state["judged"])
        objective, parameters = self._fitted(found)
        groups = {
            "optimisation": Group({"elbo": (("restart", "step"), np.atleast_2d(found.bounds))}, {"best": 0}),
            "parameters": parameter_group(parameters),
        }
        settings = {"thin": 1, "num_warmup": 0}
        guide = Guide(objective, parameters)
        return Outcome(evidence, settings, groups=groups, guide=guide, centring=found.centring)

    def cut_short(self, state: State) -> State | None:
        """A q that is on its way says nothing yet."""
        return state | {"drawn": 0, "judged": np.zeros((2, 0))} if state["phase"] == "drawing" else None

    def fingerprint(self) -> str:
        """A digest of all that is computed of the model."""
        return self._space.fingerprint()

    def _draw(self, state: State) -> tuple[State, Chunk]:
        num_draws = self._plan.num_draws
        if state["drawn"] >= num_draws:
            return state, Chunk("drawing", 0, num_draws, num_draws, finished=True)
        objective, parameters = self._fitted(Found(**state["found"]))
        drawn, draws, terms = self._blocks.draw(objective, parameters, state["drawn"])
        chunk = Chunk("drawing", 1, drawn, num_draws, {}, draws, finished=drawn >= num_draws)
        return state | {"drawn": drawn, "judged": np.concatenate([state["judged"], terms], axis=1)}, chunk

    def _fitted(self, found: Found) -> tuple[OfPositions, dict[str, np.ndarray]]:
        """The objective with the centring that was chosen, and the parameters of its family."""
        posterior = self._objective.posterior.with_centring(found.centring)
        parameters = _parameters(self._objective.family, found)
        like = jax.tree.map(lambda value, leaf: np.asarray(value, np.asarray(leaf).dtype), parameters, self._example)
        return dataclasses.replace(self._objective, posterior=posterior), like


def _parameters(family: Family, found: Found) -> dict[str, Any]:
    """The parameters of a family for a q of triangular R, (size, size), or of its scales; or of R in parts."""
    if isinstance(family, Hierarchical):
        return _of_hierarchy(family, found)
    full = found.factor.ndim == 2
    scale = np.diagonal(found.factor) if full else found.factor
    parameters = {"mean": found.centre, "log_scale": np.log(scale)}
    if full:
        parameters["below"] = np.tril(found.factor / scale[:, None], -1)
    return parameters


def _of_hierarchy(family: Hierarchical, found: Found) -> dict[str, Any]:
    q, scale = found.groups, np.zeros(family.size)
    scale[q["hub"]] = of_hub = np.diagonal(q["factor"])
    groups = []
    for places, onto, own in zip(q["groups"], q["onto"], q["own"], strict=True):
        scale[places] = unit = np.diagonal(own, axis1=1, axis2=2)
        groups.append({"below": np.tril(own / unit[:, :, None], -1), "hub": onto / unit[:, :, None]})
    below = np.tril(q["factor"] / of_hub[:, None], -1)
    return {"mean": found.centre, "log_scale": np.log(scale), "below": below, "groups": groups}
