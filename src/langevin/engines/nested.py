"""The engine of a variational block inside samplers over the rest: the block's bound stands for its log-marginal.

Phases:

1. "centre": a point where the bound is high, found by L-BFGS over the other sites; and how the q of the block moves
   with them around it, by differences. From there on every search for q begins near where it ends.
2. The phases of the engine over the other sites, whose target is exp(bound).

For each of its draws the block is drawn from q given the others: a function of the seed and of the draw's number. What
the draws say of the bound: log p - log q - bound is 0 on average at each point. Half its variance is the gap of the
bound to leading order, and where the gap changes with the others, the target is tilted.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from langevin.contracts import Chunk, Draws, Engine, Outcome, Plan, Position, State
from langevin.engines import summit
from langevin.engines.drawing import ratios_of
from langevin.errors import SamplingError
from langevin.geometry.starts import flattened, unflattened
from langevin.keys import at_step
from langevin.posterior import Posterior
from langevin.run.compilation import Programs
from langevin.run.gist import gist_of_density
from langevin.run.keep import Keep
from langevin.run.seeds import key_of
from langevin.variational import marginal as nesting
from langevin.variational.marginal import Nest, Start

DRAWS_A_GROUP = 16
# How q moves with the other sites is found by differences of this size, if there are not too many.
SPACING = 0.05
MOST_SLOPES = 32
# The gap of the bound is looked at for so many draws of the others, by so many draws of the block for each.
NUM_PLACES, NUM_AT_A_PLACE = 128, 8
Inner = Callable[[Posterior, Plan], Engine]


class NestedEngine:
    """Samplers over the other sites, with the block drawn after.

    Args:
        inner: Makes the engine over the other sites.
        nest: The block.
        target: The posterior of all sites.
        plan: What was asked of the run.
    """

    def __init__(self, inner: Inner, nest: Nest, target: Posterior, plan: Plan) -> None:
        self._make, self._nest, self._target, self._plan = inner, nest, target, plan
        like = target.model.like
        example = jax.tree.map(np.asarray, target.start(np.random.default_rng(0)))
        self._others = {name: example[name] for name in like if name not in nest.names}
        self._block = {name: example[name] for name in nest.names}
        self._dtype = np.result_type(*jax.tree.leaves(example))
        self._size = 1 if nest.by_row else flattened(self._block).size
        self._start = nesting.cold(flattened(self._others).size, self._size, self._dtype)
        self._engine: tuple[bytes, Engine] | None = None
        batch = None if plan.batches is None else plan.batches.size
        first = nesting.marginal(target, nest, self._start)
        gist = lambda: gist_of_density(first, self._others, batch)  # noqa: E731
        self._programs = Programs(gist, max(self._size, target.num_data) * plan.num_chains)

    @property
    def num_chains(self) -> int:
        """As many as were asked for."""
        return self._plan.num_chains

    def begin(self) -> State:
        """Before the centre is known."""
        nothing = np.zeros((0, flattened(self._others).size), self._dtype)
        return {
            "phase": "centre",
            "start": None,
            "inner": None,
            "counts": (0,) * self.num_chains,
            "judged": np.zeros((2, 0)),
            "others": nothing,
            "looks": np.zeros(2),
        }

    def advance(self, state: State, limit: int) -> tuple[State, Chunk]:
        """The centre, or some steps of the engine over the others."""
        if state["start"] is None:
            start = self._centred()
            state = state | {"start": tuple(np.asarray(part) for part in start)}
            inner = self._inner(state).begin()
            return state | {"inner": inner, "phase": inner["phase"]}, Chunk("centre", 1, 1, 1)
        inner, chunk = self._inner(state).advance(state["inner"], limit)
        state = state | {"inner": inner, "phase": inner["phase"]}
        if not chunk.draws or self._nest.by_row:
            return state, chunk
        state, draws = self._completed(state, chunk.draws)
        return state, chunk._replace(draws=draws)

    def finish(self, state: State) -> Outcome:
        """What the engine over the others says, and how tight the bound is."""
        outcome = self._inner(state).finish(state["inner"])
        evidence = dict(outcome.evidence)
        settings = dict(outcome.settings)
        if self._nest.by_row:
            evidence["unchecked"] = {"why": "the sites of the rows have a bound in place of draws"}
        else:
            evidence |= ratios_of(state["judged"]) | self._gap(state)
            settings["looks_a_gradient"] = float(state["looks"][0] / max(state["looks"][1], 1))
        centring = {name: np.asarray(values) for name, values in self._target.centring.items()}
        return outcome._replace(evidence=evidence, settings=settings, centring=centring)

    def cut_short(self, state: State) -> State | None:
        """As the engine over the others says."""
        if state["inner"] is None:
            return None
        inner = self._inner(state).cut_short(state["inner"])
        return None if inner is None else state | {"inner": inner, "phase": inner["phase"]}

    def fingerprint(self) -> str:
        """A digest of the bound, its gradient, and of what is kept of a draw."""
        first = nesting.marginal(self._target, self._nest, self._start)
        batches, batch = self._plan.batches, None
        if batches is not None:
            batch = jax.tree.map(lambda column: column[: batches.size], self._target.data)
        return self._programs.digest(_fingerprint, (self._nest, self._plan.keep), first, self._others, batch)

    # The parts.

    def _inner(self, state: State) -> Engine:
        """The engine over the others. It is a function of the start of q, which the state holds."""
        mark = b"".join(np.asarray(part).tobytes() for part in state["start"])
        if self._engine is None or self._engine[0] != mark:
            target = nesting.marginal(self._target, self._nest, Start(*state["start"]))
            self._engine = (mark, self._make(target, self._inner_plan))
        return self._engine[1]

    @property
    def _inner_plan(self) -> Plan:
        keep = self._plan.keep if self._nest.by_row else Keep(unconstrained=True)
        init = self._plan.init
        if init is not None:
            example = {**self._others, **self._block}
            init = init[:, np.concatenate([np.full(example[n].size, n in self._others) for n in sorted(example)])]
        return self._plan._replace(keep=keep, init=init)

    def _centred(self) -> Start:
        """A start around a point where the bound is high.

        Raises:
            SamplingError: If there is none with a finite bound.
        """
        start = self._start
        at = lambda point: self._bound(start, point)  # noqa: E731
        generator = self._plan.seed.child("centre").generator()
        point = summit.first_finite(at, start.centre.size, self._dtype, generator)
        if point is None:
            raise SamplingError(
                f"`Hybrid`: the bound of the block {', '.join(map(repr, self._nest.names))} is not finite at any start."
                " Check the sites that it depends on, or give the block to lv.NUTS()."
            )
        for _ in range(2):
            start = self._at(start, point)
            point = summit.climbed(at, point)
        start = self._at(start, point)
        if point.size > MOST_SLOPES:
            return start
        slopes = summit.with_differences(lambda x: list(self._q(start, x)), point, SPACING)
        fine = all(np.isfinite(slope).all() for slope in slopes)
        return start._replace(mean_slope=slopes[0], log_sd_slope=slopes[1]) if fine else start

    def _bound(self, start: Start, point: np.ndarray) -> tuple[float, np.ndarray]:
        target = nesting.marginal(self._target, self._nest, start)
        value, gradient = self._programs(_bound, None, target, unflattened(self._others, point))
        return float(value), flattened(jax.tree.map(np.asarray, gradient)).astype(np.float64)

    def _at(self, start: Start, point: np.ndarray) -> Start:
        """A start at this point, with the q there."""
        mean, log_sd = self._q(start, point)
        return start._replace(centre=point, mean=mean, log_sd=log_sd)

    def _q(self, start: Start, point: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        arguments = (self._target, start, unflattened(self._others, point))
        mean, log_sd = jax.tree.map(np.asarray, self._programs(_found, self._nest, *arguments))
        if self._nest.by_row:
            mean, log_sd = np.median(mean, keepdims=True), np.median(log_sd, keepdims=True)
        return mean, log_sd

    def _completed(self, state: State, draws: tuple[Draws, ...]) -> tuple[State, tuple[Draws, ...]]:
        """The draws of the others with those of the block."""
        completed, counts, judged, others, looks = [], [], [state["judged"]], [state["others"]], state["looks"]
        for chain, (part, first) in enumerate(zip(draws, state["counts"], strict=True)):
            leaves = [part["unconstrained_posterior"][name] for name in sorted(self._others)]
            count = len(leaves[0])
            sizes = [self._others[name].size for name in sorted(self._others)]
            flat = np.concatenate([leaf.reshape(count, n) for leaf, n in zip(leaves, sizes, strict=True)], axis=1)
            flat = flat.astype(self._dtype)
            counts.append(first + count)
            if not count:
                completed.append({})
                continue
            position, reported, log_p, log_q, count = self._drawn(state, chain, first, flat)
            stats = part["sample_stats"] | {"log_density": log_p, "log_q": log_q}
            if "n_steps" in stats:
                # A search for q reads everything at every look, and the gradient of the bound once more.
                looks = looks + np.asarray([(stats["n_steps"] * (count + 1.0)).sum(), stats["n_steps"].sum()])
            completed.append(self._plan.keep.grouped(reported, position, stats))
            judged.append(np.stack([log_p, log_q]).astype(np.float64))
            others.append(flat)
        more = {"counts": tuple(counts), "judged": np.concatenate(judged, axis=1), "others": np.concatenate(others)}
        return state | more | {"looks": looks}, tuple(completed)

    def _drawn(self, state: State, chain: int, first: int, flat: np.ndarray) -> Any:
        """Draws of the block. A draw's place in its group is told by its number, however a run is cut."""
        offset = first % DRAWS_A_GROUP
        before, after = np.repeat(flat[:1], offset, axis=0), -(offset + len(flat)) % DRAWS_A_GROUP
        padded = np.concatenate([before, flat, np.repeat(flat[-1:], after, axis=0)])
        numbers = np.arange(first - offset, first - offset + len(padded), dtype=np.uint32)
        words = self._plan.seed.child("block", chain).key_words()
        static, outs = (self._nest, self._plan.keep), []
        for begun in range(0, len(padded), DRAWS_A_GROUP):
            group = slice(begun, begun + DRAWS_A_GROUP)
            others = unflattened(self._others, padded[group])
            arguments = (self._target, Start(*state["start"]), others, words, numbers[group])
            outs.append(jax.tree.map(np.asarray, self._programs(_draws, static, *arguments)))
        return jax.tree.map(lambda *parts: np.concatenate(parts)[offset : offset + len(flat)], *outs)

    def _gap(self, state: State) -> dict[str, dict[str, Any]]:
        """The gap of the bound, and by how many sds the means of the others move where it is put back."""
        flat = state["others"]
        if len(flat) < NUM_PLACES:
            return {}
        some = flat[np.linspace(0, len(flat) - 1, NUM_PLACES).astype(int)]
        words = self._plan.seed.child("gap").key_words()
        arguments = (self._target, Start(*state["start"]), unflattened(self._others, some), words)
        log_ratios = np.asarray(self._programs(_log_ratios, self._nest, *arguments), np.float64)
        gaps = np.var(log_ratios, axis=1, ddof=1) / 2
        if not np.isfinite(gaps).all():
            return {}
        scores = (some - flat.mean(axis=0)) / np.maximum(flat.std(axis=0), 1e-12)
        shifts = np.mean(scores * (gaps - gaps.mean())[:, None], axis=0)
        errors = np.std(scores * (gaps - gaps.mean())[:, None], axis=0) / np.sqrt(len(some))
        worst = int(np.argmax(np.abs(shifts) - 3 * errors))
        names = [name for name in sorted(self._others) for _ in range(self._others[name].size)]
        numbers = {"gap": float(gaps.mean()), "shift": float(shifts[worst]), "error": float(errors[worst])}
        return {"nested": numbers | {"name": names[worst], "block": list(self._nest.names)}}


