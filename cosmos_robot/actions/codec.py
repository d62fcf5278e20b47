"""The one place where robot units meet model rows, forward and back."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
from numpy.typing import ArrayLike, NDArray

from cosmos_robot.actions.normalization import Normalizer
from cosmos_robot.contract import Contract, RobotSpec
from cosmos_robot.errors import InputError


def state_vector(robot: RobotSpec, state: Mapping[str, ArrayLike]) -> NDArray[np.float64]:
    """The named state fields of ``robot``, joined in the spec's order: (state_width,). Extra fields are ignored."""
    parts = []
    for field in robot.state:
        if field.name not in state:
            raise InputError(f"state {field.name!r} is missing; got {sorted(state)}")
        value = np.asarray(state[field.name], dtype=np.float64)
        if value.shape != (field.width,):
            raise InputError(f"state {field.name!r}: expected shape ({field.width},), got {value.shape}")
        parts.append(value)
    return np.concatenate(parts) if parts else np.zeros(0)


def action_column(robot: RobotSpec, name: str) -> int:
    """The first column of action field ``name``. Raises InputError if there is none of that name."""
    start = 0
    for field in robot.action:
        if field.name == name:
            return start
        start += field.width
    raise InputError(f"no action field {name!r}")


class Codec:
    """States and actions of a contract's robot, to and from normalised model rows (not yet padded to model width)."""

    def __init__(self, contract: Contract):
        self.robot = contract.robot
        self._state = Normalizer(contract.model.state_normalization, contract.robot.state_width)
        self._action = Normalizer(contract.model.action_normalization, contract.robot.action_width)

    def encode_state(self, vector: ArrayLike) -> NDArray[np.float64]:
        """(..., state_width) in robot units to model units."""
        return self._state.normalize(vector)

    def encode_actions(self, actions: ArrayLike) -> NDArray[np.float64]:
        """(..., action_width) in robot units to model units."""
        return self._action.normalize(actions)

    def decode_actions(self, rows: ArrayLike) -> NDArray[np.float64]:
        """(..., action_width) in model units to robot units: within the robot's command range, and with a binary
        gripper set to the nearer of its two values."""
        actions = self._action.denormalize(rows)
        if self.robot.action_low is not None or self.robot.action_high is not None:
            actions = np.clip(actions, self.robot.action_low, self.robot.action_high)
        gripper = self.robot.gripper
        if gripper and gripper.kind == "binary":
            column = action_column(self.robot, gripper.field)
            middle = (gripper.open_value + gripper.closed_value) / 2
            closing = (actions[..., column] - middle) * (gripper.closed_value - gripper.open_value) > 0
            actions[..., column] = np.where(closing, gripper.closed_value, gripper.open_value)
        return actions
