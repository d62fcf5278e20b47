"""ALOHA: two ViperX arms told joint positions at 25 or 50 Hz; real ones through Interbotix's driver, or gym-aloha's.

A gripper has two units: its state is how far the fingers are apart (metres), its command the motor's angle (radians),
each normalised to 0 (closed) and 1 (open); numbers in the source of ACT's ``constants.py``.
"""

from __future__ import annotations

import time
from collections.abc import Mapping
from typing import Any, Final, Protocol

import numpy as np
from numpy.typing import NDArray

from cosmos_robot.actions.grippers import GripperRange
from cosmos_robot.contract import RobotSpec
from cosmos_robot.contract.library import load_robot
from cosmos_robot.envs import make
from cosmos_robot.errors import DependencyError, RobotError
from cosmos_robot.hardware.cameras import Camera, fitted, pictures
from cosmos_robot.hardware.clock import Clock
from cosmos_robot.hardware.gate import UNLIMITED, Limits
from cosmos_robot.hardware.robot import Robot, Sent, at_rate
from cosmos_robot.hardware.simulated import SimulatedRobot, handed_over
from cosmos_robot.types import Observation

Array = NDArray[np.float64]

FINGERS: Final = GripperRange(open_value=0.058, closed_value=0.01844)
"""Place of a follower's finger, metres."""
MOTOR: Final = GripperRange(open_value=1.4910, closed_value=-0.6213)
"""Angle of a follower's gripper motor, radians."""
FASTEST: Final = np.pi
"""Of a joint, rad/s: what the arm's maker gives for its servos under load."""
OLDEST_STATE_S: Final = 0.5


class ViperX(Protocol):
    """One follower arm. Every call returns at once."""

    def read(self) -> tuple[Array, float, float]:
        """Joints (6,) in rad, the finger's place in metres, and when both were measured on ``time.monotonic``."""
        ...

    def write(self, joints: Array, motor: float) -> None:
        """Tell the servos joints (6,) and the gripper motor's angle, in rad."""
        ...

    def recover(self) -> None:
        """Clear what made the servos stop."""
        ...

    def close(self) -> None:
        """Let go of the arm, which stays where it is."""
        ...


def aloha_limits(spec: RobotSpec, speed: float = 0.5) -> Limits:
    """Joints at ``speed`` of the servos' fastest, in steps of 0.15 rad at most, first commands within 0.15 rad of the
    arm and later ones within 0.5; both directions alike. Grippers go from end to end as they are told."""
    each = lambda number: {f.name: UNLIMITED if f.kind == "gripper" else number for f in spec.action}  # noqa: E731
    return Limits.of(
        spec,
        max_step=each(0.15),
        max_rate=each(speed * FASTEST),
        max_first=each(0.15),
        max_jump=each(0.5),
        low={f.name: 0.0 if f.kind == "gripper" else f.low for f in spec.action},
        high={f.name: 1.0 if f.kind == "gripper" else f.high for f in spec.action},
    )


