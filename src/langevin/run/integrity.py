"""Files that are whole: written at once, and with checksums by which damage is noticed."""

from __future__ import annotations

import contextlib
import errno
import json
import os
import zlib
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import BinaryIO, NamedTuple

from langevin.errors import StoreError

MANIFEST = "manifest.jsonl"
_FORMAT = "langevin manifest 1"


class Entry(NamedTuple):
    """A file of a folder, as it was written.

    Attributes:
        path: Relative to the folder, with "/" between the parts.
        size: In bytes.
        crc32: The checksum of its bytes.
    """

    path: str
    size: int
    crc32: int

    def line(self) -> bytes:
        """The entry as a line of a log or a manifest."""
        return json.dumps(self).encode() + b"\n"


def put(file: BinaryIO, data: bytes) -> None:
    """Writes bytes to an open file. All that langevin writes of a run goes through here."""
    file.write(data)


def write_bytes(path: Path, data: bytes, sync: bool = True) -> None:
    """Writes a file whole or not at all: whoever looks sees the old file or the new one.

    Args:
        path: The file.
        data: Its bytes.
        sync: Whether to wait until they are on the disk. If not, `synchronise` does so later.
    """
    partial = path.with_name(f".{path.name}.partial")
    try:
        with open(partial, "wb") as file:
            put(file, data)
            file.flush()
            if sync:
                os.fsync(file.fileno())
        os.replace(partial, path)
    except BaseException:
        with contextlib.suppress(OSError):
            partial.unlink(missing_ok=True)
        raise
    if sync:
        _synchronise_one(path.parent)


def synchronise(paths: Iterable[Path]) -> None:
    """Waits until files, and the folders that they are in, are on the disk."""
    paths = list(paths)
    for path in [*paths, *sorted({path.parent for path in paths})]:
        _synchronise_one(path)


def _synchronise_one(path: Path) -> None:
    if os.name == "nt":  # Windows cannot do so for folders, nor for files that are open for reading only.
        return
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def entry_of(folder: Path, path: str) -> Entry:
    """The entry of a file as it is now, read in pieces."""
    size, checksum = 0, 0
    with open(folder / path, "rb") as file:
        while piece := file.read(1 << 20):
            size, checksum = size + len(piece), zlib.crc32(piece, checksum)
    return Entry(path, size, checksum)


def damage(folder: Path, entries: Iterable[Entry]) -> str:
    """The first file that is not as it was written, and how; empty if all are."""
    for entry in entries:
        path = folder / entry.path
        try:
            size = path.stat().st_size
            if size != entry.size:
                return f"{path} is damaged: it has {size} bytes, and was written with {entry.size}"
            if entry_of(folder, entry.path) != entry:
                return f"{path} is damaged: its checksum is not that with which it was written"
        except FileNotFoundError:
            return f"{path} is missing"
        except OSError as error:
            return f"{path} cannot be read ({reason(error)})"
    return ""


def write_manifest(folder: Path, entries: Iterable[Entry]) -> None:
    """Writes down what files a folder has, so that `read_manifest` and `damage` notice if one changes."""
    lines = b"".join(entry.line() for entry in entries)
    head = json.dumps({"format": _FORMAT, "crc32": zlib.crc32(lines)}).encode() + b"\n"
    write_bytes(folder / MANIFEST, head + lines)


def seal(folder: Path) -> None:
    """Writes the manifest of all the files that are in a folder now, and waits until they are on the disk."""
    names = sorted(path.relative_to(folder).as_posix() for path in _files(folder))
    entries = [entry_of(folder, name) for name in names if name != MANIFEST]
    synchronise(folder / entry.path for entry in entries)
    write_manifest(folder, entries)


def read_manifest(folder: Path) -> list[Entry]:
    """The entries of a manifest.

    Raises:
        StoreError: If the manifest itself is damaged or missing.
    """
    path = folder / MANIFEST
    try:
        head, _, lines = path.read_bytes().partition(b"\n")
        said = json.loads(head)
        if said["format"] != _FORMAT:
            raise StoreError(f"{path} has the format {said['format']!r}; this version reads {_FORMAT!r}")
        if said["crc32"] != zlib.crc32(lines):
            raise StoreError(f"{path} is damaged: its checksum is not that with which it was written")
        return list(parse_entries(lines))
    except StoreError:
        raise
    except OSError as error:
        raise StoreError(f"{path} cannot be read ({reason(error)})") from error
    except (ValueError, KeyError, TypeError) as error:
        raise StoreError(f"{path} is damaged: it is no manifest") from error


def parse_entries(lines: bytes) -> Iterator[Entry]:
    """The entries of the lines of a log or a manifest."""
    for line in lines.splitlines():
        path, size, crc32 = json.loads(line)
        yield Entry(path, size, crc32)


def reason(error: OSError) -> str:
    """What the operating system has against it, in words."""
    if error.errno in (errno.ENOSPC, errno.EDQUOT):
        return "the disk is full"
    if error.errno in (errno.EACCES, errno.EPERM):
        return "it is not permitted"
    if error.errno == errno.EROFS:
        return "the disk is read-only"
    if error.errno in (errno.ENOTDIR, errno.EEXIST):
        return "a folder in its path is a file"
    return (error.strerror or str(error)).lower()


def _files(folder: Path) -> Iterator[Path]:
    return (path for path in folder.rglob("*") if path.is_file())
