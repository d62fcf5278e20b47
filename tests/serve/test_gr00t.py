"""GR00T's clients, over real sockets."""

from __future__ import annotations

import numpy as np
import pytest
import zmq
from tests_serve import EchoPolicy
from waiting import PATIENCE_S

from cosmos_robot.contract.library import load_contract
from cosmos_robot.serve import wire
from cosmos_robot.serve.gr00t import Gr00tServer, Gr00tSettings
from cosmos_robot.serve.service import Models, Service

RNG = np.random.default_rng(0)


def picture():
    return RNG.integers(0, 256, (1, 1, 360, 640, 3), np.uint8)


NESTED = {
    "video": {name: picture() for name in ("wrist_image_left", "exterior_image_1_left", "exterior_image_2_left")},
    "state": {"joint_position": np.zeros((1, 1, 7), np.float32), "gripper_position": np.zeros((1, 1, 1), np.float32)},
    "language": {"annotation.language.language_instruction": [["pick up the object"]]},
}
FLAT = {f"{group}.{name}": value for group in ("video", "state") for name, value in NESTED[group].items()}
FLAT["annotation.language.language_instruction"] = ["pick up the object"]


@pytest.fixture
def policy():
    return EchoPolicy(load_contract("cosmos3-nano-droid"))


@pytest.fixture
def served(policy):
    with Service(Models(policy)) as service, Gr00tServer(service, Gr00tSettings(port=0)) as server:
        yield server
        policy.gate.set()


@pytest.fixture
def ask(served):
    """One request of a REQ client in a dialect; its reply, in the same."""
    context = zmq.Context()

    def send(request, dialect):
        socket = context.socket(zmq.REQ)
        socket.setsockopt(zmq.RCVTIMEO, int(1000 * PATIENCE_S))
        socket.connect(served.address)
        socket.send(request if isinstance(request, bytes) else wire.encode(request, dialect))
        reply = wire.decode(socket.recv())
        socket.close(0)
        assert reply.dialect in (dialect, None)
        return reply.value

    yield send
    context.destroy(linger=0)


@pytest.mark.parametrize("dialect", ["gr00t", "lebedov"])
def test_a_nested_question_of_n16_and_n17(ask, policy, dialect):
    reply = ask({"endpoint": "get_action", "data": {"observation": NESTED, "options": None}}, dialect)
    action, info = reply
    assert info == {} and set(action) == {"joint_position", "gripper_position"}
    assert action["joint_position"].shape == (1, 32, 7) and action["joint_position"].dtype == np.float32
    np.testing.assert_array_equal(
        policy.observations[-1].images["wrist_image_left"], NESTED["video"]["wrist_image_left"][0, 0]
    )
    assert policy.observations[-1].instruction == "pick up the object"


def test_a_flat_question_is_answered_flat(ask):
    action, _ = ask({"endpoint": "get_action", "data": {"observation": FLAT, "options": None}}, "lebedov")
    assert set(action) == {"action.joint_position", "action.gripper_position"}


def test_n15_sends_the_observation_itself_and_gets_the_map_itself(ask):
    action = ask({"data": FLAT}, "gr00t")
    assert action["action.gripper_position"].shape == (1, 32, 1)


def test_ping_reset_and_modality_config(ask):
    assert ask({"endpoint": "ping"}, "gr00t")["status"] == "ok"
    assert ask({"endpoint": "reset", "data": {"options": None}}, "gr00t") == {}
    config = ask({"endpoint": "get_modality_config"}, "gr00t")
    assert config["action"]["__ModalityConfig_class__"] is True
    assert config["action"]["as_json"]["modality_keys"] == ["joint_position", "gripper_position"]
    assert len(config["action"]["as_json"]["delta_indices"]) == 32


def test_nobody_kills_the_server_by_a_message(ask):
    assert "not stopped by a message" in ask({"endpoint": "kill"}, "gr00t")["error"]
    assert ask({"endpoint": "ping"}, "gr00t")["status"] == "ok"


@pytest.mark.parametrize(
    "request_",
    [
        b"",
        b"\xc1",
        wire.encode(3),
        {"endpoint": "dance"},
        {"endpoint": "get_action"},
        {"data": {}},
        {"data": {"observation": {"video": {}}}},
    ],
)
def test_every_request_gets_a_reply(ask, request_):
    assert ask(request_, "gr00t")["error"]
    assert ask({"endpoint": "ping"}, "gr00t")["status"] == "ok"


def test_errors_of_the_model_are_told_without_paths(ask, policy):
    policy.fail = RuntimeError("/srv/models/x")
    assert "srv" not in ask({"data": FLAT}, "gr00t")["error"]


def test_a_token_keeps_others_out(policy):
    secret = "x" * 20
    with Service(Models(policy)) as service, Gr00tServer(service, Gr00tSettings(port=0, token=secret)) as server:
        context = zmq.Context()
        for token, wanted in ((secret, "status"), ("wrong", "error"), (None, "error")):
            socket = context.socket(zmq.REQ)
            socket.setsockopt(zmq.RCVTIMEO, int(1000 * PATIENCE_S))
            socket.connect(server.address)
            socket.send(wire.encode({"endpoint": "ping", **({"api_token": token} if token else {})}, "gr00t"))
            assert wanted in wire.decode(socket.recv()).value
            socket.close(0)
        context.destroy(linger=0)
