"""Edge cases of arrays on the wire, in every dialect."""

from __future__ import annotations

import msgpack
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as npst

from cosmos_robot.errors import WireError
from cosmos_robot.serve import wire

IMAGE = np.arange(60, dtype=np.uint8).reshape(4, 5, 3)
ARRAYS = {
    "flipped": IMAGE[::-1, ::-1],
    "strided": IMAGE[:, ::2],
    "fortran": np.asfortranarray(np.arange(6.0).reshape(2, 3)),
    "transposed": np.arange(6.0).reshape(2, 3).T,
    "scalar array": np.array(1.5),
    "empty": np.zeros((0, 7)),
    "bool": np.array([True, False]),
    "float16": np.arange(3, dtype=np.float16),
    "big endian": np.arange(3, dtype=">f4"),
    "text": np.array(["open", "closed"]),
    "not a number": np.array([np.nan, np.inf, -np.inf]),
}


@pytest.mark.parametrize("dialect", wire.DIALECTS)
@pytest.mark.parametrize("name", ARRAYS)
def test_pc_34_arrays_come_back_exactly(name, dialect):
    sent = ARRAYS[name]
    value, spoken = wire.decode(wire.encode({"x": sent}, dialect))
    assert spoken == dialect
    assert value["x"].dtype == sent.dtype and value["x"].shape == sent.shape
    np.testing.assert_array_equal(value["x"], sent)
    value["x"][...] = value["x"]  # owned and writable


@pytest.mark.parametrize("dialect", wire.DIALECTS)
@given(
    array=npst.arrays(
        st.sampled_from([np.uint8, np.int64, np.float32, np.float64, np.bool_]),
        npst.array_shapes(min_dims=0, min_side=0),
    )
)
def test_pc_34_any_array_comes_back(array, dialect):
    back = wire.decode(wire.encode([array], dialect)).value[0]
    assert back.tobytes() == array.tobytes() and back.shape == array.shape and back.dtype == array.dtype


@pytest.mark.parametrize(
    "value", [np.array([None]), np.zeros(2, complex), np.array(["2026"], "M8[D]"), {1}, object(), 2**64]
)
@pytest.mark.parametrize("dialect", wire.DIALECTS)
def test_pc_34_what_cannot_be_sent_is_refused(value, dialect):
    with pytest.raises(WireError):
        wire.encode({"x": value}, dialect)


def test_pc_34_a_torch_tensor_is_refused_with_the_remedy():
    torch = pytest.importorskip("torch")
    with pytest.raises(WireError, match=r"\.cpu\(\)\.numpy\(\)"):
        wire.encode({"x": torch.zeros(2)})


@pytest.mark.parametrize(
    "change",
    [
        {b"dtype": "|O"},
        {b"dtype": "float99"},
        {b"dtype": None},
        {b"dtype": "<U99999999"},
        {b"shape": [-1]},
        {b"shape": [2**62, 2**62]},
        {b"shape": [3.0]},
        {b"shape": "3"},
        {b"shape": [1] * 40},
        {b"data": b"short"},
        {b"data": "text"},
        {b"data": b"\0" * 25},
    ],
)
def test_a_hostile_array_is_refused(change):
    envelope = {b"__ndarray__": True, b"data": b"\0" * 24, b"dtype": "<f8", b"shape": [3]}
    assert wire.decode(msgpack.packb({"x": envelope})).value["x"].shape == (3,)
    with pytest.raises(WireError):
        wire.decode(msgpack.packb({"x": {**envelope, **change}}))


def test_pickled_objects_are_never_read():
    with pytest.raises(WireError, match="never read"):
        wire.decode(
            msgpack.packb({b"nd": True, b"type": "|O8", b"kind": b"O", b"shape": [1], b"data": b"cos\nsystem\n"})
        )


def test_an_npy_file_whose_header_lies_is_refused():
    good = msgpack.unpackb(wire.encode(np.zeros(4), "gr00t"))
    good["as_npy"] = good["as_npy"].replace(b"(4,)", b"(9,)")
    with pytest.raises(WireError, match="needs 72 bytes"):
        wire.decode(msgpack.packb(good))


@pytest.mark.parametrize(
    "data", [b"", b"\xc1", b"\xdd\xff\xff\xff\xff", b"\x81", b"\x91" * 5000, b"\xd4\x05\x00", b"GET / HTTP/1.1\r\n"]
)
def test_garbage_is_refused(data):
    with pytest.raises(WireError):
        wire.decode(data)


def test_pc_29_sizes_are_bounded_on_both_ends():
    megabytes = np.zeros(8 * 2**20, np.uint8)
    assert wire.decode(wire.encode(megabytes)).value.size == megabytes.size
    with pytest.raises(WireError, match="over the limit"):
        wire.encode(megabytes, max_bytes=2**20)
    with pytest.raises(WireError, match="over the limit"):
        wire.decode(b"\0" * (2**20 + 1), max_bytes=2**20)


def test_a_message_that_mixes_dialects_is_refused():
    mixed = {
        "a": {b"__ndarray__": True, b"data": b"", b"dtype": "<f8", b"shape": [0]},
        "b": {b"nd": False, b"type": "|u1", b"data": b"\1"},
    }
    with pytest.raises(WireError, match="mixes"):
        wire.decode(msgpack.packb(mixed))
