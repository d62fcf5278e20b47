"""A policy server as a process of its own, for tests that kill it: CONTRACT PORT HANG.

Once there is a file HANG, an answer never comes. Prints its address, and ``hanging`` when a question is left like that.
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
    def __init__(self, contract: Contract, hang: Path):
        self.contract, self.hang = contract, hang

    def act(self, observations, seeds, committed=None):
        if self.hang.exists():
            print("hanging", flush=True)
            time.sleep(600)
        rows = np.tile([0.1, 0.0, -1.0], (self.contract.model.chunk, 1))
        return [ActionChunk(rows, self.contract.robot.rate_hz, o.time) for o in observations]


path, port, hang = sys.argv[1:]
made = Service(Models(Hanging(Contract.model_validate_json(Path(path).read_text()), Path(hang))))
made.start(warm_up=False)
with ZmqServer(made, ServerSettings(port=int(port))) as server:
    print(server.address, flush=True)
    time.sleep(600)
