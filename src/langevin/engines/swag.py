"""The engine of SWAG: climbs, then SGD at a constant rate whose iterates make a Gaussian, then draws from it.

    x <- x - rate * v,    v <- momentum * v + gradient of -log_density / N over a minibatch

Maddox et al. (2019), 'A simple baseline for Bayesian uncertainty in deep learning'; see `langevin.engines.moments`. The
rate is that of `langevin.geometry.stationary`.

Phases: those of the climbs, one chain after the other; "rate"; "averaging"; and "drawing".
"""

from __future__ import annotations

import dataclasses
import math
from typing import TYPE_CHECKING, Any

import jax
import jax.numpy as jnp
import numpy as np

from langevin.contracts import Chunk, Group, Outcome, Plan, State
from langevin.data.batches import Batches
from langevin.engines import moments as gaussian
from langevin.engines.chains import Chains
from langevin.engines.drawing import MOST_AT_ONCE, MOST_BYTES_A_BLOCK, MOST_READ, ratios_of
from langevin.engines.ensemble import EnsembleEngine
from langevin.engines.moments import Moments
from langevin.engines.space import Space
from langevin.errors import SamplingError
from langevin.geometry.starts import unflattened
from langevin.geometry.stationary import network_rate, stationary_rate
from langevin.kernels.ascent import ascent
from langevin.kernels.base import Kernel
from langevin.posterior import Posterior
from langevin.run.keep import Keep
from langevin.tuning import Tuning

if TYPE_CHECKING:
    from langevin.methods.swag import SWAG

# Ratios p / q of more coordinates tell nothing: they are those of one draw.
MOST_JUDGED_SIZE = 200
LEAST_JUDGED = 300
DRAWS_A_BLOCK = 250
POSITIONS = Keep(sites=(), unconstrained=True)
UNCHECKED = "a network has too many weights, or there are too many rows, for importance ratios"


