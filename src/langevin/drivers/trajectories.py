"""Chains of a machine: one compiled loop that takes one gradient of every chain a step, for warm-up and draws alike.

Python runs between chunks of the loop. Nothing that it decides depends on where the chunks are cut: the loop itself
stops when the draws reach a number at which something is to change, and random numbers come from streams that are read
in order, one of each chain for the noise that its trajectories begin with and one for the decisions of all chains. They
are made by NumPy, since compiling JAX's generator would take twice the time of compiling all the rest.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax.flatten_util import ravel_pytree

from langevin.drivers.gist import gist
from langevin.kernels import dual_averaging
from langevin.kernels.dual_averaging import Adaptation
from langevin.kernels.machines import MOST_STEPS, NUM_UNIFORMS, Inputs, Report, evaluator, pick
from langevin.kernels.metrics import Metric
from langevin.methods import Exact
from langevin.posterior import Position, Posterior
from langevin.programs import compiled

SECONDS_A_CHUNK = 0.3
MOST_STEPS_A_CHUNK = 2048
MOST_BYTES_A_CHUNK = 64_000_000
FOREVER = np.iinfo(np.int32).max


class Record(NamedTuple):
    """What is recorded of a draw, in the order of the columns.

    Attributes: see `langevin.kernels.machines.Report` and `Place`.
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


