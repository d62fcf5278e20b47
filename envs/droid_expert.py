"""Scripted demonstrators of the DROID table's tasks.

They read the simulator's state, and show that a task can be done. Actions are the environment's: joint targets in rad,
then the gripper, 0 open to 1 closed.
"""

from __future__ import annotations

from enum import IntEnum

import mujoco
import numpy as np
from numpy.typing import NDArray

from cosmos_robot.envs import droid_scene as scene
from cosmos_robot.envs.droid import HOME, DroidEnv

HOVER, CARRY = 0.14, 0.22
"""Heights of the grip site above a thing before it is taken, and above the table on the way."""
STRIDE = 0.022
"""Metres that the target of the hand moves per control step at most."""
TURN = 0.12
"""The same in radians about the vertical."""
NEAR = 0.006
BACK, PUSH_HEIGHT, PUSH_STRIDE = 0.08, 0.02, 0.012
"""Metres: how far behind a block the hand comes down, its height when it pushes, its way per control step."""
HOOK = 0.0265
"""Metres from the drawer's handle to the middle of the gap behind it."""
CLOSE_STEPS, OPEN_STEPS = 10, 8
DAMPING = 0.05


class Kinematics:
    """Inverse kinematics of the arm's grip site by damped least squares (Buss 2004, section 5), on data of its own."""

    def __init__(self, env: DroidEnv):
        self.model, self._live = env.model, env.data
        self._own = mujoco.MjData(env.model)
        self._site = env.model.site(scene.GRIP_SITE).id
        joints = [env.model.joint(name) for name in scene.ARM_JOINTS]
        self._qpos = np.array([joint.qposadr[0] for joint in joints])
        self._dofs = np.array([joint.dofadr[0] for joint in joints])
        self._range = np.array([joint.range for joint in joints])
        self.down = self.at(HOME)[1]
        """Orientation of the hand at home: pointing down, fingers opening along y."""

    def at(self, joints: NDArray[np.float64]) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
        """Place (3,) and orientation (3, 3) of the grip site with the arm at ``joints`` (7,)."""
        self._own.qpos[self._qpos] = joints
        mujoco.mj_kinematics(self.model, self._own)
        mujoco.mj_comPos(self.model, self._own)
        return np.array(self._own.site_xpos[self._site]), self._own.site_xmat[self._site].reshape(3, 3).copy()

    def solve(self, joints: NDArray[np.float64], place: NDArray[np.float64], yaw: float) -> NDArray[np.float64]:
        """Joints (7,) near ``joints`` with the grip site at ``place`` (3,), hand down and turned by ``yaw``."""
        goal = _about_z(yaw) @ self.down
        joints = np.array(joints)
        jacobian = np.zeros((6, self.model.nv))
        for _ in range(20):
            position, matrix = self.at(joints)
            turn = 0.5 * sum(np.cross(matrix[:, i], goal[:, i]) for i in range(3))
            error = np.concatenate([place - position, turn])
            if np.abs(error).max() < 1e-4:
                break
            mujoco.mj_jacSite(self.model, self._own, jacobian[:3], jacobian[3:], self._site)
            j = jacobian[:, self._dofs]
            joints += j.T @ np.linalg.solve(j @ j.T + DAMPING**2 * np.eye(6), error)
            joints = np.clip(joints, self._range[:, 0], self._range[:, 1])
        return joints


class Phase(IntEnum):
    """What the demonstrator is doing."""

    HOVER = 0
    DESCEND = 1
    CLOSE = 2
    LIFT = 3
    CARRY = 4
    LOWER = 5
    OPEN = 6
    LEAVE = 7


