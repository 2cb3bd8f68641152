"""The loop of variational inference: many steps in one compiled loop, Python between chunks.

Without a number of steps:

1. The learning rate is constant in a stage. At 200, 400, 800, ... steps of a stage (of a guide or a flow, whose
   parameters depend on one another, at 1000, 2000, ...) it is asked whether the bound still rises. If not, and the
   parameters still wander by more than 5 percent of their units, the next stage has a quarter of the rate. After the
   first stage, the rate of a family's means is in scales of q.
2. At the last rate, the parameters are averaged until the error of their mean is a half percent of their units. (The
   unit of a mean is the scale of q; of another parameter, what it takes to make q another distribution.) Where every
   row has sites of its own, as many steps are averaged as were taken before.
"""

from __future__ import annotations

import dataclasses
import functools
import math
import time
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from langevin.data.batches import Batches, reshuffled
from langevin.drivers import adam
from langevin.drivers.ascent import Care, Carry, advance, begin_optimizer, gist_of, largest_of, mean_bound, replaced
from langevin.drivers.settling import Blocks, flat_of, is_rising, unflat, wander_of
from langevin.errors import SamplingError
from langevin.methods import VI
from langevin.programs import compiled, run
from langevin.progress import OnChunk
from langevin.variational.elbo import begin_baselines
from langevin.variational.families import Parameters

SECONDS_A_CHUNK = 0.3
MOST_STEPS_A_CHUNK = 1024
MOST_BYTES_A_CHUNK = 32_000_000
FIRST_CHECK = 200
FIRST_CHECK_OF_OTHERS = 1000
MOST_STEPS = 100_000
FALL = 0.25
NUM_PLACES = 16
MOST_WANDER = 0.05
RATE = 0.05
RATE_OF_NETWORK = 0.003
LEAST_OF_NETWORK = 1000
LAST_RATE = 2e-4
LEAST_RATE = 1e-7
FOREVER = np.iinfo(np.int32).max
NUM_INFORMATION = 256
FIRST_BLOCK = 50
LEAST_AVERAGED = 2000
TOLERANCE = 0.005
MOST_ERROR = 0.2
MOST_SKIPPED = 0.05
MOST_TRIES = 10
AVERAGED = 0.25
MOST_ALWAYS_AVERAGED = 100_000
# In fewer steps it cannot be seen whether a bound still rises: a quarter of a quarter of them has no eight parts.
LEAST_TO_TELL = 128


class Info(NamedTuple):
    """What is shown while a fit goes on."""

    elbo: float
    learning_rate: float


class Optimised(NamedTuple):
    """A finished fit.

    Attributes:
        parameters: Of the best restart, averaged.
        elbo: (restarts, steps): the bound at each step, estimated.
        best: The restart.
        settled: Whether the bound stopped rising at every learning rate.
        skipped: Steps of the best restart that were left out.
        learning_rate: The last one.
        error: Of the parameters, at most, in their units; None if unknown.
    """

    parameters: Parameters
    elbo: np.ndarray
    best: int
    settled: bool
    skipped: int
    learning_rate: float
    error: float | None


def optimise(
    method: VI,
    objective: Any,
    batches: Batches | None,
    seed: np.random.SeedSequence,
    on_chunk: OnChunk,
) -> Optimised:
    """Fits q.

    Args:
        method: The settings.
        objective: An `Objective`; with minibatches, its data laid out by `batches`.
        batches: How minibatches are drawn; None for all rows.
        seed: Everything random is a function of it.
        on_chunk: Told of each chunk.

    Raises:
        SamplingError: If the bound is not finite.
    """
    ascent = _Ascent(method, objective, batches, seed)
    if method.num_steps is not None:
        last = method.num_steps
        average_from = last - max(int(AVERAGED * last), 1)
        ascent.in_units_from = last // 4
        ascent.to(last, functools.partial(_cosine, ascent.first_rate, last), average_from, on_chunk)
        best = ascent.best()
        settled = last >= LEAST_TO_TELL and not is_rising(ascent.elbo[best : best + 1, average_from:], errors=3.0)
        return ascent.result(best, jax.tree.map(lambda leaf: np.asarray(leaf)[best], ascent.carry.average), settled)
    rate = ascent.descend(on_chunk)
    return ascent.average(rate, on_chunk)


