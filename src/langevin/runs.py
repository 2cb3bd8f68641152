"""A run, from what a user brings to a Fit: in memory, or on disk, where it can be continued."""

from __future__ import annotations

import dataclasses
import hashlib
import importlib.metadata
import json
import warnings
from collections.abc import Callable, Mapping, Sequence
from contextlib import nullcontext
from typing import TYPE_CHECKING, Any, NamedTuple

import jax
import numpy as np

from langevin.contracts import Engine, Group, Needs, Outcome, Plan, State, Target
from langevin.data.batches import Batches
from langevin.data.levels import Label
from langevin.data.pieces import Pieces
from langevin.data.table import Missing, Table
from langevin.earlier import CENTRING, positions_of
from langevin.engines.double import DoubleEngine, as_double
from langevin.errors import LangevinWarning, SettingError
from langevin.geometry.starts import starting_at
from langevin.methods import describe
from langevin.methods.base import Method
from langevin.models.build import target_of
from langevin.models.joint import Joint
from langevin.models.networks.keeping import Outputs, source_of_network
from langevin.models.networks.network import Network
from langevin.models.piecewise import as_taken
from langevin.models.program import Noncentred
from langevin.naming import Names, names_of
from langevin.posterior import Posterior
from langevin.run.drive import drive
from langevin.run.keep import Keep
from langevin.run.memory import Memory
from langevin.run.progress import Bars, Patience
from langevin.run.seeds import Seed
from langevin.run.store import Store

if TYPE_CHECKING:
    import xarray as xr

    from langevin.result import Fit

MOST_IN_MEMORY = 2_000_000_000
NUM_WARMUP = 1000
PACKAGES = ("langevin", "jax", "jaxlib", "numpyro", "numpy")


class Asked(NamedTuple):
    """What a user asked for besides model, data and method; see `langevin.fit`. JSON can hold it.

    Counts are None where they are left to the method; chains and draws are known once the model is.
    """

    num_chains: int | None
    num_warmup: int | None
    num_draws: int | None
    thin: int | None
    batches: Batches | None
    seed: tuple[int, ...]
    rows: str | tuple[str, ...] | None
    noncentred: Noncentred
    missing: Missing = "error"
    dims: Mapping[str, Sequence[str]] = {}
    coords: Mapping[str, Sequence[Label]] = {}
    collapse: tuple[str, ...] = ()

    def as_json(self) -> dict[str, Any]:
        """With the minibatches spelled out."""
        return self._asdict() | {"batches": None if self.batches is None else vars(self.batches)}

    @classmethod
    def from_json(cls, plain: Mapping[str, Any]) -> Asked:
        """What `as_json` made, after a way through JSON."""
        fields: dict[str, Any] = {n: tuple(value) if isinstance(value, list) else value for n, value in plain.items()}
        fields["batches"] = None if plain["batches"] is None else Batches(**plain["batches"])
        return cls(**fields)


