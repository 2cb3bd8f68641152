"""A run on disk, which survives: blocks of draws, and a checkpoint from which the run goes on.

The folder of a run has

    run.json          what was asked for; whoever has it can continue the run
    init.npz          where the chains start; only if that is not the model's own
    checkpoint.npz    the state, and the draws that do not fill a block yet
    blocks.log        path, size and checksum of every full block
    manifest.jsonl    the same of every file of the result; only if the run is finished
    posterior/ ...    the draws, as Zarr arrays in blocks of one chain and K draws

Blocks that were written after the last checkpoint do not count: they are written again, with the same bytes.
"""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import zlib
from collections.abc import Generator, Mapping
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from langevin.errors import SettingError, StoreError
from langevin.run import checkpoint, integrity
from langevin.run.blocks import Chain, block_number, extended, write_blocks
from langevin.run.finish import write_result
from langevin.run.integrity import Entry
from langevin.run.layout import Layout, layout_of, length

if TYPE_CHECKING:
    import xarray as xr

    from langevin.contracts import Draws, Group, State

FORMAT = "langevin run 1"
RECORD, CHECKPOINT, LOG, INIT = "run.json", "checkpoint.npz", "blocks.log", "init.npz"


class Written(NamedTuple):
    """What of a run is written. It is replaced as a whole, so that an interruption finds the old or the new.

    Attributes:
        layout: Of the draws; None before the first.
        chains: How far each chain is.
        fresh: The blocks since the last checkpoint.
    """

    layout: Layout | None
    chains: tuple[Chain, ...]
    fresh: tuple[Entry, ...] = ()


class Log(NamedTuple):
    """How much of the log counts: its bytes and their checksum."""

    size: int = 0
    crc32: int = 0


