"""The engine of a long time series cut into pieces: stochastic gradients over the sites beside the path.

Phases:

1. "centre": a climb on some of the pieces, spread over the series; then Newton's steps on all of them, with the
   curvature of the some. So all pieces are read a few times, and not in every step.
2. The phases of the engine over the other sites, with a control variate around the centre. The path is not drawn.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from langevin.contracts import Chunk, Engine, Outcome, Plan, Position, State
from langevin.data.batches import Batches
from langevin.engines import summit
from langevin.errors import SamplingError
from langevin.geometry.finding import Found
from langevin.geometry.starts import flattened, starting_at, unflattened
from langevin.posterior import Posterior, num_rows
from langevin.run.compilation import Programs
from langevin.run.gist import gist_of_density
from langevin.variational import marginal as nesting
from langevin.variational.marginal import Nest, Start
from langevin.variational.subsequences import Subsequences, looked_at, of_pieces, unknown

# How many steps of time the climb reads, in pieces.
MOST_CLIMBED_ON = 100_000
NUM_NEWTON = 3
SPACING = 0.02
Inner = Callable[[Posterior, Plan, Found], Engine]


class PiecedEngine:
    """Samplers over the sites beside a long path.

    Args:
        inner: Makes the engine over the other sites, from where they are.
        nest: The path.
        target: The posterior of all sites.
        plan: What was asked of the run.
        how: How the series is cut.
        independent: Whether pieces must be independent from step to step.
    """

    def __init__(
        self, inner: Inner, nest: Nest, target: Posterior, plan: Plan, how: Subsequences, *, independent: bool
    ) -> None:
        self._make, self._nest, self._target, self._plan, self._how = inner, nest, target, plan, how
        example = {name: np.zeros(leaf.shape, leaf.dtype) for name, leaf in target.model.like.items()}
        self._others = {name: example[name] for name in example if name not in nest.names}
        self._dtype = np.result_type(*jax.tree.leaves(example))
        self._start = nesting.cold(flattened(self._others).size, 1, self._dtype)
        self._pieces = of_pieces(target, nest, self._start, how)
        batches = Batches(min(how.number, self._pieces.num_data))
        self._batches = batches.resolved(self._pieces.num_data, independent)
        self._engine: tuple[bytes, Engine] | None = None
        self._found: tuple[Start, dict[str, np.ndarray]] | None = None
        gist = lambda: gist_of_density(self._pieces, self._others, self._batches.size)  # noqa: E731
        self._programs = Programs(gist, how.width)

    @property
    def num_chains(self) -> int:
        """As many as were asked for."""
        return self._plan.num_chains

    def begin(self) -> State:
        """Before the centre is known."""
        return {"phase": "centre", "start": None, "found": None, "inner": None}

    def advance(self, state: State, limit: int) -> tuple[State, Chunk]:
        """The centre, or some steps of the engine over the others."""
        if state["start"] is None:
            start, centre, factor = self._centred()
            state = state | {"start": tuple(map(np.asarray, start)), "found": (centre, factor)}
            inner = self._inner(state).begin()
            return state | {"inner": inner, "phase": inner["phase"]}, Chunk("centre", 1, 1, 1)
        inner, chunk = self._inner(state).advance(state["inner"], limit)
        return state | {"inner": inner, "phase": inner["phase"]}, chunk

    def finish(self, state: State) -> Outcome:
        """What the engine over the others says."""
        outcome = self._inner(state).finish(state["inner"])
        evidence = {**outcome.evidence, "unchecked": {"why": "the path has a bound in place of draws"}}
        return outcome._replace(evidence=evidence, settings={**outcome.settings, "pieces": self._pieces.num_data})

    def cut_short(self, state: State) -> State | None:
        """A chain in warm-up has no draws."""
        del state

    def fingerprint(self) -> str:
        """A digest of the bound and its gradient."""
        few = jax.tree.map(lambda column: column[: self._batches.size], self._pieces.data)
        return self._programs.digest(_fingerprint, self._plan.keep, self._pieces, self._others, few)

    def _inner(self, state: State) -> Engine:
        """The engine over the others: a function of the start of q and of what the climb found."""
        mark = b"".join(np.asarray(part).tobytes() for part in (*state["start"], *state["found"]))
        if self._engine is None or self._engine[0] != mark:
            centre, factor = state["found"]
            generator = self._plan.seed.child("places").generator()
            places = centre + generator.standard_normal((self.num_chains, centre.size)) @ factor.T
            modes = np.repeat(centre[None], self.num_chains, axis=0)
            found = Found({}, centre, factor, modes, 0.0, np.zeros(0), np.zeros(0))
            target = starting_at(self._known(Start(*state["start"])), places.astype(self._dtype))
            self._engine = (mark, self._make(target, self._plan._replace(batches=self._batches), found))
        return self._engine[1]

    def _with(self, start: Start) -> Posterior:
        fresh = jax.tree.map(jnp.asarray, unknown(start, self._pieces.num_data, self._how))
        target = self._pieces.given_again({nesting.START: start._asdict()})
        return target.with_data({**target.data, **fresh})

    def _known(self, start: Start) -> Posterior:
        """The pieces with the control variate around the centre, and with a start of q for each."""
        target = self._with(start)
        if self._found is None or self._found[0] is not start:
            static = (self._nest, self._how.buffer)
            known = self._programs(_looked_at, static, self._target, target, start)
            self._found = (start, {name: np.asarray(column) for name, column in known.items()})
        return target.with_data({**target.data, **jax.tree.map(jnp.asarray, self._found[1])})

    def _centred(self) -> tuple[Start, np.ndarray, np.ndarray]:
        """A start of q, the centre of the others, and a factor of their covariance.

        Raises:
            SamplingError: If there is no point with a finite bound, or no maximum.
        """
        count = self._pieces.num_data
        some = np.unique(np.linspace(0, count - 1, max(MOST_CLIMBED_ON // self._how.width, 1)).astype(int))
        start = self._start

        def at(point: np.ndarray) -> tuple[float, np.ndarray]:
            few = jax.tree.map(lambda column: column[some], self._with(start).data)
            return self._value(start, point, few)

        generator = self._plan.seed.child("centre").generator()
        point = summit.first_finite(at, start.centre.size, self._dtype, generator)
        if point is None:
            raise SamplingError(
                f"`Hybrid`: the bound of {self._nest.names[0]!r} is not finite at any start. Check the sites that it "
                "depends on."
            )
        for _ in range(2):
            start = self._at(start, point)
            point = summit.climbed(at, point)
        start = self._at(start, point)
        curvature = -summit.with_differences(lambda x: [at(x)[1]], point, SPACING)[0]
        curvature = (curvature + curvature.T) / 2
        if np.linalg.eigvalsh(curvature).min() <= 0:
            raise SamplingError(
                "`Hybrid`: the bound of the pieces has no maximum. Take longer pieces or buffers, or give the sites "
                "beside the path priors that keep them in range."
            )
        for _ in range(NUM_NEWTON if len(some) < count else 0):
            gradient = self._value(start, point, self._with(start).data)[1]
            point = (point + np.linalg.solve(curvature, gradient)).astype(self._dtype)
        return self._at(start, point), point, np.linalg.cholesky(np.linalg.inv(curvature))

    def _value(self, start: Start, point: np.ndarray, pieces: Any) -> tuple[float, np.ndarray]:
        """The bound from some pieces, scaled, and its gradient."""
        count = num_rows(pieces)  # A program is for one number of pieces: some, and then all.
        value, gradient = self._programs(_value, count, self._with(start), self._tree(point), pieces)
        return float(value), flattened(jax.tree.map(np.asarray, gradient)).astype(np.float64)

    def _at(self, start: Start, point: np.ndarray) -> Start:
        """A start at this point, with a q for all steps as it is in the first ones."""
        mean, log_sd = self._programs(_found, self._nest, self._target, start, self._tree(point), self._head)
        middle = lambda array: np.median(np.asarray(array), keepdims=True).astype(self._dtype)  # noqa: E731
        return start._replace(centre=point, mean=middle(mean), log_sd=middle(log_sd))

    @property
    def _head(self) -> Any:
        return jax.tree.map(lambda column: column[: self._how.width], dict(self._target.data))

    def _tree(self, point: np.ndarray) -> Position:
        return unflattened(self._others, point)


def _value(_: int, target: Posterior, others: Position, pieces: Any) -> Any:
    return jax.value_and_grad(target.log_density)(others, pieces)


def _found(nest: Nest, target: Posterior, start: Start, others: Position, rows: Any) -> tuple[jax.Array, jax.Array]:
    found = nesting.search(target, nest, start, others, rows)
    return found.q.mean, jnp.log(nest.form.sds(found.q.precision))


def _looked_at(static: tuple[Nest, int], target: Posterior, pieces: Posterior, start: Start) -> Any:
    nest, buffer = static
    return looked_at(target, nest, pieces, start, buffer)


def _fingerprint(_: Any, target: Posterior, others: Position, few: Any) -> Any:
    return jax.value_and_grad(target.log_density)(others, few)
