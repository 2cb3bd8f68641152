"""The engine of blocks that take turns (Gibbs): each with its own kernel, step and metric.

Phases:

1. "start": every chain looks for a point with a finite log-density.
2. "mode", "shape", "groups", where a stochastic-gradient block has an automatic step: a Gaussian near the posterior.
3. "warm-up": blocks that accept or reject adapt their steps by dual averaging, and in windows their metrics. The
   metric of a block is the inverse of the mean outer product of its gradients given the others, which for a Gaussian
   is the covariance of the block given the others, and not its marginal one.
4. "sampling".
"""

from __future__ import annotations

import functools
import math
from typing import Any

import jax
import numpy as np

from langevin.contracts import Chunk, Draws, Outcome, Plan, State
from langevin.engines import sweeping
from langevin.engines.checking import width_of
from langevin.engines.claims import Block
from langevin.engines.pacing import pace_of, thin_of
from langevin.engines.parts import Part, first_tuning, part_of, steps_of
from langevin.engines.segments import is_automatic, kind_of, segmented, shown
from langevin.engines.space import Space
from langevin.engines.sweeping import Carry, Drive, Static
from langevin.geometry import conditional
from langevin.geometry.finding import Finder, Found
from langevin.geometry.measuring import measured
from langevin.geometry.scrutiny import add_to_sample, begin_sample
from langevin.geometry.starts import flattened, unflattened
from langevin.kernels import dual_averaging
from langevin.posterior import Posterior
from langevin.tuning import Landscape, Tuning

# When metrics are made anew, in parts of the warm-up, from the draws since the time before.
UPDATES = (0.05, 0.1, 0.2, 0.35, 0.55, 0.8)
MOST_SWEEPS_A_CHUNK = 1024
MOST_BYTES_A_CHUNK = 32_000_000
LEAST_WINDOW = 10
# The noise of gradients is measured at so many draws of q; below the least, a control variate is not worth its price.
NUM_PLACES, LEAST_NOISE = 8, 0.5
# A burn-in of stochastic-gradient blocks, in autocorrelation times.
TIMES_OF_BURN_IN = 20


