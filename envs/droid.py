"""DROID's robot in simulation: a Franka Panda with a Robotiq 2F-85 at a table, told joint positions at 15 Hz.

A name is ``droid/TASK`` (``"droid/pick_red_block"``). State, action and camera names are those of the DROID and
RoboArena protocols. Pictures are upright and drawn only when read.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from cosmos_robot.contract import load_robot
from cosmos_robot.envs import droid_scene as scene
from cosmos_robot.envs.base import RobotEnv, init_state, require_limits, require_options
from cosmos_robot.envs.droid_tasks import AT_REST, INIT_STATES, TASKS, Places, Task, find_task
from cosmos_robot.envs.truth import GroundTruth
from cosmos_robot.errors import RobotError
from cosmos_robot.types import Image

if TYPE_CHECKING:
    from cosmos_robot.envs.mujoco_pictures import MujocoPictures

DROID_FRANKA = load_robot("droid-franka")
HOME = np.array([0, -np.pi / 5, 0, -4 * np.pi / 5, 0, 3 * np.pi / 5, 0])
"""Joint positions after a reset, gripper open (DROID's own reset position)."""
SPEED = np.array([2.175] * 4 + [2.61] * 3)
"""rad/s that the arm's targets move at most (Panda's data sheet)."""
GRIP_SECONDS = 0.6
"""From open to closed."""


class DroidEnv(RobotEnv):
    """One task at the DROID table.

    Actions are absolute: joint targets in rad, then ``gripper_position`` from 0 (open) to 1 (closed). A target beyond
    the joint limits is one at them, and it is approached no faster than a Panda may move; how stiff the servos are is
    our own choice. ``gripper_position`` is the angle of the gripper's motor as a share of its travel, as its register
    counts; the width between the pads differs from a straight line by at most 4 % of 85 mm. The robot does not collide
    with itself.

    ``reset(options={"init_state": i})`` starts from placement i of ``INIT_STATES``; without it one is drawn from
    ``seed``. step_budget: control steps before truncation, the task's own if None.
    """

    robot = DROID_FRANKA
    init_state_count = INIT_STATES

    def __init__(self, task: Task, *, settle_steps: int = 0, step_budget: int | None = None):
        super().__init__()
        self.task = task
        self.instruction = task.instruction
        self.settle_steps = settle_steps
        self.step_budget = task.step_budget if step_budget is None else step_budget
        require_limits(self.settle_steps, self.step_budget)
        self._mujoco = scene.open_mujoco()
        self.model = scene.build(task.things)
        self.data = self._mujoco.MjData(self.model)
        self._arm, self._fingers = (
            np.array([self.model.joint(name).qposadr[0] for name in names])
            for names in (scene.ARM_JOINTS, scene.FINGER_JOINTS)
        )
        robot = self.model.body("base").rootid[0]
        self._of_robot = self.model.body_rootid[self.model.geom_bodyid] == robot
        self._pictures: MujocoPictures | None = None

    def ground_truth(self) -> GroundTruth:
        from cosmos_robot.envs.droid_truth import DroidTruth

        return DroidTruth(self)

    def close(self) -> None:
        super().close()
        if self._pictures is not None:
            self._pictures.close()
            self._pictures = None

    # What tasks and demonstrators read.

    def place_of(self, body: str) -> NDArray[np.float64]:
        """Where a body's origin is (3,), in the base's axes."""
        return np.array(self.data.body(body).xpos)

    def drawer(self) -> float:
        """How far the drawer is out, in metres."""
        return float(self.data.joint("drawer").qpos[0])

    def touched_by_robot(self, body: str) -> bool:
        """Whether any part of the robot touches the body."""
        index = self.model.body(body).id
        for contact in self.data.contact[: self.data.ncon]:
            for one, other in ((contact.geom1, contact.geom2), (contact.geom2, contact.geom1)):
                if self.model.geom_bodyid[one] == index and self._of_robot[other]:
                    return True
        return False

    def at_rest(self, body: str) -> bool:
        """Whether a free body hardly moves."""
        return bool(np.linalg.norm(self.data.joint(body).qvel[:3]) < AT_REST)

    def let_go(self, body: str) -> bool:
        """Whether a body is at rest and the robot does not touch it."""
        return self.at_rest(body) and not self.touched_by_robot(body)

    def state_at(self, places: Places) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
        """Joint positions (nq,) and places of the movable furniture (n, 7) with everything at ``places``."""
        qpos = np.array(self.model.qpos0)
        qpos[self._arm] = HOME
        furniture = np.zeros((self.model.nmocap, 7))
        for name, at in places.items():
            if name == "drawer":
                qpos[self.model.joint(name).qposadr[0]] = at[0]
                continue
            pose = np.array([*at[:3], np.cos(at[3] / 2), 0, 0, np.sin(at[3] / 2)])
            mocap = self.model.body(name).mocapid[0]
            if mocap >= 0:
                furniture[mocap] = pose
            else:
                start = self.model.joint(name).qposadr[0]
                qpos[start : start + 7] = pose
        return qpos, furniture

    # The environment.

    def _reset(self, options: dict[str, Any]) -> None:
        index = init_state(self, options)
        places = self.task.places(self.np_random) if index is None else self.task.init_places(index)
        self._mujoco.mj_resetData(self.model, self.data)
        self.data.qpos, furniture = self.state_at(places)
        self.data.mocap_pos, self.data.mocap_quat = furniture[:, :3], furniture[:, 3:]
        self.data.ctrl[:7] = HOME
        self._mujoco.mj_forward(self.model, self.data)
        for _ in range(self.settle_steps):
            self._mujoco.mj_step(self.model, self.data, scene.SUBSTEPS)

    def _step(self, action: NDArray[np.float64]) -> tuple[float, bool, bool]:
        ctrl = self.data.ctrl
        stride = SPEED / scene.RATE_HZ
        ctrl[:7] += np.clip(action[:7] - ctrl[:7], -stride, stride)
        knuckle = scene.KNUCKLE_CLOSED * np.clip(action[7], 0, 1)
        stride = scene.KNUCKLE_CLOSED / (GRIP_SECONDS * scene.RATE_HZ)
        ctrl[7] += np.clip(knuckle - ctrl[7], -stride, stride)
        self._mujoco.mj_step(self.model, self.data, scene.SUBSTEPS)
        if self.data.warning[self._mujoco.mjtWarning.mjWARN_BADQACC].number:  # MuJoCo has put itself back to its start
            self._running = False
            raise RobotError("the arm moved so hard that the simulation broke; reset() begins anew")
        self._mujoco.mj_forward(self.model, self.data)
        success = bool(self.task.done(self))
        return float(success), success, self.control_steps + 1 >= self.step_budget

    def _state(self) -> dict[str, NDArray[np.float64]]:
        closed = self.data.qpos[self._fingers].mean() / scene.KNUCKLE_CLOSED
        return {"joint_position": np.array(self.data.qpos[self._arm]), "gripper_position": np.array([closed])}

    def _draw(self, camera: str) -> Image:
        if self._pictures is None:
            from cosmos_robot.envs.mujoco_pictures import MujocoPictures

            spec = self.robot.camera(camera)
            self._pictures = MujocoPictures(self.model, spec.height, spec.width, groups=(1,))
        return self._pictures.draw(self.data, camera)


class _DroidFamily:
    def make(self, name: str, **options: Any) -> DroidEnv:
        require_options(DroidEnv, options)
        return DroidEnv(find_task(name.partition("/")[2]), **options)

    def names(self) -> list[str]:
        return [f"droid/{task}" for task in TASKS]


FAMILY = _DroidFamily()