class Expert:
    """``act()`` reads the scene and returns the next action (8,). To be made right after a reset.

    It remembers the phase and the hand's target, which moves smoothly. Each phase is a method that returns where the
    grip site shall go (3,), the hand's turn, and the gripper.
    """

    def __init__(self, env: DroidEnv):
        self.env, self.kinematics = env, Kinematics(env)
        self.phase, self._ticks = Phase.HOVER, 0
        self._joints = np.array(env.observe().state["joint_position"])
        self._target, _ = self.kinematics.at(self._joints)
        self._yaw = 0.0

    def act(self) -> NDArray[np.float64]:
        """The next action (8,)."""
        before = self.phase
        place, yaw, grip = getattr(self, f"_{before.name.lower()}")()
        self._ticks = self._ticks + 1 if self.phase == before else 0
        way = place - self._target
        self._target = self._target + way * min(1.0, STRIDE / max(float(np.linalg.norm(way)), 1e-9))
        self._yaw += float(np.clip(yaw - self._yaw, -TURN, TURN))
        self._joints = self.kinematics.solve(self._joints, self._target, self._yaw)
        return np.append(self._joints, grip)

    def _hand(self) -> NDArray[np.float64]:
        return np.array(self.env.data.site(scene.GRIP_SITE).xpos)

    def _there(self, place: NDArray[np.float64], near: float = NEAR) -> bool:
        return float(np.abs(self._hand() - place).max()) < near


class BlockExpert(Expert):
    """Picks, places and stacks. If the block is lost it begins anew."""

    def __init__(self, env: DroidEnv):
        super().__init__(env)
        verb, *words = env.task.name.split("_")
        self.block = scene.block_name(words[0])
        self.goal = {"pick": None, "place": "tray", "stack": scene.block_name(words[-1])}[verb]

    def _hover(self):
        place = self._block() + [0, 0, HOVER]
        if self._there(place) and abs(self._yaw - self._block_yaw()) < 0.02:
            self.phase = Phase.DESCEND
        return place, self._block_yaw(), 0.0

    def _descend(self):
        place = self._block()
        if self._there(place):
            self.phase = Phase.CLOSE
        return place, self._block_yaw(), 0.0

    def _close(self):
        if self._ticks >= CLOSE_STEPS:
            self.phase = Phase.LIFT
        return self._target, self._yaw, 1.0

    def _lift(self):
        place = np.array([*self._target[:2], CARRY])
        if self._lost():
            self.phase = Phase.HOVER
        elif self.goal and self._there(place):
            self.phase = Phase.CARRY
        return place, self._yaw, 1.0

    def _carry(self):
        place = np.array([*self._over_goal(), CARRY])
        if self._lost():
            self.phase = Phase.HOVER
        elif self._there(place):
            self.phase = Phase.LOWER
        return place, self._goal_yaw(), 1.0

    def _lower(self):
        place = np.array([*self._over_goal(), self._hand()[2] + self._release_height() - self._block()[2]])
        if self._block()[2] < self._release_height() + 0.004:
            self.phase = Phase.OPEN
        return place, self._goal_yaw(), 1.0

    def _open(self):
        if self._ticks >= OPEN_STEPS:
            self.phase = Phase.LEAVE
        return self._target, self._yaw, 0.0

    def _leave(self):
        if self._ticks > 2 * OPEN_STEPS:
            self.phase = Phase.HOVER
        return np.array([*self._target[:2], CARRY]), self._yaw, 0.0

    # What it reads.

    def _block(self) -> NDArray[np.float64]:
        return self.env.place_of(self.block)

    def _block_yaw(self) -> float:
        return _quarter_turn(self.env, self.block)

    def _goal_yaw(self) -> float:
        return self._yaw if self.goal == "tray" else _quarter_turn(self.env, self.goal)

    def _over_goal(self) -> NDArray[np.float64]:
        """Where the hand must be so that the block is over its goal: the grasp may be off its middle."""
        return self.env.place_of(self.goal)[:2] + (self._hand() - self._block())[:2]

    def _release_height(self) -> float:
        if self.goal == "tray":
            return scene.BLOCK_HALF + 0.025
        return self.env.place_of(self.goal)[2] + 2 * scene.BLOCK_HALF + 0.002

    def _lost(self) -> bool:
        return self._ticks > 4 and float(np.linalg.norm(self._hand() - self._block())) > 0.04