class SweepEngine:
    """Chains in which the blocks of a posterior take turns."""

    def __init__(self, blocks: tuple[Block, ...], target: Posterior, plan: Plan, found: Found | None = None) -> None:
        self._known = found
        self._plan, self._target = plan, target
        self._space = Space(target, plan, twice=any(is_automatic(block) for block in blocks))
        dtype = np.result_type(*jax.tree.leaves(self._space.example))
        self._dtype = dtype
        moved = [block for block in blocks if block.method.role in ("kernel", "conditional")]
        self._parts = tuple(part_of(block, target, plan) for block in moved)
        self._automatic = tuple(is_automatic(block) for block in moved)
        self._has_labels = any(block.method.role == "labels" for block in blocks)
        self._structure: Any = None
        self._phases = {
            "start": self._start,
            "mode": self._find,
            "shape": self._find,
            "groups": self._find,
            "measure": self._measure,
            "warm-up": self._warm_up,
            "sampling": self._sample,
        }

    @property
    def num_chains(self) -> int:
        """As many as were asked for."""
        return self._plan.num_chains

    def begin(self) -> State:
        """Starts that nothing is known of."""
        tunings = tuple(
            first_tuning(part, size, self._epoch, self._dtype).as_plain()
            for part, size in zip(self._parts, self._sizes, strict=True)
        )
        return {
            "phase": "start",
            "attempt": 0,
            "positions": self._space.starts(0),
            "finder": None,
            "tunings": tunings,
            "time": None,
            "anchor": None,
            "carry": None,
            "window": 0,
            "sweep": 0,
            "drawn": 0,
            "left": 0,
            "sample": begin_sample(),
            "recent": tuple((np.zeros((self.num_chains, 0, n), self._dtype),) * 2 for n in self._sizes),
        }

    def advance(self, state: State, limit: int) -> tuple[State, Chunk]:
        """Takes at most so many sweeps of every chain."""
        return self._phases[state["phase"]](state, limit)

    def finish(self, state: State) -> Outcome:
        """What the sweeps say."""
        carry = self._carry(state)
        exact = all(part.all_rows for part in self._parts)
        evidence: dict[str, dict[str, Any]] = {
            "stopped": {},
            "trajectories": {},
            "finite": {},
            "stuck": {},
            "mixing": {"exact": exact},
        }
        running, seed = np.asarray(carry.stopped) < 0, self._plan.seed.child("scrutiny", "width")
        arguments = (self._plan.batches, self._rows(0)[0], self._space.example, self._inexact, running, seed)
        evidence |= width_of(self._space.programs, state["sample"], *arguments)
        steps = steps_of(self._parts, carry.adaptations, self._tunings(state))
        settings = {"thin": self._thin(state), "step_size": steps}
        centring = {name: np.asarray(values) for name, values in self._target.centring.items()}
        return Outcome(evidence, settings, by_chain={"stopped": np.asarray(carry.stopped)}, centring=centring)

    def cut_short(self, state: State) -> State | None:
        """A chain in warm-up has no draws."""
        del state

    def fingerprint(self) -> str:
        """A digest of all that is computed of the model."""
        return self._space.fingerprint()

    # The phases.

    def _start(self, state: State, limit: int) -> tuple[State, Chunk]:
        del limit
        if not any(self._automatic):
            return self._space.search(state, "warm-up")
        # What is known already is not looked for, and its starts are around it.
        known = state | {"phase": "measure"}, Chunk("start", 1, 1, 1)
        return known if self._known else self._space.search(state, "mode")

    def _find(self, state: State, limit: int) -> tuple[State, Chunk]:
        return self._space.find(self._finder, state, limit, "measure")

    def _measure(self, state: State, limit: int) -> tuple[State, Chunk]:
        """The step and the metric of each automatic block given the others at the centre."""
        del limit
        found = self._known if self._known is not None else self._finder.found(state["finder"])
        assert found is not None
        tunings, longest = list(self._tunings(state)), 0.0
        automatic = [number for number, flag in enumerate(self._automatic) if flag]
        scenes = {}
        for number in automatic:
            tunings[number], scenes[number] = self._measured(self._parts[number], found, number)
        state = state | {"tunings": tuple(tuning.as_plain() for tuning in tunings)}
        if self._plan.batches is not None:
            state, scenes = self._with_noise(state, found, scenes)
        for number in automatic:
            step, time = pace_of(self._parts[number].method, scenes[number])
            tunings[number] = self._tunings(state)[number]._replace(step_size=np.asarray(step, self._dtype))
            longest = max(longest, time)
        leaves = jax.tree.leaves(unflattened(self._space.example, found.modes))
        plain = tuple(tuning.as_plain() for tuning in tunings)
        more = {"tunings": plain, "time": longest, "positions": tuple(leaves), "finder": None}
        return state | more | {"phase": "warm-up"}, Chunk("measure", 1, 1, 1)

    def _warm_up(self, state: State, limit: int) -> tuple[State, Chunk]:
        total = self._num_burn_in(state)
        if total == 0:
            return self._sampling(state), Chunk("warm-up", 1, 1, 1)
        ends = [*(end for part in UPDATES if (end := round(part * total)) >= LEAST_WINDOW), total]
        until = ends[state["window"]]
        state, recorded, steps = self._advanced(state, limit, until, 1, adapting=True)
        state = self._gathered(state, recorded)
        chunk = Chunk("warm-up", steps, state["drawn"], total, shown(recorded))
        chunk = chunk._replace(later=self._plan.num_draws * self._thin(state))
        if state["drawn"] < until:
            return state, chunk
        if until == total:
            return self._sampling(state), chunk
        return self._renewed(state) | {"window": state["window"] + 1}, chunk

    def _sample(self, state: State, limit: int) -> tuple[State, Chunk]:
        num_draws, thin = self._plan.num_draws, self._thin(state)
        total = num_draws * thin
        if state["drawn"] >= num_draws:
            return state, Chunk("sampling", 0, total, total, finished=True)
        state, recorded, steps = self._advanced(state, limit, num_draws, thin, adapting=False)
        draws: tuple[Draws, ...] = ()
        if recorded is not None:
            draws = tuple(self._draws(recorded, chain) for chain in range(self.num_chains))
            if self._inexact:
                weights = recorded["stats"]["valid"].astype(float)
                state["sample"] = add_to_sample(state["sample"], jax.tree.leaves(recorded["position"]), weights)
        done = state["drawn"] * thin + (thin - state["left"] if state["left"] else 0)
        finished = state["drawn"] >= num_draws
        return state, Chunk("sampling", steps, done, total, shown(recorded), draws, finished)

    # What they have in common.

    @functools.cached_property
    def _inexact(self) -> tuple[str, ...]:
        """The sites of blocks that do not accept or reject, whose steps may be too long."""
        return tuple(
            name for part in self._parts if not part.derived and not part.method.acceptances for name in part.names
        )

    @functools.cached_property
    def _finder(self) -> Finder:
        seed = self._plan.seed.child("geometry")
        return Finder(self._space.laid_out, self._space.example, self._plan.batches, self._space.programs, seed)

    @property
    def _sizes(self) -> list[int]:
        return [sum(np.size(self._space.example[name]) for name in part.names) for part in self._parts]

    @property
    def _epoch(self) -> int:
        return 1 if self._plan.batches is None else self._plan.batches.num_slices(self._target.num_data)

    def _with_noise(
        self, state: State, found: Found, scenes: dict[int, Landscape]
    ) -> tuple[State, dict[int, Landscape]]:
        """The noise of the blocks' gradients with that of labels, and a control variate if it is worth its price."""
        words = self._plan.seed.child("noise").key_words()
        generator = self._plan.seed.child("places").generator()
        offsets = generator.standard_normal((NUM_PLACES, self._space.size))
        moved = offsets @ found.factor.T if found.factor.ndim == 2 else offsets * found.factor
        places = unflattened(self._space.example, (found.centre + moved).astype(self._dtype))
        centre = unflattened(self._space.example, found.centre.astype(self._dtype))
        target = self._rows(0)[0]
        slope = self._space.programs(sweeping.slope_at, None, self._target, centre)
        anchor = (tuple(jax.tree.leaves(centre)), tuple(np.asarray(leaf) for leaf in jax.tree.leaves(slope)))

        def noise(state: State) -> dict[int, Any]:
            drive = self._drive(state, adapting=True)
            arguments = (target, drive, places, words)
            return {
                number: jax.tree.map(
                    np.asarray,
                    self._space.programs(sweeping.noise_of, (self._static(state), number), *arguments),
                )
                for number in scenes
            }

        plain, anchored = noise(state), noise(state | {"anchor": anchor})
        largest = [max(float(flattened(variance).max()) for variance in found.values()) for found in (plain, anchored)]
        if LEAST_NOISE + 2 * largest[1] < largest[0]:
            state, plain = state | {"anchor": anchor}, anchored
        tunings = list(self._tunings(state))
        for number, variance in plain.items():
            scenes[number] = scenes[number]._replace(noise=float(flattened(variance).max()))
            tunings[number] = tunings[number]._replace(gradient_noise=variance)
        return state | {"tunings": tuple(tuning.as_plain() for tuning in tunings)}, scenes

    def _measured(self, part: Part, found: Found, number: int) -> tuple[Tuning, Landscape]:
        """The tuning of a stochastic-gradient block but for its step, and what decides on that."""
        whole = unflattened(self._space.example, found.centre)
        others = {name: value for name, value in whole.items() if name not in part.names}
        target = self._space.laid_out.given(others) if others else self._space.laid_out
        own = conditional.found_of(found, self._space.example, part.names)
        seed = self._plan.seed.child("measure", number)
        result = measured(self._space.programs, part.method, target, self._plan.batches, own, seed)
        return result.tuning._replace(epoch=self._epoch), result.scene

    def _num_burn_in(self, state: State) -> int:
        longer = 0 if state["time"] is None else math.ceil(TIMES_OF_BURN_IN * state["time"])
        return max(self._plan.num_warmup, longer)

    def _thin(self, state: State) -> int:
        if self._plan.thin is not None or state["time"] is None:
            return self._plan.thin or 1
        rows = self._target.num_data if self._plan.batches is None else self._plan.batches.size
        return thin_of(state["time"], self._plan.num_draws, rows * self._space.size)

    def _sampling(self, state: State) -> State:
        nothing = tuple((np.zeros((self.num_chains, 0, n), self._dtype),) * 2 for n in self._sizes)
        return state | {"phase": "sampling", "drawn": 0, "left": 0, "recent": nothing}

    def _tunings(self, state: State) -> tuple[Tuning, ...]:
        return tuple(
            Tuning.from_plain(plain, self._example_of(part))
            for part, plain in zip(self._parts, state["tunings"], strict=True)
        )

    def _example_of(self, part: Part) -> Any:
        """What its metric is over: a flat vector, for a block that adapts."""
        own = {name: self._space.example[name] for name in part.names}
        return flattened(own) if part.adapts else own

    def _static(self, state: State) -> Static:
        anchored = state["anchor"] is not None
        return Static(self._parts, self._has_labels, self._plan.batches, self._plan.keep, anchored)

    def _drive(self, state: State, *, adapting: bool) -> Drive:
        seed = self._plan.seed
        keys = seed.child("sweeps").keys(self.num_chains), seed.child("minibatches").keys(self.num_chains)
        accepts = tuple(
            np.asarray(part.method.acceptances[0] if part.adapts else 0.0, self._dtype) for part in self._parts
        )
        anchor: Any = None if state["anchor"] is None else tuple(map(self._space.tree, state["anchor"]))
        return Drive(self._tunings(state), np.asarray(adapting), accepts, keys, anchor)

    def _carry(self, state: State) -> Carry:
        """All that the chains know, of which the state has the leaves."""
        if self._structure is None:
            static, drive = self._static(state), self._drive(state, adapting=True)
            shapes = jax.eval_shape(
                lambda *arguments: sweeping.begin(static, *arguments),
                self._rows(0)[0],
                drive,
                self._adaptations(state),
                self._space.tree(state["positions"]),
            )
            self._structure = jax.tree.structure(shapes)
        return jax.tree.unflatten(self._structure, state["carry"])

    def _adaptations(self, state: State) -> tuple[dual_averaging.Adaptation, ...]:
        return tuple(
            dual_averaging.begin(float(tuning.step_size) if part.adapts else 1.0, self.num_chains, self._dtype)
            for part, tuning in zip(self._parts, self._tunings(state), strict=True)
        )

    def _rows(self, sweep: int) -> tuple[Posterior, int]:
        """The target with its rows in the order of this sweep, and how many sweeps they keep it."""
        if self._space.rows is None:
            return self._target, 2**30
        data, most = self._space.rows[1].at(sweep)
        return self._target.with_data(data), most

    def _advanced(
        self, state: State, limit: int, num_draws: int, stride: int, *, adapting: bool
    ) -> tuple[State, dict[str, Any] | None, int]:
        """The state after some sweeps, what was recorded of the draws (draws, chains, ...), and how many there were."""
        target, most = self._rows(state["sweep"])
        drive, static = self._drive(state, adapting=adapting), self._static(state)
        if state["carry"] is None:
            positions = self._space.tree(state["positions"])
            arguments = (target, drive, self._adaptations(state), positions)
            carry = self._space.programs(sweeping.begin, static, *arguments)
        else:
            carry = self._carry(state)
        segments, made, left = segmented(self._capacity, min(limit, most), num_draws - state["drawn"], stride, state)
        carry, recorded = self._space.programs(sweeping.advance, static, target, drive, carry, segments)
        leaves, self._structure = jax.tree.flatten(carry)
        steps = int(segments.counts.sum())
        more = {"carry": tuple(leaves), "sweep": state["sweep"] + steps, "drawn": state["drawn"] + made, "left": left}
        if not made:
            return state | more, None, steps
        chosen = segments.draws
        return state | more, jax.tree.map(lambda array: np.array(np.asarray(array)[chosen]), recorded), steps

    @functools.cached_property
    def _capacity(self) -> int:
        """How many draws a chunk can have."""
        size = self._space.size + (self._target.num_data if self._has_labels and self._plan.batches is None else 0)
        bytes_a_draw = 3 * size * self._dtype.itemsize * self.num_chains
        return int(np.clip(MOST_BYTES_A_CHUNK // max(bytes_a_draw, 1), 1, MOST_SWEEPS_A_CHUNK))

    def _gathered(self, state: State, recorded: dict[str, Any] | None) -> State:
        """The state with the positions and gradients of adapting blocks, for their next metrics."""
        if recorded is None:
            return state
        recent, tunings = [], self._tunings(state)
        for number, (part, pair) in enumerate(zip(self._parts, state["recent"], strict=True)):
            if not part.adapts:
                recent.append(pair)
                continue
            leaves = [recorded["position"][name] for name in sorted(part.names)]
            flat = np.concatenate([leaf.reshape(*leaf.shape[:2], -1) for leaf in leaves], axis=2)
            slopes = conditional.plain(tunings[number].metric, recorded["gradients"][number])
            new = (np.swapaxes(flat, 0, 1), np.swapaxes(slopes, 0, 1))
            recent.append(tuple(np.concatenate([old, more], axis=1) for old, more in zip(pair, new, strict=True)))
        return state | {"recent": tuple(recent)}

    def _renewed(self, state: State) -> State:
        """The state with metrics from the draws of the window, and steps that adapt anew."""
        carry = self._carry(state)
        tunings, adaptations, recent = list(self._tunings(state)), list(carry.adaptations), []
        for number, (part, (draws, slopes)) in enumerate(zip(self._parts, state["recent"], strict=True)):
            recent.append((draws[:, :0], slopes[:, :0]))
            if not part.adapts:
                continue
            kind = kind_of(part.method.metric, draws.shape[2])
            step = float(np.exp(np.asarray(adaptations[number].numbers)[1]))
            metric = conditional.metric_of(kind, draws, slopes, tunings[number].metric, self._dtype)
            tunings[number] = tunings[number]._replace(metric=metric)
            adaptations[number] = dual_averaging.begin(step, self.num_chains, self._dtype)
        carry = carry._replace(adaptations=tuple(adaptations))
        plain = tuple(tuning.as_plain() for tuning in tunings)
        return state | {"tunings": plain, "carry": tuple(jax.tree.leaves(carry)), "recent": tuple(recent)}

    def _draws(self, recorded: dict[str, Any], chain: int) -> Draws:
        reported, position, stats = (
            jax.tree.map(lambda leaf: leaf[:, chain], recorded[name]) for name in ("reported", "position", "stats")
        )
        return self._plan.keep.grouped(reported, position, stats)