class SWAGEngine:
    """A Gaussian around each start.

    Args:
        method: The settings, an `lv.SWAG`.
        target: The posterior.
        plan: What was asked of the run; it has minibatches.
    """

    def __init__(self, method: SWAG, target: Posterior, plan: Plan) -> None:
        self._method, self._target, self._plan = method, target, plan
        self._space = Space(target, plan)
        self._climbs: EnsembleEngine | None = None
        programs, seed = self._space.programs, plan.seed.child("averaging")
        self._chains = Chains(_SGD(method.momentum), target, self._space.rows, POSITIONS, seed, programs)
        is_network = target.model.network is not None
        self._batches = plan.batches or Batches(target.num_data)
        self._between = method.steps_between or self._batches.num_slices(target.num_data)
        self._num_snapshots = method.num_snapshots or (2 if is_network else 20) * method.rank
        self._is_network = is_network
        self._dtype = np.result_type(*jax.tree.leaves(self._space.example))
        widths = [math.prod(leaf.shape[1:]) for leaf in jax.tree.leaves(target.data)]
        self._numbers = max(target.num_data * sum(widths), 1)
        bytes_a_draw = self._dtype.itemsize * plan.num_chains * self._space.size
        self._length = int(np.clip(MOST_BYTES_A_BLOCK // bytes_a_draw, 1, DRAWS_A_BLOCK))

    @property
    def num_chains(self) -> int:
        """As many as were asked for."""
        return self._plan.num_chains

    def begin(self) -> State:
        """Before the climbs."""
        climb = self._climbing.begin()
        empty = gaussian.begin(self._plan.num_chains, self._space.size, self._dtype)
        state = {"phase": climb["phase"], "climb": climb, "tops": (), "rate": None, "chains": None}
        return state | {"moments": tuple(empty), "drawn": 0, "judged": np.zeros((2, 0))}

    def advance(self, state: State, limit: int) -> tuple[State, Chunk]:
        """Takes at most so many steps; of the draws, one block."""
        if state["climb"] is not None:
            return self._climb(state, limit)
        if state["phase"] == "rate":
            return state | {"phase": "averaging", "rate": self._rate(state)}, Chunk("rate", 1, 1, 1)
        if state["phase"] == "averaging":
            return self._average(state, limit)
        return self._draw(state)

    def finish(self, state: State) -> Outcome:
        """How far the Gaussian is from the posterior, where that can be told."""
        moments = Moments(*state["moments"])
        evidence: dict[str, Any] = {"finite": {"density": False}} | ratios_of(state["judged"])
        if "ratios" not in evidence:
            evidence["unchecked"] = {"why": UNCHECKED}
        settings = {
            "thin": 1,
            "learning_rate": state["rate"],
            "num_snapshots": moments.count,
            "steps_between": self._between,
        }
        axes = ("start", "coordinate")
        groups = {"iterates": Group({"mean": (axes, moments.mean), "variance": (axes, moments.variance)})}
        return Outcome(evidence, settings, groups=groups)

    def cut_short(self, state: State) -> State | None:
        """The iterates so far, if there are two."""
        enough = state["moments"][0] >= 2
        return state | {"phase": "drawing", "drawn": 0, "judged": np.zeros((2, 0))} if enough else None

    def fingerprint(self) -> str:
        """A digest of all that is computed of the model."""
        return self._space.fingerprint()

    # The phases.

    @property
    def _climbing(self) -> EnsembleEngine:
        if self._climbs is None:
            plan = self._plan._replace(keep=POSITIONS, seed=self._plan.seed.child("climbs"))
            self._climbs = EnsembleEngine(self._method.climb, plan.num_chains, self._target, plan)
        return self._climbs

    def _climb(self, state: State, limit: int) -> tuple[State, Chunk]:
        climb, chunk = self._climbing.advance(state["climb"], limit)
        reached = [draws["unconstrained_posterior"] for draws in chunk.draws if draws]
        tops = (*state["tops"], *(tuple(leaf[0] for leaf in leaves.values()) for leaves in reached))
        state = state | {"climb": climb, "phase": climb["phase"], "tops": tops}
        if chunk.finished:
            # It holds the rows in an order of its own.
            self._climbs = None
            state |= {"climb": None, "phase": "rate"}
        return state, chunk._replace(draws=(), finished=False)

    def _rate(self, state: State) -> float:
        """The constant rate, measured at the first chain's top."""
        if self._method.learning_rate is not None:
            return self._method.learning_rate
        top, seed = self._space.tree(state["tops"][0]), self._plan.seed.child("rate")
        programs, batches, momentum = self._space.programs, self._batches, self._method.momentum
        if self._is_network:
            return network_rate(programs, self._target, top, seed)
        return stationary_rate(programs, self._target, batches, top, momentum, seed)

    def _average(self, state: State, limit: int) -> tuple[State, Chunk]:
        tuning = Tuning(step_size=np.asarray(state["rate"], self._dtype))
        chains, total = state["chains"], self._num_snapshots
        if chains is None:
            stacked = [np.stack(leaves) for leaves in zip(*state["tops"], strict=True)]
            chains = self._chains.begin(self._space.tree(stacked), tuning)
        before = chains["step"]
        chains, recorded = self._chains.advance(chains, tuning, limit, self._stride, total)
        moments = Moments(*state["moments"])
        if recorded is not None:
            if not recorded.stats["valid"].all():
                raise SamplingError(
                    f"SGD left the finite numbers before step {chains['step']}. Try a `learning_rate` below "
                    f"{state['rate']:.2g}, or larger minibatches."
                )
            leaves = [leaf.reshape(*leaf.shape[:2], -1) for leaf in jax.tree.leaves(recorded.position)]
            for iterates in np.concatenate(leaves, axis=2):
                moments = gaussian.added(moments, iterates, self._method.rank)
        phase = "drawing" if chains["drawn"] == total else "averaging"
        state = state | {"chains": chains if phase == "averaging" else None, "moments": tuple(moments), "phase": phase}
        done, steps = chains["step"], self._plan.num_warmup + total * self._between
        return state, Chunk("averaging", done - before, done, steps, {"rate": state["rate"]})

    def _stride(self, number: int) -> int:
        return self._between + (self._plan.num_warmup if number == 0 else 0)

    def _draw(self, state: State) -> tuple[State, Chunk]:
        num_draws, num_chains, length = self._plan.num_draws, self._plan.num_chains, self._length
        if state["drawn"] >= num_draws:
            return state, Chunk("drawing", 0, num_draws, num_draws, finished=True)
        number, first = divmod(state["drawn"], length)
        moments, last = Moments(*state["moments"]), min(length, num_draws - number * length)
        flat = gaussian.drawn(moments, self._plan.seed.child("draws").generator(number), length)
        flat = flat.reshape(-1, self._space.size)
        judged, position = self._is_judged(number), unflattened(self._space.example, flat)
        at_once = int(np.clip(MOST_AT_ONCE // self._numbers, 1, 256))
        static = (self._plan.keep, judged, at_once)
        reported, heights = self._space.programs(_report, static, self._target, position)
        log_q = gaussian.log_density(moments, flat) if judged else np.full(len(flat), np.nan)
        stats = {"log_density": np.asarray(heights), "log_q": log_q.astype(self._dtype)}

        def shaped(leaf: Any) -> np.ndarray:
            return np.asarray(leaf).reshape(length, num_chains, *np.shape(leaf)[1:])[first:last]

        recorded = jax.tree.map(shaped, (reported, position, stats))
        draws = tuple(
            self._plan.keep.grouped(*jax.tree.map(lambda leaf, c=chain: leaf[:, c], recorded))
            for chain in range(num_chains)
        )
        terms = np.stack([recorded[2]["log_density"].ravel(), recorded[2]["log_q"].ravel()]).astype(np.float64)
        known = np.concatenate([state["judged"], terms[:, : None if judged else 0]], axis=1)
        drawn = number * length + last
        chunk = Chunk("drawing", 1, drawn, num_draws, {}, draws, finished=drawn >= num_draws)
        return state | {"drawn": drawn, "judged": known}, chunk

    def _is_judged(self, number: int) -> bool:
        """Whether the ratios of a block are computed."""
        if self._is_network or self._space.size > MOST_JUDGED_SIZE or MOST_READ // self._numbers < LEAST_JUDGED:
            return False
        return number * self._length * self._plan.num_chains < MOST_READ // self._numbers


@dataclasses.dataclass(frozen=True)
class _SGD:
    """Makes the kernel of SGD; its rate is an argument, so that another compiles nothing."""

    momentum: float

    def kernel(self, posterior: Posterior, tuning: Tuning) -> Kernel:
        """The kernel."""
        import optax  # here, since it takes a tenth of a second that no other method should pay

        return ascent(posterior, optax.sgd(tuning.step_size, self.momentum or None))


def _report(static: tuple[Keep, bool, int], target: Posterior, positions: Any) -> Any:
    """What is kept of the sites of draws; and their log-densities on all rows, if they are judged."""
    keep, judged, at_once = static

    def one(position: Any) -> Any:
        height = target.log_density(position) if judged else jnp.full((), jnp.nan)
        return keep.reported(target.constrain(position)), height

    return jax.lax.map(one, positions, batch_size=at_once)
