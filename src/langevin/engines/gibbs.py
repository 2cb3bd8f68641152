"""The engine of Gibbs sampling: each block from its complete conditional, in turn.

Phases: "warm-up" and "sampling". Chains start at random values, and their blocks are drawn one after the other. All of
it is computed in double precision.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from langevin.conjugacy import starting
from langevin.conjugacy.conditionals import Conditionals
from langevin.contracts import Chunk, Outcome, Plan, State
from langevin.engines.double import as_double
from langevin.engines.given import Reports, given_back, of_one
from langevin.errors import SamplingError
from langevin.models.joint import Joint
from langevin.run.compilation import Programs, import_beside
from langevin.run.seeds import key_of

if TYPE_CHECKING:
    from langevin.methods.conjugate import Gibbs

MOST_A_CHUNK = 500
# A sweep factors the precision of every Gaussian, and there are thousands of sweeps.
MOST_TOGETHER = 64


class GibbsEngine:
    """Gibbs sampling from one target.

    Args:
        method: The settings, an `lv.Gibbs`.
        target: The program and its rows.
        plan: What was asked of the run.
    """

    def __init__(self, method: Gibbs, target: Joint, plan: Plan) -> None:
        import_beside()
        self._method, self._plan, self._joint = method, plan, target
        self._float = jnp.result_type(float)
        with jax.enable_x64(True):
            self._conditionals = Conditionals(
                target, target.num_data, None, method.blocks, method.logistic, MOST_TOGETHER
            )
            self._spread = self._conditionals.check(plan.seed.child("check"), as_double(target.rows))
        self._programs = Programs(lambda: None, self._conditionals.largest)
        reports = Reports(self._conditionals, plan)
        self._kept = reports.kept
        self._thin = plan.thin or 1
        self._capacity = min(reports.length, MOST_A_CHUNK)

    @property
    def num_chains(self) -> int:
        """As many as were asked for."""
        return self._plan.num_chains

    def begin(self) -> State:
        """Random values of all sites."""
        values = [self._start(chain) for chain in range(self.num_chains)]
        stacked = jax.tree.map(lambda *leaves: np.stack(leaves), *values)
        return {"phase": "warm-up", "values": stacked, "sweep": 0, "drawn": 0}

    def advance(self, state: State, limit: int) -> tuple[State, Chunk]:
        """At most so many sweeps."""
        with jax.enable_x64(True):
            return self._advance(state, limit)

    def finish(self, state: State) -> Outcome:
        """Chains, and whether they have mixed."""
        del state
        evidence: dict[str, dict[str, Any]] = {"finite": {}, "stuck": {}, "mixing": {"exact": True}}
        blocks = [list(block.sites) for block in self._conditionals.blocks]
        return Outcome(evidence, {"thin": self._thin, "blocks": blocks})

    def cut_short(self, state: State) -> State | None:
        """A chain in warm-up has nothing."""
        del state
        return None

    def fingerprint(self) -> str:
        """A digest of a sweep."""
        with jax.enable_x64(True):
            return self._programs.digest(_run, self._what(True), *self._arguments(self.begin(), 1))

    def _advance(self, state: State, limit: int) -> tuple[State, Chunk]:
        warm, num_draws = state["phase"] == "warm-up", self._plan.num_draws
        total = self._plan.num_warmup if warm else num_draws * self._thin
        since = state["sweep"]
        if warm and total == 0:
            return state | {"phase": "sampling", "sweep": 0}, Chunk("warm-up", 1, 0, 0)
        if not warm and state["drawn"] >= num_draws:
            return state, Chunk("sampling", 0, total, total, finished=True)
        # Draws are kept at the ends of stretches of `thin` sweeps, wherever the run is cut.
        count = max(min(limit, total - since, self._capacity * (1 if warm else self._thin)), 1)
        values, kept = self._programs(_run, self._what(warm), *self._arguments(state, count))
        values = jax.tree.map(np.asarray, values)
        moved = state | {"values": values, "sweep": since + count}
        if warm:
            if since + count >= total:
                moved |= {"phase": "sampling", "sweep": 0}
            return moved, Chunk("warm-up", count, since + count, total, later=num_draws * self._thin)
        number = (since + count) // self._thin - since // self._thin
        draws = self._draws(kept, number)
        moved |= {"drawn": state["drawn"] + number}
        over = moved["drawn"] >= num_draws
        return moved, Chunk("sampling", count, since + count, total, draws=draws, finished=over)

    def _draws(self, kept: Any, number: int) -> tuple[Any, ...]:
        if not number:
            return ()
        keep = self._plan.keep
        kept = jax.tree.map(np.asarray, kept)
        if not np.isfinite(kept[2]["log_density"][:, :number]).all():
            raise SamplingError(
                "The log joint density is not finite at a draw: a conditional is no proper distribution. Give every "
                "site a prior that is proper."
            )

        def one(leaf: Any, chain: int) -> np.ndarray:
            leaf = leaf[chain, :number]
            return leaf.astype(self._float) if leaf.dtype == np.float64 else leaf

        draws = []
        for chain in range(self.num_chains):
            reported, position, stats = jax.tree.map(lambda leaf, c=chain: one(leaf, c), kept)
            draws.append(keep.grouped(of_one(keep, reported), position, stats))
        return tuple(draws)

    def _arguments(self, state: State, count: int) -> tuple[Any, ...]:
        words = [self._plan.seed.child(state["phase"], chain).key_words() for chain in range(self.num_chains)]
        counters = np.asarray([state["sweep"], count], np.int32)
        return self._joint.rows, state["values"], np.stack(words), counters

    def _what(self, warm: bool) -> _What:
        return _What(self._conditionals, self._kept, self._capacity, 0 if warm else self._thin)

    def _start(self, chain: int) -> dict[str, np.ndarray]:
        generator = self._plan.seed.child("starts").generator(chain)
        with jax.enable_x64(True):
            conditionals = self._conditionals
            return {name: starting.value(conditionals, name, self._spread, generator) for name in conditionals.latents}


class _What(NamedTuple):
    conditionals: Conditionals
    kept: tuple[str, ...]
    capacity: int
    thin: int


def _run(what: _What, rows: Any, values: Any, words: Any, counters: Any) -> Any:
    """So many sweeps of every chain, and what is kept of them."""
    conditionals, kept, capacity, thin = what
    rows = as_double(rows)
    equations = conditionals.at(rows)

    def sweep(values: Any, key: Any) -> Any:
        statistics = conditionals.statistics(values)
        values = dict(values)
        for number, block in enumerate(conditionals.blocks):
            eta = equations.natural(block.name, statistics)
            drawn = equations.families[block.name].sample(jax.random.fold_in(key, number), eta)
            statistics[block.name] = block.family.statistics(drawn)
            values |= block.from_value(drawn)
        return values, statistics

    def reported(values: Any, statistics: Any) -> Any:
        sites, position = given_back(conditionals, values, rows, kept)
        return sites, position, {"log_density": equations.log_joint(statistics)}

    def chain(values: Any, own: Any) -> Any:
        key = key_of(own)
        example = jax.eval_shape(reported, values, jax.eval_shape(conditionals.statistics, values))
        room = capacity if thin else 1
        buffer = jax.tree.map(lambda leaf: jnp.zeros((room, *leaf.shape), leaf.dtype), example)

        def step(i: Any, carried: Any) -> Any:
            values, buffer = carried
            number = counters[0] + i
            values, statistics = sweep(values, jax.random.fold_in(key, number))
            if thin:
                place = (number + 1) // thin - counters[0] // thin - 1

                def write(buffer: Any) -> Any:
                    now = reported(values, statistics)
                    return jax.tree.map(lambda rows, leaf: rows.at[place].set(leaf), buffer, now)

                buffer = jax.lax.cond((number + 1) % thin == 0, write, lambda buffer: buffer, buffer)
            return values, buffer

        return jax.lax.fori_loop(0, counters[1], step, (values, buffer))

    return jax.lax.map(lambda pair: chain(*pair), (values, words))