class Store:
    """The sink of a run on disk. Use `Store.create` or `Store.open`.

    Attributes:
        path: The folder.
        record: What was asked for.
        state: The engine's state at the last checkpoint; None if there was none.
    """

    durable = True

    def __init__(self, path: Path, record: dict[str, Any], state: State | None, written: Written, log: Log) -> None:
        self.path = path
        self.record = record
        self.state = state
        self._written = written
        self._log = log

    @classmethod
    def create(cls, path: str | Path, record: dict[str, Any], num_chains: int, init: np.ndarray | None = None) -> Store:
        """Makes the folder of a new run.

        Args:
            path: The folder. Folders above it are made too.
            record: What was asked for; JSON must be able to hold it.
            num_chains: How many chains bring draws.
            init: Positions that the run starts from, if they are not of the model's own.

        Raises:
            SettingError: If something is there already.
            StoreError: If the folder cannot be written.
        """
        path = Path(path)
        if os.path.lexists(path):
            raise SettingError(
                f"`path`: {path} exists already. To continue a run: lv.resume({str(path)!r}, model, data). "
                "For a new one choose another path."
            )
        store = cls(path, record, None, Written(None, (Chain(),) * num_chains), Log())
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            path.mkdir()
            try:
                integrity.write_bytes(path / LOG, b"")
                checkpoint.write(path / CHECKPOINT, store._as_state(None))
                if init is not None:
                    checkpoint.write(path / INIT, {"positions": init})
                integrity.write_bytes(path / RECORD, _content(record, num_chains))
            except BaseException:
                shutil.rmtree(path, ignore_errors=True)
                raise
        except OSError as error:
            raise StoreError(
                f"`path`: {path} cannot be written ({integrity.reason(error)}). Nothing was computed yet. "
                "Choose another path."
            ) from error
        return store

    @classmethod
    def open(cls, path: str | Path) -> Store:
        """Opens the folder of a run to go on from its last checkpoint. Every block is checked.

        Raises:
            StoreError: If there is no run at the path, or a file of it is damaged or missing.
        """
        path = Path(path)
        record, num_chains = _read_record(path)
        try:
            content = checkpoint.read(path / CHECKPOINT)
        except StoreError as error:
            raise StoreError(f"{error} Without it the run cannot go on. Restore it from a copy.") from error
        log = Log(*content["log"])
        _check_blocks(path, log)
        layout = content["layout"] and Layout.of_state(content["layout"])
        chains = []
        for blocks, pending in content["chains"]:
            names = [(variable.group, variable.name) for variable in layout.variables] if layout else []
            chains.append(Chain(blocks, (dict(zip(names, pending, strict=True)),) if pending else ()))
        if len(chains) != num_chains:
            raise StoreError(f"{path / CHECKPOINT} is of {len(chains)} chains, and {RECORD} of {num_chains}.")
        return cls(path, record, content["state"], Written(layout, tuple(chains)), log)

    @property
    def init(self) -> np.ndarray | None:
        """The positions that the run starts from; None for those of the model's own."""
        return checkpoint.read(self.path / INIT)["positions"] if (self.path / INIT).exists() else None

    def renew(self, record: dict[str, Any]) -> None:
        """Replaces what was asked for, when more is."""
        if record != self.record:
            with self._writing():
                integrity.write_bytes(self.path / RECORD, _content(record, len(self._written.chains)))
            self.record = record

    @property
    def counts(self) -> tuple[int, ...]:
        """How many draws each chain has made."""
        layout, chains, _ = self._written
        block = layout.block if layout else 0
        return tuple(chain.blocks * block + chain.num_pending for chain in chains)

    @property
    def draws_to_a_block(self) -> int | None:
        """K; None before the first draws."""
        return self._written.layout and self._written.layout.block

    def add(self, draws: tuple[Draws, ...]) -> None:
        """Takes the draws of a chunk, and writes the blocks that are full.

        Args:
            draws: For each chain its draws, which may be more for one than for another; or nothing.

        Raises:
            StoreError: If a block cannot be written. What was stored up to the last checkpoint is safe.
            SettingError: If a name cannot be that of an array in a folder.
        """
        some = next((part for part in draws if length(part)), None)
        if some is None:
            return
        layout, chains, fresh = self._written
        if len(draws) != len(chains):
            raise ValueError(f"There are {len(chains)} chains; draws of {len(draws)} were added.")
        with self._writing():
            self._unseal()
            if layout is None:
                layout = layout_of(some)
                self._make_folders(layout)
            further, entries = list(chains), list(fresh)
            for index, part in enumerate(draws):
                if length(part):
                    further[index], blocks = extended(self.path, layout, index, chains[index], part)
                    entries += blocks
        self._written = Written(layout, tuple(further), tuple(entries))

    def checkpoint(self, state: State) -> None:
        """Makes sure that the run can go on from here, also after a power cut.

        Raises:
            StoreError: If it cannot be written. The last checkpoint is then still there.
            TypeError: If the state has something that cannot be stored.
        """
        lines = b"".join(entry.line() for entry in self._written.fresh)
        log = Log(self._log.size + len(lines), zlib.crc32(lines, self._log.crc32))
        with self._writing():
            integrity.synchronise(self.path / entry.path for entry in self._written.fresh)
            with open(self.path / LOG, "r+b") as file:
                file.seek(self._log.size)
                integrity.put(file, lines)
                file.flush()
                os.fsync(file.fileno())
            checkpoint.write(self.path / CHECKPOINT, self._as_state(state, log))
        self.state = state
        self._log = log
        self._written = self._written._replace(fresh=())

    def finish(
        self,
        num_draws: int,
        dims: Mapping[str, tuple[str, ...]],
        attributes: Mapping[str, Any],
        groups: Mapping[str, Group],
        by_chain: Mapping[str, np.ndarray],
        labels: Mapping[str, np.ndarray] = MappingProxyType({}),
    ) -> None:
        """Makes the folder a result that `lv.load`, xarray and ArviZ read. The run can be extended later.

        Args:
            num_draws: Draws of each chain in the result. What a chain made beyond stays for a later extension.
            dims: For each reported site the names of its dimensions, in the order in which a user reads them.
            attributes: Of the result; JSON must be able to hold them.
            groups: Further groups.
            by_chain: Arrays of one number a chain, for "sample_stats".
            labels: For each dimension of a site that has them, the labels of its elements.

        Raises:
            SettingError: If a chain has fewer draws.
            StoreError: If a file cannot be written. What was stored up to the last checkpoint is safe.
        """
        layout, chains, fresh = self._written
        if layout is None or not 0 < num_draws <= min(self.counts):
            counts = ", ".join(map(str, self.counts))
            raise SettingError(f"`num_draws` must be from 1 to what every chain has made: {counts}; got {num_draws}.")
        with self._writing():
            self._unseal()
            rest = []
            for index, chain in enumerate(chains):
                if chain.blocks * layout.block < num_draws:
                    rest += write_blocks(self.path, layout, index, chain.blocks, chain.joined())
            integrity.synchronise(self.path / entry.path for entry in (*fresh, *rest))
            sizes = len(chains), num_draws
            metadata = write_result(self.path, layout, *sizes, dims, attributes, groups, by_chain, labels)
            full = (entry for entry in (*self._logged(), *fresh) if block_number(entry) * layout.block < num_draws)
            integrity.write_manifest(self.path, [*metadata, *full, *rest])

    def tree(self) -> xr.DataTree:
        """The finished run; its draws are read when they are used.

        Raises:
            StoreError: If the run is not finished.
        """
        from langevin.run.tree import open_tree

        if not (self.path / integrity.MANIFEST).exists():
            raise StoreError(
                f"{self.path} is not finished. Continue it with lv.resume({str(self.path)!r}, model, data)."
            )
        return open_tree(self.path)

    def _as_state(self, state: State | None, log: Log | None = None) -> dict[str, Any]:
        """The content of a checkpoint."""
        layout, chains, _ = self._written
        return {
            "state": state,
            "layout": layout and layout.as_state(),
            "chains": [(chain.blocks, list(chain.joined().values())) for chain in chains],
            "log": tuple(log or self._log),
        }

    def _logged(self) -> list[Entry]:
        with open(self.path / LOG, "rb") as file:
            return list(integrity.parse_entries(file.read(self._log.size)))

    def _unseal(self) -> None:
        """Takes back that the run is finished, before a file of the result changes."""
        manifest = self.path / integrity.MANIFEST
        if manifest.exists():
            manifest.unlink()
            integrity.synchronise([self.path / RECORD])

    def _make_folders(self, layout: Layout) -> None:
        for variable in layout.variables:
            (self.path / variable.group / variable.name).mkdir(parents=True, exist_ok=True)
        for variable in layout.variables:
            if variable.name not in os.listdir(self.path / variable.group):
                raise SettingError(
                    f"{variable.source!r} differs from another name only in upper and lower case, which the disk of "
                    f"{self.path} does not tell apart. Rename the site, or choose another disk."
                )

    @contextlib.contextmanager
    def _writing(self) -> Generator[None]:
        """Says of errors of the operating system what is safe, and how to go on."""
        try:
            yield
        except OSError as error:
            why = integrity.reason(error)
            safe = "Everything up to the last checkpoint is safe"
            if self.state is None:
                safe = "There was no checkpoint yet, so that the run begins anew"
            remedy = "Free some space" if why == "the disk is full" else "Make the folder writable"
            raise StoreError(
                f"The run cannot be written to {self.path} ({why}). {safe}. {remedy}, then continue with "
                f"lv.resume({str(self.path)!r}, model, data)."
            ) from error


