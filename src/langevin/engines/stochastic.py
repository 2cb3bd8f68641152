"""The engine of the stochastic-gradient methods, with step sizes that nobody has to guess.

Phases, where the step is automatic:

1. "start": every chain looks for a point with a finite log-density.
2. "mode", "shape", "groups": a Gaussian q near the posterior is found, and how far to centre sites (`geometry`).
3. "measure": the covariance of q is the metric; the variance of the gradient over minibatches, at draws of q, is the
   noise. The method turns both into the largest step whose bias is acceptable (`pace`) and the autocorrelation time.
4. "burn-in": from draws of q. The width that the chains then have is measured by Stein's
   identity, E[(x - centre) . grad log p(x)] = -d, and a step that proves too long is halved: the next attempt.
5. "sampling".

Where the step is given, there is a plain burn-in, and a mode only for an estimator that needs a centre.
"""

from __future__ import annotations

import dataclasses
import functools
import math
from typing import TYPE_CHECKING, Any

import jax
import numpy as np

from langevin.contracts import Chunk, Draws, Outcome, Plan, State
from langevin.engines.chains import Carry, Chains, Recorded, tenths
from langevin.engines.checking import evidence_of
from langevin.engines.pacing import longest_time, pace_of, thin_of, warn_of_width
from langevin.engines.space import Space
from langevin.errors import SamplingError
from langevin.geometry import landscape
from langevin.geometry.finding import Finder
from langevin.geometry.measuring import evened, mean_over_chains, measured
from langevin.geometry.scrutiny import (
    add_to_sample,
    autocorrelation_time,
    begin_sample,
    mean_and_error,
    noise_at_draws,
    noise_ratio,
    widest,
    width,
)
from langevin.geometry.starts import flattened, unflattened
from langevin.posterior import Posterior
from langevin.run.compilation import import_beside
from langevin.run.seeds import Seed
from langevin.tuning import SD_BIAS, Landscape, Tuning

if TYPE_CHECKING:
    from langevin.methods.stochastic import Stochastic

MOST_HALVINGS = 4
# Of a coordinate, as the square of a ratio of sds, beyond what may be chance.
MOST_WIDEST = 1.2
# Estimates of an autocorrelation time are noisy: less is not taken for a fault; and a burn-in gets longer so often.
MOST_SLOWER = 2.5
USUALLY_SLOWER = 1.5
MOST_NOISE_RATIO, MOST_LONGER_BY_NOISE = 1.5, 5.0
MOST_STRETCH, MOST_LONGER = 4.0, 3
# Of a burn-in: its draws, the first that is looked at, and how many there are in an autocorrelation time.
NUM_BURN_IN_DRAWS, FIRST_LOOKED_AT, STRIDES = 60, 20, 3


