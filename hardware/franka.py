"""Franka arms over franky: targets at the policy's rate, each preempting the one before.

Each command is a short motion of franky's planner to a place of rest a little beyond the target, where the arm would
come to stand if it passed the target at the speed of the commands and braked from there. A command that comes in time
preempts it while it still moves, so the arm does not stop between two commands; if none comes, it has stopped by
itself. Other ways were measured and left: a target at rest makes the speed ripple by a third; a target with a speed
makes the planner swing far out now and then, to be there at that speed with all joints at once; a motion that ends
gives up control, and the next one begins with a jump; a stream of velocities drifts.
"""

from __future__ import annotations

import time
from abc import abstractmethod
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Final, Literal

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy.spatial.transform import Rotation

from cosmos_robot.actions.grippers import BinaryGripper, GripperRange
from cosmos_robot.contract import RobotSpec
from cosmos_robot.contract.library import load_robot
from cosmos_robot.errors import InputError, RobotError
from cosmos_robot.hardware import franka_model as model
from cosmos_robot.hardware.cameras import Camera, fitted, pictures
from cosmos_robot.hardware.franka_hand import FrankaHand
from cosmos_robot.hardware.franky_link import Link, franky, in_time, translated
from cosmos_robot.hardware.gripper import Gripper, Hand
from cosmos_robot.hardware.robot import Robot, Sent, at_rate
from cosmos_robot.types import Observation

Array = NDArray[np.float64]
GRIPPER: Final = BinaryGripper(GripperRange(open_value=0.0, closed_value=1.0), threshold=0.5, hysteresis=0.2)
"""DROID's numbers: 0 open, 1 closed; between 0.4 and 0.6 the hand stays as it was."""
ASTRAY_RAD: Final = 0.2
"""How much further from a motion's end than at its beginning the planner may lead the arm; braking takes less."""
STOP_S: Final = 2.0
SILENT_S: Final = 1.0
"""Seconds: how long braking may take, and how long a state may stay the same before its controller counts as lost."""
SAME: Final = 1e-5
"""Joints (rad) or metres that count as no motion: the planner fails now and then on smaller ones (code -111)."""
REPLANS: Final = 3
"""How many motions in a row the planner may fail on before that is a fault."""
PLANNER_FAILED: Final = "Motion planner failed"
"""franky's words; in Python its exception for this is a RuntimeError like others."""


@dataclass(frozen=True)
class FrankaOptions:
    """speed: share of the arm's speeds that is used, in the gate and in the planner; accelerations are used in full, as
    a planner that cannot follow its commands is late and swings. workspace: two corners (3,) in metres that the tool
    stays between. rate_hz: of commands, DROID's 15 unless given. realtime: ``enforce`` for an arm, ``ignore`` for a
    simulator. connect_timeout_s, recover_timeout_s: patience. home_gripper: find the hand's range when connecting.
    torque, force: what the arm may feel before it stops by itself, Nm and N.
    """

    speed: float = 0.5
    workspace: tuple[ArrayLike, ArrayLike] | None = None
    rate_hz: float | None = None
    realtime: Literal["enforce", "ignore"] = "enforce"
    connect_timeout_s: float = 5.0
    recover_timeout_s: float = 10.0
    home_gripper: bool = False
    torque: float = 20.0
    force: float = 30.0

    def __post_init__(self) -> None:
        for name in ("connect_timeout_s", "recover_timeout_s", "torque", "force"):
            if not 0 < getattr(self, name) < float("inf"):
                raise InputError(f"franka: {name} must be over zero, got {getattr(self, name)!r}")


