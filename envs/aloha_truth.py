"""ALOHA's ground truth."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from cosmos_robot.envs.aloha import AlohaEnv
from cosmos_robot.envs.mujoco_truth import MujocoTruth

SIDES = ("left", "right")
JOINTS = ("waist", "shoulder", "elbow", "forearm_roll", "wrist_angle", "wrist_rotate")
SHUT = 0.021
"""Metres that a finger's joint shows when the hand is closed (gym-aloha's models)."""


class AlohaTruth(MujocoTruth):
    """Two arms: the hand is the left one's, joints and fingers are those of both, left first."""

    def __init__(self, env: AlohaEnv):
        self._env = env
        physics = env.physics
        super().__init__(
            physics.model.ptr,
            physics.data.ptr,
            env.robot,
            cameras={camera.name: camera.name for camera in env.robot.cameras},
            hand_site="cali_left_site1",
            hand_body="vx300s_left/gripper_link",
            base_body="vx300s_left",
            finger_joints=[f"vx300s_{side}/{finger}_finger" for side in SIDES for finger in SIDES],
            joints=[f"vx300s_{side}/{joint}" for side in SIDES for joint in JOINTS],
            refresh=physics.forward,
        )

    def opening(self) -> float:
        return float((np.abs(self.fingers()) - SHUT).sum())

    def fully_open(self) -> float:
        return super().fully_open() - SHUT * len(self.fingers())

    def start(self) -> NDArray[np.float64]:
        """Where the things lie."""
        return np.array(self._env.physics.data.qpos[16:])

    def recorded_start(self, index: int) -> NDArray[np.float64]:
        return self._env.start_places(index)
