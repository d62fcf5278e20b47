"""A served policy as a policy of this process, for evaluation, planning and comparison."""

from __future__ import annotations

import os
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from cosmos_robot.policies.base import Policy
from cosmos_robot.serve.client import PolicyClient
from cosmos_robot.types import ActionChunk, Observation

SCHEME = "tcp://"
TOKEN_VARIABLE = "COSMOS_ROBOT_TOKEN"
PATIENCE_S = 120.0


class RemotePolicy(Policy):
    """``client``'s policy: same observations and seeds, same chunks, whatever machine answers."""

    def __init__(self, client: PolicyClient):
        """Asks for the contract at once. Raises WorkerError if nobody answers."""
        self._client = client
        self.contract = client.contract

    @property
    def cameras(self) -> tuple[str, ...]:
        """The cameras whose pictures are sent."""
        return self._client.cameras

    def _act(self, observations: Sequence[Observation], seeds: Sequence[int]) -> list[ActionChunk]:
        return self._client.act(observations, seeds)

    def _continue(
        self, observations: Sequence[Observation], seeds: Sequence[int], committed: Sequence[NDArray[np.float64]]
    ) -> list[ActionChunk]:
        return self._client.act(observations, seeds, committed)


def connect(address: str) -> RemotePolicy:
    """The policy served at ``tcp://HOST:PORT``; the token, if it wants one, from COSMOS_ROBOT_TOKEN."""
    return RemotePolicy(PolicyClient(address, PATIENCE_S, os.environ.get(TOKEN_VARIABLE, "")))
