"""ALOHA in simulation, through gym-aloha: two ViperX arms told joint positions at 50 Hz.

Names are ``aloha/transfer_cube`` and ``aloha/insertion``. gym-aloha draws three pictures at every step; here its
physics and tasks are stepped without that, and a picture is drawn when it is read.
"""

from __future__ import annotations

import os
import warnings
from typing import Any

import numpy as np
from numpy.typing import NDArray

from cosmos_robot.contract import load_robot
from cosmos_robot.envs.base import RobotEnv, init_state, require_limits, require_options
from cosmos_robot.envs.truth import GroundTruth
from cosmos_robot.errors import DependencyError, RenderError, RobotError, UnknownNameError
from cosmos_robot.types import Image

GYM_ALOHA = load_robot("gym-aloha")
TASKS = {
    "transfer_cube": "Pick up the cube with the right arm and transfer it to the left arm.",
    "insertion": "Insert the peg into the socket.",
}
"""Task to instruction; gym-aloha itself has none."""
STEP_BUDGET = 300
INIT_STATES = 50
SUCCESS_REWARD = 4


class AlohaEnv(RobotEnv):
    """One of gym-aloha's tasks.

    Actions are absolute: for each arm, left first, six joint targets in rad and the gripper, 0 closed to 1 open, as a
    share of the fingers' travel. They are not clipped to gym-aloha's own action space, which is -1 to 1 although joints
    go further; the model's servos keep to the joints' limits. Both grippers reach 0.065 to 0.975. The reward is
    gym-aloha's, 0 to 4; 4 is success. Commands so violent that the physics breaks raise RobotError.

    ``reset(options={"init_state": i})`` places things as gym-aloha does for seed i.
    """

    robot = GYM_ALOHA
    init_state_count = INIT_STATES

    def __init__(self, task: str, *, settle_steps: int = 0, step_budget: int = STEP_BUDGET):
        super().__init__()
        require_limits(settle_steps, step_budget)
        self.task, self.instruction = task, TASKS[task]
        self.settle_steps, self.step_budget = settle_steps, step_budget
        self._inner, self._physics_error = _build(task)
        self._substeps = round(1 / (self.robot.rate_hz * self.physics.timestep()))

    @property
    def physics(self):
        """dm_control's physics."""
        return self._inner._env.physics

    def ground_truth(self) -> GroundTruth:
        from cosmos_robot.envs.aloha_truth import AlohaTruth

        return AlohaTruth(self)

    def close(self) -> None:
        if not self._closed:
            super().close()
            self.physics.free()

    def start_places(self, seed: int) -> NDArray[np.float64]:
        """Where gym-aloha puts the cube (7,), or peg and socket (14,), for a seed."""
        from gym_aloha.utils import sample_box_pose, sample_insertion_pose

        return sample_box_pose(seed) if self.task == "transfer_cube" else np.concatenate(sample_insertion_pose(seed))

    def _reset(self, options: dict[str, Any]) -> None:
        from gym_aloha.tasks.sim import BOX_POSE

        index = init_state(self, options)
        BOX_POSE[0] = self.start_places(int(self.np_random.integers(INIT_STATES, 2**31)) if index is None else index)
        # The task's own start pose is written inside a reset, which leaves times, velocities and warm starts at zero.
        self._inner._env.task.initialize_episode(self.physics)
        for _ in range(self.settle_steps):
            self.physics.step(self._substeps)

    def _step(self, action: NDArray[np.float64]) -> tuple[float, bool, bool]:
        task = self._inner._env.task
        task.before_step(action, self.physics)
        try:
            self.physics.step(self._substeps)
        except self._physics_error as error:
            self._running = False
            raise RobotError(
                f"the arms moved so hard that the simulation broke; reset() begins anew: {error}"
            ) from error
        task.after_step(self.physics)
        reward = task.get_reward(self.physics)
        return float(reward), reward == SUCCESS_REWARD, self.control_steps + 1 >= self.step_budget

    def score(self) -> float:
        """gym-aloha's reward as a share of that of success: touched, lifted, brought together, done."""
        return float(self._inner._env.task.get_reward(self.physics)) / SUCCESS_REWARD

    def _state(self) -> dict[str, NDArray[np.float64]]:
        values = self._inner._env.task.get_qpos(self.physics)
        ends = np.cumsum([field.width for field in self.robot.state])[:-1]
        return {f.name: part for f, part in zip(self.robot.state, np.split(values, ends), strict=True)}

    def _draw(self, camera: str) -> Image:
        spec = self.robot.camera(camera)
        try:
            return np.ascontiguousarray(self.physics.render(spec.height, spec.width, camera_id=camera))
        except (AttributeError, RuntimeError, OSError) as error:
            from cosmos_robot.envs.libero import GL_REMEDY

            raise RenderError(f"the renderer could not start: {error}; {GL_REMEDY}") from error


def _build(task: str):
    os.environ.setdefault("MUJOCO_GL", "egl")
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            from dm_control.rl.control import PhysicsError
            from gym_aloha.env import AlohaEnv as Inner
    except ImportError as error:
        raise DependencyError(f"gym-aloha is not installed ({error}); install cosmos-robot[aloha]") from error
    return Inner(task, obs_type="pixels_agent_pos"), PhysicsError


class _AlohaFamily:
    def make(self, name: str, **options: Any) -> AlohaEnv:
        task = name.partition("/")[2]
        if task not in TASKS:
            raise UnknownNameError("ALOHA task", task, TASKS)
        require_options(AlohaEnv, options)
        return AlohaEnv(task, **options)

    def names(self) -> list[str]:
        return [f"aloha/{task}" for task in TASKS]


FAMILY = _AlohaFamily()
