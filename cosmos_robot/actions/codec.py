"""The one place where robot units meet model rows, forward and back."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import ArrayLike

from cosmos_robot.actions.grippers import BinaryGripper
from cosmos_robot.actions.layouts import Array, action_column, action_layout, state_layout, state_vector
from cosmos_robot.actions.normalization import Normalizer
from cosmos_robot.actions.spaces import SpaceMap
from cosmos_robot.contract import Contract, Normalization
from cosmos_robot.errors import ContractError, InputError

__all__ = ["Codec", "action_column", "state_vector"]


class Codec:
    """States and actions of a contract's robot, to and from normalised model rows (not yet padded to model width).

    robot units -> the model's own space (formats, gripper values, relative poses) -> normalised. The codec alone does
    these; whoever calls it does none of them. Raises ContractError where the two halves of the contract do not meet.
    """

    def __init__(self, contract: Contract):
        self.contract, self.robot = contract, contract.robot
        state, action = state_layout(contract.robot), action_layout(contract.robot)
        self._state_space = SpaceMap(state, contract.model.state_space, state)
        self._action_space = SpaceMap(action, contract.model.action_space, state)
        if self._action_space.relative and contract.robot.action_reference != "absolute":
            raise ContractError(
                f"{contract.model.name}: rows relative to poses need absolute commands, "
                f"{contract.robot.name} takes them {contract.robot.action_reference}"
            )
        self._state = _normalizer(contract.model.state_normalization, self.state_width)
        self._action = _normalizer(contract.model.action_normalization, self.action_width)

    @property
    def state_width(self) -> int:
        """Columns of a model state row."""
        return self._state_space.model.width

    @property
    def action_width(self) -> int:
        """Columns of a model action row."""
        return self._action_space.model.width

    def encode_state(self, vector: ArrayLike) -> Array:
        """(..., robot.state_width) in robot units to (..., state_width) in model units."""
        return self._need(self._state, "state").normalize(self._state_space.to_model(vector))

    def decode_state(self, rows: ArrayLike) -> Array:
        """(..., state_width) in model units to (..., robot.state_width) in robot units, the inverse of
        ``encode_state``."""
        return self._state_space.to_robot(self._need(self._state, "state").denormalize(rows))

    def encode_actions(self, actions: ArrayLike, state: ArrayLike | None = None) -> Array:
        """(..., T, robot.action_width) in robot units to (..., T, action_width) in model units.

        state: (..., robot.state_width) at the chunk's beginning; needed where the model's rows are relative poses.
        """
        return self._need(self._action, "action").normalize(self._action_space.to_model(actions, state))

    def decode_actions(
        self, rows: ArrayLike, state: ArrayLike | None = None, was_open: bool | Sequence[bool] | None = None
    ) -> Array:
        """(..., T, action_width) in model units to robot units: within the robot's command range, and with a binary
        gripper open or closed, nothing between (open at the threshold itself).

        state: as in ``encode_actions``. was_open: the gripper before the first row (one for each hand), which a gripper
        with hysteresis needs.
        """
        self._action_space.model.check(rows)
        actions = self._action_space.to_robot(self._need(self._action, "action").denormalize(rows), state)
        if self.robot.action_low is not None or self.robot.action_high is not None:
            actions = np.clip(actions, self.robot.action_low, self.robot.action_high)
        return self._decided(actions, was_open)

    def _decided(self, actions: Array, was_open: bool | Sequence[bool] | None) -> Array:
        gripper = self.robot.gripper
        if gripper is None:
            return actions
        hands = [action_column(self.robot, name) for name in gripper.fields]
        low, high = sorted((gripper.open_value, gripper.closed_value))
        if gripper.kind == "continuous":
            actions[..., hands] = np.clip(actions[..., hands], low, high)
            return actions
        binary = BinaryGripper.of(gripper)
        if gripper.hysteresis and was_open is None:
            raise InputError(f"gripper {gripper.field!r} has hysteresis: say whether it was open (was_open)")
        if was_open is None:
            was_open = True  # read at the threshold itself only
        before = [was_open] * len(hands) if isinstance(was_open, bool) else list(was_open)
        if len(before) != len(hands):
            raise InputError(f"was_open: expected {len(hands)} ({', '.join(gripper.fields)}), got {len(before)}")
        for column, first in zip(hands, before, strict=True):
            values = actions[..., column]
            chunks = values.reshape(-1, values.shape[-1] if values.ndim else 1)
            decided = np.stack([binary.commands(chunk, first, binary.range)[0] for chunk in chunks])
            actions[..., column] = decided.reshape(values.shape)
        return actions

    def _need(self, normalizer: Normalizer | None, what: str) -> Normalizer:
        if normalizer is None:
            spec: Normalization = getattr(self.contract.model, f"{what}_normalization")
            raise ContractError(
                f"{self.contract.model.name}: no statistics for its {what}s, so nothing is encoded or decoded. "
                f"{spec.note}"
            )
        return normalizer


def _normalizer(spec: Normalization, width: int) -> Normalizer | None:
    return Normalizer(spec, width) if spec.usable else None
