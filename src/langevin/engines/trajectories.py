"""Chains of a stepper: one compiled loop that takes one gradient of every chain a step, for warm-up and draws alike.

Python runs between chunks of the loop. Nothing that it decides depends on where the chunks are cut: the loop itself
stops when the draws reach a number at which something is to change. Random numbers come from streams that are read in
order, two for each chain: the noise that its trajectories begin with, and its decisions. They are made by NumPy, since
compiling JAX's generator would take twice the time of compiling all the rest.
"""

from __future__ import annotations

from types import MappingProxyType
from typing import TYPE_CHECKING, Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax.flatten_util import ravel_pytree

from langevin.contracts import Position, State
from langevin.kernels import dual_averaging
from langevin.kernels.dual_averaging import Adaptation
from langevin.kernels.metrics import Metric
from langevin.kernels.steppers import MOST_STEPS, NUM_UNIFORMS, Inputs, Report, Stepper, evaluator, pick
from langevin.posterior import Centring, Posterior
from langevin.run.compilation import Programs
from langevin.run.seeds import Seed, Stream

if TYPE_CHECKING:
    from langevin.methods.exact import Exact

MOST_STEPS_A_CHUNK = 2048
MOST_BYTES_A_CHUNK = 64_000_000
FOREVER = np.iinfo(np.int32).max


class Record(NamedTuple):
    """What is recorded of a draw, in the order of the columns.

    Attributes: see `langevin.kernels.steppers.Report` and `Point`.
    """

    done: Any
    log_density: Any
    energy: Any
    acceptance_rate: Any
    energy_error: Any
    n_steps: Any
    tree_depth: Any
    diverging: Any
    step_size: Any


class Harvest(NamedTuple):
    """The draws of a chain in a chunk: arrays of shape (draws, ...).

    Attributes:
        position: Flat positions.
        gradient: Whitened gradients there.
        record: `Record`, as columns.
    """

    position: np.ndarray
    gradient: np.ndarray
    record: np.ndarray


class Goal(NamedTuple):
    """Where the loop stops, and how it steps until then.

    Attributes:
        metric: G, on flat vectors.
        total: Stops when all chains together have so many draws.
        targets: Stops when each chain has as many as its target says; None for no such targets.
        adapting: Whether the step size adapts.
        target_accept: The acceptance that it adapts to.
        most_steps: A trajectory is cut off after so many steps.
        centring: Of the target.
    """

    metric: Metric | None
    total: int = FOREVER
    targets: np.ndarray | None = None
    adapting: bool = False
    target_accept: float = 0.5
    most_steps: int = MOST_STEPS
    centring: Centring = MappingProxyType({})


class Loop(NamedTuple):
    """What the compiled loop gets, besides the target; see `Goal` and `Trajectories.begin`."""

    metric: Any
    adaptation: Any
    adapting: Any
    target_accept: Any
    idle: Any
    positions: Any
    stepper: Any
    drawn: Any
    noise: Any
    uniforms: Any
    targets: Any
    limits: Any