class FrankaArm(Robot):
    """What joint and Cartesian control share."""

    def __init__(
        self,
        host: str,
        spec: RobotSpec,
        options: FrankaOptions,
        cameras: Mapping[str, Camera] | None,
        hand: Callable[[], Hand] | None,
    ):
        self.host, self.options = host, options
        self.robot = fitted(at_rate(spec, options.rate_hz), cameras or {})
        self._cameras = dict(cameras or {})
        self._make_hand = hand or (lambda: FrankaHand(self.host, home=options.home_gripper))
        self._period = 1.0 / self.robot.rate_hz
        self._link = Link(host, options.realtime, self._prepare)
        self._gripper: Gripper | None = None
        self._was_open = True
        self._last: Array | None = None
        self._in_control = False
        self._rest_at: Array | None = None
        self._newest = (-1, 0.0)
        self._began = 0.0
        self._failed = 0
        self._notes: list[str] = []

    def connect(self) -> None:
        """Connect arm and hand. The arm stays as it is; the hand moves only if it is to be homed."""
        if self._link.open:
            raise RobotError(f"the arm at {self.host} is connected already; close() it first")
        self._link.host = self.host
        self._link.connect(self.options.connect_timeout_s)
        self._gripper = Gripper(self._make_hand)
        try:
            self._gripper.wait(self.options.connect_timeout_s)
            self._refuse_errors()
        except RobotError:
            self.close()
            raise
        self._was_open = self._gripper.openness > GRIPPER.threshold

    def observe(self, instruction: str) -> Observation:
        """The state now, and the newest picture of each camera."""
        state = self._read()
        now = time.monotonic()
        fields = self._fields(state) | {"gripper_position": np.array([self._closedness()])}
        return Observation(pictures(self._cameras, now), fields, instruction, now)

    def position(self) -> Array:
        """(D,) where arm and hand are, as a command."""
        state = self._read()
        return np.concatenate([*self._fields(state).values(), [self._closedness()]])

    def send(self, values: Array) -> Sent:
        """Move on towards ``values`` (D,). What the limits do not allow is refused here too, whoever sends it. If the
        planner has failed, the arm begins anew from where it stopped, and a note says so."""
        while True:
            measured = self.position()
            allowed, changed = self.guarded(values, measured, self._last)
            before = measured if self._last is None else self._last
            arm, notes = self._slowed(allowed[:-1], before[:-1])
            way = self._way(before[:-1], arm)
            arm = np.where(np.abs(way) < SAME, before[:-1], arm)
            velocity = (
                np.zeros(len(arm)) if self._last is None else np.where(np.abs(way) < SAME, 0.0, way) / self._period
            )
            if self._lead(arm, velocity, measured[:-1]):
                break
        sent = np.append(arm, self._grip(float(allowed[-1])))
        self._last = sent
        fault = self._gripper.fault if self._gripper else ""
        earlier, self._notes = self._notes, []
        return Sent(sent, (*earlier, *changed, *notes, *([f"gripper: {fault}"] if fault else [])))

    def hold(self) -> None:
        """Nothing to do: the last motion ends at rest and stays. Raises RobotError if it has not."""
        self._last = None
        self._read()

    def stop(self) -> None:
        """Brake with the full dynamics allowed, then give up control. Returns when the arm stands, after a second at
        most; a robot that is lost has stopped by itself."""
        self._last = None
        if not (self._link.open and self._in_control):
            return
        self._in_control = False
        in_time(self._brake, STOP_S)  # a robot that is lost has stopped by itself; the next call tells

    def recover(self) -> None:
        """Clear the arm's errors; if the connection is dead, make a new one. Raises RobotError if neither helps within
        the timeout."""
        self.stop()
        self._failed = 0
        if not self._cleared():
            self._link.drop()
            self._link.connect(self.options.recover_timeout_s)
            self._cleared()
        self._refuse_errors()

    def close(self) -> None:
        """Stop, and let go of arm, hand and cameras."""
        self.stop()
        self._link.abandon()
        if self._gripper is not None:
            self._gripper.close()
            self._gripper = None
        for camera in self._cameras.values():
            camera.close()

    @abstractmethod
    def _fields(self, state: Any) -> dict[str, Array]:
        """The arm's state fields, in the order of the command."""

    @abstractmethod
    def _motion(self, target: Array, velocity: Array) -> Any:
        """Through ``target`` one period from now, at about ``velocity``, then to rest."""

    @abstractmethod
    def _stop_motion(self) -> Any:
        """To rest, as fast as allowed."""

    @abstractmethod
    def _slowed(self, target: Array, before: Array) -> tuple[Array, tuple[str, ...]]:
        """``target`` as far as this arm may go in one period, and what was changed."""

    def _prepare(self, robot: Any) -> None:
        """Lower the planner's limits, which are the Panda's, to what the FR3 allows too."""
        robot.joint_velocity_limit.set(model.JOINT_VELOCITY)
        robot.joint_acceleration_limit.set(model.JOINT_ACCELERATION)
        robot.joint_jerk_limit.set(model.JOINT_JERK)
        for name, limits in (("translation", model.TRANSLATION), ("rotation", model.ROTATION), ("elbow", model.ELBOW)):
            for kind, value in zip(("velocity", "acceleration", "jerk"), limits, strict=True):
                limit = getattr(robot, f"{name}_{kind}_limit")
                limit.set(min(value, limit.max))
        robot.relative_dynamics_factor = franky.RelativeDynamicsFactor(self.options.speed, 1.0, 1.0)
        robot.set_collision_behavior(self.options.torque, self.options.force)

    def _brake(self) -> None:
        self._link.move(self._stop_motion())
        if not self._link.robot.join_motion(1.0):
            self._link.robot.stop()
            self._link.robot.join_motion(1.0)

    def _read(self) -> Any:
        """The state. Raises RobotError if the arm is not as it was left, or its state does not change any more."""
        self._require_alive()
        with translated("arm"):
            state = self._link.robot.state
        now, stamp = time.monotonic(), state.time.to_msec()
        if stamp != self._newest[0]:
            self._newest = (stamp, now)
        elif now - self._newest[1] > SILENT_S:
            raise RobotError(f"arm: its controller has been silent for {now - self._newest[1]:.1f} s")
        return state

    def _require_alive(self) -> None:
        """Raise what ended the last motion, before a reading of a dead connection blocks for a second."""
        if not self._in_control:
            return
        try:
            with translated("arm"):
                running = self._link.robot.is_in_control  # first: a motion that ends in between must tell why
                over = self._link.robot.poll_motion() or not running
        except RobotError as error:
            self._in_control = False
            self._forgive(error)
            return
        if over:
            self._in_control = False
            raise RobotError("arm: it is not in control any more, and does not say why")
        if time.monotonic() - self._began > self._period / 2:
            self._failed = 0

    def _forgive(self, error: RobotError) -> None:
        """Where only the planner failed, the controller has brought the arm to rest and reports no error: the next
        command is a first one. Raises any other ``error``, and the one after ``REPLANS`` in a row."""
        if PLANNER_FAILED not in str(error):
            raise error
        self._failed += 1
        if self._failed > REPLANS:
            raise RobotError(
                f"arm: its planner failed on {self._failed} motions in a row; the last: {error}"
            ) from error
        self._last = None
        self._notes.append(f"planner: failed, and went on from where the arm stopped ({error})")

    def _refuse_errors(self) -> None:
        with translated("arm"):
            if self._link.robot.has_errors:
                errors = self._link.robot.state.current_errors
                raise RobotError(f"the arm reports {errors}; clear its cause, then call recover()")

    def _cleared(self) -> bool:
        """Whether the connection lives and its errors are gone; within ``STOP_S``, whatever it does."""
        if not self._link.open:
            return False
        answers: list[bool] = []

        def ask() -> None:
            answers.append(bool(self._link.robot.recover_from_errors()))
            self._link.robot.state  # noqa: B018 - a dead connection shows here
            answers.append(True)

        return in_time(ask, STOP_S) and answers == [True, True]

    def _closedness(self) -> float:
        if self._gripper is None:
            raise RobotError("no connection to the gripper; call connect()")
        return 1.0 - self._gripper.openness

    def _lead(self, arm: Array, velocity: Array, standing: Array) -> bool:
        """Hand the planner its next motion, unless the present one ends there, or the arm stands there. Returns whether
        that is done; where the motion before had just failed it is not, and the arm has stopped."""
        rest = self._rest_at if self._in_control else standing
        if rest is not None and not velocity.any() and np.abs(self._way(rest, arm)).max() < SAME:
            return True
        try:
            with translated("arm"):
                self._link.move(self._motion(arm, velocity))
        except RobotError as error:
            self._in_control = False
            self._forgive(error)
            return False
        self._in_control, self._began = True, time.monotonic()
        self._rest_at = None if velocity.any() else arm
        return True

    def _way(self, place: Array, target: Array) -> Array:
        return self.limits.way(np.append(place, 0.0), np.append(target, 0.0))[:-1]

    def _grip(self, value: float) -> float:
        assert self._gripper is not None
        (now_open,) = GRIPPER.decide([value], self._was_open)
        self._was_open = bool(now_open)
        self._gripper.command(self._was_open)
        return float(GRIPPER.range.command(float(now_open)))