class Run(NamedTuple):
    """All that a run needs, before its first step.

    Attributes:
        asked: What was asked for.
        table: The rows.
        constants: Arguments of the program that are passed whole.
        method: The settings.
        target: What the engine sees of the model.
        plan: What the engine sees of what was asked for.
        engine: The engine.
        model: The NumPyro program, or the `lv.Density`.
        names: Of the dimensions of the result, and of their elements.
    """

    asked: Asked
    table: Table
    constants: Mapping[str, Any]
    method: Method
    target: Target
    plan: Plan
    engine: Engine
    model: Any
    names: Names

    def into_memory(self, progress: bool, max_seconds: float | None = None) -> Fit:
        """Runs, for at most about so long, and keeps the draws in memory."""
        self._warn_of_memory()
        sink = Memory(self.engine.num_chains)
        with Bars() if progress else nullcontext(Patience()) as watch:
            outcome, interrupted = self._driven(sink, watch, None, max_seconds)
        if outcome is None:
            raise KeyboardInterrupt("The run was interrupted before its first draw, and nothing is left of it.")
        # These import xarray, which takes half a second, and which a thread has imported in the meantime.
        from langevin.assembly import data_tree

        # Of an ensemble that was cut short, the first members.
        num_chains = outcome.settings.get("num_chains", self.engine.num_chains)
        num_draws = min(self.plan.num_draws, *sink.counts[:num_chains])
        if interrupted:
            asked = outcome.settings.get("num_draws", self.plan.num_draws)
            outcome = outcome._replace(evidence={"interrupted": {"asked": asked}, **outcome.evidence})
        arrays = sink.arrays(num_draws, num_chains)
        settings = self._settings(outcome, num_draws)
        return self._fit(data_tree(arrays, self.names.dims, outcome, settings, self.names.labels), outcome)

    def into_store(self, store: Store, progress: bool, max_seconds: float | None = None) -> Fit:
        """Runs, or goes on, for at most about so long, and keeps the draws on disk.

        Raises:
            KeyboardInterrupt: With a sentence that says how to continue.
            StoreError: If the disk is full; what is complete is not lost.
        """
        with Bars() if progress else nullcontext(Patience()) as watch:
            outcome, interrupted = self._driven(store, watch, store.state, max_seconds)
        if interrupted or outcome is None:
            raise KeyboardInterrupt(
                f"The run was interrupted. Everything up to its last checkpoint is in {store.path}: continue with "
                f"lv.resume({str(store.path)!r}, model, data)."
            )
        from langevin.run.tree import MOST_IN_MEMORY, open_tree

        num_draws = min(self.plan.num_draws, *store.counts)
        attributes = {"settings": json.dumps(self._settings(outcome, num_draws))}
        store.finish(num_draws, self.names.dims, attributes, outcome.groups, outcome.by_chain, self.names.labels)
        return self._fit(open_tree(store.path, MOST_IN_MEMORY), outcome)

    def record(self) -> dict[str, Any]:
        """What a run is, so that a change of it is noticed when it is continued."""
        return {
            "asked": self.asked.as_json(),
            "method": describe(self.method),
            "keep": describe(self.plan.keep),
            "versions": {name: importlib.metadata.version(name) for name in PACKAGES},
            "double precision": bool(jax.config.values["jax_enable_x64"]),
            "data": {name: _digest(column) for name, column in self.table.columns.items()},
            "levels": {name: list(levels) for name, levels in self.table.levels.items()},
            "constants": {name: _digest(value) for name, value in self.constants.items()},
            "init": None if self.plan.init is None else _digest(self.plan.init),
            "model": self.engine.fingerprint(),
        }

    def _warn_of_memory(self) -> None:
        """Warns of draws that would fill the memory, before they are made."""
        if not isinstance(self.target, Posterior):
            return
        target, keep = self.target, self.plan.keep
        reported = jax.eval_shape(lambda position: keep.reported(target.constrain(position)), target.model.like)
        num_draws = self.method.total_draws(self.plan)
        needed = num_draws * keep.bytes_of(target.model.like, reported)
        if needed > MOST_IN_MEMORY:
            warnings.warn(
                f"{num_draws:,} draws will take {needed / 1e9:.1f} GB of memory. Write them to disk with store='run'; "
                "keep less with keep=lv.Keep(precision='half'), or of a network its predictions alone with "
                "keep=lv.Keep(predict=rows); or take fewer draws.",
                LangevinWarning,
                stacklevel=4,
            )

    def _driven(
        self, sink: Any, watch: Callable[..., None], state: State | None, max_seconds: float | None
    ) -> tuple[Outcome | None, bool]:
        ran = drive(self.engine, sink, watch, state, max_seconds)
        outcome = ran.outcome
        if ran.out_of_time and outcome is not None:
            numbers = {"asked": outcome.settings.get("num_draws", self.plan.num_draws), "seconds": max_seconds}
            outcome = outcome._replace(evidence={"out of time": numbers, **outcome.evidence})
        if outcome is not None and outcome.centring:
            arrays = {name: (_axes(name, values), np.asarray(values)) for name, values in outcome.centring.items()}
            outcome = outcome._replace(groups={**outcome.groups, CENTRING: Group(arrays)})
        return outcome, ran.interrupted

    def _settings(self, outcome: Outcome, num_draws: int) -> dict[str, Any]:
        model = self.target.model if isinstance(self.target, Posterior) else None
        sentences = (self.method.approximation(self.plan), outcome.remark, "" if model is None else model.remark)
        return {
            "method": describe(self.method),
            "num_chains": self.plan.num_chains,
            "num_warmup": self.plan.num_warmup,
            "num_draws": num_draws,
            "noncentred": self.asked.noncentred,
            "collapsed": self.asked.collapse,
            "batches": None if self.plan.batches is None else vars(self.plan.batches),
            "num_data": self.target.num_data,
            "observed": self.target.observed,
            "missing": self.asked.missing,
            "rows_left_out": self.table.left_out,
            "levels": self.table.levels,
            "counts": self.table.counts,
            "left_out": self.target.left_out,
            "judged_by": () if model is None else model.judged_by,
            "seed": self.asked.seed,
            "keep": describe(self.plan.keep),
            "approximation": " ".join(sentence for sentence in sentences if sentence),
            "summed_out": list(self.target.summed_out) if isinstance(self.target, Posterior) else [],
            "version": importlib.metadata.version("langevin"),
            "evidence": outcome.evidence,
        } | outcome.settings

    def _target_of(self, model: Any) -> Any:
        return target_of(
            model,
            self.table,
            constants=self.constants,
            rows=self.asked.rows,
            noncentred=self.asked.noncentred,
            needs=self.method.needs,
            minibatch=self.plan.batches is not None,
        )

    def _fit(self, tree: xr.DataTree, outcome: Outcome) -> Fit:
        from langevin.diagnostics.findings import UNSURPRISING
        from langevin.result import Fit

        target = self.target.with_centring(outcome.centring) if isinstance(self.target, Posterior) else None
        model = self.model
        if outcome.model is not None:
            model, target = outcome.model, self._target_of(outcome.model)
        if outcome.guide is not None:
            outcome.guide.levels = self.table.levels
        keep = self.plan.keep
        table = keep.function.table if isinstance(keep.function, Outputs) else self.table
        source = source_of_network(model, self.constants, describe(keep), table)
        fit = Fit(tree, target, outcome.guide, source)
        for finding in fit.verdict:
            if finding.code not in UNSURPRISING:
                warnings.warn(str(finding), LangevinWarning, stacklevel=5)
        return fit


