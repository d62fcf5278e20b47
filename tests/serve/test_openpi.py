"""Unchanged clients of other people, over real sockets."""

from __future__ import annotations

import threading
import urllib.error
import urllib.request

import numpy as np
import pytest
from openpi_client import action_chunk_broker
from openpi_client.websocket_client_policy import WebsocketClientPolicy
from tests_serve import EchoPolicy
from waiting import PATIENCE_S, until
from websockets.exceptions import ConnectionClosedError
from websockets.sync.client import connect

from cosmos_robot.contract.library import load_contract
from cosmos_robot.errors import InputError
from cosmos_robot.serve import wire
from cosmos_robot.serve.openpi import OpenpiServer, OpenpiSettings
from cosmos_robot.serve.service import Models, Service
from cosmos_robot.serve.views import read_observation

RNG = np.random.default_rng(0)


def picture(height, width):
    return RNG.integers(0, 256, (height, width, 3), np.uint8)


def droid(height=360, width=640, first=1):
    return {
        f"observation/exterior_image_{first}_left": picture(height, width),
        f"observation/exterior_image_{first + 1}_left": picture(height, width),
        "observation/wrist_image_left": picture(height, width),
        "observation/joint_position": np.arange(7.0),
        "observation/gripper_position": np.array([0.25]),
        "prompt": "put the marker in the cup",
    }


class Serving:
    """A service of one contract behind the websocket protocol; ``seen``: the last observation the policy got."""

    def __init__(self, contract, **settings):
        self.policy = EchoPolicy(load_contract(contract))
        self.service = Service(Models(self.policy))
        self.server = OpenpiServer(self.service, OpenpiSettings(port=0, **settings))

    @property
    def seen(self):
        return self.policy.observations[-1]

    @property
    def port(self):
        return int(self.server.address.rsplit(":", 1)[1])

    def client(self, **options):
        return WebsocketClientPolicy("127.0.0.1", self.port, **options)

    def raw(self):
        return connect(self.server.address, compression=None, max_size=None)

    def __enter__(self):
        self.service.start(warm_up=False)
        self.server.start()
        return self

    def __exit__(self, *_):
        self.policy.gate.set()
        self.server.close()
        self.service.close()


@pytest.fixture
def droid_server():
    with Serving("cosmos3-nano-droid") as serving:
        yield serving


def test_pc_35_the_openpi_client_gets_a_chunk_under_both_names(droid_server):
    client = droid_server.client()
    sent = droid()
    reply = client.infer(sent)
    assert reply["actions"].shape == (32, 8) and np.array_equal(reply["action"], reply["actions"])
    assert reply["server_timing"]["infer_ms"] > 0 and "prev_total_ms" in client.infer(droid())["server_timing"]
    np.testing.assert_array_equal(
        droid_server.policy.observations[0].images["wrist_image_left"], sent["observation/wrist_image_left"]
    )
    np.testing.assert_array_equal(droid_server.seen.state["joint_position"], np.arange(7.0))
    assert droid_server.seen.state["gripper_position"] == 0.25 and droid_server.seen.instruction == sent["prompt"]
    metadata = client.get_server_metadata()
    assert metadata["policy_name"] == "cosmos3-nano-droid" and metadata["gripper_closed"] == 1.0


def test_openpis_own_chunk_broker_plays_our_chunks(droid_server):
    broker = action_chunk_broker.ActionChunkBroker(droid_server.client(), action_horizon=8)
    rows = [broker.infer(droid())["actions"] for _ in range(9)]
    assert all(row.shape == (8,) for row in rows) and len(droid_server.policy.seeds) == 2


def test_openpis_droid_example_wants_exactly_ten_rows():
    with Serving("cosmos3-nano-droid", rows=10) as serving:
        assert serving.client().infer(droid())["actions"].shape == (10, 8)


def test_roboarena_counts_from_zero_and_resets_by_a_text(droid_server):
    with droid_server.raw() as socket:
        socket.recv()
        sent = {**droid(first=0), "endpoint": "infer", "session_id": "38DSA3hd3"}
        socket.send(wire.encode(sent))
        assert wire.decode(socket.recv()).value["actions"].shape == (32, 8)
        np.testing.assert_array_equal(
            droid_server.seen.images["exterior_image_2_left"], sent["observation/exterior_image_1_left"]
        )
        for reset in ({"session_id": "38DSA3hd3"}, {"session_ids": ["a", "b"]}, {"session_ids": None}, {}):
            socket.send(wire.encode({**reset, "endpoint": "reset"}))
            assert socket.recv() == "reset successful"


def test_roboarena_is_greeted_with_its_six_keys_only():
    with Serving("cosmos3-nano-droid", roboarena=True) as serving, serving.raw() as socket:
        hello = wire.decode(socket.recv()).value
    cameras = {"image_resolution", "needs_wrist_camera", "n_external_cameras", "needs_stereo_camera"}
    assert set(hello) == cameras | {"needs_session_id", "action_space"}
    assert hello["action_space"] == "joint_position" and hello["n_external_cameras"] == 2


