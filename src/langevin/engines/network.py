"""The engine of the stochastic-gradient methods on networks, with an automatic step.

A network has many modes, and between them no Gaussian. So its phases are others than those of `engines.stochastic`:

1. "start": every chain has its own initialisation.
2. "training": every chain climbs towards a mode (see `engines.training`), unless it starts at an earlier fit.
3. "measure": the metric, the largest curvature in its units, and the gradient noise (see `geometry.fisher`).
4. "burn-in" with a long step, so that weights which the data say little of get the width of their prior; then measured
   again, where the chains now are; then on, with a step that becomes shorter; and measured once more.
5. "sampling" with the short step. Methods with cycles go from the long step to the short one again and again.

Why two steps. Let t be the autocorrelation time, in steps, of a direction whose curvature is 1 in units of the metric.
Minibatches heat a direction with gradient noise V by V / t, whatever the method, and in all they raise the negative
log-likelihood by

    sum(V) / (2 t num_data)     a row

(what SGHMC takes off is the noise of each weight; that of directions across weights stays).

Directions with much noise are those of much curvature, and forget fast: within about an epoch they have the temperature
of the step that there is now. Others forget slowly, and are hardly heated. So the slow ones are moved by a long step,
and the fast ones are cooled by a short one, of which the heat is at most `MOST_HEAT` a row.

How long, by default: burn-in `BURN_IN_EPOCHS` and sampling `EPOCHS` times through the rows, with at least and at most
so many steps, and of small networks more.

A run whose time is over before its first draw has the points where its chains are ("stranded"), one of each: these are
no draws from the posterior, and the fit says so.
"""

from __future__ import annotations

import math
import warnings
from typing import TYPE_CHECKING, Any

import jax
import numpy as np

from langevin.contracts import Chunk, Draws, Outcome, Plan, State
from langevin.engines.chains import Chains, tenths
from langevin.engines.stochastic import StochasticEngine, chunk_of
from langevin.engines.training import Training, epoch_of, rate_of, steps_of, training_steps
from langevin.errors import LangevinWarning, SamplingError, SettingError
from langevin.geometry import fisher, landscape
from langevin.geometry.starts import flattened
from langevin.kernels.metrics import Diagonal
from langevin.posterior import Posterior
from langevin.run.keep import Keep
from langevin.tuning import Landscape, Tuning

if TYPE_CHECKING:
    from langevin.methods.stochastic import Stochastic

BURN_IN_EPOCHS, LEAST_BURN_IN, MOST_BURN_IN = 6, 3_000, 20_000
EPOCHS, LEAST_STEPS, MOST_STEPS = 15, 5_000, 40_000
# Rows times weights, over all steps of sampling: as many as small networks may have in any case.
CHEAP, MOST_CHEAP = 2e9, 50_000
# Nats a row, by which the noise of minibatches may raise the negative log-likelihood.
MOST_HEAT = 0.02
# A burn-in spans so many autocorrelation times of its long step.
TIMES = 10
# Where sampling then spans so many of its short one, that is so much slower than the method's own pace: the noise that
# SGHMC takes off is only that of each weight, and not of their combinations.
LEAST_TIMES, CALMER = 100, 3.0
# The first share of a burn-in; into how many parts it and the rest are cut; how many of the rest have the long step.
FIRST_SHARE, NUM_FIRST, NUM_PARTS, NUM_LONG = 0.3, 4, 16, 6
# A burn-in starts again with half the step, so many times, where a chain leaves the finite numbers, or falls below the
# end of its training by more nats than these for each row and each weight: nothing of the training is left there. (The
# width of a posterior is half a nat a weight.)
MOST_HALVINGS = 6
MOST_FALL, MOST_FALL_A_WEIGHT = 1.0, 5.0
# Of the noise of all weights: a few that are poorly measured do not decide.
QUANTILE = 0.99


