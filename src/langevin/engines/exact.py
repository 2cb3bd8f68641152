"""The engine of the exact methods: starts, warm-up and draws, all by one compiled program.

Phases:

1. "start": every chain looks for a point with a finite log-density. The gradients there give the first metric.
2. "approach", only from starts at which the log-density is too steep to be resolved: these chains climb first.
3. "warm-up", in windows: the metric is made anew from the later half of the draws so far and the gradients at them, at
   first often, then seldom; chains are pooled, each around its own mean. The step size adapts all the time, by dual
   averaging, to an acceptance that is raised where trajectories diverge. Sites whose scale is unknown begin
   non-centred; twice they are centred as far as the draws say. After 85 % of the warm-up the metric stays, and at its
   end the step size. At first, trajectories are kept short.
4. "sampling".
"""

from __future__ import annotations

import functools
from typing import TYPE_CHECKING, Any, cast

import jax
import numpy as np
from threadpoolctl import ThreadpoolController

from langevin.contracts import Chunk, Outcome, Plan, State
from langevin.engines.reporting import Reporter
from langevin.engines.space import Space
from langevin.engines.trajectories import Goal, Harvest, Record, Trajectories
from langevin.geometry import approach, mass, recentring
from langevin.geometry.starts import no_start, proposed, retried, unflattened
from langevin.kernels import dual_averaging, metrics
from langevin.kernels.steppers import MOST_STEPS
from langevin.posterior import Posterior

if TYPE_CHECKING:
    from langevin.methods.exact import Exact

MOST_DENSE = 128
# When the metric is made anew, in parts of the warm-up.
UPDATES = (0.01, 0.02, 0.03, 0.045, 0.06, 0.08, 0.1, 0.13, 0.16, 0.2, 0.25, 0.3, 0.4, 0.5, 0.6, 0.7, 0.85)
# When sites are centred as far as the draws so far say.
CENTRED_AT = (0.1, 0.3)
# When the acceptance is raised if trajectories diverged since the time before, with steps not much longer than settled.
TIGHTENED_AT = (0.3, 0.5, 0.7, 0.85)
LONGEST_SETTLED = 1.2
# Until then trajectories are cut off after so many steps: with a poor metric, longer ones are not worth their price.
CUT_OFF = ((0.1, 63), (0.3, 255))
LEAST_WINDOW = 5
MOST_BYTES_A_WINDOW = 500_000_000


