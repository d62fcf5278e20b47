"""A policy for the tests of serving."""

from __future__ import annotations

import threading
import time

import numpy as np
from waiting import PATIENCE_S

from cosmos_robot.contract import Contract
from cosmos_robot.types import ActionChunk, Observation


class EchoPolicy:
    """Every value of a chunk is the seed of its question, so that a mixed-up answer shows."""

    def __init__(self, contract: Contract):
        self.contract = contract
        self.batches: list[int] = []
        self.seeds: list[int] = []
        self.observations: list[Observation] = []
        self.delay_s = 0.0
        self.fail: BaseException | None = None
        self.gate = threading.Event()
        self.gate.set()

    def act(self, observations, seeds, committed=None):
        self.batches.append(len(observations))
        self.seeds += list(seeds)
        self.observations += list(observations)
        self.gate.wait(PATIENCE_S)
        time.sleep(self.delay_s)
        if self.fail is not None:
            raise self.fail
        shape = (self.contract.model.chunk, self.contract.robot.action_width)
        return [
            ActionChunk(np.full(shape, float(s)), self.contract.robot.rate_hz, o.time)
            for o, s in zip(observations, seeds, strict=True)
        ]
