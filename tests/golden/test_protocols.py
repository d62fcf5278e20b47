"""Messages of real clients and servers: read as recorded, written again byte for byte, hostile ones refused."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path

import numpy as np
import pytest
from golden_files import DEFAULT, GoldenFolder, numbers

from cosmos_robot.errors import WireError
from cosmos_robot.serve import wire

FOLDER = "protocols/"
DIALECTS = {"openpi-msgpack-numpy": "openpi", "lebedov-msgpack-numpy": "lebedov", "gr00t-npy": "gr00t"}


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    given = metafunc.config.getoption("--golden-dir")
    folder = Path(given or DEFAULT) / FOLDER
    names = sorted(path.stem for path in folder.glob("*.json"))
    wanted = {
        "message": [n for n in names if not n.startswith("neg_") and (folder / f"{n}.bin").is_file()],
        "hostile": [n for n in names if n.startswith("neg_")],
        "refusals": [n for n in names if not n.startswith("neg_") and not (folder / f"{n}.bin").is_file()],
    }
    for argument, found in wanted.items():
        if argument in metafunc.fixturenames:
            absent = [pytest.param("", marks=pytest.mark.skip(reason=f"no such recordings in {folder}"))]
            metafunc.parametrize(argument, found or absent)


def read(golden: GoldenFolder, name: str) -> tuple[dict, bytes]:
    path = golden.path(FOLDER + name)
    return json.loads(path.with_suffix(".json").read_text()), path.with_suffix(".bin").read_bytes()


def same(value: object, node: dict) -> bool:
    """Whether ``value`` is what ``node`` of a recorded content tree describes, types and dtypes included."""
    ((kind, content),) = list(node.items())[:1]
    if kind == "map":
        keys = [key for key, _ in content]
        return isinstance(value, dict) and list(value) == keys and all(same(value[k], n) for k, n in content)
    if kind == "list":
        return isinstance(value, list) and len(value) == len(content) and all(map(same, value, content))
    if kind == "ndarray":
        return same_array(value, content)
    if kind == "npscalar":
        dtype = np.dtype(content["dtype"])
        return isinstance(value, np.generic) and value.dtype == dtype and value == dtype.type(content["value"])
    if kind == "null":
        return value is None
    if kind == "bytes_hex":
        return value == bytes.fromhex(content)
    if kind == "float":
        return type(value) is float and np.array_equal(value, numbers(content), equal_nan=True)
    return type(value) is {"int": int, "bool": bool, "str": str, "bytes": bytes}[kind] and value == content


def same_array(value: object, content: dict) -> bool:
    if not isinstance(value, np.ndarray) or value.dtype.str != content["dtype"]:
        return False
    digest = hashlib.sha256(value.tobytes()).hexdigest()
    return list(value.shape) == content["shape"] and digest == content["sha256_c_order"]


def test_messages_of_real_clients_are_read(golden, message):
    record, data = read(golden, message)
    decoded = wire.decode(data)
    assert same(decoded.value, record["content"])
    assert decoded.dialect in (DIALECTS[record["dialect"]], None)


def test_messages_are_written_as_the_real_packer_does(golden, message):
    record, data = read(golden, message)
    decoded = wire.decode(data)
    again = wire.encode(decoded.value, DIALECTS[record["dialect"]])
    if record.get("reencode_byte_exact"):
        assert again == data
    assert same(wire.decode(again).value, record["content"])


def test_hostile_messages_are_refused(golden, hostile):
    record, data = read(golden, hostile)
    try:
        value = wire.decode(data).value
    except WireError:
        return
    assert not isinstance(value, dict), f"{record['why']}: decoded to {value!r}"


def test_what_the_real_packer_refuses_is_refused(golden, refusals):
    values = {
        "object_array": np.array([None, "x"], dtype=object),
        "complex_array": np.zeros(2, complex),
        "structured": np.zeros(2, [("a", "<f4")]),
        "complex_scalar": np.complex64(1),
        "python_set": {1, 2},
        "int_too_big": 2**64,
        "datetime64_scalar": np.datetime64("2026-11-29"),
    }
    record = json.loads(golden.path(FOLDER + refusals).with_suffix(".json").read_text())
    for name, what in record["refusals"].items():
        if what.startswith("accepted"):
            continue  # time arrays: refused here, since no dialect says which unit a reader expects
        with pytest.raises(WireError):
            wire.encode({"value": values[name]})