class Trajectories:
    """Chains of one stepper on one posterior. What changes in a run is in a plain state, see `begin`.

    Args:
        method: Makes the stepper; frozen settings with `stepper()` and `least_steps`.
        posterior: The target.
        example: A position, for its shape.
        num_chains: How many chains there are.
        seed: Everything random is a function of it.
        programs: The compiled programs of the run.
    """

    def __init__(
        self, method: Exact, posterior: Posterior, example: Position, num_chains: int, seed: Seed, programs: Programs
    ) -> None:
        self.method, self.num_chains = method, num_chains
        self._posterior, self._example, self._programs = posterior, example, programs
        leaves = jax.tree.leaves(example)
        self.size, self.dtype = sum(np.size(leaf) for leaf in leaves), np.result_type(*leaves)
        stepper: Stepper = method.stepper()
        self.needs_gradient = stepper.needs_gradient
        shapes = jax.eval_shape(stepper.idle, jax.ShapeDtypeStruct((self.size,), self.dtype))
        self._shapes, self._structure = jax.tree.flatten(shapes)
        bytes_a_step = num_chains * (2 * self.size + len(Record._fields)) * self.dtype.itemsize
        self._most_steps = int(np.clip(MOST_BYTES_A_CHUNK // bytes_a_step, 1, MOST_STEPS_A_CHUNK))
        most_noise = max(self._most_steps // method.least_steps, 1)

        def normal(generator: np.random.Generator, rows: int) -> np.ndarray:
            return generator.standard_normal((rows, self.size), self.dtype)

        def uniform(generator: np.random.Generator, rows: int) -> np.ndarray:
            return generator.random((rows, NUM_UNIFORMS), self.dtype)

        chains = range(num_chains)
        self._noise = [Stream(seed.child("noise", chain), most_noise, normal) for chain in chains]
        self._decisions = [Stream(seed.child("decisions", chain), self._most_steps, uniform) for chain in chains]

    def begin(self, positions: np.ndarray, step_size: float) -> State:
        """The state of chains that are idle at these flat positions: their trajectories begin with the next step."""
        stepper = tuple(np.zeros((self.num_chains, *leaf.shape), leaf.dtype) for leaf in self._shapes)
        return {
            "stepper": stepper,
            "idle": np.ones(self.num_chains, bool),
            "positions": positions.astype(self.dtype),
            "drawn": np.zeros(self.num_chains, np.int32),
            "used": np.zeros(self.num_chains, np.int64),
            "step": 0,
            "adaptation": tuple(dual_averaging.begin(step_size, self.num_chains, self.dtype)),
        }

    def stepper(self, state: State) -> Any:
        """The stepper's states, of which `draw` is the latest draw."""
        return jax.tree.unflatten(self._structure, state["stepper"])

    def idled(self, state: State, positions: np.ndarray | None = None, chains: np.ndarray | None = None) -> State:
        """The state with some chains (by default all) idle at these positions (by default where they are)."""
        if positions is None:
            positions = np.asarray(self.stepper(state).draw.position)
        idle = np.ones(self.num_chains, bool) if chains is None else chains | state["idle"]
        positions = np.where(idle[:, None], positions, state["positions"]).astype(self.dtype)
        return state | {"idle": idle, "positions": positions}

    def advance(self, state: State, goal: Goal, limit: int) -> tuple[State, list[Harvest], int]:
        """Takes at most `limit` steps towards a goal. Returns what each chain drew, and how many steps there were."""
        most_noise, most_steps = self._noise[0].block, self._most_steps
        targets = np.full(self.num_chains, FOREVER) if goal.targets is None else goal.targets
        noise = [stream.read(int(used), most_noise) for stream, used in zip(self._noise, state["used"], strict=True)]
        uniforms = [stream.read(state["step"], most_steps) for stream in self._decisions]
        loop = Loop(
            metric=goal.metric,
            adaptation=Adaptation(*state["adaptation"]),
            adapting=np.asarray(goal.adapting),
            target_accept=np.asarray(goal.target_accept, self.dtype),
            idle=state["idle"],
            positions=state["positions"],
            stepper=self.stepper(state),
            drawn=state["drawn"],
            noise=np.stack(noise),
            uniforms=np.stack(uniforms, axis=1),
            targets=targets.astype(np.int32),
            limits=np.asarray([goal.total, min(limit, FOREVER), goal.most_steps], np.int32),
        )
        posterior = self._posterior.with_centring(goal.centring)
        out = self._programs(_advance, self.method, posterior, self._example, self._placed(loop))
        stepper, adaptation, used, drawn, taken, buffers = out
        steps = int(taken)
        positions, gradients, records = (np.asarray(buffer)[:steps] for buffer in buffers)
        done = records[:, :, 0] > 0
        harvests = [
            Harvest(positions[done[:, c], c], gradients[done[:, c], c], records[done[:, c], c])
            for c in range(self.num_chains)
        ]
        state = state | {
            "stepper": tuple(jax.tree.leaves(stepper)),
            "idle": np.zeros(self.num_chains, bool),
            "drawn": np.asarray(drawn),
            "used": state["used"] + np.asarray(used),
            "step": state["step"] + steps,
            "adaptation": tuple(adaptation),
        }
        return state, harvests, steps

    def _placed(self, loop: Loop) -> Loop:
        """The arguments on the devices: with several, each holds its share of the chains."""
        devices = jax.local_devices()
        if len(devices) == 1 or self.num_chains % len(devices):
            return loop
        mesh = jax.make_mesh((len(devices),), ("chain",), (jax.sharding.AxisType.Auto,), devices=devices)
        whole, split, by_step = (jax.NamedSharding(mesh, jax.P(*axes)) for axes in ((), ("chain",), (None, "chain")))
        places: dict[str, Any] = dict.fromkeys(("metric", "adapting", "target_accept", "limits"), whole)
        places |= dict.fromkeys(("idle", "positions", "stepper", "drawn", "noise", "targets"), split)
        places |= {"adaptation": Adaptation(whole, split), "uniforms": by_step}
        return Loop(**{name: jax.device_put(value, places[name]) for name, value in loop._asdict().items()})


def _advance(method: Exact, posterior: Posterior, example: Position, loop: Loop) -> Any:
    stepper: Stepper = method.stepper()
    evaluate = evaluator(stepper, posterior, ravel_pytree(example)[1], loop.metric)
    num_steps, (num_chains, num_noise, size) = len(loop.uniforms), loop.noise.shape
    total, limit, most_steps = loop.limits

    def one_chain(state: Any, noise: jax.Array, uniforms: jax.Array, step_size: jax.Array) -> tuple[Any, Report]:
        return stepper.step(state, Inputs(evaluate, step_size, loop.metric, noise, uniforms, most_steps))

    def going(carry: Any) -> jax.Array:
        number, _, _, used, drawn, _ = carry
        within = (number < limit) & (number < num_steps) & jnp.all(used < num_noise)
        return within & (jnp.sum(drawn) < total) & jnp.any(drawn < loop.targets)

    def step(carry: Any) -> Any:
        number, adaptation, state, used, drawn, buffers = carry
        step_size = dual_averaging.step_size(adaptation, loop.adapting)
        fresh = jax.vmap(lambda rows, index: rows[index])(loop.noise, used)
        state, report = jax.vmap(one_chain, in_axes=(0, 0, 0, None))(state, fresh, loop.uniforms[number], step_size)
        adapted = dual_averaging.update(adaptation, report.done, report.acceptance_rate, loop.target_accept)
        record = _record(report, jnp.broadcast_to(step_size, (num_chains,)))
        buffers = jax.tree.map(
            lambda buffer, row: jax.lax.dynamic_update_index_in_dim(buffer, row, number, 0),
            buffers,
            (report.draw.position, report.draw.gradient, record),
        )
        adaptation = pick(loop.adapting, adapted, adaptation)
        return number + 1, adaptation, state, used + report.began, drawn + report.done, buffers

    state = jax.vmap(pick)(loop.idle, jax.vmap(stepper.idle)(loop.positions), loop.stepper)
    buffers = (
        jnp.zeros((num_steps, num_chains, size), loop.noise.dtype),
        jnp.zeros((num_steps, num_chains, size), loop.noise.dtype),
        jnp.zeros((num_steps, num_chains, len(Record._fields)), loop.noise.dtype),
    )
    carry = (jnp.zeros((), jnp.int32), loop.adaptation, state, jnp.zeros(num_chains, jnp.int32), loop.drawn, buffers)
    number, adaptation, state, used, drawn, buffers = jax.lax.while_loop(going, step, carry)
    return state, adaptation, used, drawn, number, buffers


def _record(report: Report, step_size: jax.Array) -> jax.Array:
    record = Record(
        report.done,
        report.draw.log_density,
        report.draw.energy,
        report.acceptance_rate,
        report.energy_error,
        report.n_steps,
        report.tree_depth,
        report.diverging,
        step_size,
    )
    return jnp.stack([column.astype(step_size.dtype) for column in record], axis=1)
