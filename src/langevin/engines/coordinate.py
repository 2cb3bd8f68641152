"""The engine of coordinate ascent: from starts to a maximum of the bound, and draws from q.

Phases: "search" (a few sweeps from every start, side by side), "ascent" (sweeps from the best, until less than the
tolerance is left to gain; or steps on minibatches), and "drawing", in blocks of draws. All of it is computed in double
precision.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from langevin.conjugacy import ascent, starting
from langevin.conjugacy.ascent import Climb
from langevin.conjugacy.conditionals import Conditionals
from langevin.contracts import Chunk, Group, Outcome, Plan, State
from langevin.data.batches import Batches, Layout
from langevin.data.pieces import LayoutOfPieces
from langevin.engines import searching
from langevin.engines.double import as_double
from langevin.engines.drawing import ratios_of
from langevin.engines.given import Drawn, Reports
from langevin.errors import SamplingError
from langevin.models.joint import Joint
from langevin.run.compilation import Programs, import_beside, run
from langevin.run.seeds import key_of

if TYPE_CHECKING:
    from langevin.methods.conjugate import CAVI

MOST_A_CHUNK, MOST_SWEEPS = 256, 20_000
SWEEPS_OF_SEARCH, SWEEPS_OF_BATCH = 20, 100
# Starts where labels can be exchanged: so many, as far as their statistics do not become larger than this.
RESTARTS, LEAST_RESTARTS, MOST_SEARCHED = 30, 2, 4_000_000
LEAST_STEPS, PASSES = 2000, 2


class CoordinateEngine:
    """Coordinate ascent on one target.

    Args:
        method: The settings, an `lv.CAVI`.
        target: The program and its rows.
        plan: What was asked of the run.
    """

    def __init__(self, method: CAVI, target: Joint, plan: Plan) -> None:
        import_beside()
        self._method, self._plan, self._joint = method, plan, target
        self._layout = _layout(target, plan)
        num_rows = target.num_data if plan.batches is None else plan.batches.size
        with jax.enable_x64(True):
            self._conditionals = Conditionals(target, num_rows, None, method.blocks, method.logistic)
            self._spread = self._conditionals.check(plan.seed.child("check"), as_double(self._some_rows(num_rows)))
        self._programs = Programs(lambda: None, self._conditionals.largest)
        self._reports = Reports(self._conditionals, plan)
        self._num_restarts = self._restarts()
        self._sampled = self._of_sample()
        with jax.enable_x64(True):
            first = {name: self._like(name) for name in self._drawn_blocks}
            self._reports.prepare(self._programs, first, self._joint.rows)

    @property
    def num_chains(self) -> int:
        """As many as were asked for."""
        return self._plan.num_chains

    def begin(self) -> State:
        """Starts that nothing is known of."""
        search = self._num_restarts > 1 and self._layout is None
        starts = self._starts(self._conditionals, self._num_restarts if search else 1)
        climb = starts if search else jax.tree.map(lambda leaf: leaf[0], starts)
        return {
            "phase": "search" if search else "ascent",
            "climb": climb._asdict(),
            "mean": None,
            "sweep": 0,
            "bounds": np.zeros(0),
            "searched": np.zeros((self._num_restarts if search else 0, 0)),
            "best": 0,
            "drawn": 0,
            "judged": np.zeros((2, 0)),
        }

    def advance(self, state: State, limit: int) -> tuple[State, Chunk]:
        """At most so many sweeps, or steps on minibatches; of the draws, a block."""
        with jax.enable_x64(True):
            if state["phase"] == "search":
                return self._search(state, limit)
            if state["phase"] == "ascent":
                return self._step(state, limit) if self._layout is not None else self._ascend(state, limit)
            return self._draw(state)

    def finish(self, state: State) -> Outcome:
        """Whether the ascent came to its end, and how far q is from the posterior."""
        climb = Climb(**state["climb"])
        naturals = {block.name: climb.naturals[block.name] for block in self._global}
        with jax.enable_x64(True):
            left, described = jax.tree.map(np.asarray, run(self._described, naturals, climb.last))
        settled = self._layout is not None or bool(climb.settled)
        evidence: dict[str, dict[str, Any]] = {
            "finite": {"density": False},
            "ascent": {
                "settled": settled,
                "sweeps": int(state["sweep"]),
                "left": float(left) if np.isfinite(left) else None,
                "fall": float(climb.fall),
            },
        }
        evidence |= ratios_of(state["judged"])
        if "ratios" not in evidence:
            by_size = f"importance ratios in {self._size:,} dimensions tell nothing"
            by_batch = "importance ratios take all rows, and this fit sees minibatches"
            evidence["unchecked"] = {"why": by_size if self._layout is None else by_batch}
        named = {f"{block}.{name}": array for block, arrays in described.items() for name, array in arrays.items()}
        variables = {name: (_axes(name, array), array) for name, array in named.items()}
        groups = {
            "optimisation": Group({"elbo": (("restart", "step"), state["bounds"][None])}, {"best": 0}),
            "parameters": Group(variables),
        }
        blocks = [list(block.sites) for block in self._conditionals.blocks]
        settings = {"thin": 1, "num_warmup": 0, "blocks": blocks, "num_sweeps": int(state["sweep"])}
        return Outcome(evidence, settings, self._remark(), groups=groups)

    def cut_short(self, state: State) -> State | None:
        """The q that there is, once there was a sweep."""
        if state["phase"] == "drawing":
            return state | {"drawn": 0, "judged": np.zeros((2, 0))}
        if state["phase"] == "search":
            return state | self._chosen(state) | {"phase": "drawing"} if state["sweep"] else None
        return state | {"phase": "drawing"} if state["sweep"] else None

    def fingerprint(self) -> str:
        """A digest of a sweep."""
        with jax.enable_x64(True):
            climb = self._begun(0, self._conditionals)
            batch = self._some_rows(self._joint.num_data if self._plan.batches is None else self._plan.batches.size)
            return self._programs.digest(_swept, self._conditionals, batch, climb, np.ones((), np.int32), 1.0)

    # The phases.

    def _search(self, state: State, limit: int) -> tuple[State, Chunk]:
        climb, count = Climb(**state["climb"]), min(limit, SWEEPS_OF_SEARCH - state["sweep"])
        if self._sampled is not None and state["sweep"] == 0:
            climb = self._with_sampled(self._sampled, climb)
        static = searching.restarts(self._conditionals, self._num_restarts, SWEEPS_OF_SEARCH)
        arguments = self._joint.rows, climb, np.asarray(count, np.int32), self._tolerance
        climb, bounds, _ = jax.tree.map(np.asarray, self._programs(searching.searched, static, *arguments))
        sweep = state["sweep"] + count
        # A start that has settled stays where it is.
        bounds = np.where(np.isnan(bounds), climb.last[:, -1:], bounds)[:, :count]
        state = state | {
            "climb": climb._asdict(),
            "sweep": sweep,
            "searched": np.concatenate([state["searched"], bounds], axis=1),
        }
        shown = {"bound": float(np.nanmax(climb.last[:, -1]))}
        chunk = Chunk("search", count, sweep, SWEEPS_OF_SEARCH, shown, later=SWEEPS_OF_SEARCH)
        if sweep < SWEEPS_OF_SEARCH:
            return state, chunk
        return state | self._chosen(state) | {"phase": "ascent"}, chunk

    def _chosen(self, state: State) -> State:
        """The start with the highest bound."""
        climb = Climb(**state["climb"])
        if not climb.proper.any():
            raise self._improper(jax.tree.map(lambda leaf: leaf[0], climb))
        best = int(np.argmax(np.where(climb.proper, climb.last[:, -1], -np.inf)))
        climb = jax.tree.map(lambda leaf: leaf[best], climb)
        return {"climb": climb._asdict(), "best": best, "bounds": state["searched"][best]}

    def _ascend(self, state: State, limit: int) -> tuple[State, Chunk]:
        most = self._method.num_sweeps or MOST_SWEEPS
        climb, count = Climb(**state["climb"]), max(min(limit, MOST_A_CHUNK, most - state["sweep"]), 0)
        arguments = self._joint.rows, climb, np.asarray(count, np.int32), self._tolerance
        climb, bounds, done = jax.tree.map(np.asarray, self._programs(_swept, self._conditionals, *arguments))
        if not climb.proper:
            raise self._improper(climb)
        sweep = state["sweep"] + int(done)
        state = state | {
            "climb": climb._asdict(),
            "sweep": sweep,
            "bounds": np.concatenate([state["bounds"], bounds[: int(done)]]),
        }
        chunk = Chunk("ascent", max(int(done), 1), sweep, most, {"bound": float(climb.last[-1])})
        return (state | {"phase": "drawing"} if climb.settled or sweep >= most else state), chunk

    def _step(self, state: State, limit: int) -> tuple[State, Chunk]:
        batches, layout, step = self._plan.batches, self._layout, state["sweep"]
        assert batches is not None
        assert layout is not None
        slices = batches.num_slices(self._joint.num_data)
        passes = self._method.num_sweeps or max(PASSES, -(-LEAST_STEPS // slices))
        most = passes * slices
        data, left = layout.at(step)
        count = max(min(limit, MOST_A_CHUNK, most - step, left), 0)
        climb = Climb(**state["climb"])
        naturals = {block.name: climb.naturals[block.name] for block in self._global}
        if step == 0:
            naturals = self._first_naturals(data)
        static = _Steps(self._conditionals, batches, layout.num_rows)
        # The mean is over whole passes, in which all rows count alike.
        last = passes // 2 * slices or most // 2
        schedule = np.asarray([step, self._method.delay, self._method.forgetting, most - last])
        words = self._plan.seed.child("minibatches").key_words()
        mean = naturals if state["mean"] is None else state["mean"]
        arguments = data, naturals, mean, words, np.asarray(count, np.int32), schedule
        naturals, mean, bounds, proper = jax.tree.map(np.asarray, self._programs(_stepped, static, *arguments))
        is_over = step + count >= most
        naturals = {**climb.naturals, **(mean if is_over else naturals)}
        bounds = bounds[:count]
        climb = climb._replace(naturals=naturals, last=bounds[-3:] if count >= 3 else climb.last, proper=proper)
        if not proper:
            raise self._improper(climb)
        state = state | {
            "climb": climb._asdict(),
            "mean": None if is_over else mean,
            "sweep": step + count,
            "bounds": np.concatenate([state["bounds"], bounds]),
        }
        chunk = Chunk("ascent", max(count, 1), step + count, most, {"bound": float(np.mean(bounds[-20:]))})
        return (state | {"phase": "drawing"} if is_over else state), chunk

    def _first_naturals(self, data: Any) -> dict[str, Any]:
        """Those of the best of some ascents on one minibatch as if it were all: there labels find their places."""
        batches = self._plan.batches
        assert batches is not None
        batch = jax.tree.map(lambda leaf: leaf[: batches.size], data)
        found = self._best(self._conditionals, batch, self._num_restarts)
        if not found.proper:
            raise self._improper(found)
        return {block.name: found.naturals[block.name] for block in self._global}

    def _best(self, conditionals: Conditionals, batch: Any, num_restarts: int) -> Climb:
        """The best of some ascents on some rows."""
        climbs = self._starts(conditionals, num_restarts)
        static = searching.restarts(conditionals, num_restarts, SWEEPS_OF_BATCH)
        arguments = batch, climbs, np.asarray(SWEEPS_OF_BATCH, np.int32), self._method.tolerance
        return searching.best(jax.tree.map(np.asarray, self._programs(searching.searched, static, *arguments)[0]))

    def _of_sample(self) -> Conditionals | None:
        """Conditionals of a sample of the rows, where there are too many to search all of them from all starts."""
        if self._layout is not None or self._method.num_restarts is not None or not 1 < self._num_restarts < RESTARTS:
            return None
        # As much work as the search on all rows is.
        work = self._num_restarts * SWEEPS_OF_SEARCH * searching.num_elements(self._conditionals)
        size = searching.sample_size(self._conditionals, work // (RESTARTS * SWEEPS_OF_BATCH))
        if not size:
            return None
        with jax.enable_x64(True):
            return Conditionals(self._joint, size, None, self._method.blocks, self._method.logistic)

    def _with_sampled(self, sampled: Conditionals, climbs: Climb) -> Climb:
        """The starts, the last of which is where the best ascent on the sample has ended."""
        rows, generator = self._joint.rows, self._plan.seed.child("sample").generator(0)
        chosen = np.sort(generator.choice(self._joint.num_data, sampled.num_rows, replace=False))
        found = self._best(sampled, jax.tree.map(lambda leaf: leaf[chosen], rows), RESTARTS)
        same = [block.name for block in sampled.blocks] == [block.name for block in self._conditionals.blocks]
        if not (same and found.proper):
            return climbs
        naturals = {block.name: found.naturals[block.name] for block in sampled.blocks if not block.local}
        statistics = jax.tree.map(np.asarray, self._programs(searching.placed, self._conditionals, rows, naturals))
        start = ascent.begun(statistics, self._conditionals)
        return jax.tree.map(lambda leaf, own: np.concatenate([leaf[:-1], own[None]]), climbs, start)

    def _draw(self, state: State) -> tuple[State, Chunk]:
        num_draws = self._plan.num_draws
        if state["drawn"] >= num_draws:
            return state, Chunk("drawing", 0, num_draws, num_draws, finished=True)
        naturals = {name: state["climb"]["naturals"][name] for name in self._drawn_blocks}
        drawn: Drawn = self._reports.block(naturals, state["drawn"], self._joint.rows)
        chunk = Chunk("drawing", 1, drawn.count, num_draws, {}, drawn.draws, finished=drawn.count >= num_draws)
        return state | {"drawn": drawn.count, "judged": np.concatenate([state["judged"], drawn.terms], axis=1)}, chunk

    # What they have in common.

    def _described(self, naturals: Any, last: Any) -> Any:
        return ascent.left_to_gain(last), ascent.named(self._global, naturals)

    @property
    def _global(self) -> tuple[Any, ...]:
        """The blocks that are not of the rows of a minibatch."""
        blocks = self._conditionals.blocks
        return tuple(block for block in blocks if not block.local) if self._layout is not None else blocks

    @property
    def _drawn_blocks(self) -> tuple[str, ...]:
        return tuple(block.name for block in self._global)

    def _like(self, name: str) -> dict[str, np.ndarray]:
        block = next(block for block in self._conditionals.blocks if block.name == name)
        return {key: np.zeros(leaf.shape) for key, leaf in block.family.like().items()}

    @property
    def _size(self) -> int:
        return sum(int(np.prod(block.family.value_shape)) for block in self._conditionals.blocks)

    @property
    def _tolerance(self) -> float:
        return self._method.tolerance if self._method.num_sweeps is None else 0.0

    def _restarts(self) -> int:
        if self._method.num_restarts is not None:
            return self._method.num_restarts
        if not any(block.values for block in self._conditionals.blocks):
            return 1
        return int(np.clip(MOST_SEARCHED // searching.num_elements(self._conditionals), LEAST_RESTARTS, RESTARTS))

    def _starts(self, conditionals: Conditionals, number: int) -> Climb:
        starts = [self._begun(kind, conditionals) for kind in range(number)]
        return jax.tree.map(lambda *leaves: np.stack(leaves), *starts)

    def _begun(self, kind: int, conditionals: Conditionals) -> Climb:
        generator = self._plan.seed.child("starts").generator(kind)
        with jax.enable_x64(True):
            return ascent.begun(starting.statistics(conditionals, self._spread, generator, kind), conditionals)

    def _some_rows(self, count: int) -> Any:
        return jax.tree.map(lambda leaf: leaf[:count], self._joint.data) if self._joint.num_data else self._joint.data

    def _improper(self, climb: Climb) -> SamplingError:
        for block in self._conditionals.blocks:
            with jax.enable_x64(True):
                if not bool(block.family.proper(climb.naturals[block.name])):
                    listed = " and ".join(map(repr, block.sites))
                    return SamplingError(
                        f"The conditional of {listed} is no proper distribution: its precision, rate or count is not "
                        "positive. Give it a prior that is proper, and check its arguments and the data."
                    )
        return SamplingError(
            "The bound is not finite. Check the supports of the observed sites, and that no value is infinite."
        )

    def _remark(self) -> str:
        names = [" and ".join(block.sites) for block in self._conditionals.blocks if len(block.sites) > 1]
        joint = f" Jointly Gaussian are {'; '.join(names)}." if names else ""
        augmented = self._method.logistic is not None
        return joint.strip() + (" Logistic likelihoods are bounded by auxiliary variables." if augmented else "")


class _Steps(NamedTuple):
    conditionals: Conditionals
    batches: Batches
    num_rows: int


def _layout(target: Joint, plan: Plan) -> Layout | LayoutOfPieces | None:
    seed = plan.seed.child("rows")
    if plan.batches is None:
        return None
    if plan.pieces is None:
        return Layout(plan.batches, target.data, seed)
    return LayoutOfPieces(plan.batches, plan.pieces, target.data, seed)


def _swept(conditionals: Conditionals, rows: Any, climb: Climb, count: Any, tolerance: Any) -> Any:
    equations = conditionals.at(as_double(rows))
    return ascent.climbed(conditionals, climb, equations, count, MOST_A_CHUNK, tolerance)


def _stepped(
    static: _Steps, data: Any, naturals: Any, mean: Any, words: Any, count: Any, schedule: Any
) -> tuple[Any, Any, Any, Any]:
    """So many steps on minibatches: natural parameters, their mean over the last steps, bounds, and what is proper."""
    conditionals, batches, num_rows = static
    key = key_of(words)

    def step(i: Any, carried: Any) -> Any:
        naturals, mean, bounds, proper = carried
        now = schedule[0] + i
        rho = (now + 1.0 + schedule[1]) ** -schedule[2]
        batch = as_double(batches.take(data, num_rows, key, now.astype(jnp.int32)))
        naturals, value, fine = ascent.stepped(conditionals, batch, naturals, rho)
        share = 1 / jnp.maximum(now - schedule[3] + 1.0, 1.0)
        mean = jax.tree.map(lambda old, new: old + share * (new - old), mean, naturals)
        return naturals, mean, bounds.at[i].set(value), proper & fine

    bounds = jnp.full(MOST_A_CHUNK, jnp.nan, jnp.result_type(float))
    begun = as_double(naturals), as_double(mean), bounds, jnp.ones((), bool)
    return jax.lax.fori_loop(0, count, step, begun)


def _axes(name: str, array: np.ndarray) -> tuple[str, ...]:
    return tuple(f"{name}_dim_{axis}" for axis in range(array.ndim))
