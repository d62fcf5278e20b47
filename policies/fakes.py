"""Policies that know nothing: what any score has to be compared with, and stand-ins for tests."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from cosmos_robot.contract import Contract
from cosmos_robot.errors import ContractError
from cosmos_robot.policies.base import Policy
from cosmos_robot.types import ActionChunk, Observation


class RandomPolicy(Policy):
    """Commands drawn evenly from the robot's range; a binary gripper is opened or closed by the toss of a coin."""

    def __init__(self, contract: Contract):
        """Raises ContractError for a robot without a command range."""
        robot = contract.robot
        if robot.action_low is None or robot.action_high is None:
            raise ContractError(f"a random policy needs action_low and action_high, which {robot.name!r} does not set")
        self.contract = contract

    def _act(self, observations: Sequence[Observation], seeds: Sequence[int]) -> list[ActionChunk]:
        return [self._chunk(o, seed) for o, seed in zip(observations, seeds, strict=True)]

    def _chunk(self, observation: Observation, seed: int) -> ActionChunk:
        robot, rng = self.contract.robot, np.random.default_rng(seed)
        values = rng.uniform(robot.action_low, robot.action_high, (self.contract.model.chunk, robot.action_width))
        gripper = robot.gripper
        if gripper and gripper.kind == "binary":
            ends = (gripper.open_value, gripper.closed_value)
            values[:, _columns(self.contract, gripper.field)] = rng.choice(ends, (len(values), 1))
        return ActionChunk(values, robot.rate_hz, observation.time, source="random")


class ZeroPolicy(Policy):
    """Zero in every command, the gripper open."""

    def __init__(self, contract: Contract):
        """Raises ContractError where zero would be a command to move: absolute targets."""
        if contract.robot.action_reference == "absolute":
            raise ContractError(
                f"a zero policy would drive {contract.robot.name!r} to its origin: its action_reference is 'absolute', "
                "expected 'per_step' or 'per_chunk'"
            )
        self.contract = contract

    def _act(self, observations: Sequence[Observation], seeds: Sequence[int]) -> list[ActionChunk]:
        robot = self.contract.robot
        values: NDArray[np.float64] = np.zeros((self.contract.model.chunk, robot.action_width))
        if robot.gripper:
            values[:, _columns(self.contract, robot.gripper.field)] = robot.gripper.open_value
        return [ActionChunk(values, robot.rate_hz, o.time, source="zero") for o in observations]


def _columns(contract: Contract, field: str) -> slice:
    start = 0
    for spec in contract.robot.action:
        if spec.name == field:
            return slice(start, start + spec.width)
        start += spec.width
    raise ContractError(f"no action field {field!r} on {contract.robot.name!r}")