class NetworkEngine(StochasticEngine):
    """Chains of a stochastic-gradient method on the weights of a network."""

    def __init__(self, method: Stochastic, target: Posterior, plan: Plan) -> None:
        super().__init__(method, target, plan)
        if method.estimator == "control_variate":
            raise SettingError(
                f"`{type(method).__name__}`: `estimator='control_variate'` needs a mode to be anchored at, and a "
                "network has many. Leave it out, or give a step_size."
            )
        epoch = epoch_of(target, plan)
        if plan.warmup_asked:
            training, burn_in = max(plan.num_warmup // 2, 1), max(plan.num_warmup - plan.num_warmup // 2, 2)
        else:
            training = training_steps(target, plan)
            burn_in = steps_of(BURN_IN_EPOCHS, epoch, LEAST_BURN_IN, MOST_BURN_IN)
        self._training = Training(training, rate_of(target))
        first = max(int(FIRST_SHARE * burn_in), 1)
        self._burn_ins = (_parts(first, NUM_FIRST), _parts(max(burn_in - first, 1), NUM_PARTS))
        rows = target.num_data if plan.batches is None else plan.batches.size
        cheap = min(CHEAP / (rows * self._size), MOST_CHEAP)
        self._num_steps = steps_of(EPOCHS, epoch, max(int(cheap), LEAST_STEPS), max(int(cheap), MOST_STEPS))
        self._phases = {
            "start": self._start,
            "training": self._train,
            "measure": self._measure,
            "burn-in": self._burn_in,
            "sampling": self._sample,
            "stranded": self._strand,
        }

    def begin(self) -> State:
        """Initialisations of the network."""
        return super().begin() | {"steps": None, "height": None, "halvings": 0, "stranded": None}

    def finish(self, state: State) -> Outcome:
        """What the draws say of the step; of points on the way, that they are no draws."""
        if state["stranded"] is None:
            return super().finish(state)
        evidence: dict[str, dict[str, Any]] = {"finite": {}, "on the way": {"phase": state["stranded"]}}
        stopped = np.full(self.num_chains, -1)
        return Outcome(evidence, {"thin": 1, "num_draws": 1}, by_chain={"stopped": stopped}, centring=state["centring"])

    def cut_short(self, state: State) -> State | None:
        """The points where the chains are; None before they have moved."""
        phase, chains = state["phase"], state["chains"]
        if chains is None and phase not in ("measure", "burn-in", "sampling"):
            return None
        positions = state["positions"]
        if chains is not None:
            carry = self._run(state).carry(chains, self._steady(state))
            positions = jax.tree.leaves(jax.tree.map(_finite, carry.state.position, carry.last[0].position))
        points = {"positions": tuple(positions), "chains": None, "stranded": phase}
        return state | points | {"phase": "stranded"}

    # The phases.

    def _start(self, state: State, limit: int) -> tuple[State, Chunk]:
        del limit
        return self._space.search(state, "training" if self._plan.init is None else "measure")

    def _train(self, state: State, limit: int) -> tuple[State, Chunk]:
        before, lengths = state, tenths(self._training.num_steps)
        state, carry, _ = self._advanced(state, limit, len(lengths), lengths.__getitem__)
        later = sum(map(sum, self._burn_ins)) + self._steps_of_sampling()
        chunk = chunk_of(before, state, carry, sum(lengths))._replace(later=later)
        if state["chains"]["drawn"] < len(lengths):
            return state, chunk
        stopped = np.asarray(carry.stopped)
        if (stopped >= 0).all():
            raise SamplingError(
                f"In the training of the network all chains left the finite numbers, the last at step {stopped.max()}. "
                "Standardise the columns (standardise=data), or start at a fit of lv.MAP with a lower learning_rate: "
                "init=fit."
            )
        return state | {"phase": "measure", "chains": None, "positions": _leaves(carry)}, chunk

    def _measure(self, state: State, limit: int) -> tuple[State, Chunk]:
        del limit
        attempt, batches, target = state["attempt"], self._plan.batches, self._laid_out(state)
        positions, seed = self._space.tree(state["positions"]), self._plan.seed.child("measure", attempt)
        height = state["height"]
        if not attempt:
            height = float(np.median(fisher.heights(self._programs, self._target, positions)))
        around = fisher.around(self._programs, target, batches, positions, seed)
        metric = self._metric_of(around, attempt)
        variance = jax.tree.map(np.ones_like, around.precision) if metric is None else metric.variance
        noise = jax.tree.map(lambda v, g: (v * np.asarray(g)).astype(v.dtype), around.noise, variance)
        stiffest = fisher.stiffest(self._programs, target, positions, metric, seed)
        flat, curvature = flattened(noise), flattened(variance) * flattened(around.precision)
        softest = float(min(np.median(curvature), stiffest))
        scene = Landscape(stiffest, softest, float(np.quantile(flat, QUANTILE)), self._size)
        paces = self._paces(scene, float(flat.sum(dtype=np.float64)))
        steps = tuple(step / 2 ** state["halvings"] for step in paces)
        tuning = Tuning(
            step_size=np.asarray(steps[0], np.result_type(*jax.tree.leaves(self._space.example))),
            metric=metric,
            gradient_noise=None if batches is None else noise,
            stiffest=stiffest,
            epoch=state["tuning"]["epoch"],
        )
        more = {"tuning": tuning.as_plain(), "scene": tuple(scene), "steps": steps, "phase": "burn-in", "chains": None}
        state = state | more | {"height": height, "autocorrelation_time": 1.0}
        return self._ready(state) if attempt == len(self._burn_ins) else state, Chunk("measure", 1, 1, 1)

    def _burn_in(self, state: State, limit: int) -> tuple[State, Chunk]:
        before, attempt = state, state["attempt"]
        lengths = self._burn_ins[attempt]
        drawn = 0 if state["chains"] is None else state["chains"]["drawn"]
        # No further than this part, since the next has another step.
        state, carry, _ = self._advanced(state, limit, drawn + 1, lengths.__getitem__)
        later = self._steps_of_sampling() + sum(map(sum, self._burn_ins[attempt + 1 :]))
        chunk = chunk_of(before, state, carry, sum(lengths))._replace(later=later)
        lost = np.asarray(carry.stopped) >= 0
        if state["chains"]["drawn"] > drawn:
            lost = lost | self._fallen(state, carry.state.position)
        if lost.any() and state["halvings"] < MOST_HALVINGS:
            # The curvature where they went is larger than where it was measured.
            shorter = tuple(step / 2 for step in state["steps"])
            return state | {"chains": None, "steps": shorter, "halvings": state["halvings"] + 1}, chunk
        if (np.asarray(carry.stopped) >= 0).all():
            raise SamplingError(
                "All chains blew up in their burn-in. Take larger minibatches, or give a step_size: "
                f"{state['steps'][1] / 10:.1g} is a tenth of the one that was tried last."
            )
        if state["chains"]["drawn"] < len(lengths):
            return state, chunk
        return state | {"phase": "measure", "attempt": attempt + 1, "chains": None, "positions": _leaves(carry)}, chunk

    def _ready(self, state: State) -> State:
        thin = self._thin(None)
        cycle = self._method.cycle(self._plan.num_draws, thin)
        longest, shortest = state["steps"]
        # In a cycle of a network the noise is never off: weights would shrink, which take long to get their width back.
        lowest = shortest / longest if self._method.has_cycles else 0.0
        step_size = longest if self._method.has_cycles else shortest
        tuning = self._tuning(state)
        tuning = tuning._replace(
            step_size=np.asarray(step_size, tuning.step_size.dtype), cycle=(cycle[1], 0), lowest=float(lowest)
        )
        more = {"phase": "sampling", "chains": None, "recent": (), "thin": thin, "cycle": cycle}
        return state | more | {"tuning": tuning.as_plain()}

    def _strand(self, state: State, limit: int) -> tuple[State, Chunk]:
        """One point of each chain."""
        del limit
        positions, keep = self._space.tree(state["positions"]), self._plan.keep
        heights = np.asarray(self._programs(landscape.heights, None, self._target, positions))
        reported = self._programs(_reported, keep, self._target, positions)

        def one(chain: int) -> Draws:
            at = jax.tree.map(lambda leaf: np.asarray(leaf)[chain : chain + 1], (reported, positions, heights))
            return keep.grouped(at[0], at[1], {"log_density": at[2]})

        return state, Chunk("stranded", 1, 1, 1, draws=tuple(map(one, range(self.num_chains))), finished=True)

    # What they have in common.

    def _fallen(self, state: State, positions: Any) -> np.ndarray:
        """Which chains are too far below the end of their training."""
        network = self._target.model.network
        most = MOST_FALL * self._target.num_data / network.temperature + MOST_FALL_A_WEIGHT * self._size
        return ~(state["height"] - fisher.heights(self._programs, self._target, positions) < most)

    def _paces(self, scene: Landscape, total_noise: float) -> tuple[float, float]:
        """The long step and the short one."""
        calm, own = self._method.pace(scene._replace(noise=0.0)), self._method.pace(scene)
        length = calm.step_size * calm.autocorrelation_time
        burn_in = sum(map(sum, self._burn_ins))
        long = max(calm.autocorrelation_time, min(own.autocorrelation_time, burn_in / TIMES))
        by_heat = total_noise / scene.softest / (2 * MOST_HEAT * max(self._target.num_data, 1))
        short = max(long, by_heat, min(CALMER * own.autocorrelation_time, self._num_steps / LEAST_TIMES))
        return length / long, length / short

    def _metric_of(self, around: fisher.Around, attempt: int) -> Diagonal | None:
        """The metric: the method's own only where the chains have their width, since it knows no prior."""
        if self._method.metric == "unit":
            return None
        if self._method.metric == "dense" and not attempt:
            warnings.warn(
                "`metric='dense'` is not for networks; this one gets a diagonal one.", LangevinWarning, stacklevel=2
            )
        own = self._method.metric_of_gradients(around.mean_square, self._target.num_data) if attempt else None
        if own is not None:
            return jax.tree.map(np.asarray, own)
        return Diagonal(jax.tree.map(lambda p: (1 / p).astype(p.dtype), around.precision))

    def _steady(self, state: State) -> Tuning:
        """The tuning; in a burn-in with the step of its part."""
        tuning = self._tuning(state)
        if state["phase"] != "burn-in":
            return tuning
        longest, shortest = state["steps"]
        part = 0 if state["chains"] is None else state["chains"]["drawn"]
        share = 0.0
        if state["attempt"] and not self._method.has_cycles:
            share = max(part + 1 - NUM_LONG, 0) / max(len(self._burn_ins[1]) - NUM_LONG, 1)
        step_size = np.asarray(longest * (shortest / longest) ** share, tuning.step_size.dtype)
        return tuning._replace(step_size=step_size, cycle=(1 << 30, 0))

    def _thin(self, time: float | None) -> int:
        del time
        if self._plan.thin is not None:
            return self._plan.thin
        _, length, exploring = self._method.cycle(self._plan.num_draws, 1000)
        share = 1 - exploring / max(length, 1)
        return max(math.ceil(share * self._num_steps / self._plan.num_draws), 1)

    def _steps_of_sampling(self) -> int:
        thin, num_draws = self._thin(None), self._plan.num_draws
        draws, _, exploring = self._method.cycle(num_draws, thin)
        return num_draws * thin + exploring * (num_draws // draws)

    def _run(self, state: State) -> Chains:
        phase, attempt = state["phase"], state["attempt"]
        if (phase, attempt) not in self._chains:
            maker = self._training if phase == "training" else self._resolved(state)
            keep = self._plan.keep if phase == "sampling" else None
            seed = self._plan.seed.child(phase, attempt)
            arguments = (self._target, self._space.rows, keep, seed, self._programs)
            self._chains[phase, attempt] = Chains(maker, *arguments)
        return self._chains[phase, attempt]

    def _chosen(self, state: State) -> dict[str, Any]:
        longest, shortest = state["steps"]
        return super()._chosen(state) | {
            "num_training_steps": self._training.num_steps if self._plan.init is None else 0,
            "num_burn_in_steps": sum(map(sum, self._burn_ins)),
            "num_halvings": state["halvings"],
            "longest_step": longest,
            "shortest_step": shortest,
            "stiffest": state["scene"][0],
            "noise": state["scene"][2],
        }

    def _scrutiny(self, state: State, running: np.ndarray) -> dict[str, dict[str, Any]]:
        """The temperature of the draws, and their gradient noise: what is cheap, and true of any posterior."""
        sample, seed = state["sample"], self._plan.seed.child("scrutiny")
        if not running.any() or not sample["positions"]:
            return {}
        positions = self._space.tree([np.swapaxes(leaf, 0, 1) for leaf in sample["positions"]])
        target, batches = self._laid_out(state), self._plan.batches
        heat = fisher.temperatures(self._programs, target, batches, positions, seed.child("temperature"))[running]
        by_chain = heat.mean(axis=1)
        error = float(by_chain.std(ddof=1) / math.sqrt(len(by_chain))) if len(by_chain) > 1 else 0.1
        evidence = {"width": {"value": float(by_chain.mean()), "error": error, "widest": 0.0}}
        noise = self._tuning(state).gradient_noise
        if batches is not None and noise is not None:
            # In place of a chain that stopped another one: as many as the program is compiled for.
            others = np.where(running, np.arange(len(running)), np.argmax(running))
            last = jax.tree.map(lambda leaf: leaf[others, -1], positions)
            here = fisher.around(self._programs, target, batches, last, seed.child("noise")).noise
            plain = state["tuning"]["metric"]
            variance = [1.0 for _ in jax.tree.leaves(here)] if plain is None else plain[1]
            white = [value * scale for value, scale in zip(jax.tree.leaves(here), variance, strict=True)]
            ratio = float(flattened(white).sum() / max(flattened(noise).sum(), 1e-30))
            evidence["noise"] = {"ratio": ratio}
        return evidence


def _parts(num_steps: int, number: int) -> list[int]:
    ends = np.linspace(0, num_steps, min(number, num_steps) + 1).astype(int)
    return np.diff(ends).tolist()


def _finite(now: Any, before: Any) -> Any:
    """Of each chain where it is, or where it was at the last look, if its numbers are not finite."""
    fine = np.isfinite(np.asarray(now)).reshape(len(now), -1).all(axis=1)
    return np.where(fine.reshape(-1, *[1] * (np.ndim(now) - 1)), now, before)


def _reported(keep: Keep, target: Posterior, positions: Any) -> dict[str, jax.Array]:
    return jax.vmap(lambda position: keep.reported(target.constrain(position)))(positions)


def _leaves(carry: Any) -> tuple[Any, ...]:
    return tuple(jax.tree.leaves(carry.state.position))
