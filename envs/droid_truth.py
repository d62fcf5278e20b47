"""The ground truth of the DROID table."""

from __future__ import annotations

import mujoco
import numpy as np
from numpy.typing import NDArray

from cosmos_robot.envs import droid_scene as scene
from cosmos_robot.envs.droid import DroidEnv
from cosmos_robot.envs.mujoco_truth import MujocoTruth


class DroidTruth(MujocoTruth):
    """The opening is the distance between the fingers' pads."""

    def __init__(self, env: DroidEnv):
        self._env = env
        super().__init__(
            env.model,
            env.data,
            env.robot,
            cameras={camera.name: camera.name for camera in env.robot.cameras},
            hand_site=scene.GRIP_SITE,
            hand_body="gripper_eef",
            base_body="base",
            finger_joints=scene.FINGER_JOINTS,
            joints=scene.ARM_JOINTS,
            refresh=lambda: mujoco.mj_forward(env.model, env.data),
        )

    def opening(self) -> float:
        return self._between_pads(self.now)

    def fully_open(self) -> float:
        fresh = mujoco.MjData(self.model)
        mujoco.mj_kinematics(self.model, fresh)
        return self._between_pads(fresh)

    def start(self) -> NDArray[np.float64]:
        """Joint positions, then places of the movable furniture."""
        data = self._env.data
        return np.concatenate([data.qpos, data.mocap_pos.ravel(), data.mocap_quat.ravel()])

    def recorded_start(self, index: int) -> NDArray[np.float64]:
        qpos, furniture = self._env.state_at(self._env.task.init_places(index))
        return np.concatenate([qpos, furniture[:, :3].ravel(), furniture[:, 3:].ravel()])

    @staticmethod
    def _between_pads(data: mujoco.MjData) -> float:
        left, right = (data.geom(name).xpos for name in scene.PADS)
        return float(np.linalg.norm(left - right))