class FrankaRobot(FrankaArm):
    """An FR3 commanded by joint positions, as DROID's policies do.

    host: address of the controller. cameras: by the names of ``droid-franka-fr3``; the robot has those that are given.
    hand: connects to another gripper than the Franka Hand.
    """

    def __init__(
        self,
        host: str,
        options: FrankaOptions | None = None,
        cameras: Mapping[str, Camera] | None = None,
        hand: Callable[[], Hand] | None = None,
    ):
        options = options or FrankaOptions()
        super().__init__(host, load_robot("droid-franka-fr3"), options, cameras, hand)
        self.limits = model.joint_limits(self.robot, options.speed, workspace=options.workspace)
        self._goal: tuple[Array, Array] | None = None

    def tool(self, command: Array) -> Array:
        """By forward kinematics, with the Franka Hand."""
        return model.tool_position(command)

    def stop(self) -> None:
        """As every Franka arm stops."""
        self._goal = None
        super().stop()

    def _read(self) -> Any:
        """The state. Raises RobotError too if the planner leads the arm away from where it was told to go."""
        state = super()._read()
        if self._goal is not None:
            goal, far = self._goal
            astray = float((np.abs(state.q_d - goal) - far).max())
            if astray > ASTRAY_RAD:
                raise RobotError(f"arm: its planner leads it {astray:.2f} rad further from its goal than it was")
        return state

    def _fields(self, state: Any) -> dict[str, Array]:
        return {"joint_position": np.array(state.q)}

    def _slowed(self, target: Array, before: Array) -> tuple[Array, tuple[str, ...]]:
        low, high = model.velocity_range(before)
        reachable = np.clip(target, before + low * self._period, before + high * self._period)
        slowed = np.flatnonzero(np.abs(reachable - target) > 1e-9)
        return reachable, tuple(f"joint {i + 1}: slowed near the end of its range" for i in slowed)

    def _motion(self, target: Array, velocity: Array) -> Any:
        """Arrive, then settle there. At the end of a waypoint franky takes its minimum time away and plans on from what
        rounding has left of way and speed; on ways of 1e-15 rad Ruckig cannot synchronise joints and fails, so without
        the second waypoint one motion in five breaks off as it arrives. At full dynamics nothing is synchronised."""
        through = _passing(velocity, target, self.options.speed)
        rest, seconds = _rest(target, through, self._period)
        self._goal = rest, np.abs(self._link.robot.state.q_d - rest)
        arrive = franky.JointWaypoint(rest, minimum_time=_duration(seconds))
        settle = franky.JointWaypoint(rest, relative_dynamics_factor=franky.RelativeDynamicsFactor.MAX_DYNAMICS)
        return franky.JointWaypointMotion([arrive, settle], return_when_finished=False)

    def _stop_motion(self) -> Any:
        return franky.JointStopMotion()