def test_robolabs_composed_picture_comes_out_of_the_canvas_as_it_went_in(droid_server):
    from cosmos_robot.images import compose_canvas

    canvas = picture(540, 640)
    sent = {"observation/image": canvas, "observation/joint_position": np.zeros(7, np.float32)}
    reply = droid_server.client().infer(
        {**sent, "observation/gripper_position": np.zeros(1), "prompt": "pick up the banana"}
    )
    assert reply["action"].shape == (32, 8)
    contract = droid_server.service.contract
    composed = contract.model_copy(
        update={
            "model": contract.model.model_copy(
                update={"canvas": contract.model.canvas.model_copy(update={"tier": None})}
            )
        }
    )
    np.testing.assert_array_equal(compose_canvas(composed, droid_server.seen.images), canvas)


def test_pc_08_the_gripper_is_turned_once(droid_server):
    """Client and robot agree on 1 = closed; only the checkpoint's own space, inside the codec, is the other way."""
    contract = droid_server.service.contract
    assert contract.robot.gripper.closed_value == 1.0 and contract.model.action_space.gripper.closed_value == 0.0
    droid_server.client().infer({**droid(), "observation/gripper_position": np.array([0.9])})
    assert droid_server.seen.state["gripper_position"] == 0.9, "the wire turns nothing"


@pytest.mark.parametrize("turned", [False, True])
def test_openpis_libero_pictures_and_state(turned):
    from cosmos_robot.actions.rotations import convert

    upright = {name: picture(256, 256) for name in ("observation/image", "observation/wrist_image")}
    # What LIBERO draws has its rows upside down; openpi turns that by 180 degrees.
    sent = {name: np.ascontiguousarray(image[::-1][::-1, ::-1]) for name, image in upright.items()}
    axis_angle = np.array([3.1, 0.4, -0.2]) if turned else np.array([3.0, 0.1, 0.0])
    sent |= {
        "observation/state": np.concatenate([[0.1, 0.2, 0.3], axis_angle, [0.04, -0.04]]),
        "prompt": "pick up the soup",
    }
    with Serving("tiny-libero") as serving:
        assert serving.client().infer(sent)["actions"].shape == (16, 7)
        np.testing.assert_array_equal(serving.seen.images["agentview"], upright["observation/image"])
        np.testing.assert_array_equal(serving.seen.images["wrist"], upright["observation/wrist_image"])
        np.testing.assert_allclose(serving.seen.state["eef_rot6d"], convert(axis_angle, "rotvec_robosuite", "rot6d"))
        np.testing.assert_array_equal(serving.seen.state["gripper_qpos"], [0.04, -0.04])


def test_openpis_aloha_pictures_are_colour_first_and_need_no_prompt():
    with Serving("cosmos-policy-aloha", pictures="resized", prompt="fold the shirt") as serving:
        robot = serving.service.contract.robot
        images = {c.name: picture(224, 224).transpose(2, 0, 1) for c in robot.cameras}
        reply = serving.client().infer({"state": np.arange(float(robot.state_width)), "images": images})
        assert reply["actions"].shape == (50, 14) and serving.seen.instruction == "fold the shirt"
        camera = robot.cameras[0]
        assert serving.seen.images[camera.name].shape == (camera.height, camera.width, 3)
        assert "reset_pose" in serving.client().get_server_metadata()


def test_molmospaces_gets_one_row_at_a_time_in_its_own_dialect(droid_server):
    sent = {
        "wrist_camera": picture(360, 640),
        "exo_camera_1": picture(360, 640),
        "qpos": {"arm": np.zeros(7), "gripper": np.array([0.824033, 0.0])},
        "step": np.int64(3),
        "task": "Pick up the red mug",
    }
    with droid_server.raw() as socket:
        socket.recv()
        for _ in range(33):
            socket.send(wire.encode(sent, "lebedov"))
            reply = wire.decode(socket.recv())
            assert (
                reply.dialect == "lebedov" and reply.value["arm"].shape == (7,) and reply.value["gripper"] in (0, 255)
            )
    assert len(droid_server.policy.seeds) == 2 and droid_server.policy.observations[0].state["gripper_position"] == 1.0


@pytest.mark.parametrize(
    "part, value",
    [
        ("gripper", np.zeros(0)),
        ("gripper", np.zeros((2, 1))),
        ("gripper", np.array(["0.5"])),
        ("arm", np.zeros(7, complex)),
        ("arm", np.ones(7, bool)),
        ("arm", [[1.0], [2.0, 3.0]]),
    ],
)
def test_what_is_no_state_is_refused_by_name(part, value):
    contract = load_contract("cosmos3-nano-droid")
    qpos = {"arm": np.zeros(7), "gripper": np.zeros(2)} | {part: value}
    sent = {"wrist_camera": picture(360, 640), "exo_camera_1": picture(360, 640), "qpos": qpos, "task": "pick"}
    with pytest.raises(InputError, match=part):
        read_observation(contract, sent, "exact")