class PushExpert(Expert):
    """Closes the gripper, comes down behind the block as seen from the mark, and pushes it there."""

    def __init__(self, env: DroidEnv):
        super().__init__(env)
        self.block = scene.block_name(env.task.name.split("_")[1])

    def _hover(self):
        place = self._behind(BACK, HOVER)
        if self._there(place, 2 * NEAR):
            self.phase = Phase.LOWER
        return place, 0.0, 1.0

    def _lower(self):
        place = self._behind(BACK, PUSH_HEIGHT)
        if self._there(place, 2 * NEAR):
            self.phase = Phase.CARRY
        return place, 0.0, 1.0

    def _carry(self):
        way, distance = self._way()
        aside = self._hand()[:2] - self.env.place_of(self.block)[:2]
        aside -= way * (aside @ way)
        if distance < 0.01 or np.linalg.norm(aside) > 0.02:  # there, or slipped off: come again from behind
            self.phase = Phase.LEAVE
        ahead = self._target[:2] + way * PUSH_STRIDE - 0.5 * aside
        return np.array([*ahead, PUSH_HEIGHT]), 0.0, 1.0

    def _leave(self):
        place = np.array([*self._target[:2], HOVER])
        if self._there(place, 2 * NEAR):
            self.phase = Phase.HOVER
        return place, 0.0, 1.0

    def _way(self) -> tuple[NDArray[np.float64], float]:
        """From the block to the mark: direction (2,) and distance."""
        way = (self.env.place_of("mark") - self.env.place_of(self.block))[:2]
        distance = float(np.linalg.norm(way))
        return way / max(distance, 1e-9), distance

    def _behind(self, back: float, height: float) -> NDArray[np.float64]:
        return np.array([*(self.env.place_of(self.block)[:2] - back * self._way()[0]), height])


class DrawerExpert(Expert):
    """Hooks the closed fingers behind the handle and pulls; or sets them before it and pushes."""

    def __init__(self, env: DroidEnv):
        super().__init__(env)
        opens = env.task.drawer_out == 0
        self._beside = np.array([HOOK if opens else -BACK / 2, 0, 0])
        self._pull = np.array([-PUSH_STRIDE if opens else PUSH_STRIDE, 0, 0])

    def _hover(self):
        place = self._handle() + [0, 0, HOVER]
        if self._there(place):
            self.phase = Phase.DESCEND
        return place, 0.0, 1.0

    def _descend(self):
        place = self._handle()
        if self._there(place):
            self.phase = Phase.CARRY
        return place, 0.0, 1.0

    def _carry(self):
        return self._target + self._pull, 0.0, 1.0

    def _handle(self) -> NDArray[np.float64]:
        return np.array(self.env.data.geom("handle").xpos) + self._beside


def make_expert(env: DroidEnv) -> Expert:
    """The demonstrator of an environment's task."""
    verb = env.task.name.split("_")[0]
    kinds = {"pick": BlockExpert, "place": BlockExpert, "stack": BlockExpert}
    kinds |= {"push": PushExpert, "open": DrawerExpert, "close": DrawerExpert}
    return kinds[verb](env)


def _about_z(angle: float) -> NDArray[np.float64]:
    c, s = np.cos(angle), np.sin(angle)
    return np.array([[c, -s, 0], [s, c, 0], [0, 0, 1]])


def _quarter_turn(env: DroidEnv, body: str) -> float:
    """A block's turn about z, from -45 to 45 degrees: its faces are alike."""
    matrix = env.data.body(body).xmat.reshape(3, 3)
    # Of a block that lies on another side, the axis that points up is not its z.
    flat = matrix[:, np.argsort(np.abs(matrix[2]))[0]]
    angle = np.arctan2(flat[1], flat[0])
    return float((angle + np.pi / 4) % (np.pi / 2) - np.pi / 4)
