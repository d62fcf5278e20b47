"""A policy server as a process of its own, for tests that kill it: CONTRACT PORT HANGS.

The answer to question number HANGS never comes. Prints its address, and ``hanging`` when that question is there.
"""

import sys
import time
from pathlib import Path

import numpy as np

from cosmos_robot.contract import Contract
from cosmos_robot.serve.server import ServerSettings, ZmqServer
from cosmos_robot.serve.service import Models, Service
from cosmos_robot.types import ActionChunk


class Hanging:
    def __init__(self, contract: Contract, hangs: int):
        self.contract, self.left = contract, hangs

    def act(self, observations, seeds, committed=None):
        self.left -= 1
        if self.left == 0:
            print("hanging", flush=True)
            time.sleep(600)
        rows = np.tile([0.1, 0.0, -1.0], (self.contract.model.chunk, 1))
        return [ActionChunk(rows, self.contract.robot.rate_hz, o.time) for o in observations]


path, port, hangs = sys.argv[1:]
made = Service(Models(Hanging(Contract.model_validate_json(Path(path).read_text()), int(hangs))))
made.start(warm_up=False)
with ZmqServer(made, ServerSettings(port=int(port))) as server:
    print(server.address, flush=True)
    time.sleep(600)