class StochasticEngine:
    """Chains of a stochastic-gradient method on one posterior."""

    def __init__(self, method: Stochastic, target: Posterior, plan: Plan) -> None:
        import_beside()
        self._method, self._target, self._plan = method, target, plan
        self._space = Space(target, plan, twice=True)
        self._programs = self._space.programs
        self._size = sum(np.size(leaf) for leaf in jax.tree.leaves(self._space.example))
        self._chains: dict[Any, Chains] = {}
        self._phases = {
            "start": self._start,
            "mode": self._find,
            "shape": self._find,
            "groups": self._find,
            "measure": self._measure,
            "burn-in": self._burn_in,
            "sampling": self._sample,
        }

    @functools.cached_property
    def _finder(self) -> Finder:
        seed = self._plan.seed.child("geometry")
        return Finder(self._space.laid_out, self._space.example, self._plan.batches, self._programs, seed)

    @property
    def num_chains(self) -> int:
        """As many as were asked for."""
        return self._plan.num_chains

    def begin(self) -> State:
        """Starts that nothing is known of."""
        tuning = Tuning(epoch=1 if self._plan.batches is None else self._plan.batches.num_slices(self._target.num_data))
        return {
            "phase": "start",
            "attempt": 0,
            "positions": self._space.starts(0),
            "tuning": tuning.as_plain(),
            "autocorrelation_time": None,
            "chains": None,
            "recent": (),
            "thin": None,
            "cycle": (1, 1, 0),
            "sample": begin_sample(),
            "finder": None,
            "longer": 0,
            "scene": None,
            "beyond": None,
            "centring": {name: np.zeros(like.shape) for name, like in self._target.model.adjustable.items()},
            "estimator": "minibatch" if self._method.estimator == "auto" else self._method.estimator,
        }

    def advance(self, state: State, limit: int) -> tuple[State, Chunk]:
        """Takes at most so many steps of every chain."""
        return self._phases[state["phase"]](state, limit)

    def finish(self, state: State) -> Outcome:
        """What the draws say of the step."""
        stopped = np.asarray(self._run(state).carry(state["chains"], self._tuning(state)).stopped)
        evidence: dict[str, dict[str, Any]] = {"stopped": {}, "finite": {}, "stuck": {}, "mixing": {"exact": False}}
        evidence |= self._scrutiny(state, stopped < 0)
        step_size = state["tuning"]["step_size"]
        settings = {"thin": state["thin"], "step_size": None if step_size is None else float(step_size)}
        return Outcome(
            evidence, settings | self._chosen(state), by_chain={"stopped": stopped}, centring=state["centring"]
        )

    def cut_short(self, state: State) -> State | None:
        """A chain in warm-up has no draws."""
        del state

    def fingerprint(self) -> str:
        """A digest of all that is computed of the model."""
        return self._space.fingerprint()

    # The phases.

    def _start(self, state: State, limit: int) -> tuple[State, Chunk]:
        del limit
        needs_mode = self._method.step_size == "auto" or self._method.estimator == "control_variate"
        return self._space.search(state, "mode" if needs_mode else "burn-in")

    def _find(self, state: State, limit: int) -> tuple[State, Chunk]:
        return self._space.find(self._finder, state, limit, "measure")

    def _measure(self, state: State, limit: int) -> tuple[State, Chunk]:
        del limit
        found = self._finder.found(state["finder"])
        if found is None or not np.isfinite(found.centre).all():
            raise SamplingError(
                "Every climb to a mode left the numbers that a computer can hold. Standardise the columns of the data, "
                "or give the model priors that keep its parameters in range."
            )
        seed, batches = self._plan.seed.child("measure"), self._plan.batches
        epoch, dtype = state["tuning"]["epoch"], np.result_type(*jax.tree.leaves(self._space.example))
        state = state | {"phase": "burn-in", "chains": None, "attempt": 0, "finder": None}
        state["centring"] = dict(found.centring)
        if self._method.step_size != "auto":
            centre, positions = (unflattened(self._space.example, at) for at in (found.centre, found.modes))
            tuning = self._tuning(state)._replace(centre=centre)
        else:
            result = measured(self._programs, self._method, self._laid_out(state), batches, found, seed)
            state |= {"estimator": result.estimator, "scene": tuple(result.scene)}
            step_size, time = pace_of(self._resolved(state), result.scene)
            tuning = result.tuning._replace(step_size=np.asarray(step_size, dtype), epoch=epoch)
            positions = result.typical
            state["autocorrelation_time"] = time
            if found.beyond.size:
                state["beyond"] = (found.beyond, found.centre, found.factor)
        state |= {"tuning": tuning.as_plain(), "positions": tuple(jax.tree.leaves(positions))}
        return state, Chunk("measure", 1, 1, 1)

    def _burn_in(self, state: State, limit: int) -> tuple[State, Chunk]:
        time = state["autocorrelation_time"]
        if time is None:
            return self._plain_burn_in(state, limit)
        before, stride = state, max(math.ceil(time / STRIDES), 1)
        state, carry, recorded = self._advanced(state, limit, NUM_BURN_IN_DRAWS, lambda _: stride)
        if recorded is not None:
            first = state["chains"]["drawn"] - len(recorded.stats["valid"])
            new = [leaf[max(FIRST_LOOKED_AT - first, 0) :] for leaf in jax.tree.leaves(recorded.position)]
            old = state["recent"] or [leaf[:0] for leaf in new]
            state["recent"] = tuple(np.concatenate(pair) for pair in zip(old, new, strict=True))
        chunk = chunk_of(before, state, carry, NUM_BURN_IN_DRAWS * stride)
        chunk = chunk._replace(later=self._plan.num_draws * self._thin(time))
        if state["chains"]["drawn"] < NUM_BURN_IN_DRAWS:
            return state, chunk
        return self._judged(state, carry), chunk

    def _judged(self, state: State, carry: Carry) -> State:
        """The end of a burn-in: on to sampling, or again with half the step."""
        tuning, seed = self._tuning(state), self._plan.seed.child("burn-in", state["attempt"])
        lost = bool((np.asarray(carry.stopped) >= 0).any())
        here = tuple(jax.tree.leaves(carry.state.position))
        looked_at = self._space.tree([np.swapaxes(leaf, 0, 1) for leaf in state["recent"]])
        value, error, worst = math.inf, 0.0, math.inf
        if not lost:
            arguments = (self._plan.batches, self._laid_out(state), looked_at, tuning.centre, seed.child("width"))
            blocks = width(self._programs, *arguments)
            value, error, worst = *mean_and_error(blocks), widest(blocks)
        fine = value < (1 + SD_BIAS) ** 2 + 0.1 + 3 * error and worst < MOST_WIDEST
        if fine and state["longer"] < MOST_LONGER:
            again = self._with_noise_here(state, looked_at, here, seed)
            if again is not None:
                return again
        slower = self._slower(state) if fine else 1.0
        if slower > MOST_SLOWER and state["longer"] < MOST_LONGER:
            # It takes longer to forget than the shape of the posterior made one think: again, and look for longer.
            time = min(min(slower, MOST_STRETCH) * state["autocorrelation_time"], longest_time(self._size))
            if time > state["autocorrelation_time"]:
                return self._again(state | {"autocorrelation_time": time}, here)
        if fine or state["attempt"] - state["longer"] == MOST_HALVINGS:
            if not fine:
                warn_of_width(type(self._method).__name__, MOST_HALVINGS, None if lost else value)
            time = state["autocorrelation_time"] * max(slower / USUALLY_SLOWER, 1.0)
            more = {"positions": here if fine or not lost else state["positions"], "autocorrelation_time": time}
            return self._ready(state | more)
        tuning = tuning._replace(step_size=np.asarray(tuning.step_size) / np.asarray(2, tuning.step_size.dtype))
        return state | {
            "attempt": state["attempt"] + 1,
            "tuning": tuning.as_plain(),
            "autocorrelation_time": 2 * state["autocorrelation_time"],
            "positions": state["positions"] if lost else here,
            "chains": None,
            "recent": (),
        }

    def _with_noise_here(self, state: State, draws: Any, here: tuple[Any, ...], seed: Seed) -> State | None:
        """With a step for the gradient noise at the draws, if that is another one than at draws of q."""
        tuning, batches = self._tuning(state), self._plan.batches
        if batches is None or tuning.gradient_noise is None or state["scene"] is None:
            return None
        static, running = (batches, state["estimator"]), np.ones(self._plan.num_chains, bool)
        arguments = (static, self._laid_out(state), tuning, draws, running, seed.child("noise"))
        noise = noise_at_draws(self._programs, *arguments)
        if 1 / MOST_NOISE_RATIO < noise_ratio(noise, tuning) < MOST_NOISE_RATIO:
            return None
        metric, here_noise, slower = tuning.metric, unflattened(self._space.example, noise), 1.0
        if self._method.metric == "auto":
            metric, here_noise, slower = evened(metric, here_noise)
        scene = Landscape(*state["scene"])
        scene = scene._replace(noise=float(flattened(here_noise).max()), softest=scene.softest * slower)
        step_size, time = pace_of(self._resolved(state), scene)
        if time > MOST_LONGER_BY_NOISE * state["autocorrelation_time"]:
            # Not a correction any more: something is wrong, and the noise at the draws will say so.
            return None
        tuning = tuning._replace(
            metric=metric,
            gradient_noise=here_noise,
            step_size=np.asarray(step_size, tuning.step_size.dtype),
        )
        more = {"tuning": tuning.as_plain(), "scene": tuple(scene), "autocorrelation_time": time}
        return self._again(state | more, here)

    @staticmethod
    def _again(state: State, here: tuple[Any, ...]) -> State:
        """Another burn-in, from where the chains are."""
        counts = {"attempt": state["attempt"] + 1, "longer": state["longer"] + 1}
        return state | counts | {"positions": here, "chains": None, "recent": ()}

    def _slower(self, state: State) -> float:
        """How much longer than expected the chains take to forget."""
        stride = max(math.ceil(state["autocorrelation_time"] / STRIDES), 1)
        leaves = [np.reshape(leaf, (*leaf.shape[:2], -1)) for leaf in state["recent"]]
        draws = np.concatenate(leaves, axis=2).astype(np.float64)
        return autocorrelation_time(draws) * stride / state["autocorrelation_time"]

    def _plain_burn_in(self, state: State, limit: int) -> tuple[State, Chunk]:
        if self._plan.num_warmup == 0:
            return self._ready(state), Chunk("burn-in", 1, 1, 1)
        before, lengths = state, tenths(self._plan.num_warmup)
        state, carry, _ = self._advanced(state, limit, len(lengths), lengths.__getitem__)
        chunk = chunk_of(before, state, carry, sum(lengths))._replace(later=self._plan.num_draws * self._thin(None))
        if state["chains"]["drawn"] < len(lengths):
            return state, chunk
        tuning, positions, batches = self._tuning(state), carry.state.position, self._plan.batches
        metric = self._method.metric_of_burn_in(carry.state)
        if metric is not None:
            tuning = tuning._replace(metric=metric)
        if self._resolved(state).takes_noise_off and batches is not None:
            words = self._plan.seed.child("burn-in", "noise").key_words()
            arguments = (self._laid_out(state), None, None, positions, words)
            noise = self._programs(landscape.gradient_noise, (batches, "minibatch"), *arguments)
            tuning = tuning._replace(gradient_noise=mean_over_chains(noise).variance)
        leaves = tuple(jax.tree.leaves(positions))
        return self._ready(state | {"tuning": tuning.as_plain(), "positions": leaves}), chunk

    def _ready(self, state: State) -> State:
        """The state at the beginning of sampling."""
        thin = self._thin(state["autocorrelation_time"])
        cycle = self._method.cycle(self._plan.num_draws, thin)
        tuning = self._tuning(state)._replace(cycle=cycle[1:])
        more = {"phase": "sampling", "chains": None, "recent": (), "thin": thin, "cycle": cycle}
        return state | more | {"tuning": tuning.as_plain()}

    def _thin(self, time: float | None) -> int:
        """How many steps there are to a draw, by the autocorrelation time if it is known."""
        if self._plan.thin is not None or time is None:
            return self._plan.thin or 1
        rows = self._target.num_data if self._plan.batches is None else self._plan.batches.size
        return thin_of(time, self._plan.num_draws, rows * self._size)

    def _sample(self, state: State, limit: int) -> tuple[State, Chunk]:
        thin, (draws_a_cycle, _, exploring) = state["thin"], state["cycle"]
        stride = lambda draw: thin + (exploring if draw % draws_a_cycle == 0 else 0)  # noqa: E731
        num_draws = self._plan.num_draws
        total = num_draws * thin + exploring * (num_draws // draws_a_cycle)
        if state["chains"] is not None and state["chains"]["drawn"] >= num_draws:
            return state, Chunk("sampling", 0, total, total, finished=True)
        before = state
        state, carry, recorded = self._advanced(state, limit, num_draws, stride)
        draws: tuple[Draws, ...] = ()
        if recorded is not None:
            leaves = jax.tree.leaves(recorded.position)
            weights = np.where(recorded.stats["valid"], recorded.stats["step_size"], 0.0)
            state["sample"] = add_to_sample(state["sample"], leaves, weights)
            draws = tuple(self._draws(recorded, chain) for chain in range(self._plan.num_chains))
        finished = state["chains"]["drawn"] >= num_draws
        if finished and not state["sample"]["weights"].any():
            steps = ", ".join(str(step) for step in np.asarray(carry.stopped))
            raise SamplingError(
                f"Every chain blew up before its first draw, at steps {steps}. The step is too long: take a smaller "
                "step_size, or leave it to warm-up with step_size='auto'."
            )
        return state, chunk_of(before, state, carry, total)._replace(draws=draws, finished=finished)

    # What they have in common.

    def _advanced(self, state: State, limit: int, num_draws: int, stride: Any) -> tuple[State, Carry, Recorded | None]:
        """The state after some steps of the chains of its phase, which begin where they have not."""
        run, tuning = self._run(state), self._steady(state)
        chains = state["chains"]
        if chains is None:
            chains = run.begin(self._space.tree(state["positions"]), tuning)
        chains, recorded = run.advance(chains, tuning, limit, stride, num_draws)
        return state | {"chains": chains}, run.carry(chains, tuning), recorded

    def _run(self, state: State) -> Chains:
        """The chains of a phase."""
        phase, attempt = state["phase"], state["attempt"]
        if (phase, attempt) not in self._chains:
            seed = self._plan.seed.child(phase, attempt)
            maker, keep = self._resolved(state), self._plan.keep
            if phase == "burn-in" and state["autocorrelation_time"] is None:
                maker, keep = maker.burn_in, None
            target = self._target.with_centring(state["centring"])
            self._chains[phase, attempt] = Chains(maker, target, self._space.rows, keep, seed, self._programs)
        return self._chains[phase, attempt]

    def _steady(self, state: State) -> Tuning:
        """The tuning; in an automatic burn-in, a cyclical method takes what is the mean step of its cycles."""
        tuning = self._tuning(state)
        if state["phase"] != "burn-in" or state["autocorrelation_time"] is None:
            return tuning
        step_size = np.asarray(tuning.step_size / self._method.peak, tuning.step_size.dtype)
        return tuning._replace(cycle=(1 << 30, 0), step_size=step_size)

    def _resolved(self, state: State) -> Stochastic:
        """The method with the estimator that was chosen."""
        return dataclasses.replace(self._method, estimator=state["estimator"])

    def _laid_out(self, state: State) -> Posterior:
        """The target with the centring that was chosen, its rows in their first random order."""
        return self._space.laid_out.with_centring(state["centring"])

    def _chosen(self, state: State) -> dict[str, Any]:
        """What else the run chose."""
        return {"estimator": state["estimator"]}

    def _scrutiny(self, state: State, running: np.ndarray) -> dict[str, dict[str, Any]]:
        """What a sample of the draws of the chains that run says."""
        sample = state["sample"]
        if not running.any() or not sample["positions"]:
            return {}
        positions = self._space.tree([np.swapaxes(leaf, 0, 1) for leaf in sample["positions"]])
        target = self._laid_out(state)
        return evidence_of(self._programs, self._plan, target, self._tuning(state), state, positions, running)

    def _draws(self, recorded: Recorded, chain: int) -> Draws:
        position, reported, stats = jax.tree.map(lambda leaf: leaf[:, chain], tuple(recorded))
        return self._plan.keep.grouped(reported, position, stats)

    def _tuning(self, state: State) -> Tuning:
        return Tuning.from_plain(state["tuning"], self._space.example)


def chunk_of(before: State, state: State, carry: Carry, total: int) -> Chunk:
    """What the chains did since the state before."""
    info = {name: float(np.mean(value)) for name, value in carry.info._asdict().items()}
    shown = {"log-density": info["log_density"]}
    if info.get("acceptance_rate", 1.0) < 1:
        shown["acceptance"] = info["acceptance_rate"]
    step = state["chains"]["step"]
    earlier = 0 if before["chains"] is None else before["chains"]["step"]
    return Chunk(before["phase"], step - earlier, step, total, shown)
