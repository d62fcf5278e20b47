"""A policy that answers what it was asked, served over real sockets."""

from __future__ import annotations

import socket
import sys
from pathlib import Path

import numpy as np
import pytest

sys.path.insert(0, str(Path(__file__).parent))

from tests_serve import EchoPolicy
from waiting import PATIENCE_S

from cosmos_robot.contract import Contract
from cosmos_robot.contract.library import load_contract
from cosmos_robot.serve.client import PolicyClient
from cosmos_robot.serve.server import ServerSettings, ZmqServer
from cosmos_robot.serve.service import Models, Service, ServiceSettings
from cosmos_robot.types import Observation


@pytest.fixture(scope="session")
def contract() -> Contract:
    return load_contract("tiny-libero")


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
    with PolicyClient(server.address, timeout_s=PATIENCE_S) as made:
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
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]
