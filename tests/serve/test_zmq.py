"""Client and server over real sockets, and what happens when either misbehaves."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
import time

import msgpack
import numpy as np
import pytest
import zmq
from waiting import PATIENCE_S, until

from cosmos_robot.errors import ContractError, InputError, WireError, WorkerError
from cosmos_robot.serve import wire
from cosmos_robot.serve.bell import Bell
from cosmos_robot.serve.client import PolicyClient
from cosmos_robot.serve.messages import Failure, Health, to_wire
from cosmos_robot.serve.server import ServerSettings, ZmqServer


@pytest.fixture
def raw(server):
    """A bare socket to the server, for what no client of ours would send."""
    context = zmq.Context()
    dealer = context.socket(zmq.DEALER)
    dealer.setsockopt(zmq.LINGER, 0)
    dealer.setsockopt(zmq.RCVTIMEO, int(1000 * PATIENCE_S))
    dealer.connect(server.address)
    yield dealer
    context.destroy(linger=0)


def test_a_client_is_a_policy(client, observation, contract):
    assert client.contract == contract
    chunks = client.act([observation, observation], [3, 4])
    assert [c.values[0, 0] for c in chunks] == [3, 4]
    assert chunks[0].rate_hz == contract.robot.rate_hz and chunks[0].start_time == observation.time
    until(lambda: client.stats()["outcomes"] == {"ok": 2})  # counted just after the answer
    assert client.health()["state"] == "ready"
    assert "infer" in client.hello().verbs


def test_only_the_cameras_that_are_read_travel(client, observation, contract):
    from cosmos_robot.types import LazyImages, Observation

    drawn = []
    names = (*observation.images, "spare")

    def draw(name):
        drawn.append(name)
        return observation.images[name]

    lazy = Observation(LazyImages(names, draw), observation.state, observation.instruction)
    client.act([lazy], [1])
    assert set(drawn) == {p.camera for p in contract.model.canvas.placements}


def test_errors_arrive_typed_and_without_paths(client, policy, observation):
    from cosmos_robot.types import Observation

    with pytest.raises(InputError, match="agentview"):
        client.act([Observation({}, observation.state, "x")], [1])
    with pytest.raises(InputError, match="seed"):
        client.act([observation], [-1])
    policy.fail = RuntimeError("broken: /srv/secret/place.py")
    with pytest.raises(WorkerError, match="RuntimeError") as caught:
        client.act([observation], [1])
    assert "secret" not in str(caught.value)


def test_pc_30_health_is_answered_while_the_model_works(client, server, policy, observation):
    policy.gate.clear()
    slow = client.submit(observation, 1)
    until(lambda: policy.seeds == [1])
    with PolicyClient(server.address) as second:
        assert second.health()["running"] == 1
    assert not slow.done()
    policy.gate.set()
    assert slow.result(PATIENCE_S).values[0, 0] == 1


@pytest.mark.parametrize("timeout", [-1, 0, None, 10**12, "5", True, float("nan"), float("inf")])
def test_pc_33_bad_timeouts_are_refused(timeout):
    with pytest.raises(InputError, match="timeout_s"):
        PolicyClient("tcp://127.0.0.1:5555", timeout_s=timeout)


@pytest.mark.parametrize("address", ["", "localhost:5555", "http://a:1", "tcp://a", "tcp://:5", "tcp://a:99999", None])
def test_bad_addresses_are_refused(address):
    with pytest.raises(InputError, match="tcp://HOST:PORT"):
        PolicyClient(address)


def test_pc_33_a_dead_port_fails_in_time_and_names_it(free_port):
    with (
        PolicyClient(f"tcp://127.0.0.1:{free_port}", timeout_s=0.3) as client,
        pytest.raises(WorkerError, match=str(free_port)),
    ):
        client.health()


def test_pc_33_a_late_answer_is_not_taken_for_the_next(client, policy, observation):
    client.hello()
    policy.gate.clear()
    with pytest.raises(WorkerError, match="timeout"):
        client.submit(observation, 1, timeout_s=0.2).result()
    policy.gate.set()
    assert client.act([observation], [2])[0].values[0, 0] == 2


def test_pc_33_a_server_that_comes_later_is_found(service, free_port, observation):
    with PolicyClient(f"tcp://127.0.0.1:{free_port}", timeout_s=PATIENCE_S) as client:
        asked = client.call(Health())
        time.sleep(0.2)
        with ZmqServer(service, ServerSettings(port=free_port)):
            assert asked.result(PATIENCE_S).facts["state"] == "ready"


def test_a_server_that_restarts_is_found_again(service, free_port, observation):
    with PolicyClient(f"tcp://127.0.0.1:{free_port}", timeout_s=PATIENCE_S) as client:
        for _ in range(2):
            with ZmqServer(service, ServerSettings(port=free_port)):
                assert client.act([observation], [5])[0].values[0, 0] == 5


def test_a_server_whose_thread_ends_at_once_still_frees_its_port(service, free_port, monkeypatch):
    ring = Bell.ring
    for _ in range(2):
        with ZmqServer(service, ServerSettings(port=free_port)) as server:

            def ring_and_wait(bell: Bell, thread: threading.Thread = server._thread) -> None:
                ring(bell)
                thread.join(PATIENCE_S)

            monkeypatch.setattr(Bell, "ring", ring_and_wait)
        monkeypatch.undo()
        assert not server._thread.is_alive()


def test_pc_37_a_reset_is_acknowledged_and_nothing_old_is_answered(client, policy, observation):
    client.hello()
    policy.gate.clear()
    old = client.submit(observation, 1)
    until(lambda: policy.seeds == [1])
    client.reset()
    with pytest.raises(WorkerError, match="reset"):
        old.result(PATIENCE_S)
    policy.gate.set()
    assert client.act([observation], [2])[0].values[0, 0] == 2


def test_two_clients_that_reset_do_not_disturb_each_other(server, policy, observation):
    with PolicyClient(server.address) as one, PolicyClient(server.address) as two:
        one.hello(), two.hello()
        policy.gate.clear()
        kept = two.submit(observation, 2)
        until(lambda: policy.seeds == [2])
        for _ in range(5):
            one.reset()
        policy.gate.set()
        assert kept.result(PATIENCE_S).values[0, 0] == 2


def test_four_clients_at_once_get_their_own_answers(server, observation):
    wrong = []

    def ask(start):
        with PolicyClient(server.address) as client:
            for seed in range(start, start + 20):
                if client.act([observation], [seed])[0].values[0, 0] != seed:
                    wrong.append(seed)

    threads = [threading.Thread(target=ask, args=(1000 * i,)) for i in range(4)]
    [t.start() for t in threads]
    [t.join(PATIENCE_S) for t in threads]
    assert not wrong and not any(t.is_alive() for t in threads)


def asked(**fields) -> bytes:
    """A question with some fields as no client of ours would write them."""
    good = {
        "v": 1,
        "verb": "infer",
        "id": "1",
        "seed": 1,
        "observation": {"images": {}, "state": {}, "instruction": "x"},
    }
    return msgpack.packb({name: value for name, value in {**good, **fields}.items() if value is not ...})


GARBAGE = [
    b"",
    b"garbage",
    os.urandom(1000),
    b"\x91" * 3000,
    msgpack.packb(3),
    msgpack.packb([]),
    msgpack.packb({}),
    asked(v=9),
    asked(verb="kill"),
    asked(id="x" * 100),
    asked(extra=1),
    asked(observation=...),
    asked(seed="1"),
    asked(deadline_s=float("nan")),
    asked(committed=[[1.0]]),
    asked(observation={}),
    asked(observation={"images": {"a": {"jpeg": b"no"}}, "state": {}, "instruction": "x"}),
    asked(observation={"images": {}, "state": {"x": "y"}, "instruction": "x"}),
    asked(observation={"images": {}, "state": {}, "instruction": 3}),
    asked(observation={"images": {"a": [1, 2]}, "state": {}, "instruction": "x"}),
]


@pytest.mark.parametrize("data", GARBAGE, ids=range(len(GARBAGE)))
def test_garbage_is_answered_with_a_reason_and_the_server_goes_on(raw, client, data):
    raw.send(data)
    reply = wire.decode(raw.recv()).value
    assert reply["verb"] == "failure" and reply["code"] == "bad_message" and reply["message"]
    assert client.health()["state"] == "ready"


def test_several_frames_are_refused(raw, client):
    raw.send_multipart([b"", wire.encode(to_wire(Health(), "1"))])
    assert "DEALER" in wire.decode(raw.recv()).value["message"]


def test_pc_29_large_messages_work_up_to_the_limit_and_not_beyond(server, raw, client, observation):
    for megabytes in (0.9, 1.2, 8):
        padded = {**to_wire(Health(), "1"), "extra": b"\0" * int(megabytes * 2**20)}
        raw.send(wire.encode(padded))
        assert "unknown fields" in wire.decode(raw.recv()).value["message"], "read whole, then refused for its field"
    with pytest.raises(WireError, match="over the limit"):
        wire.encode(np.zeros(500 * 2**20, np.uint8))
    raw.send(b"\0" * (server._settings.max_bytes + 2**20))
    with pytest.raises(zmq.Again):  # the connection is dropped before the message is in memory
        raw.setsockopt(zmq.RCVTIMEO, 500)
        raw.recv()
    assert client.act([observation], [1])[0].values[0, 0] == 1


def test_a_token_keeps_others_out(service, observation):
    secret = "correct horse battery"
    with ZmqServer(service, ServerSettings(port=0, token=secret)) as server:
        with PolicyClient(server.address, token=secret) as friend:
            assert friend.act([observation], [1])[0].values[0, 0] == 1
        for wrong in ("", "correct horse batter"):
            with PolicyClient(server.address, token=wrong) as stranger, pytest.raises(WorkerError, match="forbidden"):
                stranger.health()


def test_an_open_address_needs_a_token():
    with pytest.raises(InputError, match="token"):
        ServerSettings(host="0.0.0.0")
    with pytest.raises(InputError, match="at least 16"):
        ServerSettings(token="short")
    assert ServerSettings(host="0.0.0.0", token="x" * 16).host == "0.0.0.0"


def test_a_port_in_use_is_said(server, service):
    port = int(server.address.rsplit(":", 1)[1])
    with pytest.raises(InputError, match=f"{port}.*another port"):
        ZmqServer(service, ServerSettings(port=port)).start()


def test_jpeg_only_where_the_checkpoint_saw_one(server, observation):
    with PolicyClient(server.address, jpeg_quality=90) as client, pytest.raises(ContractError, match="JPEG"):
        client.hello()


def test_a_closed_client_says_so(server):
    client = PolicyClient(server.address)
    client.close()
    client.close()
    with pytest.raises(InputError, match="closed"):
        client.health()


def test_answers_to_a_client_that_is_gone_do_not_hurt(server, policy, observation, client):
    policy.gate.clear()
    gone = PolicyClient(server.address)
    gone.hello()
    gone.submit(observation, 1)
    until(lambda: policy.seeds == [1])
    gone.close()
    policy.gate.set()
    assert client.act([observation], [2])[0].values[0, 0] == 2


def test_a_client_killed_while_it_asks_does_not_hurt(server, policy, observation, client):
    code = (
        "import sys, numpy as np\n"
        "from cosmos_robot.serve.client import PolicyClient\n"
        "from cosmos_robot.serve.service import empty_scene\n"
        "c = PolicyClient(sys.argv[1]); o = empty_scene(c.contract)\n"
        "print('asking', flush=True)\n"
        "while True: c.act([o], [1])\n"
    )
    policy.delay_s = 0.01
    asking = subprocess.Popen([sys.executable, "-c", code, server.address], stdout=subprocess.PIPE, text=True)
    assert asking.stdout.readline() == "asking\n"
    until(lambda: len(policy.seeds) > 3)
    asking.send_signal(signal.SIGKILL)
    asking.wait(PATIENCE_S)
    assert client.act([observation], [2])[0].values[0, 0] == 2


def test_the_client_needs_no_torch():
    code = "import sys; import cosmos_robot.serve.client; assert not {'torch', 'gymnasium'} & set(sys.modules)"
    subprocess.run([sys.executable, "-c", code], check=True)


def test_failures_name_no_paths():
    failure = Failure.of(InputError("cannot read /srv/data/episode_1.npz, got C:\\models\\nano\\x"))
    assert "srv" not in failure.message and "models" not in failure.message and "cannot read" in failure.message