class _Ascent:
    """A fit that goes on: the only thing with a state."""

    def __init__(self, method: VI, objective: Any, batches: Batches | None, seed: np.random.SeedSequence) -> None:
        self._method, self._objective, self._batches = method, objective, batches
        starts, keys, noise, words = seed.spawn(4)
        self._starts = np.random.default_rng(starts)
        self._generators = tuple(np.random.Generator(np.random.Philox(one)) for one in (keys, noise))
        self._words = words.generate_state(3, np.uint32)
        self._shuffles = 0
        self.carry = self._begin(method.num_restarts)
        self.step = 0
        self.in_units_from = FOREVER
        self._parts = [np.zeros((method.num_restarts, 0))]
        self._programs: dict[Care, Callable[..., Any]] = {}
        self._size = sum(leaf.size for leaf in jax.tree.leaves(self.carry.parameters)) // method.num_restarts
        is_network = not objective.identified and self._size > LEAST_OF_NETWORK
        self.first_rate = method.learning_rate or (RATE_OF_NETWORK if is_network else RATE)
        self._seconds_a_step: float | None = None
        leaves = jax.tree.leaves(self.carry.parameters)
        self._dtype = jnp.result_type(*leaves)
        shape = (1, method.num_restarts, method.num_particles)
        bytes_a_step = sum(leaf.nbytes for leaf in jax.tree.leaves(self._noise(shape, peek=True)))
        self._capacity = int(np.clip(MOST_BYTES_A_CHUNK // max(bytes_a_step, 1), 1, MOST_STEPS_A_CHUNK))
        self._last_rate = self.first_rate
        self._find_starts()

    @property
    def elbo(self) -> np.ndarray:
        """(restarts, steps): the bound at each step."""
        self._parts = [np.concatenate(self._parts, axis=1)]
        return self._parts[0]

    def descend(self, on_chunk: OnChunk) -> float:
        """Goes on in stages, until the parameters wander little. Returns the learning rate of the last."""
        rate = self.first_rate
        while True:
            began, wander = self.step, math.inf
            length = FIRST_CHECK if self._objective.identified else FIRST_CHECK_OF_OTHERS
            while self.step < MOST_STEPS // 2:
                places: list[np.ndarray] = []
                for until in np.linspace(self.step, min(began + length, MOST_STEPS // 2), NUM_PLACES + 1).astype(int)[
                    1:
                ]:
                    self.to(until, lambda _, rate=rate: rate, until, on_chunk)
                    places.append(self._stacked(self.carry.parameters))
                if not is_rising(self.elbo[:, began:]):
                    break
                length *= 2
            units = self._units()
            if units is not None and places:
                best = self.best()
                wander = wander_of([place[best] for place in places[NUM_PLACES // 2 :]], units)
            known = math.isfinite(wander)
            enough = wander <= MOST_WANDER if known else rate <= LAST_RATE
            if enough or rate <= LEAST_RATE or self.step >= MOST_STEPS // 2 or self._method.optimizer is not None:
                return rate
            if self.in_units_from == FOREVER and self._objective.family is not None:
                self.in_units_from = self.step
            else:
                rate *= FALL

    def average(self, rate: float, on_chunk: OnChunk) -> Optimised:
        """Averages at a constant rate, until the mean is known well."""
        best, began = self.best(), self.step
        units = self._units()
        enough = max(self.step, LEAST_AVERAGED)
        blocks, places, error = Blocks(FIRST_BLOCK), [], math.inf
        while self.step < MOST_STEPS and error > TOLERANCE:
            self.to(self.step + blocks.length, lambda _, rate=rate: rate, self.step, on_chunk)
            parameters, place = (
                jax.tree.map(lambda leaf: np.asarray(leaf)[best], stacked)
                for stacked in (self.carry.average, self.carry.parameters)
            )
            blocks.add(flat_of(parameters))
            if units is None:
                if self.step - began >= enough:
                    break
                continue
            error = blocks.error(units)
            places.append(flat_of(place))
            # Far from the optimum the bound is not a parabola, and the mean of the places is not the optimum.
            if len(places) % NUM_PLACES == 0 and self.step < MOST_STEPS // 2 and wander_of(places, units) > MOST_WANDER:
                rate *= FALL
                blocks, places, error = Blocks(FIRST_BLOCK), [], math.inf
        settled = not is_rising(self.elbo[best : best + 1, began:], errors=3.0)
        if units is not None:
            settled = settled and error <= MOST_ERROR
        chosen = self._better(unflat(blocks.mean, parameters), best)
        return self.result(best, chosen, settled, error if units is not None else None)

    def _better(self, average: Parameters, best: int) -> Parameters:
        """The average, or the last parameters, where these have the higher bound.

        Of a Gaussian family the average. But flows and guides may have parameters that can turn into one another
        without changing q.
        """
        if self._objective.identified:
            return average
        last = jax.tree.map(lambda leaf: np.asarray(leaf)[best], self.carry.parameters)
        noises = self._noise((NUM_INFORMATION, self._method.num_particles), peek=True)
        bound = functools.partial(run, functools.partial(mean_bound, self._method), self._objective)
        batch = None
        if self._batches is not None:
            size = self._batches.size
            batch = jax.tree.map(lambda leaf: leaf[:size], self._objective.data)
        first, second = (float(bound(one, noises, batch)) for one in (average, last))
        return last if second > first or not math.isfinite(first) else average

    def to(self, until: int, rate: Callable[[int], float], average_from: int, on_chunk: OnChunk) -> None:
        """Goes on until so many steps are taken in all.

        Args:
            until: The number of steps.
            rate: The learning rate at a step.
            average_from: The step after which parameters are averaged.
            on_chunk: Told of each chunk.
        """
        while self.step < until:
            self._maybe_reshuffle()
            count = self._count(until)
            rates = np.zeros(self._capacity, self._dtype)
            rates[:count] = [rate(self.step + i) for i in range(count)]
            began = time.perf_counter()
            elbo = self._advance(count, rates, average_from)
            self._seconds_a_step = (time.perf_counter() - began) / count
            self._parts.append(elbo)
            self.step += count
            self._check(elbo)
            shown = elbo[np.isfinite(elbo)]
            on_chunk(count, Info(float(shown.mean()) if shown.size else math.nan, float(rates[count - 1])))

    def best(self) -> int:
        """The restart with the highest bound of late."""
        last = self.elbo[:, -max(self.step // 10, 1) :]
        finite = np.isfinite(last)
        means = np.where(finite, last, 0.0).sum(axis=1) / np.maximum(finite.sum(axis=1), 1)
        return int(np.argmax(np.where(finite.mean(axis=1) > 0.5, means, -np.inf)))

    def result(self, best: int, parameters: Parameters, settled: bool, error: float | None = None) -> Optimised:
        """What is returned."""
        skipped = int(np.asarray(self.carry.skipped)[best])
        return Optimised(parameters, self.elbo, best, settled, skipped, self._last_rate, error)

    def _begin(self, count: int) -> Carry:
        parameters = [self._objective.init(self._starts) for _ in range(count)]
        stacked = jax.tree.map(lambda *leaves: np.stack([np.asarray(leaf) for leaf in leaves]), *parameters)
        optimizer = begin_optimizer(self._method, stacked)
        dtype = jnp.result_type(*jax.tree.leaves(stacked))
        baselines = begin_baselines(self._objective.wiring, dtype)
        baselines = jax.tree.map(lambda leaf: np.zeros((count, *leaf.shape), leaf.dtype), baselines)
        nothing: Any = np.zeros(count, np.int32), np.zeros((), np.int32)
        return Carry(stacked, optimizer, stacked, baselines, *nothing)

    def _find_starts(self) -> None:
        """Tries other starts for restarts whose bound, or its gradient, is not finite."""
        begun = self.carry
        for _ in range(MOST_TRIES):
            elbo = self._advance(1, np.zeros(self._capacity, self._dtype), 0)
            lost = ~np.isfinite(elbo[:, 0]) | (np.asarray(self.carry.skipped) > 0)
            if not lost.any():
                break
            others = self._begin(len(lost))
            begun = replaced(lost, begun, others)
            self.carry = begun
        else:
            raise self._not_finite(f"at any of {MOST_TRIES} starts")
        self.carry = begun

    def _stacked(self, parameters: Parameters) -> np.ndarray:
        """(restarts, numbers)."""
        count = self._method.num_restarts
        return np.concatenate([np.reshape(leaf, (count, -1)) for leaf in jax.tree.leaves(parameters)], axis=1)

    def _of_best(self, stacked: Any) -> Any:
        best = self.best()
        return jax.tree.map(lambda leaf: np.asarray(leaf)[best], stacked)

    def _units(self) -> np.ndarray | None:
        parameters = self._of_best(self.carry.parameters)
        units = self._objective.units(parameters, self._noise((NUM_INFORMATION,), peek=True))
        if units is None:
            return None
        return flat_of(jax.tree.map(lambda p, unit: np.broadcast_to(unit, np.shape(p)), parameters, units))

    def _noise(self, shape: tuple[int, ...], peek: bool = False) -> Any:
        generators = tuple(np.random.default_rng(0) for _ in self._generators) if peek else self._generators
        return self._objective.noise(generators, shape, self._dtype)

    def _count(self, until: int) -> int:
        budget = 50 if self._seconds_a_step is None else SECONDS_A_CHUNK / max(self._seconds_a_step, 1e-9)
        count = int(np.clip(budget, 1, min(self._capacity, until - self.step)))
        if self._batches is not None and self._batches.order != "rows":
            period = self._batches.reshuffle_period(self._objective.num_data)
            count = min(count, (self._shuffles + 1) * period - self.step)
        return count

    def _advance(self, count: int, rates: np.ndarray, average_from: int) -> np.ndarray:
        noise = self._noise((count, self._method.num_restarts, self._method.num_particles))
        noise = jax.tree.map(
            lambda a: np.concatenate([a, np.zeros((self._capacity - count, *a.shape[1:]), a.dtype)]), noise
        )
        arguments = (
            self._objective,
            self.carry,
            noise,
            adam.paces(rates, self.step),
            self._words[:2],
            np.asarray([count, average_from, self.in_units_from], np.int32),
        )
        self._last_rate = float(rates[count - 1])
        averaged = self._size <= MOST_ALWAYS_AVERAGED or self.step + count > average_from
        for checked in (False, True):
            carry, elbo = self._program(Care(checked, averaged), arguments)(*arguments)
            elbo = np.asarray(elbo)[:, :count].astype(np.float64)
            # What is not finite stays so, and the steps are taken again with care.
            if checked or (np.isfinite(elbo).all() and _is_finite(carry.parameters)):
                break
        self.carry = carry
        return elbo

    def _program(self, care: Care, arguments: tuple[Any, ...]) -> Callable[..., Any]:
        if care not in self._programs:
            # What is not in a step does not make another program of it.
            method = dataclasses.replace(self._method, num_steps=None, learning_rate=None)
            static = (method, self._batches, care)
            known = functools.partial(gist_of, self._method, *arguments[:3], self._batches)
            self._programs[care] = compiled(
                advance,
                static,
                *arguments,
                model=known,
                largest=largest_of(self._method, self._objective, self._batches),
            )
        return self._programs[care]

    def _maybe_reshuffle(self) -> None:
        if self._batches is None or self._batches.order == "rows":
            return
        due = self.step // self._batches.reshuffle_period(self._objective.num_data)
        while self._shuffles < due:
            self._shuffles += 1
            seed = [int(self._words[2]), self._shuffles]
            data = reshuffled(self._batches, self._objective.data, self._objective.num_data, seed)
            self._objective = self._objective.with_data(data)

    def _check(self, elbo: np.ndarray) -> None:
        """Raises an error if no restart has a bound that is finite, most of the time."""
        bad = ~np.isfinite(elbo)
        if (bad.mean(axis=1) <= MOST_SKIPPED).any() or self.step < FIRST_CHECK // 4:
            return
        first = int(np.argmax(~np.isfinite(self.elbo).all(axis=0)))
        raise self._not_finite(f"at step {first}, and at most steps since")

    def _not_finite(self, when: str) -> SamplingError:
        last = jax.tree.map(lambda leaf: np.asarray(leaf)[0], self.carry.parameters)
        noise = jax.tree.map(lambda leaf: leaf[0], self._noise((1,), peek=True))
        return SamplingError(
            f"The bound is not finite {when}: {self._objective.explain(last, noise)}. Check that site's parameters and "
            f"support; try a `learning_rate` below {self.first_rate}, or another start (`seed`, "
            "`num_restarts`)."
        )


def _is_finite(parameters: Parameters) -> bool:
    return all(bool(jnp.isfinite(jnp.sum(leaf))) for leaf in jax.tree.leaves(parameters))


def _cosine(rate: float, num_steps: int, step: int) -> float:
    return rate * (1e-3 + (1 - 1e-3) * (1 + math.cos(math.pi * step / num_steps)) / 2)
