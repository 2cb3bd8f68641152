"""A folder as xarray and ArviZ read it: Zarr, version 2, written without a library so that every file is whole."""

from __future__ import annotations

import json
import math
import zlib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
from numcodecs import Blosc

from langevin.run.integrity import Entry, synchronise, write_bytes

_PIECE_BYTES = 1 << 26


def compressor(num_bytes: int) -> Blosc:
    """The compressor of blocks of so many bytes.

    Blosc's own blocks are as large as ours. It compresses several in as many threads, and stores them in the order in
    which the threads are ready: the bytes would differ from run to run.
    """
    return Blosc("zstd", 1, Blosc.SHUFFLE, blocksize=num_bytes)


def write_block(folder: Path, path: str, values: np.ndarray) -> Entry:
    """Writes one block of an array, without waiting for the disk.

    Args:
        folder: The folder of the whole hierarchy.
        path: Of the block, relative to it.
        values: The block.
    """
    data = bytes(compressor(values.nbytes).encode(np.ascontiguousarray(values)))
    write_bytes(folder / path, data, sync=False)
    return Entry(path, len(data), zlib.crc32(data))


class Hierarchy:
    """Writes groups and arrays, and remembers what it wrote.

    Attributes:
        entries: The files that were written.
    """

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._metadata: dict[str, Any] = {}
        self.entries: list[Entry] = []

    def group(self, path: str, attributes: Mapping[str, Any]) -> None:
        """Writes a group; the path of the root is empty."""
        self._describe(path, ".zgroup", {"zarr_format": 2})
        self._describe(path, ".zattrs", dict(attributes))

    def array(
        self, path: str, dims: tuple[str, ...], shape: tuple[int, ...], chunks: tuple[int, ...], dtype: Any
    ) -> None:
        """Writes down an array whose blocks are written by `write_block`."""
        chunks = tuple(max(size, 1) for size in chunks)
        num_bytes = np.dtype(dtype).itemsize * math.prod(chunks)
        about = {
            "zarr_format": 2,
            "shape": shape,
            "chunks": chunks,
            "dtype": np.dtype(dtype).str,
            "compressor": compressor(num_bytes).get_config(),
            "fill_value": None,
            "order": "C",
            "filters": None,
            "dimension_separator": ".",
        }
        self._describe(path, ".zarray", about)
        self._describe(path, ".zattrs", {"_ARRAY_DIMENSIONS": list(dims)})

    def whole(self, path: str, dims: tuple[str, ...], values: np.ndarray) -> None:
        """Writes an array with all its values, in pieces of at most about 64 MB."""
        if values.ndim == 0:
            self.array(path, dims, (), (), values.dtype)
            self.entries.append(write_block(self._folder, f"{path}/0", values))
            return
        row = values.dtype.itemsize * math.prod(values.shape[1:])
        rows = min(max(_PIECE_BYTES // max(row, 1), 1), max(len(values), 1))
        self.array(path, dims, values.shape, (rows, *values.shape[1:]), values.dtype)
        if values.size == 0:
            return
        for i, start in enumerate(range(0, len(values), rows)):
            piece = padded(values[start : start + rows], rows)
            self.entries.append(write_block(self._folder, f"{path}/{i}" + ".0" * (values.ndim - 1), piece))

    def consolidate(self) -> None:
        """Writes all metadata into one file too, which readers look for first, and waits for the disk."""
        in_order = dict(sorted(self._metadata.items()))  # Zarr expects the members of a group one after another.
        self._write(".zmetadata", {"zarr_consolidated_format": 1, "metadata": in_order})
        synchronise(self._folder / entry.path for entry in self.entries)

    def _describe(self, path: str, kind: str, content: dict[str, Any]) -> None:
        (self._folder / path).mkdir(exist_ok=True)
        name = f"{path}/{kind}".lstrip("/")
        self._metadata[name] = content
        self._write(name, content)

    def _write(self, name: str, content: dict[str, Any]) -> None:
        data = json.dumps(content, default=_plain).encode()
        write_bytes(self._folder / name, data, sync=False)
        self.entries.append(Entry(name, len(data), zlib.crc32(data)))


def padded(values: np.ndarray, rows: int) -> np.ndarray:
    """The values with zeros behind, so that there are so many rows: all blocks of an array are equally large."""
    if len(values) == rows:
        return values
    full = np.zeros((rows, *values.shape[1:]), values.dtype)
    full[: len(values)] = values
    return full


def _plain(value: Any) -> Any:
    """What JSON does not know, as what it knows: for attributes with NumPy's numbers in them."""
    return np.asarray(value).tolist()