def _read_record(path: Path) -> tuple[dict[str, Any], int]:
    """The record of a run, and its number of chains."""
    file = path / RECORD
    if not os.path.lexists(path):
        raise StoreError(f"There is nothing at {path}.")
    if not file.exists():
        saved = (path / integrity.MANIFEST).exists()
        hint = "It is a fit that was saved: lv.load reads it." if saved else "Is it the path that `fit` was given?"
        raise StoreError(f"{path} is not the folder of a run: it has no {RECORD}. {hint}")
    try:
        content = json.loads(file.read_bytes())
        written, record, num_chains, crc32 = (content[key] for key in ("format", "record", "num_chains", "crc32"))
    except OSError as error:
        raise StoreError(f"{file} cannot be read ({integrity.reason(error)}).") from error
    except (ValueError, KeyError, TypeError) as error:
        raise StoreError(f"{file} is damaged: it is not the record of a run. Restore it from a copy.") from error
    if written != FORMAT:
        raise StoreError(f"{file} has the format {written!r}; this version continues {FORMAT!r}.")
    if crc32 != _checksum(record, num_chains):
        raise StoreError(f"{file} is damaged: its checksum is not that with which it was written. Restore it.")
    return record, num_chains


def _content(record: dict[str, Any], num_chains: int) -> bytes:
    checksum = _checksum(record, num_chains)
    return json.dumps({"format": FORMAT, "num_chains": num_chains, "crc32": checksum, "record": record}).encode()


def _checksum(record: dict[str, Any], num_chains: int) -> int:
    return zlib.crc32(json.dumps([record, num_chains]).encode())


def _check_blocks(path: Path, log: Log) -> None:
    """Cuts off what the log has beyond the last checkpoint, and checks every block that it names."""
    wrong = f"{path / LOG} is damaged: it is not as it was at the last checkpoint"
    try:
        with open(path / LOG, "r+b") as file:
            lines = file.read(log.size)
            if (len(lines), zlib.crc32(lines)) == log:
                file.truncate(log.size)
                wrong = integrity.damage(path, integrity.parse_entries(lines))
    except OSError as error:
        wrong = f"{path / LOG} cannot be opened ({integrity.reason(error)})"
    if wrong:
        raise StoreError(f"{wrong}. Without it the run cannot go on. Restore it from a copy.")