class AlohaRobot(Robot):
    """Two real arms. cameras: by the names of ``aloha``; the robot has those that are given."""

    def __init__(
        self,
        left: ViperX,
        right: ViperX,
        rate_hz: float = 50.0,
        cameras: Mapping[str, Camera] | None = None,
        speed: float = 0.5,
    ):
        self._cameras = dict(cameras or {})
        self.robot = fitted(at_rate(load_robot("aloha"), rate_hz), self._cameras)
        self.limits = aloha_limits(self.robot, speed)
        self._arms = (left, right)
        self._last: Array | None = None
        self._connected = False

    def connect(self) -> None:
        """See that both arms answer; nothing moves."""
        self._connected = True
        self._read()

    def observe(self, instruction: str) -> Observation:
        """The joints, the openings of the fingers, and the newest pictures."""
        values = self._read()
        now = time.monotonic()
        ends = np.cumsum([f.width for f in self.robot.state])[:-1]
        state = {f.name: part for f, part in zip(self.robot.state, np.split(values, ends), strict=True)}
        return Observation(pictures(self._cameras, now), state, instruction, now)

    def position(self) -> Array:
        """(14,) where the arms are; grippers in the unit of the state, which is near the command's."""
        return self._read()

    def send(self, values: Array) -> Sent:
        """Tell both arms their next place."""
        allowed, notes = self.guarded(values, self._read(), self._last)
        self._write(allowed)
        self._last = allowed
        return Sent(allowed, notes)

    def hold(self) -> None:
        """Nothing to do: servos keep their place."""
        self._require_connected()

    def stop(self) -> None:
        """Tell the arms to stay where they are now."""
        moved, self._last = self._last, None
        if moved is None or not self._connected:
            return
        try:
            here = self._read()
        except RobotError:
            return  # nothing is known of where they are: servos keep the last place they were told
        here[[6, 13]] = moved[[6, 13]]  # a hand that grips keeps its grip
        self._write(here)

    def recover(self) -> None:
        """Clear the servos' faults. Raises RobotError if an arm does not answer then."""
        self._last = None
        for arm in self._arms:
            arm.recover()
        self._read()

    def close(self) -> None:
        """Stop, and let go of arms and cameras."""
        if self._connected:
            self.stop()
            self._connected = False
            for part in (*self._arms, *self._cameras.values()):
                part.close()

    def _require_connected(self) -> None:
        if not self._connected:
            raise RobotError("the arms are not connected; call connect() first")

    def _read(self) -> Array:
        self._require_connected()
        parts = []
        for side, arm in zip(("left", "right"), self._arms, strict=True):
            joints, finger, measured = arm.read()
            age = time.monotonic() - measured
            if not (np.isfinite(joints).all() and np.isfinite(finger) and age <= OLDEST_STATE_S):
                raise RobotError(f"{side} arm: its newest state is {age:.1f} s old or not a number; is it powered?")
            parts.append(np.append(joints, FINGERS.openness_unclipped(finger)))
        return np.concatenate(parts)

    def _write(self, values: Array) -> None:
        for arm, part in zip(self._arms, np.split(values, 2), strict=True):
            arm.write(part[:6], float(MOTOR.command(part[6])))


class InterbotixArm:
    """A follower through Interbotix's ROS driver, which must be running. name: its namespace, for instance
    ``puppet_left``. Raises DependencyError without the driver."""

    def __init__(self, name: str, init_node: bool):
        try:
            from interbotix_xs_modules.arm import InterbotixManipulatorXS
            from interbotix_xs_msgs.msg import JointSingleCommand
        except ImportError as error:
            raise DependencyError(
                f"ALOHA's arms need Interbotix's ROS packages interbotix_xs_modules and interbotix_xs_msgs ({error}); "
                "install them as its maker describes, or drive the simulated arms: aloha-sim"
            ) from error
        self._bot: Any = InterbotixManipulatorXS(
            robot_model="vx300s", group_name="arm", gripper_name="gripper", robot_name=name, init_node=init_node
        )
        self._gripper: Any = JointSingleCommand(name="gripper")
        self._newest: tuple[Any, float] | None = None

    def read(self) -> tuple[Array, float, float]:
        """The newest joint states of the driver; their time is when a new message was first seen here."""
        message = self._bot.dxl.joint_states
        if self._newest is None or self._newest[0] is not message:
            self._newest = (message, time.monotonic())
        places = message.position
        return np.array(places[:6], dtype=np.float64), float(places[7]), self._newest[1]

    def write(self, joints: Array, motor: float) -> None:
        """Joints without waiting, then the gripper."""
        self._bot.arm.set_joint_positions(list(joints), blocking=False)
        self._gripper.cmd = motor
        self._bot.gripper.core.pub_single.publish(self._gripper)

    def recover(self) -> None:
        """Reboot servos that report an error, keeping the others' torque."""
        self._bot.dxl.robot_reboot_motors("group", "all", enable=True, smart_reboot=True)

    def close(self) -> None:
        """Nothing to let go of: the driver keeps the arm."""


def interbotix_robot(rate_hz: float | None = None, cameras: Mapping[str, Camera] | None = None) -> AlohaRobot:
    """Both followers under their usual names. Raises DependencyError without the driver."""
    arms = InterbotixArm("puppet_left", init_node=True), InterbotixArm("puppet_right", init_node=False)
    return AlohaRobot(*arms, rate_hz=rate_hz or 50.0, cameras=cameras)


def simulated_aloha(
    clock: Clock, rate_hz: float | None = None, task: str = "aloha/transfer_cube", seed: int | None = 0
) -> SimulatedRobot:
    """gym-aloha's arms under the same limits, without an end of the episode but success."""
    with handed_over(make(task, step_budget=10**9)) as env:
        limits = aloha_limits(at_rate(env.robot, rate_hz))
        return SimulatedRobot(env, clock, limits, tuple(f.name for f in env.robot.action), seed=seed, rate_hz=rate_hz)
