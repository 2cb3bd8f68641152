"""The state of a run in one file: arrays, numbers and strings, with a checksum; nothing that executes.

The file is an .npz archive of the arrays. One of them holds the rest as JSON text, in which a container is a list that
begins with its kind. The archive's comment is a checksum of the whole file.
"""

from __future__ import annotations

import hashlib
import io
import json
import math
import struct
from pathlib import Path
from typing import Any

import jax
import ml_dtypes
import numpy as np

from langevin.errors import StoreError
from langevin.run.integrity import reason, write_bytes

_MARK = b"langevin sha256 "
_SKELETON = "skeleton"


def write(path: str | Path, state: dict[str, Any]) -> None:
    """Writes a state, whole or not at all.

    Args:
        path: The file. One that is there is replaced.
        state: Dicts with strings as keys, lists and tuples, of NumPy or JAX arrays, NumPy scalars, numbers, strings,
            booleans and None.

    Raises:
        TypeError: If there is anything else in the state; names its place.
        OSError: If the file cannot be written.
    """
    write_bytes(Path(path), encode(state))


def read(path: str | Path) -> dict[str, Any]:
    """Reads a state: the same bits, JAX arrays as NumPy arrays.

    Raises:
        StoreError: If the file is missing or damaged.
    """
    try:
        data = Path(path).read_bytes()
    except OSError as error:
        raise StoreError(f"{path} cannot be read ({reason(error)}).") from error
    end = len(data) - len(_MARK) - hashlib.sha256().digest_size
    if end < 0 or data[end:] != _MARK + hashlib.sha256(data[:end]).digest():
        raise StoreError(f"{path} is damaged: its checksum is not that with which it was written.")
    try:
        return decode(data)
    except (ValueError, KeyError, IndexError, TypeError, AttributeError) as error:
        raise StoreError(f"{path} is no checkpoint that this version can read.") from error


def encode(state: dict[str, Any]) -> bytes:
    """A state as the bytes of its file."""
    arrays: list[np.ndarray] = []
    skeleton = json.dumps(_flatten(state, "state", arrays)).encode()
    file = io.BytesIO()
    members = {f"array_{i}": array for i, array in enumerate(arrays)}
    np.savez(file, **{_SKELETON: np.frombuffer(skeleton, np.uint8)}, **members)  # ty: ignore[invalid-argument-type]
    # An archive ends with the length of its comment, and the comment.
    size = len(_MARK) + hashlib.sha256().digest_size
    body = file.getvalue()[:-2] + struct.pack("<H", size)
    return body + _MARK + hashlib.sha256(body).digest()


def decode(data: bytes) -> dict[str, Any]:
    """The state whose file has these bytes."""
    with np.load(io.BytesIO(data)) as archive:
        return _restore(json.loads(archive[_SKELETON].tobytes()), archive)


def _flatten(value: Any, place: str, arrays: list[np.ndarray]) -> Any:
    """The value as JSON can hold it; its arrays go to the end of a list."""
    kind = type(value)
    if kind is dict:
        for key in value:
            if type(key) is not str:
                raise TypeError(f"{place} has the key {key!r}: keys of a state must be strings.")
        return ["dict", {key: _flatten(part, f"{place}[{key!r}]", arrays) for key, part in value.items()}]
    if kind in (list, tuple):
        return [kind.__name__, *(_flatten(part, f"{place}[{i}]", arrays) for i, part in enumerate(value))]
    if value is None or kind in (bool, int, str) or (kind is float and math.isfinite(value)):
        return value
    if kind is float:  # JSON knows one NaN; there are many.
        return ["float", struct.pack("<d", value).hex()]
    if kind is np.ndarray or isinstance(value, np.generic | jax.Array):
        return ["scalar" if isinstance(value, np.generic) else "array", *_reference(value, place, arrays)]
    raise TypeError(
        f"{place} is a {kind.__name__}, which cannot be stored. A state has dicts, lists, tuples and arrays."
    )


def _reference(value: Any, place: str, arrays: list[np.ndarray]) -> tuple[int, str]:
    if isinstance(value, jax.Array) and jax.dtypes.issubdtype(value.dtype, jax.dtypes.prng_key):
        raise TypeError(f"{place} is a typed JAX key, which cannot be stored. Keep `jax.random.key_data` of it.")
    array = np.asarray(value)
    extended = ""
    if _is_extended(array.dtype):
        extended = array.dtype.name
        array = array.view(f"u{array.dtype.itemsize}")
    if array.dtype.kind not in "biufcUS":
        raise TypeError(f"{place} is an array of {array.dtype}, which cannot be stored. Use numbers, bools or strings.")
    arrays.append(array)
    return len(arrays) - 1, extended


def _restore(value: Any, archive: Any) -> Any:
    if type(value) is not list:
        return value
    kind, *parts = value
    if kind == "dict":
        return {key: _restore(part, archive) for key, part in parts[0].items()}
    if kind in ("list", "tuple"):
        restored = [_restore(part, archive) for part in parts]
        return tuple(restored) if kind == "tuple" else restored
    if kind == "float":
        return struct.unpack("<d", bytes.fromhex(parts[0]))[0]
    if kind not in ("array", "scalar"):
        raise ValueError(f"{kind!r} is unknown.")
    index, extended = parts
    array = archive[f"array_{index}"]
    if extended:
        array = array.view(np.dtype(getattr(ml_dtypes, extended)))
    return array[()] if kind == "scalar" else array


def _is_extended(dtype: np.dtype) -> bool:
    """Whether it is a bfloat16 or another of the small floats and integers that NumPy does not know."""
    return dtype.type.__module__ == ml_dtypes.__name__
