"""The engine of variational inference: a fit of q, then draws from it, and how far it is from the posterior.

Phases: "start" (every restart looks for parameters at which the bound and its gradient are finite), "fitting" (see
`langevin.engines.fitting`), and "drawing", in blocks of draws.
"""

from __future__ import annotations

import dataclasses
import functools
import math
from typing import TYPE_CHECKING, Any

import jax
import jax.numpy as jnp
import numpy as np

from langevin.contracts import Chunk, Group, Outcome, Plan, State
from langevin.data.batches import Layout
from langevin.engines import fitting
from langevin.engines.bound import Fits, advance, begin_optimizer, gist_of, largest_of, loss_of, mean_bound
from langevin.engines.drawing import Blocks, parameter_group, ratios_of
from langevin.engines.settling import flat_of, unflat
from langevin.errors import SamplingError
from langevin.geometry.starts import retried
from langevin.run.compilation import Programs, import_beside, run
from langevin.run.seeds import Stream
from langevin.variational.elbo import begin_baselines
from langevin.variational.fitted import Guide
from langevin.variational.objective import Objective

if TYPE_CHECKING:
    from langevin.methods.variational import VI

MOST_STEPS_A_CHUNK = 1024
MOST_BYTES_A_CHUNK = 32_000_000
RATE = 0.05
RATE_OF_NETWORK = 0.003
LEAST_OF_NETWORK = 1000
NUM_INFORMATION = 256
MOST_SKIPPED = 0.5
STEPS_A_LOOK = 50
MOST_ALWAYS_AVERAGED = 100_000


