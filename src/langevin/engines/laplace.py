"""The engine of Laplace's method: to a mode, the curvature there, and draws from the Gaussian that it makes.

Phases: "start" (points with a finite log-density); "climbing", by Newton's steps from every start on a sample of the
rows, or as MAP does; "polishing", where the curvature is dense (see `langevin.geometry.polishing`); "curvature", summed
over parts of the rows; and "drawing", in blocks of draws.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import jax
import numpy as np

from langevin.contracts import Chunk, Outcome, Plan, State
from langevin.engines.climb import ClimbEngine
from langevin.engines.drawing import Blocks, parameter_group, ratios_of
from langevin.engines.space import Space
from langevin.geometry import climbing, evaluating, polishing
from langevin.geometry.curvature import Hessian
from langevin.geometry.modal import full_matrix, gaussian_at, shape_of
from langevin.geometry.starts import flattened
from langevin.posterior import Posterior
from langevin.run.compilation import Programs, import_beside
from langevin.run.gist import gist_of_density
from langevin.run.keep import Keep, leaf_name
from langevin.variational.blocks import OfMode
from langevin.variational.fitted import Guide

if TYPE_CHECKING:
    from langevin.methods.laplace import Laplace
    from langevin.methods.point import MAP

STARTS, STARTS_OF_NETWORK = 4, 1
# Networks are judged by ratios up to so many weights, and so many products of a weight and a row for a draw.
MOST_JUDGED_WEIGHTS = 512
MOST_A_DRAW = 50_000_000


class LaplaceEngine:
    """A Gaussian around a mode of one target.

    Args:
        method: The settings, an `lv.Laplace`.
        target: The posterior.
        plan: What was asked of the run.
        climb: How to climb where Newton's steps are not for it; None if the start is a mode.
    """

    def __init__(self, method: Laplace, target: Posterior, plan: Plan, climb: MAP | None) -> None:
        import_beside()
        self._method, self._target, self._plan = method, target, plan
        self._network = network = target.model.network
        starts = method.num_starts or (STARTS if network is None else STARTS_OF_NETWORK)
        starts = plan._replace(num_chains=1 if climb is None else starts, keep=Keep())
        self._space = Space(target, starts, twice=True)
        example, programs = self._space.example, self._space.programs
        self._shape = shape = shape_of(target, example, method.structure)
        by_newton = network is None and method.climb == "auto" and self._space.size <= polishing.MOST_DAMPED
        self._climber = None
        self._looker = None
        if by_newton:
            self._looker = Hessian(target, example, programs, rows=evaluating.row_sample(target))
        elif climb is not None:
            self._climber = ClimbEngine(climb, target, starts)
        self._curvature = shape.curvature(target, example, programs)
        self._polisher = self._curvature
        if by_newton and shape.structure != "dense":
            self._polisher = Hessian(target, example, programs)
        self._polishes = climb is not None and (by_newton or shape.structure == "dense")
        linearised = network is not None and method.linearised
        judged = network is None or (
            network.num_weights <= MOST_JUDGED_WEIGHTS and network.num_weights * target.num_data <= MOST_A_DRAW
        )
        self._objective = OfMode(target, example, shape.family, "pathwise", linearised=linearised, has_ratios=judged)
        self._example = shape.family.init(np.random.default_rng(0), flattened(example), 1.0)
        self._blocks = Blocks(self._objective, plan, self._example, Programs(self._gist))

    @property
    def num_chains(self) -> int:
        """As many as were asked for."""
        return self._plan.num_chains

    def begin(self) -> State:
        """Starts that nothing is known of."""
        return {
            "phase": "start" if self._climber is None else "climbing",
            "attempt": 0,
            "positions": self._space.starts(0) if self._climber is None else (),
            "climb": None if self._climber is None else self._climber.begin(),
            "cut": False,
            "polish": None,
            "mode": None,
            "sums": {},
            "part": 0,
            "parameters": None,
            "made": None,
            "drawn": 0,
            "judged": np.zeros((2, 0)),
        }

    def advance(self, state: State, limit: int) -> tuple[State, Chunk]:
        """At most so many steps; of the draws, a block."""
        phase = state["phase"]
        if phase == "start":
            return self._space.search(state, "climbing")
        if phase == "climbing":
            return self._climb(state, limit)
        if phase == "polishing":
            return self._polish(state)
        if phase == "curvature":
            return self._curve(state, limit)
        return self._draw(state)

    def finish(self, state: State) -> Outcome:
        """How far the Gaussian is from the posterior, and whether it is around a mode."""
        made, shape, objective = state["made"], self._shape, self._objective
        evidence: dict[str, dict[str, Any]] = {
            "finite": {"density": False},
            "laplace": {
                "flat": made["flat"],
                "distance": made["distance"],
                "size": shape.family.noise_size,
                "fixed": list(shape.fixed),
                "judged": objective.has_ratios,
            },
        }
        evidence |= ratios_of(state["judged"])
        settings = {"thin": 1, "num_warmup": 0, "structure": shape.structure, "linearised": objective.linearised}
        parameters = self._parameters(state)
        mode = self._space.programs(_report, None, self._target, objective.unravel(state["parameters"][0]))
        groups = {
            "mode": parameter_group(jax.tree.map(np.asarray, mode)),
            "parameters": parameter_group(parameters),
        }
        model = None
        if objective.linearised:
            model = self._network.linearised(mode)
        guide = Guide(objective, parameters)
        return Outcome(evidence, settings, self._remark(made), groups=groups, guide=guide, model=model)

    def cut_short(self, state: State) -> State | None:
        """Where the climb is."""
        if state["phase"] == "drawing":
            return state | {"drawn": 0, "judged": np.zeros((2, 0))}
        if state["phase"] == "curvature":
            return state
        if state["phase"] == "polishing":
            return state | self._with_mode(state["polish"]["here"])
        climb = state["climb"]
        if state["phase"] == "start" or climb is None:
            return None
        if self._climber is not None:
            shortened = self._climber.cut_short(climb)
            return None if shortened is None else state | {"climb": shortened, "cut": True}
        known = np.isfinite(climb["height"])
        return state | self._with_mode(climb["here"][np.argmax(climb["height"])]) if known.any() else None

    def fingerprint(self) -> str:
        """A digest of all that is computed of the model."""
        return self._space.fingerprint()

    def _gist(self) -> str | None:
        """What is in the programs that draw, besides the log-density."""
        gist = gist_of_density(self._target, self._space.example)
        return None if gist is None else f"{gist} {self._objective.linearised} {self._shape.family}"

    # The phases.

    def _climb(self, state: State, limit: int) -> tuple[State, Chunk]:
        if self._climber is not None:
            return self._climb_as_map(self._climber, state, limit)
        starts = np.concatenate([np.reshape(leaf, (len(leaf), -1)) for leaf in state["positions"]], axis=1)
        if self._looker is None:
            return state | self._with_mode(starts[0]), Chunk("climbing", 1, 1, 1)
        climb = state["climb"]
        if climb is None:
            # Where columns are in raw units, the origin is nearer to the mode than any random start.
            origin = starts[:0] if self._plan.init is not None else np.zeros_like(starts[:1])
            climb = climbing.begin(np.concatenate([starts, origin]))
        nothing = (-np.inf, np.zeros(self._space.size), np.zeros((self._space.size, self._space.size)))
        looks = [
            nothing if arrived else _look(self._looker, self._shape._replace(work=None), tried)
            for arrived, tried in zip(climb["arrived"], climb["tried"], strict=True)
        ]
        climb = climbing.climbed(climb, tuple(np.stack(part) for part in zip(*looks, strict=True)))
        chunk = Chunk(
            "climbing", 1, climb["count"], climbing.MOST_CLIMBS, {"log-density": float(climb["height"].max())}
        )
        state = state | {"climb": climb}
        if not climb["arrived"].all() and climb["count"] < climbing.MOST_CLIMBS:
            return state, chunk
        return state | self._at(climb["here"][np.argmax(climb["height"])]), chunk

    def _climb_as_map(self, climber: ClimbEngine, state: State, limit: int) -> tuple[State, Chunk]:
        climb, chunk = climber.advance(state["climb"], limit)
        state = state | {"climb": climb}
        if not chunk.finished:
            return state, chunk._replace(phase="climbing")
        top = chunk.draws[0]["unconstrained_posterior"]
        paths = jax.tree_util.tree_flatten_with_path(self._space.example)[0]
        point = np.concatenate([np.ravel(top[leaf_name(path)][0]) for path, _ in paths]).astype(np.float64)
        following = self._with_mode(point) if state["cut"] else self._at(point)
        return state | {"climb": None} | following, chunk._replace(phase="climbing", draws=(), finished=False)

    def _at(self, point: np.ndarray) -> State:
        """On from where the climb ended."""
        if not self._polishes:
            return self._with_mode(point)
        return {"phase": "polishing", "climb": None, "polish": polishing.begin(point.astype(np.float64))}

    def _with_mode(self, point: np.ndarray) -> State:
        mode = np.asarray(point, np.float64)
        return {"phase": "curvature", "climb": None, "polish": None, "mode": mode, "sums": {}, "part": 0}

    def _polish(self, state: State) -> tuple[State, Chunk]:
        polish = state["polish"]
        shape = self._shape if self._polisher is self._curvature else self._shape._replace(work=None)
        polish = polishing.looked(polish, *_look(self._polisher, shape, polish["tried"]))
        total = climbing.MOST_CLIMBS
        count = polish["whole"] if polish["climb"] is None else polish["climb"]["count"]
        chunk = Chunk("polishing", 1, min(count, total), total)
        return state | (self._with_mode(polish["here"]) if polish["over"] else {"polish": polish}), chunk

    def _curve(self, state: State, limit: int) -> tuple[State, Chunk]:
        sums, part, total = state["sums"], state["part"], self._curvature.num_parts
        steps = min(limit, total - part)
        for number in range(part, part + steps):
            sums = self._curvature.add(sums, number, state["mode"])
        state = state | {"sums": sums, "part": part + steps}
        chunk = Chunk("curvature", steps, part + steps, total)
        if part + steps < total:
            return state, chunk
        made = gaussian_at(self._shape, sums, state["mode"], self._target.num_data)
        like = jax.tree.map(lambda value, leaf: np.asarray(value, leaf.dtype), made.parameters, self._example)
        leaves = (like["mean"], *jax.tree.leaves(like["blocks"]))
        numbers = {"flat": made.flat, "distance": made.distance, "not_positive": made.not_positive}
        return state | {"phase": "drawing", "sums": {}, "parameters": leaves, "made": numbers}, chunk

    def _draw(self, state: State) -> tuple[State, Chunk]:
        num_draws = self._plan.num_draws
        if state["drawn"] >= num_draws:
            return state, Chunk("drawing", 0, num_draws, num_draws, finished=True)
        drawn, draws, terms = self._blocks.draw(self._objective, self._parameters(state), state["drawn"])
        chunk = Chunk("drawing", 1, drawn, num_draws, {}, draws, finished=drawn >= num_draws)
        return state | {"drawn": drawn, "judged": np.concatenate([state["judged"], terms], axis=1)}, chunk

    def _parameters(self, state: State) -> dict[str, Any]:
        mean, *leaves = state["parameters"]
        blocks = jax.tree.unflatten(jax.tree.structure(self._example["blocks"]), leaves)
        return {"mean": mean, "blocks": blocks}

    def _remark(self, made: dict[str, Any]) -> str:
        if self._network is None:
            return ""
        names = {
            "dense": "dense",
            "diagonal": "its diagonal",
            "kronecker": "in Kronecker factors by layer",
            "last_layer": "of the last layer; the other weights are at the mode",
        }
        remarks = [f"The curvature is the generalised Gauss-Newton matrix, {names[self._shape.structure]}."]
        if self._network.likelihood.sites:
            sites = ", ".join(map(repr, self._network.likelihood.sites))
            remarks.append(f"{sites} counts as independent of the weights.")
        if made["not_positive"]:
            remarks.append(
                f"In {made['not_positive']} rows the likelihood is not concave in the outputs: there, negative "
                "curvature counts as none."
            )
        if self._objective.linearised:
            remarks.append("Predictions are those of the network linearised at the mode.")
        return " ".join(remarks)


def _look(curvature: Any, shape: Any, point: np.ndarray) -> tuple[float, np.ndarray, np.ndarray]:
    """The log-density at a point, its gradient, and its curvature."""
    sums = curvature.at(point)
    return float(sums["height"]), sums["gradient"], full_matrix(shape, sums)


def _report(_: None, target: Posterior, position: Any) -> dict[str, jax.Array]:
    return target.constrain(position)
