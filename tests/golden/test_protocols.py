"""Messages of real clients and servers: read as recorded, written again byte for byte, hostile ones refused."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path

import numpy as np
import pytest
import zmq
from golden_files import DEFAULT, GoldenFolder, numbers
from websockets.sync.client import connect

from cosmos_robot.contract import Contract
from cosmos_robot.contract.library import load_contract
from cosmos_robot.errors import WireError
from cosmos_robot.serve import wire
from cosmos_robot.serve.gr00t import Gr00tServer, Gr00tSettings
from cosmos_robot.serve.openpi import OpenpiServer, OpenpiSettings
from cosmos_robot.serve.service import Models, Service
from cosmos_robot.types import ActionChunk

FOLDER = "protocols/"
DIALECTS = {"openpi-msgpack-numpy": "openpi", "lebedov-msgpack-numpy": "lebedov", "gr00t-npy": "gr00t"}


ASKING = ("endpoint", "data", "prompt", "task", "images", "qpos")


def is_request(path: Path) -> bool:
    """Whether a message asks a policy for something, by the keys it holds."""
    value = wire.decode(path.read_bytes()).value
    return isinstance(value, dict) and any(k in ASKING or k.startswith("observation/") for k in map(str, value))


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    given = metafunc.config.getoption("--golden-dir")
    folder = Path(given or DEFAULT) / FOLDER
    names = sorted(path.stem for path in folder.glob("*.json"))
    wanted = {
        "message": [n for n in names if not n.startswith("neg_") and (folder / f"{n}.bin").is_file()],
        "hostile": [n for n in names if n.startswith("neg_")],
        "refusals": [n for n in names if not n.startswith("neg_") and not (folder / f"{n}.bin").is_file()],
    }
    wanted["request_"] = [n for n in wanted["message"] if is_request(folder / f"{n}.bin")]
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


class Still:
    """Answers every question with the robot's zero."""

    def __init__(self, contract: Contract):
        self.contract = contract

    def act(self, observations, seeds, committed=None):
        zeros = np.zeros((self.contract.model.chunk, self.contract.robot.action_width))
        return [ActionChunk(zeros, self.contract.robot.rate_hz) for _ in observations]


def contract_for(request: dict) -> Contract:
    """The contract of the robot that a client speaks of, with no more cameras than it sends."""
    if "observation/state" in request:
        return load_contract("tiny-libero")
    if "images" in request:
        return load_contract("cosmos-policy-aloha")
    droid = load_contract("cosmos3-nano-droid")
    sent = str(request)
    second_view = "observation/image" in request or "exterior_image_2" in sent or "qpos" in request
    canvas = droid.model.canvas
    kept = [p for p in canvas.placements if second_view or p.camera != "exterior_image_2_left"]
    canvas = canvas.model_copy(update={"placements": tuple(kept)})
    return droid.model_copy(update={"model": droid.model.model_copy(update={"canvas": canvas})})


def answer(record: dict, data: bytes, contract: Contract) -> bytes | str:
    """What our server says to the recorded bytes, over a real socket of their protocol."""
    with Service(Models(Still(contract))) as service:
        if "zmq" in record["protocol"]:
            with Gr00tServer(service, Gr00tSettings(port=0, pictures="resized")) as server:
                context = zmq.Context()
                socket = context.socket(zmq.REQ)
                socket.setsockopt(zmq.RCVTIMEO, 10_000)
                socket.connect(server.address)
                socket.send(data)
                reply = socket.recv()
                context.destroy(linger=0)
                return reply
        settings = OpenpiSettings(port=0, pictures="resized")
        with OpenpiServer(service, settings) as server, connect(server.address, max_size=None) as websocket:
            websocket.recv()
            websocket.send(data)
            return websocket.recv()


def test_real_clients_are_answered_in_their_own_dialect(golden, request_):
    record, data = read(golden, request_)
    message = wire.decode(data).value
    reply = answer(record, data, contract_for(message))
    if "reply_text" in record or message.get("endpoint") == "reset":
        assert reply == record.get("reply_text", "reset successful")
        return
    assert isinstance(reply, bytes), reply
    value, dialect = wire.decode(reply)
    assert dialect in (DIALECTS[record["dialect"]], None)
    parts = value[0] if isinstance(value, list) else value
    assert "error" not in parts
    if record.get("client_reads") in ("action", "actions"):
        assert len(parts[record["client_reads"]]) >= record.get("client_executes_rows", 1)
    elif "one-step" in record.get("client_reads", ""):
        assert set(parts) >= {"arm", "gripper"}


def test_hostile_messages_are_answered_and_the_server_goes_on(golden, hostile):
    record, data = read(golden, hostile)
    service = Service(Models(Still(load_contract("cosmos3-nano-droid"))))
    with service, OpenpiServer(service, OpenpiSettings(port=0)) as server:
        for _ in range(2):
            with connect(server.address, max_size=None) as websocket:
                websocket.recv()
                websocket.send(data)
                assert isinstance(websocket.recv(), str), record["why"]