class ExactEngine:
    """Chains of an exact method on one posterior."""

    def __init__(self, method: Exact, target: Posterior, plan: Plan) -> None:
        self._method, self._plan = method, plan
        size = sum(np.size(leaf) for leaf in jax.tree.leaves(target.start(np.random.default_rng(0))))
        self._space = Space(target, plan, largest=plan.num_chains * max(size, target.num_data))
        self._chains = Trajectories(
            method, target, self._space.example, plan.num_chains, plan.seed.child("chains"), self._space.programs
        )
        self._kind = method.metric
        if method.metric == "auto":
            # Without gradients only the draws tell directions, which takes more of them than there are coordinates.
            few = "lowrank" if self._chains.needs_gradient else "diagonal"
            self._kind = "dense" if size <= MOST_DENSE else few
        self._rank = min(method.rank, size)
        self._together = next((n for n in (16, 8, 4) if plan.num_chains % n == 0 and plan.num_chains // n >= 4), 1)
        self._reporter = Reporter(self._space, plan.keep, method.deepest, self._chains.dtype)

    @property
    def num_chains(self) -> int:
        """As many as were asked for."""
        return self._plan.num_chains

    def begin(self) -> State:
        """Idle chains, at starts that nothing is known of."""
        size, dtype = self._chains.size, self._chains.dtype
        if self._plan.init is None:
            metric = mass.round_metric(self._kind, size, self._rank, dtype)
        else:
            metric = mass.metric_from(self._kind, [self._plan.init], None, self._rank, dtype)
        step_size = 0.5 * size**-0.25 if self._method.step_size == "auto" else self._method.step_size
        return {
            "phase": "start",
            "attempt": 0,
            "window": 0,
            "metric": metrics.as_plain(metric),
            "chains": self._chains.begin(self._propose(0), step_size),
            "recent": tuple((np.zeros((0, size), dtype),) * 2 for _ in range(self._plan.num_chains)),
            "seen": (0,) * self._plan.num_chains,
            "begun": None,
            "step_size": float(step_size),
            "raised": 0,
            "diverged": np.zeros(0),
            "approach": None,
            "centring": {name: np.zeros(like.shape) for name, like in self._space.target.model.adjustable.items()},
        }

    def advance(self, state: State, limit: int) -> tuple[State, Chunk]:
        """Takes at most so many gradients of every chain."""
        if state["phase"] == "start":
            return self._start(state)
        if state["phase"] == "approach":
            return self._approach(state)
        if state["phase"] == "warm-up":
            return self._warm_up(state, limit)
        return self._sample(state, limit)

    def finish(self, state: State) -> Outcome:
        """What the trajectories say."""
        evidence: dict[str, dict[str, Any]] = {
            "trajectories": {},
            "finite": {},
            "stuck": {},
            "mixing": {"exact": True, "together": self._together},
        }
        accept = self._method.acceptances[state["raised"]]
        settings = {"thin": self._thin, "step_size": state["step_size"], "target_accept": accept}
        stopped = np.full(self._plan.num_chains, -1)
        return Outcome(evidence, settings, by_chain={"stopped": stopped}, centring=state["centring"])

    def cut_short(self, state: State) -> None:
        """A chain in warm-up has no draws."""
        del state

    def fingerprint(self) -> str:
        """A digest of all that is computed of the model."""
        return self._space.fingerprint()

    # The phases.

    def _start(self, state: State) -> tuple[State, Chunk]:
        self._reporter.prepare()  # it compiles in a thread beside what comes now
        chains, _, _ = self._chains.advance(state["chains"], self._goal(state), 1)
        stepper = self._chains.stepper(chains)
        good = np.asarray(stepper.ready)
        if not good.all():
            attempt, starts = state["attempt"] + 1, chains["positions"]

            def failure(chain: int) -> Exception:
                return no_start(self._space.target, unflattened(self._space.example, starts[chain]))

            starts = retried(starts, good, self._propose, attempt, failure)
            chains = self._chains.idled(chains, starts, ~good)
            return state | {"attempt": attempt, "chains": chains}, Chunk("start", 1, attempt, attempt + 1)
        if not (self._chains.needs_gradient and self._plan.num_warmup and self._plan.init is None):
            return state | {"phase": "warm-up", "chains": chains}, Chunk("start", 1, 1, 1)
        gradients = mass.plain_gradient(self._metric(state), np.asarray(stepper.draw.gradient))
        way = approach.begin(np.asarray(stepper.draw.position), np.asarray(stepper.draw.log_density), gradients)
        if way is not None:
            chains = self._chains.idled(chains, way["trial"])
            return state | {"phase": "approach", "chains": chains, "approach": way}, Chunk("start", 1, 1, 1)
        metric = mass.first_metric(self._kind, gradients, self._rank)
        more = {"metric": metrics.as_plain(metric), "chains": self._chains.idled(chains)}
        return state | {"phase": "warm-up"} | more, Chunk("start", 1, 1, 1)

    def _approach(self, state: State) -> tuple[State, Chunk]:
        """One step of the chains that climb; the others stay."""
        chains, _, _ = self._chains.advance(state["chains"], self._goal(state), 1)
        draw = self._chains.stepper(chains).draw
        gradients = mass.plain_gradient(self._metric(state), np.asarray(draw.gradient))
        way = approach.advance(state["approach"], np.asarray(draw.log_density), gradients)
        chunk = Chunk("approach", 1, way["count"], approach.MOST_STEPS, {"log-density": way["log_density"].mean()})
        chains = self._chains.idled(chains, way["trial"])
        if way["going"].any():
            return state | {"chains": chains, "approach": way}, chunk
        positions, slopes = approach.path(way)
        metric = mass.metric_from(self._kind, positions, slopes, self._rank, self._chains.dtype)
        more = {"metric": metrics.as_plain(metric), "approach": None}
        return state | {"phase": "warm-up", "chains": chains} | more, chunk

    def _warm_up(self, state: State, limit: int) -> tuple[State, Chunk]:
        num_chains, num_warmup = self._plan.num_chains, self._plan.num_warmup
        window, part = self._window(state)
        until = round(part * num_warmup) * num_chains
        drawn = int(state["chains"]["drawn"].sum())
        steps, shown = 0, {}
        if drawn < until:
            cut_off = next((most for end, most in CUT_OFF if part <= end and window < len(UPDATES)), MOST_STEPS)
            adapting = self._method.step_size == "auto"
            accept = self._method.acceptances[state["raised"]]
            goal = self._goal(state, total=until, adapting=adapting, target_accept=accept, most_steps=cut_off)
            chains, harvests, steps = self._chains.advance(state["chains"], goal, limit)
            state = self._gathered(state | {"chains": chains}, harvests)
            drawn, shown = int(chains["drawn"].sum()), _shown(harvests)
        chunk = Chunk("warm-up", steps, min(drawn, num_warmup * num_chains), num_warmup * num_chains, shown)
        chunk = chunk._replace(later=self._plan.num_draws * self._thin * num_chains)
        if drawn < until:
            return state, chunk
        if window < len(UPDATES):
            if part in TIGHTENED_AT:
                state = self._tightened(state, part)
            state = self._renewed(state)
            if part in CENTRED_AT:
                state = self._recentred(state)
            return state | {"window": window + 1}, chunk
        begun = np.maximum(state["chains"]["drawn"], num_warmup)
        size, dtype = self._chains.size, self._chains.dtype
        nothing = tuple((np.zeros((0, size), dtype),) * 2 for _ in range(num_chains))
        step_size = float(np.exp(np.asarray(state["chains"]["adaptation"][0])[1]))
        more = {"phase": "sampling", "begun": begun, "recent": nothing, "step_size": step_size}
        return state | more, chunk

    def _sample(self, state: State, limit: int) -> tuple[State, Chunk]:
        num_draws, begun = self._plan.num_draws, state["begun"]
        targets = begun + num_draws * self._thin
        total = num_draws * self._thin * self._plan.num_chains
        before = state["chains"]["drawn"]
        if (before >= targets).all():
            return state, Chunk("sampling", 0, total, total, finished=True)
        goal = self._goal(state, targets=targets)
        chains, harvests, steps = self._chains.advance(state["chains"], goal, limit)
        kept = [self._thinned(harvest, int(b), int(n)) for harvest, b, n in zip(harvests, begun, before, strict=True)]
        drawn = chains["drawn"]
        done = int(np.clip(drawn - begun, 0, num_draws * self._thin).sum())
        finished = bool((drawn >= targets).all())
        firsts = [int(max(n - b, 0)) // self._thin for b, n in zip(begun, before, strict=True)]
        chunk = Chunk(
            "sampling",
            steps,
            done,
            total,
            _shown(harvests),
            self._reporter.draws(kept, firsts, state["centring"]),
            finished,
        )
        return state | {"chains": chains}, chunk

    # What they have in common.

    @property
    def _thin(self) -> int:
        return self._plan.thin or 1

    def _goal(self, state: State, **more: Any) -> Goal:
        return Goal(self._metric(state), centring=state["centring"], **more)

    def _metric(self, state: State) -> metrics.Learned | None:
        return cast("metrics.Learned | None", metrics.from_plain(state["metric"], np.zeros(self._chains.size)))

    def _propose(self, attempt: int) -> np.ndarray:
        return proposed(self._space.target, self._plan, attempt, self._together)

    def _window(self, state: State) -> tuple[int, float]:
        """The next window, and the part of the warm-up at which it ends; windows that are too short are left out."""
        parts = () if self._kind == "unit" else UPDATES
        for window, part in enumerate(parts):
            if window >= state["window"] and round(part * self._plan.num_warmup) >= 2 * LEAST_WINDOW:
                return window, part
        return len(UPDATES), 1.0

    def _gathered(self, state: State, harvests: list[Harvest]) -> State:
        """The state with more draws for the next metric, but none at the edge of the support."""
        columns = Record(*np.concatenate([harvest.record for harvest in harvests]).T)
        state = state | {"diverged": np.append(state["diverged"], columns.step_size[columns.diverging > 0])}
        if self._kind == "unit":
            return state
        recent, seen = [], []
        metric = self._metric(state)
        for (positions, gradients), count, harvest in zip(state["recent"], state["seen"], harvests, strict=True):
            plain = mass.plain_gradient(metric, harvest.gradient)
            good = np.isfinite(plain).all(axis=1)
            recent.append(
                (np.concatenate([positions, harvest.position[good]]), np.concatenate([gradients, plain[good]]))
            )
            seen.append(count + int(good.sum()))
        return state | {"recent": tuple(recent), "seen": tuple(seen)}

    def _renewed(self, state: State) -> State:
        """The state with a metric from the later half of the draws so far, or as many of them as there is room for."""
        bytes_a_draw = 2 * self._chains.size * self._plan.num_chains * self._chains.dtype.itemsize
        most = max(MOST_BYTES_A_WINDOW // bytes_a_draw, LEAST_WINDOW)
        enough = [count >= 2 * LEAST_WINDOW for count in state["seen"]]
        recent = tuple(
            tuple(array[-min(count - count // 2, most) :] for array in pair) if fine else pair
            for pair, count, fine in zip(state["recent"], state["seen"], enough, strict=True)
        )
        state = state | {"recent": recent}
        halves = [pair for pair, fine in zip(recent, enough, strict=True) if fine]
        if not halves:
            return state
        draws, gradients = map(list, zip(*halves, strict=True))
        slopes = gradients if self._chains.needs_gradient else None
        # BLAS with more threads than idle cores is slower by an order of magnitude than with one.
        with _blas().limit(limits=1, user_api="blas"):
            metric = mass.metric_from(self._kind, draws, slopes, self._rank, self._chains.dtype, self._metric(state))
        chains = self._chains.idled(state["chains"])
        if self._method.step_size == "auto":
            step_size = float(np.exp(np.asarray(chains["adaptation"][0])[1]))
            chains["adaptation"] = tuple(dual_averaging.begin(step_size, self._plan.num_chains, self._chains.dtype))
        return state | {"metric": metrics.as_plain(metric), "chains": chains}

    def _tightened(self, state: State, part: float) -> State:
        """The state with a higher acceptance to adapt to, if trajectories diverged at steps that are settled for."""
        settled = np.exp(np.asarray(state["chains"]["adaptation"][0])[1])
        more = part > TIGHTENED_AT[0] and np.any(state["diverged"] <= LONGEST_SETTLED * settled)
        raised = min(state["raised"] + bool(more), len(self._method.acceptances) - 1)
        return state | {"raised": raised, "diverged": np.zeros(0)}

    def _recentred(self, state: State) -> State:
        """The state with sites centred as far as their draws say (see `langevin.models.centring`)."""
        target = self._space.target.with_centring(state["centring"])
        recent = [positions for positions, _ in state["recent"]]
        if not target.adjustable or min(map(len, recent)) < 2 * LEAST_WINDOW:
            return state
        here = np.asarray(self._chains.stepper(state["chains"]).draw.position)
        found = recentring.by_draws(self._space.programs, target, self._space.example, recent, here)
        if found is None:
            return state
        metric = mass.metric_from(self._kind, found.draws, None, self._rank, self._chains.dtype)
        nothing = (np.zeros((0, self._chains.size), self._chains.dtype),) * 2
        return state | {
            "centring": found.centring,
            "metric": metrics.as_plain(metric),
            "chains": self._chains.idled(state["chains"], found.here),
            "recent": (nothing,) * len(recent),
            "seen": (0,) * len(recent),
        }

    def _thinned(self, harvest: Harvest, begun: int, before: int) -> Harvest:
        """The draws after a chain's own warm-up that are kept."""
        numbers = before + np.arange(len(harvest.position)) - begun
        chosen = (numbers >= 0) & (numbers % self._thin == self._thin - 1)
        return Harvest(*(array[chosen] for array in harvest))


def _shown(harvests: list[Harvest]) -> dict[str, float]:
    columns = np.concatenate([harvest.record for harvest in harvests])
    if not len(columns):
        return {}
    mean = Record(*columns.mean(axis=0))
    return {
        "log-density": float(mean.log_density),
        "acceptance": float(mean.acceptance_rate),
        "gradients a draw": float(mean.n_steps),
    }


@functools.cache
def _blas() -> ThreadpoolController:
    return ThreadpoolController()
