"""A policy that answers what it was asked, served over real sockets."""

from __future__ import annotations

import threading
import time

import numpy as np
import pytest

from cosmos_robot.backbone.cosmos3.folder import find_checkpoint
from cosmos_robot.contract import Contract
from cosmos_robot.serve.client import PolicyClient
from cosmos_robot.serve.server import ServerSettings, ZmqServer
from cosmos_robot.serve.service import Models, Service, ServiceSettings
from cosmos_robot.types import ActionChunk, Observation


class EchoPolicy:
    """Every value of a chunk is the seed of its question, so that a mixed-up answer shows."""

    def __init__(self, contract: Contract):
        self.contract = contract
        self.batches: list[int] = []
        self.seeds: list[int] = []
        self.delay_s = 0.0
        self.fail: BaseException | None = None
        self.gate = threading.Event()
        self.gate.set()

    def act(self, observations, seeds, committed=None):
        self.batches.append(len(observations))
        self.seeds += list(seeds)
        self.gate.wait(30)
        time.sleep(self.delay_s)
        if self.fail is not None:
            raise self.fail
        shape = (self.contract.model.chunk, self.contract.robot.action_width)
        return [
            ActionChunk(np.full(shape, float(s)), self.contract.robot.rate_hz, o.time)
            for o, s in zip(observations, seeds, strict=True)
        ]


@pytest.fixture(scope="session")
def contract() -> Contract:
    return Contract.load(find_checkpoint("tiny-libero").folder)


@pytest.fixture
def policy(contract) -> EchoPolicy:
    return EchoPolicy(contract)


@pytest.fixture
def service(policy):
    made = Service(Models(policy), ServiceSettings(batch=4, waiting=32, waiting_per_session=8))
    made.start(warm_up=False)
    yield made
    policy.gate.set()
    made.close()


@pytest.fixture
def server(service):
    with ZmqServer(service, ServerSettings(port=0)) as made:
        yield made


@pytest.fixture
def client(server):
    with PolicyClient(server.address, timeout_s=10) as made:
        yield made


@pytest.fixture
def observation(contract) -> Observation:
    robot = contract.robot
    rng = np.random.default_rng(0)
    images = {c.name: rng.integers(0, 256, (c.height, c.width, 3), np.uint8) for c in robot.cameras}
    return Observation(images, {f.name: rng.normal(size=f.width) for f in robot.state}, "pick up the soup", 1.5)


@pytest.fixture
def free_port() -> int:
    """A port that nobody listens on."""
    import socket

    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]
