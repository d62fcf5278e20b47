"""A policy server in a process of its own, to be killed: it answers with staying where the robot is."""

from __future__ import annotations

import sys
import time

import numpy as np

from cosmos_robot.contract.library import load_contract
from cosmos_robot.serve.server import ServerSettings, ZmqServer
from cosmos_robot.serve.service import Models, Service
from cosmos_robot.types import ActionChunk


class Staying:
    contract = load_contract("cosmos3-nano-droid")

    def act(self, observations, seeds, committed=None):
        rate, rows = self.contract.robot.rate_hz, self.contract.model.chunk
        places = [np.concatenate([o.state[f.name] for f in self.contract.robot.action]) for o in observations]
        return [ActionChunk(np.tile(p, (rows, 1)), rate, o.time) for p, o in zip(places, observations, strict=True)]


if __name__ == "__main__":
    with Service(Models(Staying())) as service, ZmqServer(service, ServerSettings(port=int(sys.argv[1]))) as server:
        print(server.address, flush=True)
        time.sleep(3600)