def _bound(_: None, target: Posterior, others: Position) -> Any:
    return jax.value_and_grad(target.log_density)(others)


def _found(nest: Nest, target: Posterior, start: Start, others: Position) -> tuple[jax.Array, jax.Array]:
    found = nesting.search(target, nest, start, others, target.rows)
    return found.q.mean, jnp.log(nest.form.sds(found.q.precision))


def _draws(
    static: tuple[Nest, Keep], target: Posterior, start: Start, others: Position, words: jax.Array, numbers: jax.Array
) -> Any:
    nest, keep = static

    def one(at: Position, number: jax.Array) -> Any:
        key = at_step(key_of(words), number)
        block, log_p, log_q, count = nesting.draw(target, nest, start, at, key)
        position = {**at, **block}
        return position, keep.reported(target.constrain(position)), log_p, log_q, count

    return jax.vmap(one)(others, numbers)


def _log_ratios(nest: Nest, target: Posterior, start: Start, others: Position, words: jax.Array) -> jax.Array:
    """The numbers log p - log q - bound at several draws of the block for each of some points."""

    def one(inputs: Any) -> jax.Array:
        at, number = inputs
        keys = jax.random.split(at_step(key_of(words), number), NUM_AT_A_PLACE)

        def ratio(key: jax.Array) -> jax.Array:
            _, log_p, log_q, _ = nesting.draw(target, nest, start, at, key)
            return log_p - log_q

        return jax.vmap(ratio)(keys)

    return jax.lax.map(one, (others, jnp.arange(NUM_PLACES, dtype=jnp.uint32)))


def _fingerprint(static: tuple[Nest, Keep], target: Posterior, others: Position, batch: Any) -> Any:
    del static
    return jax.value_and_grad(target.log_density)(others, batch)
