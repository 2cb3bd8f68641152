"""The page to read first: what the rooms say to one another. Protocols and plain tuples, no code.

    model + data -> Target -> Method.engine -> Engine -> drive -> Sink -> Fit -> Evidence -> Finding

A **method** is frozen settings. It says what it needs, checks itself against the **plan** (what was asked of the run),
and makes its **engine**. An engine is the mathematics of a run, cut into steps; it has no loop, no clock and no memory
of its own: all that a run knows is in its **state**. `langevin.run.drive` is the only loop. It hands each **chunk** of
draws to a **sink**, in memory or on disk. At the end the engine turns its state into an **outcome**, with the
**evidence** from which `langevin.diagnostics` makes findings.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Literal, NamedTuple, Protocol

import numpy as np

if TYPE_CHECKING:
    import jax

    from langevin.data.batches import Batches
    from langevin.data.pieces import Pieces
    from langevin.run.keep import Keep
    from langevin.run.seeds import Seed

Position = Any
"""An unconstrained point: a pytree of arrays, for a NumPyro program a dict of name -> array."""

Batch = Any
"""Rows: a dict of arrays that share their leading axis. None stands for all rows."""

State = dict[str, Any]
"""All that a run knows between two chunks: arrays, numbers, strings and None, in dicts, lists and tuples.

It has the key "phase". Nothing else outlives a chunk: whoever has the state has the run.
"""

Draws = dict[str, dict[str, np.ndarray]]
"""Consecutive draws of one chain: group -> name -> array with the draws in front.