def prepared(
    model: Any,
    table: Table,
    method: Method,
    asked: Asked,
    keep: Keep,
    constants: Mapping[str, Any],
    init: Fit | np.ndarray | None,
    pieces: Pieces | None = None,
) -> Run:
    """Walks from what a user brings to an engine.

    Args:
        model: A NumPyro program, or an `lv.Density`.
        table: The rows.
        method: The settings.
        asked: What else was asked for.
        keep: What is kept of a draw.
        constants: Arguments of the program that are passed whole.
        init: An earlier fit to start from, or its flat positions.
        pieces: All rows, if they are read in pieces; the table then is the largest piece.

    Raises:
        LangevinError: A sentence, if something does not go together.
    """
    needs, batches = method.needs, asked.batches
    if pieces is not None:
        pieces = _pieces_for(method, pieces, model, table, constants, asked)
    if batches is not None:
        if needs.minibatches == "none":
            raise SettingError(
                f"`{type(method).__name__}` takes all rows in every step: leave `batch_size` out. For minibatches "
                "there are 'sgld', 'sghmc' and their kin."
            )
        num_rows = table.num_rows if pieces is None else pieces.num_rows // pieces.num_blocks
        batches.check(num_rows)
        batches = batches.resolved(num_rows, needs.minibatches == "independent")
    plan = _plan(method, asked, batches, keep, model.num_weights if isinstance(model, Network) else 0)
    plan = plan._replace(pieces=pieces)
    method.check(plan)
    asked = asked._replace(num_chains=plan.num_chains, num_draws=plan.num_draws)
    target = target_of(
        _collapsed(model, table, constants, asked) if asked.collapse else model,
        table,
        constants=constants,
        rows=asked.rows,
        noncentred=asked.noncentred,
        needs=needs,
        minibatch=batches is not None,
    )
    if pieces is not None:
        target = dataclasses.replace(target, num_data=pieces.num_rows)
    if init is not None:
        from langevin.result import Fit

        if not isinstance(init, np.ndarray | Fit):
            raise SettingError(f"`init` must be an earlier fit of the same model; got {type(init).__name__}.")
        if not isinstance(target, Posterior):
            raise SettingError("`init` is for samplers and families; a guide brings its own start. Leave it out.")
        flat = init if isinstance(init, np.ndarray) else positions_of(init, target)
        target, plan = starting_at(target, flat), plan._replace(init=flat)
    names = names_of(target, keep, table.levels, asked.dims, asked.coords)
    in_double = asked.collapse and isinstance(target, Posterior)
    engine = DoubleEngine(method.engine, target, plan) if in_double else method.engine(target, plan)
    return Run(asked, table, constants, method, target, plan, engine, model, names)