def test_pictures_of_another_size_are_refused_or_resized_as_the_operator_says(droid_server):
    with pytest.raises(RuntimeError, match="360x640 pixels, got 224x224"):
        droid_server.client().infer(droid(224, 224))
    with Serving("cosmos3-nano-droid", pictures="resized") as serving:
        letterboxed = np.zeros((224, 224, 3), np.uint8)
        letterboxed[49:175] = 200  # 640x360 in 224x224: bars of 49 rows
        sent = droid(224, 224) | {"observation/wrist_image_left": letterboxed}
        serving.client().infer(sent)
        assert serving.seen.images["wrist_image_left"].shape == (360, 640, 3)
        assert serving.seen.images["wrist_image_left"].min() == 200, "the bars are cut off"


@pytest.mark.parametrize("key", ["observation/wrist_image_left", "observation/joint_position", "prompt"])
def test_what_is_missing_is_told_and_the_connection_lives(droid_server, key):
    client = droid_server.client()
    sent = droid()
    del sent[key]
    with pytest.raises(RuntimeError, match=key.removeprefix("observation/")):
        client.infer(sent)
    assert client.infer(droid())["actions"].shape == (32, 8)


def test_no_traceback_and_no_path_leaves_the_server(droid_server):
    droid_server.policy.fail = RuntimeError("cannot open /srv/models/weights.bin")
    with pytest.raises(RuntimeError) as caught:
        droid_server.client().infer(droid())
    assert "srv" not in str(caught.value) and "Traceback" not in str(caught.value)


def test_garbage_gets_a_reason(droid_server):
    with droid_server.raw() as socket:
        socket.recv()
        for data in ("text", b"\xc1", wire.encode([1]), wire.encode({"endpoint": "dance"})):
            socket.send(data)
            assert isinstance(socket.recv(), str)
        socket.send(wire.encode(droid()))
        assert isinstance(socket.recv(), bytes)


def test_pc_29_a_message_over_the_limit_closes_with_1009():
    with Serving("cosmos3-nano-droid", max_bytes=4 * 2**20) as serving:
        with serving.raw() as socket:
            socket.recv()
            socket.send(wire.encode(droid()))  # 2 MB
            assert isinstance(socket.recv(), bytes)
            with pytest.raises(ConnectionClosedError) as caught:
                socket.send(b"\0" * (5 * 2**20))
                socket.recv()
            assert caught.value.rcvd.code == 1009
        assert serving.client().infer(droid())["actions"].shape == (32, 8)


def test_pc_30_health_and_new_clients_while_the_model_works(droid_server):
    droid_server.policy.gate.clear()
    replies = []
    asking = threading.Thread(target=lambda: replies.append(droid_server.client().infer(droid())))
    asking.start()
    until(lambda: droid_server.policy.seeds)
    where = droid_server.server.address.replace("ws", "http")
    assert urllib.request.urlopen(f"{where}/healthz", timeout=PATIENCE_S).read() == b"OK\n"
    assert droid_server.client().get_server_metadata()
    droid_server.policy.gate.set()
    asking.join(PATIENCE_S)
    assert replies[0]["actions"].shape == (32, 8)


def test_any_other_plain_request_is_told_to_upgrade(droid_server):
    where = droid_server.server.address.replace("ws", "http")
    with pytest.raises(urllib.error.HTTPError) as caught:
        urllib.request.urlopen(f"{where}/other", timeout=PATIENCE_S)
    assert caught.value.code == 426


def test_a_client_that_leaves_takes_its_questions_along(droid_server):
    droid_server.policy.gate.clear()
    first, second = droid_server.raw(), droid_server.raw()
    for socket in (first, second):
        socket.recv()
        socket.send(wire.encode(droid()))
    until(lambda: len(droid_server.policy.seeds) + droid_server.service.health()["waiting"] == 2)
    second.close()
    first.close()
    until(lambda: droid_server.service.health()["waiting"] == 0)
    droid_server.policy.gate.set()
    assert droid_server.client().infer(droid())["actions"].shape == (32, 8)


def test_the_key_of_the_openpi_client_is_checked():
    secret = "x" * 20
    with Serving("cosmos3-nano-droid", token=secret) as serving:
        assert serving.client(api_key=secret).infer(droid())["actions"].shape == (32, 8)
        with pytest.raises(Exception, match="401"):
            serving.client(api_key="wrong")


def test_a_port_in_use_is_said(droid_server):
    with pytest.raises(InputError, match="another port"):
        OpenpiServer(droid_server.service, OpenpiSettings(port=droid_server.port)).start()
