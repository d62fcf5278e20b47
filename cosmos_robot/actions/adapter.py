"""A robot that differs from the one a checkpoint was trained for only in what can be converted."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
from numpy.typing import ArrayLike

from cosmos_robot.actions.grippers import BinaryGripper
from cosmos_robot.actions.layouts import Array, action_layout, convert_fields, state_layout, state_vector
from cosmos_robot.contract import Contract, Difference, RobotSpec, require_fit
from cosmos_robot.images.steps import turn
from cosmos_robot.types import Image, LazyImages, Observation


class Adapter:
    """Between a contract's robot and an actual one: observations of the actual robot as the contract's, commands of the
    contract's as the actual one's. Pictures are turned, fields put in order and converted, gripper values exchanged.

    converted: what it does, for a log or a handshake. Raises ContractError (``require_fit``) for every difference that
    no code converts.
    """

    def __init__(self, contract: Contract, actual: RobotSpec):
        self.expected, self.actual = contract.robot, actual
        left = require_fit(contract, actual, adapted=True)
        self.warnings = tuple(d for d in left if d.verdict == "warn")
        self.converted: tuple[Difference, ...] = tuple(d for d in left if d.verdict == "convert")
        self._state = state_layout(actual), state_layout(contract.robot)
        self._action = action_layout(contract.robot), action_layout(actual)

    def observation(self, observation: Observation) -> Observation:
        """What the contract's robot would report; pictures stay lazy."""
        names = tuple(camera.name for camera in self.expected.cameras)
        state = convert_fields(state_vector(self.actual, observation.state), *self._state)
        target = self._state[1]
        return replace(
            observation,
            images=LazyImages(names, lambda name: self._picture(observation, name)),
            state={field.name: state[target.columns(field.name)] for field in target.fields},
        )

    def actions(self, actions: ArrayLike, was_open: bool = True) -> Array:
        """(T, expected.action_width) commands as (T, actual.action_width) commands of the actual robot.

        was_open: the gripper before the first row, where a binary one has to decide.
        """
        out = convert_fields(actions, *self._action)
        gripper = self.actual.gripper
        if gripper and gripper.kind == "binary":
            binary = BinaryGripper.of(gripper)
            for name in gripper.fields:
                column = self._action[1].columns(name).start
                out[..., column] = binary.commands(out[..., column], was_open, binary.range)[0]
        return np.clip(out, self.actual.action_low, self.actual.action_high) if self._limited else out

    @property
    def _limited(self) -> bool:
        return self.actual.action_low is not None or self.actual.action_high is not None

    def _picture(self, observation: Observation, name: str) -> Image:
        arrives = self.actual.camera(name).orientation
        return turn(observation.images[name], arrives, self.expected.camera(name).orientation)