class Trajectories:
    """Chains of one machine on one posterior, between chunks.

    Args:
        method: Makes the machine.
        posterior: The target.
        example: A position, for its shape.
        num_chains: How many chains there are.
        metric: The first metric; later ones must be of its kind and shape.
        seed: Everything random is a function of it.
        most_steps: The most steps of a chunk. The draws do not depend on it.
    """

    def __init__(
        self,
        method: Exact,
        posterior: Posterior,
        example: Position,
        num_chains: int,
        metric: Metric | None,
        seed: np.random.SeedSequence,
        most_steps: int = MOST_STEPS_A_CHUNK,
    ) -> None:
        self.method, self.posterior, self.metric = method, posterior, metric
        self.num_chains = num_chains
        flat = flattened(example)
        self.size, self.dtype = flat.size, flat.dtype
        self._example = example
        bytes_a_step = num_chains * (2 * self.size + len(Record._fields)) * self.dtype.itemsize
        self._most_steps = int(np.clip(MOST_BYTES_A_CHUNK // bytes_a_step, 1, most_steps))
        most_noise = max(self._most_steps // method.least_steps, 1)
        decisions, *noise = seed.spawn(num_chains + 1)
        self._decisions = _Stream(decisions, (self._most_steps,), (num_chains, NUM_UNIFORMS), self.dtype, normal=False)
        self._noise = [_Stream(one, (most_noise,), (self.size,), self.dtype, normal=True) for one in noise]
        self.drawn = np.zeros(num_chains, np.int32)
        self.steps = 0
        self.adaptation = dual_averaging.begin(0.5 * self.size**-0.25, num_chains, self.dtype)
        self.adapting = False
        self.most_steps_a_trajectory = MOST_STEPS
        machine = method.machine()
        self.needs_gradient = machine.needs_gradient
        state = jax.eval_shape(machine.rest, jax.ShapeDtypeStruct((self.size,), self.dtype))
        self._state = jax.tree.map(lambda leaf: np.zeros((num_chains, *leaf.shape), leaf.dtype), state)
        self._resting = np.ones(num_chains, bool)
        self._positions = np.zeros((num_chains, self.size), self.dtype)
        self._program: Callable[..., Any] | None = None
        self._seconds_a_step: float | None = None

    @property
    def positions(self) -> np.ndarray:
        """The latest draw of each chain, flat."""
        return np.asarray(self._state.draw.position)

    @property
    def gradients(self) -> np.ndarray:
        """The whitened gradients there."""
        return np.asarray(self._state.draw.gradient)

    @property
    def ready(self) -> np.ndarray:
        """Which chains have found a finite log-density to begin with."""
        return np.asarray(self._state.ready) & ~self._resting

    def rest(self, positions: np.ndarray, chains: np.ndarray | None = None) -> None:
        """Puts chains (by default all) at rest at these positions: their trajectories begin anew with the next step."""
        self._resting = np.ones(self.num_chains, bool) if chains is None else chains | self._resting
        self._positions = np.where(self._resting[:, None], positions, self._positions).astype(self.dtype)

    def find_log_density(self) -> None:
        """One step, which tells the log-density where the chains rest."""
        self._run(FOREVER, np.full(self.num_chains, FOREVER), 1)

    def run(
        self,
        total: int = FOREVER,
        targets: np.ndarray | None = None,
        on_chunk: Callable[[int, Any], None] = lambda draws, info: None,
    ) -> list[list[Harvest]]:
        """Steps until the draws since the beginning reach a number; returns what each chain gathered on the way.

        Args:
            total: Stops when all chains together have so many.
            targets: Stops when each chain has as many as its target says.
            on_chunk: Called after each chunk with the draws it made and their mean `Record`.
        """
        targets = np.full(self.num_chains, FOREVER) if targets is None else targets
        gathered: list[list[Harvest]] = [[] for _ in range(self.num_chains)]
        while self.drawn.sum() < total and (self.drawn < targets).any():
            began = time.perf_counter()
            known = self._seconds_a_step is not None
            budget = SECONDS_A_CHUNK / self._seconds_a_step if self._seconds_a_step else 64
            harvests, steps = self._run(total, targets, int(np.clip(budget, 1, self._most_steps)))
            self._seconds_a_step = max((time.perf_counter() - began) / steps, 1e-9) if known else 1e-3
            for chain, harvest in enumerate(harvests):
                gathered[chain].append(harvest)
            columns = np.concatenate([harvest.record for harvest in harvests])
            if len(columns):
                on_chunk(len(columns), Record(*columns.mean(axis=0)))
        return gathered

    def _placed(self, arguments: tuple[Any, ...]) -> tuple[Any, ...]:
        """The arguments on the devices: with several, each holds its share of the chains."""
        devices = jax.local_devices()
        if len(devices) == 1 or self.num_chains % len(devices):
            return arguments
        mesh = jax.make_mesh((len(devices),), ("chain",), (jax.sharding.AxisType.Auto,), devices=devices)
        whole, split, by_step = (jax.NamedSharding(mesh, jax.P(*axes)) for axes in ((), ("chain",), (None, "chain")))
        adaptation = Adaptation(whole, split)
        places = (whole, whole, whole, adaptation, whole, whole, split, split, split, split, by_step, split, whole)
        return tuple(jax.device_put(value, place) for value, place in zip(arguments, places, strict=True))

    def _gist(self) -> str | None:
        """Of the log-density, and of its gradient where that is asked for."""

        def evaluate(posterior: Posterior, position: Position) -> Any:
            if self.needs_gradient:
                return jax.value_and_grad(posterior.log_density)(position)
            return posterior.log_density(position)

        return gist(evaluate, self.posterior, self._example)

    def _run(self, total: int, targets: np.ndarray, limit: int) -> tuple[list[Harvest], int]:
        noise = np.stack([stream.ahead for stream in self._noise])
        arguments = (
            self.posterior,
            self._example,
            self.metric,
            self.adaptation,
            np.asarray(self.adapting),
            np.asarray(self.method.target_accept, self.dtype),
            (self._resting, self._positions),
            self._state,
            self.drawn,
            noise,
            self._decisions.ahead,
            targets.astype(np.int32),
            np.asarray([total, limit, self.most_steps_a_trajectory], np.int32),
        )
        arguments = self._placed(arguments)
        if self._program is None:
            largest = self.num_chains * max(self.size, self.posterior.num_data)
            self._program = compiled(_advance, self.method, *arguments, model=self._gist, largest=largest)
        out = self._program(*arguments)
        self._state, self.adaptation, used, drawn, taken = out[:5]
        self._resting = np.zeros(self.num_chains, bool)
        steps = int(taken)
        positions, gradients, records = (np.asarray(buffer)[:steps] for buffer in out[5])
        done = records[:, :, 0] > 0
        self.drawn, self.steps = np.asarray(drawn), self.steps + steps
        self._decisions.advance(steps)
        for stream, count in zip(self._noise, np.asarray(used), strict=True):
            stream.advance(int(count))
        harvests = [
            Harvest(positions[done[:, c], c], gradients[done[:, c], c], records[done[:, c], c])
            for c in range(self.num_chains)
        ]
        return harvests, steps


def flattened(position: Position) -> np.ndarray:
    """A position as one vector, in the order of `ravel_pytree`, which would compile a program for it."""
    return np.concatenate([np.ravel(leaf) for leaf in jax.tree.leaves(position)])


def unflattened(example: Position, flat: np.ndarray) -> Position:
    """Vectors (..., size) as positions like the example."""
    leaves, structure = jax.tree.flatten(example)
    parts = np.split(flat, np.cumsum([np.size(leaf) for leaf in leaves])[:-1], axis=-1)
    front = flat.shape[:-1]
    shaped = [part.reshape((*front, *np.shape(x))).astype(x.dtype) for part, x in zip(parts, leaves, strict=True)]
    return jax.tree.unflatten(structure, shaped)


class _Stream:
    """Random numbers in order, of which so many are always at hand."""

    def __init__(
        self, seed: np.random.SeedSequence, count: tuple[int], shape: tuple[int, ...], dtype: Any, *, normal: bool
    ) -> None:
        generator = np.random.Generator(np.random.Philox(seed))
        self._make = generator.standard_normal if normal else generator.random
        self._dtype = dtype
        self.ahead = self._make((*count, *shape), dtype=dtype)

    def advance(self, count: int) -> None:
        """Forgets the first ones, and makes as many."""
        if count:
            more = self._make((count, *self.ahead.shape[1:]), dtype=self._dtype)
            self.ahead = np.concatenate([self.ahead[count:], more])


def _advance(
    method: Exact,
    posterior: Posterior,
    example: Position,
    metric: Metric | None,
    adaptation: Adaptation,
    adapting: jax.Array,
    target_accept: jax.Array,
    resting: tuple[jax.Array, jax.Array],
    state: Any,
    drawn: jax.Array,
    noise: jax.Array,
    uniforms: jax.Array,
    targets: jax.Array,
    limits: jax.Array,
) -> Any:
    machine = method.machine()
    evaluate = evaluator(machine, posterior, ravel_pytree(example)[1], metric)
    num_steps, (num_chains, num_noise, size) = len(uniforms), noise.shape
    total, limit, most_steps = limits

    def one_chain(state: Any, noise: jax.Array, uniforms: jax.Array, step_size: jax.Array) -> tuple[Any, Report]:
        return machine.step(state, Inputs(evaluate, step_size, metric, noise, uniforms, most_steps))

    def going(carry: Any) -> jax.Array:
        number, _, _, used, drawn, _ = carry
        return (number < limit) & jnp.all(used < num_noise) & (jnp.sum(drawn) < total) & jnp.any(drawn < targets)

    def step(carry: Any) -> Any:
        number, adaptation, state, used, drawn, buffers = carry
        step_size = dual_averaging.step_size(adaptation, adapting)
        fresh = jax.vmap(lambda rows, index: rows[index])(noise, used)
        state, report = jax.vmap(one_chain, in_axes=(0, 0, 0, None))(state, fresh, uniforms[number], step_size)
        adapted = dual_averaging.update(adaptation, report.done, report.acceptance_rate, target_accept)
        record = _record(report, jnp.broadcast_to(step_size, (num_chains,)))
        buffers = jax.tree.map(
            lambda buffer, row: jax.lax.dynamic_update_index_in_dim(buffer, row, number, 0),
            buffers,
            (report.draw.position, report.draw.gradient, record),
        )
        adaptation = pick(adapting, adapted, adaptation)
        return number + 1, adaptation, state, used + report.began, drawn + report.done, buffers

    state = jax.vmap(pick)(resting[0], jax.vmap(machine.rest)(resting[1]), state)
    buffers = (
        jnp.zeros((num_steps, num_chains, size), noise.dtype),
        jnp.zeros((num_steps, num_chains, size), noise.dtype),
        jnp.zeros((num_steps, num_chains, len(Record._fields)), noise.dtype),
    )
    carry = (jnp.zeros((), jnp.int32), adaptation, state, jnp.zeros(num_chains, jnp.int32), drawn, buffers)
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
