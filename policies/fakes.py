"""Models that know nothing: what any score has to be compared with, and stand-ins for tests."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
from numpy.typing import NDArray

from cosmos_robot.actions.codec import action_column
from cosmos_robot.contract import Contract, RobotSpec
from cosmos_robot.errors import ContractError
from cosmos_robot.images import cameras_of, compose_canvas, video_size
from cosmos_robot.latent_frames.layout import ValueMode
from cosmos_robot.policies.base import InverseModel, Policy, ValueModel, WorldModel, begun_with
from cosmos_robot.types import ActionChunk, Clip, LazyFrames, Observation, VideoPrediction


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

    def _continue(
        self, observations: Sequence[Observation], seeds: Sequence[int], committed: Sequence[NDArray[np.float64]]
    ) -> list[ActionChunk]:
        return begun_with(committed, self._act(observations, seeds))

    def _chunk(self, observation: Observation, seed: int) -> ActionChunk:
        robot, rng = self.contract.robot, np.random.default_rng(seed)
        values = rng.uniform(robot.action_low, robot.action_high, (self.contract.model.chunk, robot.action_width))
        if robot.gripper and robot.gripper.kind == "binary":
            ends = (robot.gripper.open_value, robot.gripper.closed_value)
            for column in _hands(robot):
                values[:, column] = rng.choice(ends, len(values))
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
        return [_open_and_still(self.contract, o.time) for o in observations]

    def _continue(
        self, observations: Sequence[Observation], seeds: Sequence[int], committed: Sequence[NDArray[np.float64]]
    ) -> list[ActionChunk]:
        return begun_with(committed, self._act(observations, seeds))


class StillWorld(WorldModel):
    """Nothing ever moves: every frame is the current one."""

    def __init__(self, contract: Contract):
        self.contract = contract

    @property
    def cameras(self) -> tuple[str, ...]:
        return tuple(cameras_of(self.contract.model.canvas))

    def _imagine(
        self, observations: Sequence[Observation], actions: Sequence[ActionChunk], seeds: Sequence[int]
    ) -> list[VideoPrediction]:
        return [
            self._still(compose_canvas(self.contract, o.images), chunk, o.instruction, o.time)
            for o, chunk in zip(observations, actions, strict=True)
        ]

    def _extend(
        self,
        predictions: Sequence[VideoPrediction],
        actions: Sequence[ActionChunk],
        seeds: Sequence[int],
        states: Sequence[Mapping[str, NDArray[np.float64]]] | None,
        carry: str,
    ) -> list[VideoPrediction]:
        return [
            self._still(p.frames[-1], chunk, p.instruction, p.end_time)
            for p, chunk in zip(predictions, actions, strict=True)
        ]

    def _still(self, canvas: NDArray[np.uint8], actions: ActionChunk, instruction: str, time: float) -> VideoPrediction:
        per_frame, (height, width) = self.contract.model.actions_per_frame, video_size(self.contract.model)
        frames = np.repeat(canvas[None, :height, :width], len(actions) // per_frame + 1, axis=0)
        video = LazyFrames(lambda: frames, frames.shape)
        return VideoPrediction(video, actions, instruction, actions.rate_hz / per_frame, time, source="still")


class StillInverse(InverseModel):
    """Sees no movement in any video: zero in every command, the gripper open."""

    def __init__(self, contract: Contract):
        self.contract = contract

    def _label(self, clips: Sequence[Clip], seeds: Sequence[int]) -> list[ActionChunk]:
        return [_open_and_still(self.contract, clip.time) for clip in clips]


class RandomValue(ValueModel):
    """Draws each value evenly from 0 to 1, whatever happens: what a value has to beat in choosing."""

    def __init__(self, contract: Contract, reads: ValueMode = "value"):
        self.contract = contract
        self.reads = reads

    def _score(
        self,
        observations: Sequence[Observation],
        actions: Sequence[ActionChunk],
        futures: Sequence[VideoPrediction] | None,
        seeds: Sequence[int],
    ) -> NDArray[np.float64]:
        return np.array([np.random.default_rng(seed).uniform() for seed in seeds])


def _open_and_still(contract: Contract, time: float) -> ActionChunk:
    robot = contract.robot
    values: NDArray[np.float64] = np.zeros((contract.model.chunk, robot.action_width))
    if robot.gripper:
        values[:, _hands(robot)] = robot.gripper.open_value
    return ActionChunk(values, robot.rate_hz, time, source="zero")


def _hands(robot: RobotSpec) -> list[int]:
    return [action_column(robot, name) for name in robot.gripper.fields] if robot.gripper else []
