"""A scripted pick-and-place demonstrator on simulator state.

Its switches are things a policy can see too (height, finger width, where the object is), so that what it does can be
learned. Actions are OSC position changes in units of 5 cm, rotation vectors in units of 0.5 rad, gripper -1 open.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import IntEnum

import numpy as np
from numpy.typing import NDArray

from cosmos_robot.actions.rotations import convert
from cosmos_robot.envs.libero_scene import LiberoScene

HAND_DOWN = np.diag([1.0, -1.0, -1.0])
OPEN, CLOSED = -1.0, 1.0


class Phase(IntEnum):
    """What the demonstrator is doing."""

    APPROACH = 0
    CLOSE = 1
    LIFT = 2
    TRANSPORT = 3
    LOWER = 4
    RELEASE = 5


@dataclass(frozen=True)
class PickPlace:
    """One pick and place, in metres from the target's body origin where not said otherwise.

    grasp: grip site at the grasp (3,). bottom: the target's lowest point (below the origin, so negative).
    table: height of the surface in the world. floor: height at which the target rests at the goal.
    carry: height of the target's bottom while carried. release: height of its bottom above ``floor`` when let go.
    """

    grasp: tuple[float, float, float]
    bottom: float
    table: float
    floor: float
    carry: float
    release: float


class PickPlaceExpert:
    """``act()`` reads the scene and returns the clean action (7,); the phase is its only memory.

    aim_error (2,) shifts the first grasp sideways, to bring about a miss on purpose.
    """

    def __init__(self, scene: LiberoScene, plan: PickPlace, aim_error: NDArray[np.float64] | None = None):
        self.scene, self.plan = scene, plan
        self.aim_error = np.zeros(2) if aim_error is None else aim_error
        env, model = scene.env, scene.env.sim.model
        self._site = env.arm.eef_site_id
        self._hand_body = model.body_name2id(env.arm.robot_model.eef_name)
        self._fingers = [
            {model.body_name2id(f"gripper0_{name}") for name in names}
            for names in (("leftfinger", "finger_joint1_tip"), ("rightfinger", "finger_joint2_tip"))
        ]
        self._gripper = env.arm._ref_gripper_joint_pos_indexes
        self._body = scene.objects[scene.target].body
        self._ticks = self._stall = self._rise = self._gripped = self._loose = 0
        self._last_z = np.inf
        self.phase = self.infer_phase()

    def infer_phase(self) -> Phase:
        """The phase a state belongs to, for states the expert did not bring about itself."""
        over_goal = self._shift() < 0.05
        if not self._touching():
            falling = over_goal and self._bottom() > self.plan.floor + 0.008
            return Phase.RELEASE if falling and self._width() > 0.03 else Phase.APPROACH
        if over_goal:
            return Phase.LOWER
        return Phase.TRANSPORT if self._bottom() > self.plan.carry - 0.06 else Phase.LIFT

    def act(self) -> NDArray[np.float64]:
        """The next clean action (7,); may change the phase for the next one."""
        before = self.phase
        target, gripper = getattr(self, f"_{before.name.lower()}")()
        if self.phase != before:
            self._ticks = self._stall = self._rise = self._gripped = self._loose = 0
            self._last_z = np.inf
        else:
            self._ticks += 1
        turn = HAND_DOWN @ self.scene.data.xmat[self._hand_body].reshape(3, 3).T
        rotation = convert(turn, "matrix", "rotvec")
        move = np.clip(10 * (target - self.eef()), -1, 1)
        return np.concatenate([move, np.clip(2 * rotation, -0.3, 0.3), [gripper]])

    # Each phase returns where to head for and the gripper command.

    def _approach(self):
        goal = self._origin() + self.plan.grasp
        goal[:2] += self.aim_error
        goal[2] = max(goal[2], self.plan.table + 0.008)
        eef = self.eef()
        error = np.linalg.norm(eef[:2] - goal[:2])
        hover = max(goal[2] + 0.08, self.plan.table + 0.12)
        if self._rise > 0:
            self._rise -= 1
            return np.array([*goal[:2], eef[2] + 0.05]), OPEN
        if error < (0.018 if eef[2] < goal[2] + 0.05 else 0.013) and self._width() > 0.07:
            if eef[2] < goal[2] + 0.008:
                self.phase = Phase.CLOSE
                return goal, CLOSED
            if self._stalled(eef[2]):
                self._rise = 6
            # Aim below: the position controller stops short of its target under contact and friction.
            return goal - [0, 0, 0.012], OPEN
        self._stall = 0
        if error > 0.04 and eef[2] < hover - 0.03:  # rise before moving sideways among other objects
            return np.array([*(eef[:2] + 0.15 * (goal[:2] - eef[:2])), hover]), OPEN
        return np.array([*goal[:2], hover if error > 0.025 else max(eef[2] - 0.01, goal[2] + 0.03)]), OPEN

    def _close(self):
        self._gripped = self._gripped + 1 if self._touching() else 0
        if self._gripped >= 5:
            self.phase = Phase.LIFT
        elif (self._width() < 0.004 and not self._gripped) or self._ticks > 20:
            return self._back()
        return self.eef() - [0, 0, 0.003], CLOSED

    def _lift(self):
        if self._dropped():
            return self._back()
        if self._bottom() > self.plan.carry - 0.04:
            self.phase = Phase.TRANSPORT
        return self.eef() + [0, 0, self.plan.carry + 0.01 - self._bottom()], CLOSED

    def _transport(self):
        if self._dropped():
            return self._back()
        if self._shift() < 0.015:
            self.phase = Phase.LOWER
        return self.eef() + [*self._to_goal(), self.plan.carry + 0.01 - self._bottom()], CLOSED

    def _lower(self):
        if self._dropped():
            return self._back()
        down = self.plan.floor + self.plan.release - self._bottom()
        if down > -0.008:
            self.phase = Phase.RELEASE
        return self.eef() + [*self._to_goal(), down - 0.01], CLOSED

    def _release(self):
        if self._ticks > 25:
            self.phase = Phase.APPROACH
        return self.eef() + [0, 0, 0.0 if self._ticks < 6 else 0.05], OPEN

    def _back(self):
        self.phase = Phase.APPROACH
        return self.eef() + [0, 0, 0.05], OPEN

    # What the expert reads.

    def eef(self) -> NDArray[np.float64]:
        """Grip site in the world (3,)."""
        return np.array(self.scene.data.site_xpos[self._site])

    def _origin(self):
        return np.array(self.scene.data.xpos[self._body])

    def _bottom(self) -> float:
        return float(self.scene.data.xpos[self._body][2] + self.plan.bottom)

    def _to_goal(self):
        return self.scene.goal_position()[:2] - self._origin()[:2]

    def _shift(self) -> float:
        return float(np.linalg.norm(self._to_goal()))

    def _width(self) -> float:
        left, right = self.scene.data.qpos[self._gripper]
        return float(left - right)

    def _dropped(self) -> bool:
        self._loose = 0 if self._touching() else self._loose + 1
        return self._loose >= 4

    def _stalled(self, z: float) -> bool:
        self._stall = self._stall + 1 if self._last_z - z < 0.0008 else 0
        self._last_z = z
        return self._stall >= 8

    def _touching(self) -> bool:
        """Both fingers touch the target."""
        data, bodies = self.scene.data, self.scene.model.geom_bodyid
        touched = [False, False]
        for contact in data.contact[: data.ncon]:
            a, b = bodies[contact.geom1], bodies[contact.geom2]
            for finger, other in ((a, b), (b, a)):
                for side in (0, 1):
                    if finger in self._fingers[side] and self.scene.belongs(other, self._body):
                        touched[side] = True
        return all(touched)
