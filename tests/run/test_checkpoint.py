import errno
import io
import struct
from typing import NamedTuple

import jax
import jax.numpy as jnp
import ml_dtypes
import numpy as np
import pytest

from langevin.errors import StoreError
from langevin.run import checkpoint, integrity

STATE = {
    "phase": "sampling",
    "step": 12345678901234567890123,
    "nothing": None,
    "yes": True,
    "floats": [1e-300, -0.0, 0.1, 5e-324, float("inf"), float("-inf")],
    "pair": (1, (2.5, []), [(), {}]),
    "$ref": ["array", 0],
    "a/b ü\ud800": {"": "text\n\u2028"},
}


def round_trip(state, path):
    checkpoint.write(path, state)
    return checkpoint.read(path)


def test_plain_values_come_back_the_same(tmp_path):
    again = round_trip(STATE, tmp_path / "c.npz")
    assert again == STATE
    assert repr(again) == repr(STATE)  # -0.0, tuples and lists, order.


def test_not_a_number_keeps_its_bits(tmp_path):
    strange = struct.unpack("<d", bytes.fromhex("efbeadde0000f8ff"))[0]
    again = round_trip({"x": [strange, float("nan")]}, tmp_path / "c.npz")["x"]
    assert struct.pack("<d", again[0]) == struct.pack("<d", strange)
    assert struct.pack("<d", again[1]) == struct.pack("<d", float("nan"))


@pytest.mark.parametrize(
    "dtype",
    [
        "f2",
        "f4",
        "f8",
        "i1",
        "i4",
        "i8",
        "u1",
        "u4",
        "u8",
        "?",
        "c8",
        ">f4",
        "U3",
        ml_dtypes.bfloat16,
        ml_dtypes.float8_e4m3fn,
    ],
    ids=str,
)
@pytest.mark.parametrize("shape", [(), (3,), (2, 0), (2, 3)])
def test_arrays_come_back_bit_for_bit(dtype, shape, tmp_path):
    values = np.random.default_rng(0).integers(0, 2, shape).astype(dtype)
    again = round_trip({"x": [values, values.T]}, tmp_path / "c.npz")["x"]
    assert type(again[0]) is np.ndarray
    assert (again[0].dtype, again[0].shape) == (values.dtype, shape)
    assert again[0].tobytes() == values.tobytes()
    assert again[1].tobytes() == values.T.tobytes()


def test_scalars_and_jax_arrays(tmp_path):
    state = {"a": np.float32(0.1), "b": np.bool_(True), "c": jnp.arange(3), "d": jnp.bfloat16(1.5), "e": jnp.zeros(())}
    state["f"] = ml_dtypes.bfloat16(2.5)
    again = round_trip(state, tmp_path / "c.npz")
    assert (type(again["a"]), type(again["b"]), type(again["f"])) == (np.float32, np.bool_, ml_dtypes.bfloat16)
    assert again["a"] == np.float32(0.1)
    assert type(again["c"]) is np.ndarray
    assert again["c"].tolist() == [0, 1, 2]
    assert again["e"].shape == ()
    assert again["f"] == 2.5


class Named(NamedTuple):
    x: int


@pytest.mark.parametrize(
    ("value", "sentence"),
    [
        (lambda: 0, r"state\['outer'\]\[1\] is a function"),
        (Named(1), r"state\['outer'\]\[1\] is a Named"),
        ({1: 2}, r"state\['outer'\]\[1\] has the key 1"),
        (np.array([object()]), r"\[1\] is an array of object"),
        (np.array(["2020-01-01"], "M8[D]"), r"\[1\] is an array of datetime64"),
        (b"bytes", r"\[1\] is a bytes"),
    ],
)
def test_anything_else_is_refused_by_its_place(value, sentence, tmp_path):
    with pytest.raises(TypeError, match=sentence):
        checkpoint.write(tmp_path / "c.npz", {"outer": [0, value]})
    assert list(tmp_path.iterdir()) == []


def test_typed_keys_are_refused(tmp_path):
    with pytest.raises(TypeError, match=r"state\['key'\] is a typed JAX key.*key_data"):
        checkpoint.write(tmp_path / "c.npz", {"key": jax.random.key(0)})
    key = jax.random.key_data(jax.random.key(0))
    assert np.array_equal(round_trip({"key": key}, tmp_path / "c.npz")["key"], key)


def test_every_kind_of_damage_is_noticed(tmp_path):
    path = tmp_path / "c.npz"
    checkpoint.write(path, {"x": np.arange(5), "y": "text"})
    data = path.read_bytes()
    damaged = [data[:-1], data[: len(data) // 2], b"", bytes(len(data)), data + b"\0"]
    for i in range(len(data)):
        damaged.append(data[:i] + bytes([data[i] ^ 4]) + data[i + 1 :])
    for bad in damaged:
        path.write_bytes(bad)
        with pytest.raises(StoreError, match="c.npz is damaged: its checksum"):
            checkpoint.read(path)
    path.unlink()
    with pytest.raises(StoreError, match="c.npz cannot be read"):
        checkpoint.read(path)


def test_numpy_reads_the_arrays(tmp_path):
    checkpoint.write(tmp_path / "c.npz", {"x": np.arange(5)})
    with np.load(tmp_path / "c.npz") as archive:
        assert archive["array_0"].tolist() == [0, 1, 2, 3, 4]


def test_nothing_executes_on_reading(tmp_path):
    """A file with a right checksum whose array is of objects is refused, not unpacked."""
    import hashlib

    file = io.BytesIO()
    np.savez(file, skeleton=np.frombuffer(b'["dict", {"x": ["array", 0, ""]}]', np.uint8), array_0=np.array([{}, None]))
    body = file.getvalue()
    (tmp_path / "c.npz").write_bytes(body + b"langevin sha256 " + hashlib.sha256(body).digest())
    with pytest.raises(StoreError, match="no checkpoint that this version can read"):
        checkpoint.read(tmp_path / "c.npz")


def test_a_failed_write_leaves_the_old_file(tmp_path, monkeypatch):
    path = tmp_path / "c.npz"
    checkpoint.write(path, {"x": 1})

    def full(file, data):
        file.write(data[: len(data) // 2])
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(integrity, "put", full)
    with pytest.raises(OSError, match="No space"):
        checkpoint.write(path, {"x": 2})
    assert checkpoint.read(path) == {"x": 1}
    assert [file.name for file in tmp_path.iterdir()] == ["c.npz"]