The groups are those of the result: "posterior", "unconstrained_posterior" and "sample_stats".
"""


class Target(Protocol):
    """What engines see of a model and its rows: a pytree whose leaves are arrays (the data, and fixed sites).

    `langevin.posterior.Posterior` has a log-density over unconstrained positions, which samplers need;
    `langevin.models.joint.Joint` has the sites of a NumPyro program, which guides need.
    """

    @property
    def data(self) -> Batch:
        """Arrays whose first `num_data` rows are the data."""
        ...

    @property
    def num_data(self) -> int:
        """How many rows there are; 0 for a density without data."""
        ...

    @property
    def dims(self) -> tuple[tuple[str, tuple[str, ...]], ...]:
        """For each reported name, the names of its dimensions."""
        ...

    @property
    def observed(self) -> tuple[str, ...]:
        """The names of the sites that have a given value; empty for a density, which has no sites."""
        ...

    @property
    def left_out(self) -> tuple[str, ...]:
        """The names that are not reported, because they depend on the rows of a minibatch."""
        ...

    def log_density(self, position: Position, batch: Batch | None = None) -> jax.Array:
        """The log posterior up to a constant; from minibatches, without bias.

        Raises:
            ModelError: If the position lacks a site, or has one that the model does not know.
        """
        ...

    def given(self, fixed: Mapping[str, Any]) -> Target:
        """The same with some sites fixed: they are no longer part of the position."""
        ...

    def with_data(self, data: Batch) -> Target:
        """The same on other rows, or on the same in another order."""
        ...


class Needs(NamedTuple):
    """What a method needs of the target.

    Attributes:
        target: "density" for a log-density over unconstrained positions, "joint" for the sites of a NumPyro program;
            "either" for the density where the program has one, and else the sites; "local" for a density whose sites
            may belong to rows, also where it will see minibatches.
        minibatches: "none" if every step takes all rows; "any"; or "independent", if minibatches must be independent
            from step to step.
        in_memory: Whether all rows must be in memory.
    """

    target: Literal["density", "joint", "either", "local"] = "density"
    minibatches: Literal["none", "any", "independent"] = "any"
    in_memory: bool = True


class Plan(NamedTuple):
    """What was asked of a run.

    Attributes:
        num_chains: Chains, side by side.
        num_warmup: Draws or steps that a method adapts with.
        num_draws: Draws of each chain.
        thin: Draws (with stochastic gradients, steps) to a draw that is kept; None if the method is to choose.
        batches: How minibatches are drawn, "auto" resolved; None for all rows in every step.
        seed: The root of everything random.
        keep: What is kept of a draw.
        init: Flat positions (draws, size) of an earlier fit to start from; None for starts of the model's own.
        warmup_asked: Whether `num_warmup` was asked for, and is not only the usual number.
        network_size: How many weights the model has, if it is a network; else 0.
        pieces: The rows, if they are read in pieces; the target then has the largest piece only.
    """

    num_chains: int
    num_warmup: int
    num_draws: int
    thin: int | None
    batches: Batches | None
    seed: Seed
    keep: Keep
    init: np.ndarray | None = None
    warmup_asked: bool = False
    network_size: int = 0
    pieces: Pieces | None = None


class Method(Protocol):
    """Frozen settings, as a user passes them."""

    @property
    def needs(self) -> Needs:
        """What the method needs of the target."""
        ...

    def check(self, plan: Plan) -> None:
        """Raises a SettingError if settings and plan do not go together."""
        ...

    def approximation(self, plan: Plan) -> str:
        """Which density the draws are from, in a sentence; empty if it is the posterior."""
        ...

    def engine(self, target: Any, plan: Plan) -> Engine:
        """The engine of a run."""
        ...


class Chunk(NamedTuple):
    """What an engine did in one call.

    Attributes:
        phase: In which phase of the run: a word for the progress bar.
        steps: How many steps were taken, of those that `limit` limits.
        done: How far the phase is.
        total: When it will be over.
        shown: Numbers for the progress bar, by name.
        draws: What each chain drew, which may be more for one chain than for another; empty before the first draws.
        finished: Whether the run is over.
        later: How much the phases after this one will take, in units of `done`; None if it is unknown.
        seconds_left: Until the run is over; None if it cannot be told. The loop says so, not the engine.
    """

    phase: str
    steps: int
    done: int
    total: int
    shown: Mapping[str, float] = {}
    draws: tuple[Draws, ...] = ()
    finished: bool = False
    later: int | None = None
    seconds_left: float | None = None


class Group(NamedTuple):
    """A further group of the result: name -> (dimensions, array), and attributes that JSON can hold."""

    variables: Mapping[str, tuple[tuple[str, ...], np.ndarray]]
    attributes: Mapping[str, Any] = {}


class Outcome(NamedTuple):
    """What is left of a run besides its draws. All but `guide` and `model` can be stored.

    Attributes:
        evidence: For each kind of evidence (a name in `langevin.diagnostics.evidence.FINDERS`) its numbers, which
            JSON can hold.
        settings: What the run chose: step size, steps to a draw; `num_chains`, if only the first so many count.
        remark: A further sentence about what was approximated.
        by_chain: Arrays of one number a chain, which go into "sample_stats".
        groups: Further groups of the result.
        centring: For each site whose centring was chosen, how far its elements are centred.
        guide: The fitted approximation (of VI, and around a mode).
        model: The model to predict with, where it is not the one that was fitted: a network that was linearised.
    """

    evidence: dict[str, dict[str, Any]]
    settings: dict[str, Any]
    remark: str = ""
    by_chain: Mapping[str, np.ndarray] = {}
    groups: Mapping[str, Group] = {}
    centring: Mapping[str, np.ndarray] = {}
    guide: Any = None
    model: Any = None


class Engine(Protocol):
    """The mathematics of a run. It holds what never changes in a run: settings, target, plan, compiled programs."""

    @property
    def num_chains(self) -> int:
        """How many chains bring draws."""
        ...

    def begin(self) -> State:
        """The state before the first step. Cheap: a resumed run does without it."""
        ...

    def advance(self, state: State, limit: int) -> tuple[State, Chunk]:
        """Takes at most `limit` steps, and at least one. The state that went in is left as it was.

        The draws are the same bits however a run is cut. A run that is over stays over, and an engine whose plan has
        more draws than the state goes on with it.
        """
        ...

    def finish(self, state: State) -> Outcome:
        """What the run says of itself; also of one that was cut short, once it has draws."""
        ...

    def cut_short(self, state: State) -> State | None:
        """A state from which a run that is stopped before its first draw has draws at once; None if there is none.

        A fit of q that is not over has a q all the same; a chain in warm-up has nothing.
        """
        ...

    def fingerprint(self) -> str:
        """A digest of all that the engine computes of the model: another model has another."""
        ...


class Sink(Protocol):
    """Where draws go."""

    @property
    def durable(self) -> bool:
        """Whether an interrupted run can be continued from it."""
        ...

    @property
    def counts(self) -> tuple[int, ...]:
        """How many draws each chain has brought; empty before the first."""
        ...

    def add(self, draws: tuple[Draws, ...]) -> None:
        """Takes the draws of a chunk."""
        ...

    def checkpoint(self, state: State) -> None:
        """Makes sure that a run can go on from here."""
        ...
