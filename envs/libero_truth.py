"""LIBERO's ground truth."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from cosmos_robot.envs.libero import SIM_CAMERAS, LiberoEnv
from cosmos_robot.envs.mujoco_truth import MujocoTruth


class LiberoTruth(MujocoTruth):
    """Of the model that the environment has built at its last reset."""

    def __init__(self, env: LiberoEnv):
        self._env = env
        model, arm = env.sim.model._model, env.arm
        super().__init__(
            model,
            env.sim.data._data,
            env.robot,
            cameras=SIM_CAMERAS,
            hand_site=model.site(arm.eef_site_id).name,
            hand_body=arm.robot_model.eef_name,
            base_body=arm.robot_model.root_body,
            finger_joints=arm.gripper.joints,
            refresh=env.sim.forward,
        )

    def start(self) -> NDArray[np.float64]:
        """Joint positions and velocities, without the clock."""
        return np.array(self._env.sim_env.get_sim_state())[1:]

    def recorded_start(self, index: int) -> NDArray[np.float64]:
        return self._env.task.init_states()[index][1:]