def _pieces_for(
    method: Method, pieces: Pieces, model: Any, largest: Table, constants: Mapping[str, Any], asked: Asked
) -> Pieces:
    """The pieces as the program takes them, for a method that can."""
    needs = method.needs
    if needs.in_memory or asked.batches is None:
        what = "holds all rows in memory" if needs.in_memory else "needs a `batch_size` for rows that come in pieces"
        raise SettingError(f"`{type(method).__name__}` {what}. lv.CAVI with `batch_size` takes lv.Pieces.")
    if asked.missing != "error":
        raise SettingError(
            f"`missing={asked.missing!r}` is not for rows that come in pieces, whose `sizes` must be right. Leave rows "
            "out in `read`."
        )
    return as_taken(pieces, model, largest, constants, asked.rows, needs)


def _collapsed(model: Any, table: Table, constants: Mapping[str, Any], asked: Asked) -> Any:
    """The program without the sites that are to be integrated out."""
    from langevin.conjugacy.collapsing import collapsed

    if asked.batches is not None:
        raise SettingError("`collapse` integrates over sites given all rows. Leave `batch_size` out.")
    joint = target_of(
        model, table, constants=constants, rows=asked.rows, noncentred=False, needs=Needs("joint"), minibatch=False
    )
    assert isinstance(joint, Joint)
    with jax.enable_x64(True):
        return collapsed(dataclasses.replace(joint, data=as_double(joint.data)), asked.collapse, Seed(asked.seed))


def _plan(method: Method, asked: Asked, batches: Batches | None, keep: Keep, network_size: int) -> Plan:
    """What was asked for, and where nothing was, what is usual for the method and the model."""
    usual = method.counts(network_size)
    return Plan(
        num_chains=usual.num_chains if asked.num_chains is None else asked.num_chains,
        num_warmup=NUM_WARMUP if asked.num_warmup is None else asked.num_warmup,
        num_draws=usual.num_draws if asked.num_draws is None else asked.num_draws,
        thin=asked.thin,
        batches=batches,
        seed=Seed(asked.seed),
        keep=keep,
        warmup_asked=asked.num_warmup is not None,
        network_size=network_size,
    )


def _axes(name: str, values: Any) -> tuple[str, ...]:
    return tuple(f"{name}_dim_{axis}" for axis in range(np.ndim(values)))


def _digest(value: Any) -> str:
    digest = hashlib.sha256()
    for path, leaf in jax.tree_util.tree_flatten_with_path(value)[0]:
        array = np.ascontiguousarray(leaf)
        digest.update(f"{jax.tree_util.keystr(path)} {array.dtype} {array.shape}".encode())
        if array.dtype == object:
            # What its description does not tell, the text of the model does.
            digest.update((repr(leaf) if " at 0x" not in repr(leaf) else type(leaf).__qualname__).encode())
        else:
            digest.update(array.data.cast("B") if array.size else b"")
    return digest.hexdigest()