class VariationalEngine:
    """A fit of an approximation of one target.

    Args:
        method: The settings, an `lv.VI`.
        objective: The approximation and its target.
        plan: What was asked of the run.
    """

    def __init__(self, method: VI, objective: Objective, plan: Plan) -> None:
        import_beside()
        self._method, self._objective, self._plan = method, objective, plan
        self._layout = None
        if plan.batches is not None:
            self._layout = Layout(plan.batches, objective.data, plan.seed.child("rows"))
        example = objective.init(np.random.default_rng(0))
        self._example = example
        self._dtype = jnp.result_type(*jax.tree.leaves(example))
        self._size = sum(np.size(leaf) for leaf in jax.tree.leaves(example))
        is_network = not objective.identified and self._size > LEAST_OF_NETWORK
        first_rate = method.learning_rate or (RATE_OF_NETWORK if is_network else RATE)
        self._rules = fitting.Rules(
            method.num_steps,
            first_rate,
            objective.identified,
            objective.family is not None,
            method.optimizer is not None,
        )
        shape = (method.num_restarts, method.num_particles)
        one = objective.noise(np.random.default_rng(0), (1, *shape), self._dtype)
        bytes_a_step = max(sum(leaf.nbytes for leaf in jax.tree.leaves(one)), 1)
        self._capacity = int(np.clip(MOST_BYTES_A_CHUNK // bytes_a_step, 1, MOST_STEPS_A_CHUNK))

        def noise(generator: np.random.Generator, steps: int) -> Any:
            return objective.noise(generator, (steps, *shape), self._dtype)

        self._noise = Stream(plan.seed.child("noise"), self._capacity, noise)
        # What is not in a step does not make another program of it.
        self._settings = dataclasses.replace(method, num_steps=None, learning_rate=None)
        carry = self._begin_carry(0)
        self._structure = jax.tree.structure(carry)
        model = functools.partial(gist_of, self._settings, objective, carry, one, plan.batches)
        self._programs = Programs(model, largest_of(method, objective, plan.batches))
        self._blocks = Blocks(objective, plan, example, self._programs)

    @property
    def num_chains(self) -> int:
        """As many as were asked for."""
        return self._plan.num_chains

    def begin(self) -> State:
        """Parameters that nothing is known of."""
        carry = tuple(jax.tree.leaves(self._begin_carry(0)))
        fit = fitting.begin(self._rules, self._method.num_restarts)
        nothing = np.zeros((2, 0))
        return {"phase": "start", "attempt": 0, "carry": carry, "fit": fit, "chosen": (), "drawn": 0, "judged": nothing}

    def advance(self, state: State, limit: int) -> tuple[State, Chunk]:
        """Takes at most so many steps; of the draws, at most so many blocks."""
        if state["phase"] == "start":
            return self._start(state)
        if state["phase"] == "fitting":
            return self._fit(state, limit)
        return self._draw(state)

    def finish(self, state: State) -> Outcome:
        """How far q is from the posterior, and whether it is the best of its family."""
        fit, carry = state["fit"], self.carry(state)
        best = fit["best"]
        evidence: dict[str, dict[str, Any]] = {
            "finite": {"density": False},
            "optimisation": {
                "settled": bool(fit["settled"]),
                "skipped": int(np.asarray(carry.skipped)[best]),
                "error": fit["error"],
            },
        }
        evidence |= ratios_of(state["judged"])
        if "ratios" not in evidence and not self._objective.points:
            why = f"importance ratios of {self._objective.draw_size:,} weights tell nothing"
            evidence["unchecked"] = {} if self._objective.local else {"why": why}
        if self._objective.points:
            evidence["points"] = {"names": list(self._objective.points)}
        parameters = self._chosen(state)
        rate = float(fitting.rates(self._rules, fit | {"step": max(fit["step"] - 1, 0)}, 1)[0])
        settings = {"thin": 1, "learning_rate": rate, "num_warmup": 0}
        scored = self._objective.wiring.scored
        remark = f"The gradient of {', '.join(scored)} is by the score function." if scored else ""
        groups = {
            "optimisation": Group({"elbo": (("restart", "step"), fit["elbo"])}, {"best": best}),
            "parameters": parameter_group(parameters),
        }
        return Outcome(evidence, settings, remark, groups=groups, guide=Guide(self._objective, parameters))

    def cut_short(self, state: State) -> State | None:
        """The parameters so far, averaged if that had begun."""
        fit = state["fit"]
        if state["phase"] == "drawing":
            return state | {"drawn": 0, "judged": np.zeros((2, 0))}
        if state["phase"] != "fitting" or not fit["step"]:
            return None
        which = "average" if fit["step"] > fit["average_from"] else "parameters"
        best = _Restarts(self, state).best()
        chosen = jax.tree.map(lambda leaf: np.asarray(leaf)[best], getattr(self.carry(state), which))
        fit = fit | {"stage": "done", "goals": (), "best": best, "settled": False}
        return state | {"phase": "drawing", "fit": fit, "chosen": tuple(jax.tree.leaves(chosen))}

    def fingerprint(self) -> str:
        """A digest of the gradient of the bound."""
        carry = jax.tree.map(lambda leaf: leaf[0] if np.ndim(leaf) else leaf, self._begin_carry(0))
        noise = jax.tree.map(lambda leaf: leaf[0, 0], self._noise.read(0, 1))
        batches = self._plan.batches
        batch = None if batches is None else jax.tree.map(lambda a: a[: batches.size], self._objective.data)
        static = (self._settings, self._plan.keep)
        return self._programs.digest(_slope, static, self._objective, carry.baselines, noise, batch, carry.parameters)

    # The phases.

    def _start(self, state: State) -> tuple[State, Chunk]:
        carry, elbo = self._step(state, 1, np.zeros(1))
        good = np.isfinite(elbo[:, 0]) & (np.asarray(carry.skipped) == 0)
        if good.all():
            return state | {"phase": "fitting", "attempt": 0}, Chunk("start", 1, 1, 1)
        attempt = state["attempt"] + 1

        def propose(attempt: int) -> tuple[Any, ...]:
            return tuple(jax.tree.leaves(self._begin_carry(attempt)[:-1]))

        def failure(restart: int) -> Exception:
            return self._not_finite(state, f"at any of {attempt} starts", restart)

        *stacked, step = state["carry"]
        carry = (*retried(tuple(stacked), good, propose, attempt, failure), step)
        return state | {"attempt": attempt, "carry": carry}, Chunk("start", 1, attempt, attempt + 1)

    def _fit(self, state: State, limit: int) -> tuple[State, Chunk]:
        fit = state["fit"]
        count = min(limit, self._capacity, fit["goals"][0] - fit["step"])
        if self._layout is not None:
            count = min(count, self._layout.at(fit["step"])[1])
        if fit["step"] < fit["average_from"]:
            # A program that does not average takes the steps before.
            count = min(count, fit["average_from"] - fit["step"])
        rates = fitting.rates(self._rules, fit, count)
        carry, elbo = self._step(state, count, rates)
        fit = fit | {"elbo": np.concatenate([fit["elbo"], elbo], axis=1), "step": fit["step"] + count}
        state = state | {"carry": tuple(jax.tree.leaves(carry)), "fit": fit}
        self._check(state, fit["step"] - count)
        if fit["step"] >= fit["goals"][0]:
            state = state | {"fit": fitting.reached(self._rules, _Restarts(self, state), fit)}
        finite = elbo[np.isfinite(elbo)]
        shown = {"bound": float(finite.mean()) if finite.size else math.nan, "learning rate": float(rates[-1])}
        total = self._rules.num_steps or fitting.MOST_STEPS
        chunk = Chunk("fitting", count, fit["step"], total, shown)
        if state["fit"]["stage"] == "done":
            chosen = tuple(jax.tree.leaves(self._better(state)))
            state |= {"phase": "drawing", "chosen": chosen}
        return state, chunk

    def _draw(self, state: State) -> tuple[State, Chunk]:
        num_draws = self._plan.num_draws
        if state["drawn"] >= num_draws:
            return state, Chunk("drawing", 0, num_draws, num_draws, finished=True)
        drawn, draws, terms = self._blocks.draw(self._objective, self._chosen(state), state["drawn"])
        judged = np.concatenate([state["judged"], terms], axis=1)
        chunk = Chunk("drawing", 1, drawn, num_draws, {}, draws, finished=drawn >= num_draws)
        return state | {"drawn": drawn, "judged": judged}, chunk

    # What they have in common.

    def carry(self, state: State) -> Fits:
        """The restarts between two steps."""
        return jax.tree.unflatten(self._structure, state["carry"])

    def _chosen(self, state: State) -> Any:
        return jax.tree.unflatten(jax.tree.structure(self._example), state["chosen"])

    def _begin_carry(self, attempt: int) -> Fits:
        count = self._method.num_restarts
        generator = self._plan.seed.child("starts").generator(attempt)
        parameters = [self._objective.init(generator) for _ in range(count)]
        stacked = jax.tree.map(lambda *leaves: np.stack([np.asarray(leaf) for leaf in leaves]), *parameters)
        baselines = begin_baselines(self._objective.wiring, self._dtype)
        baselines = jax.tree.map(lambda leaf: np.zeros((count, *leaf.shape), leaf.dtype), baselines)
        nothing: Any = np.zeros(count, np.int32), np.zeros((), np.int32)
        return Fits(stacked, begin_optimizer(self._method, stacked), stacked, baselines, *nothing)

    def _step(self, state: State, count: int, rates: np.ndarray) -> tuple[Fits, np.ndarray]:
        """So many steps of every restart, and the bound at each."""
        fit, capacity = state["fit"], self._capacity
        step = fit["step"]
        objective = self._objective
        if self._layout is not None:
            objective = objective.with_data(self._layout.at(step)[0])
        pad = lambda a: np.concatenate([a, np.zeros((capacity - len(a), *a.shape[1:]), a.dtype)])  # noqa: E731
        averaged = self._size <= MOST_ALWAYS_AVERAGED or step >= fit["average_from"]
        carry, elbo = self._programs(
            advance,
            (self._settings, self._plan.batches, averaged),
            objective,
            self.carry(state),
            jax.tree.map(pad, self._noise.read(step, count)),
            pad(rates.astype(self._dtype)),
            self._plan.seed.child("minibatches").key_words(),
            np.asarray([count, min(fit["average_from"], fitting.FOREVER), fit["in_units_from"]], np.int32),
        )
        return carry, np.asarray(elbo)[:, :count].astype(np.float64)

    def _better(self, state: State) -> Any:
        """The average of the parameters; or the last ones, where these have the higher bound.

        Of a Gaussian family the average. But flows and guides may have parameters that can turn into one another
        without changing q.
        """
        fit, carry = state["fit"], self.carry(state)
        last, average = (
            jax.tree.map(lambda leaf: np.asarray(leaf)[fit["best"]], stacked)
            for stacked in (carry.parameters, carry.average)
        )
        if fit["blocks"] is not None:
            average = unflat(fit["blocks"]["means"].mean(axis=0), last)
        if self._rules.num_steps is not None or self._objective.identified:
            return average
        noise = self._objective.noise(
            self._side_generator(), (NUM_INFORMATION, self._method.num_particles), self._dtype
        )
        batches = self._plan.batches
        batch = None
        if batches is not None and self._layout is not None:
            batch = jax.tree.map(lambda a: a[: batches.size], self._layout.at(fit["step"])[0])
        bound = functools.partial(run, functools.partial(mean_bound, self._settings), self._objective)
        of_average, of_last = (float(bound(one, noise, batch)) for one in (average, last))
        return last if of_last > of_average or not math.isfinite(of_average) else average

    def units(self, parameters: Any) -> Any:
        """The units of parameters; None if they are unknown."""
        noise = self._objective.noise(self._side_generator(), (NUM_INFORMATION,), self._dtype)
        return self._objective.units(parameters, noise)

    def _side_generator(self) -> np.random.Generator:
        """For what is estimated beside the steps."""
        return self._plan.seed.child("beside").generator()

    def _check(self, state: State, before: int) -> None:
        """Raises an error if no restart has a finite bound at most of 50 steps: the same ones however a run is cut.

        Args:
            state: The state.
            before: The steps that were looked at before.
        """
        elbo = state["fit"]["elbo"]
        for end in range(before // STEPS_A_LOOK * STEPS_A_LOOK + STEPS_A_LOOK, elbo.shape[1] + 1, STEPS_A_LOOK):
            bad = ~np.isfinite(elbo[:, end - STEPS_A_LOOK : end])
            if (bad.mean(axis=1) > MOST_SKIPPED).all():
                first = int(np.argmax(~np.isfinite(elbo).all(axis=0)))
                raise self._not_finite(state, f"at step {first}, and at most steps since")

    def _not_finite(self, state: State, when: str, restart: int = 0) -> SamplingError:
        last = jax.tree.map(lambda leaf: np.asarray(leaf)[restart], self.carry(state).parameters)
        noise = jax.tree.map(lambda leaf: leaf[0], self._objective.noise(self._side_generator(), (1,), self._dtype))
        return SamplingError(
            f"The bound is not finite {when}: {self._objective.explain(last, noise)}. Check that site's parameters and "
            f"support; try a `learning_rate` below {self._rules.first_rate}, or another start (`seed`, "
            "`num_restarts`)."
        )


class _Restarts:
    """What a stage asks about the restarts, as they are in a state."""

    def __init__(self, engine: VariationalEngine, state: State) -> None:
        self._engine, self._fit, self._carry = engine, state["fit"], engine.carry(state)

    def best(self) -> int:
        """The restart with the highest bound of late."""
        last = self._fit["elbo"][:, -max(self._fit["step"] // 10, 1) :]
        finite = np.isfinite(last)
        means = np.where(finite, last, 0.0).sum(axis=1) / np.maximum(finite.sum(axis=1), 1)
        return int(np.argmax(np.where(finite.mean(axis=1) > 0.5, means, -np.inf)))

    def units(self) -> np.ndarray | None:
        """The units of the parameters of the best restart; None if they are unknown."""
        best = self.best()
        parameters = jax.tree.map(lambda leaf: np.asarray(leaf)[best], self._carry.parameters)
        units = self._engine.units(parameters)
        if units is None:
            return None
        return flat_of(jax.tree.map(lambda p, unit: np.broadcast_to(unit, np.shape(p)), parameters, units))

    def stacked(self, which: str) -> np.ndarray:
        """The "parameters" of all restarts, or their "average", as vectors."""
        leaves = jax.tree.leaves(getattr(self._carry, which))
        flat = [np.asarray(leaf, np.float64).reshape(len(leaf), -1) for leaf in leaves]
        return np.concatenate(flat, axis=1)


def _slope(static: Any, objective: Any, baselines: Any, noise: Any, batch: Any, parameters: Any) -> Any:
    settings, keep = static
    loss = functools.partial(loss_of, settings, objective, baselines, noise, batch)
    one = jax.tree.map(lambda leaf: leaf[0], noise)
    return jax.value_and_grad(loss, has_aux=True)(parameters), keep.reported(
        objective.values(parameters, one, batch)[0]
    )