class FrankaCartesianRobot(FrankaArm):
    """An FR3 commanded by poses of its tool: metres and Euler angles in its base. Asked for by name only; the joints'
    range is then the controller's business, and a pose it cannot reach ends in a fault."""

    def __init__(
        self,
        host: str,
        options: FrankaOptions | None = None,
        cameras: Mapping[str, Camera] | None = None,
        hand: Callable[[], Hand] | None = None,
    ):
        options = options or FrankaOptions()
        super().__init__(host, load_robot("droid-franka-cartesian"), options, cameras, hand)
        self.limits = model.cartesian_limits(self.robot, options.speed, options.workspace)

    def tool(self, command: Array) -> Array:
        """The commanded place itself."""
        return np.asarray(command)[:3]

    def _fields(self, state: Any) -> dict[str, Array]:
        pose = state.O_T_EE
        angles = Rotation.from_quat(np.array(pose.quaternion)).as_euler("xyz")
        return {"cartesian_position": np.array(pose.translation), "cartesian_rotation": angles}

    def _slowed(self, target: Array, before: Array) -> tuple[Array, tuple[str, ...]]:
        return target, ()

    def _motion(self, target: Array, velocity: Array) -> Any:
        pose = franky.Affine(target[:3], Rotation.from_euler("xyz", target[3:]).as_quat())
        return franky.CartesianMotion(pose, return_when_finished=False)

    def _stop_motion(self) -> Any:
        return franky.CartesianStopMotion()


def _passing(velocity: Array, target: Array, speed: float) -> Array:
    """``velocity``, less where the planner could not brake before the end of a joint's range."""
    braking = model.JOINT_ACCELERATION / 2
    room = np.where(velocity > 0, model.FR3_HIGH - target, target - model.FR3_LOW)
    fastest = np.minimum(0.9 * speed * model.JOINT_VELOCITY, np.sqrt(braking * np.maximum(room, 0.0)))
    return np.clip(velocity, -fastest, fastest)


def _rest(target: Array, velocity: Array, period: float) -> tuple[Array, float]:
    """Where the arm comes to rest, and after how long, if it passes ``target`` at ``velocity`` one period from now and
    all joints brake so that they stand at the same time: cruising at v and braking at a covers v T - v^2 / 2 a."""
    braking = model.JOINT_ACCELERATION / 2  # half, since braking has to build up
    after = float(np.max(np.abs(velocity) / braking))
    return np.asarray(target + velocity * after - velocity * np.abs(velocity) / (2 * braking)), period + after


def _duration(seconds: float) -> Any:
    return franky.Duration(int(seconds * 1000))
