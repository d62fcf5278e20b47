"""The numbers of Franka's arms, and where a joint position puts the tool. Needs no robot and no driver.

franky 2.0.0 plans with the Panda's limits, while the controllers it can talk to are FR3-class; so every limit here is
the smaller of both. Sources: Franka's robot limits page, and ``rate_limiting.h`` of libfranka for the FR3.
"""

from __future__ import annotations

from typing import Final

import numpy as np
from numpy.typing import ArrayLike, NDArray

from cosmos_robot.contract import RobotSpec
from cosmos_robot.errors import InputError
from cosmos_robot.hardware.gate import UNLIMITED, Limits

Vector = NDArray[np.float64]

FR3_LOW: Final = np.array([-2.7437, -1.7837, -2.9007, -3.0421, -2.8065, 0.5445, -3.0159])
FR3_HIGH: Final = np.array([2.7437, 1.7837, 2.9007, -0.1518, 2.8065, 4.5169, 3.0159])
"""Range of the FR3's joints, rad."""

_PANDA_VELOCITY: Final = np.array([2.175] * 4 + [2.61] * 3)
_PANDA_ACCELERATION: Final = np.array([15, 7.5, 10, 12.5, 15, 20, 20.0])
_PANDA_JERK: Final = np.array([7500, 3750, 5000, 6250, 7500, 10000, 10000.0])
_FR3_VELOCITY: Final = np.array([2.62] * 4 + [5.26, 4.18, 5.26])

JOINT_VELOCITY: Final = np.minimum(_PANDA_VELOCITY, _FR3_VELOCITY)
JOINT_ACCELERATION: Final = np.minimum(_PANDA_ACCELERATION, 10.0)
JOINT_JERK: Final = np.minimum(_PANDA_JERK, 5000.0)
"""Per joint: rad/s, rad/s^2, rad/s^3."""

TRANSLATION: Final = (1.7, 9.0, 4500.0)
ROTATION: Final = (2.5, 17.0, 8500.0)
ELBOW: Final = (1.5, 10.0, 5000.0)
"""Of the tool and the elbow: speed, acceleration, jerk; metres or radians."""

HOME: Final = np.array([0.0, -np.pi / 5, 0.0, -4 * np.pi / 5, 0.0, 3 * np.pi / 5, 0.0])
"""DROID's home, rad."""

# FR3's allowed speed falls towards the ends of a joint's range: offset and slope of the root, and how far beyond the
# range it reaches zero.
_OFFSET: Final = np.array([0.30, 0.20, 0.20, 0.30, 0.35, 0.35, 0.35])
_SLOPE: Final = np.array([12, 5.17, 7, 8, 34, 11, 34.0])
_BEYOND: Final = np.array([0.0064, 0.0081, 0.0058, 0.0060, 0.0036, 0.0036, 0.0037])

# Denavit-Hartenberg parameters in Craig's convention, as Franka publishes them: a, d, alpha; the flange is last.
_DH: Final = (
    (0.0, 0.333, 0.0),
    (0.0, 0.0, -np.pi / 2),
    (0.0, 0.316, np.pi / 2),
    (0.0825, 0.0, np.pi / 2),
    (-0.0825, 0.384, -np.pi / 2),
    (0.0, 0.0, np.pi / 2),
    (0.088, 0.0, np.pi / 2),
    (0.0, 0.107, 0.0),
)
FRANKA_HAND: Final = np.array(
    [[np.sqrt(0.5), np.sqrt(0.5), 0, 0], [-np.sqrt(0.5), np.sqrt(0.5), 0, 0], [0, 0, 1, 0.1034], [0, 0, 0, 1]]
)
"""From the flange to the Franka Hand's tool centre: 0.1034 m ahead, turned by -45 degrees."""


def velocity_range(joints: ArrayLike) -> tuple[Vector, Vector]:
    """Lowest and highest allowed velocity (7,) at joints (7,), rad/s: within ``JOINT_VELOCITY``, and falling to zero
    towards the ends of the FR3's range (libfranka, ``computeUpperLimitsJointVelocity``)."""
    q = _seven(joints)
    up = -_OFFSET + np.sqrt(_SLOPE * np.maximum(0.0, FR3_HIGH + _BEYOND - q))
    down = -_OFFSET + np.sqrt(_SLOPE * np.maximum(0.0, q - FR3_LOW + _BEYOND))
    return -np.clip(down, 0.0, JOINT_VELOCITY), np.clip(up, 0.0, JOINT_VELOCITY)


def tool_pose(joints: ArrayLike, tool: ArrayLike = FRANKA_HAND) -> Vector:
    """Pose (4, 4) of the tool in the arm's base at joints (7,). tool: (4, 4) from the flange to the tool."""
    q = np.append(_seven(joints), 0.0)
    pose = np.eye(4)
    for (a, d, alpha), angle in zip(_DH, q, strict=True):
        c, s, ca, sa = np.cos(angle), np.sin(angle), np.cos(alpha), np.sin(alpha)
        pose = pose @ np.array(
            [[c, -s, 0, a], [s * ca, c * ca, -sa, -d * sa], [s * sa, c * sa, ca, d * ca], [0, 0, 0, 1]]
        )
    return np.asarray(pose @ np.asarray(tool, dtype=np.float64))


def tool_position(command: ArrayLike) -> Vector:
    """Where the tool (3,) is under a command whose first seven numbers are joints; the ``tool`` of a ``Gate``."""
    return tool_pose(np.asarray(command, dtype=np.float64)[:7])[:3, 3]


def joint_limits(
    spec: RobotSpec,
    speed: float = 0.5,
    margin_rad: float = 0.1,
    workspace: tuple[ArrayLike, ArrayLike] | None = None,
) -> Limits:
    """Limits for joint targets: ``speed`` of the arm's joint velocities, its range less ``margin_rad``, steps of at
    most DROID's 0.2 rad, first commands within 0.2 rad of the arm and later ones within 0.5."""
    _share("speed", speed)
    joints, gripper = (f.name for f in spec.action)
    each = lambda number: {joints: number, gripper: UNLIMITED}  # noqa: E731
    return Limits.of(
        spec,
        max_step=each(0.2),
        max_rate=each(speed * JOINT_VELOCITY),
        max_first=each(0.2),
        max_jump=each(0.5),
        low={joints: FR3_LOW + margin_rad, gripper: 0.0},
        high={joints: FR3_HIGH - margin_rad, gripper: 1.0},
        workspace=workspace,
    )


def cartesian_limits(
    spec: RobotSpec, speed: float = 0.5, workspace: tuple[ArrayLike, ArrayLike] | None = None
) -> Limits:
    """Limits for tool poses: DROID's steps of 0.075 m and 0.15 rad, ``speed`` of its 15 such steps a second, first
    commands within 0.05 m and 0.15 rad of the tool and later ones within 0.2 m and 0.5 rad."""
    _share("speed", speed)
    place, turn, gripper = (f.name for f in spec.action)
    each = lambda metres, radians: {place: metres, turn: radians, gripper: UNLIMITED}  # noqa: E731
    return Limits.of(
        spec,
        max_step=each(0.075, 0.15),
        max_rate=each(speed * 0.075 * 15, speed * 0.15 * 15),
        max_first=each(0.05, 0.15),
        max_jump=each(0.2, 0.5),
        low={place: -1.0, turn: -UNLIMITED, gripper: 0.0},
        high={place: 1.2, turn: UNLIMITED, gripper: 1.0},
        workspace=workspace,
    )


def _share(what: str, value: float) -> None:
    if not 0 < value <= 1:
        raise InputError(f"{what}: expected a share over 0 and up to 1, got {value!r}")


def _seven(joints: ArrayLike) -> Vector:
    q = np.asarray(joints, dtype=np.float64)
    if q.shape != (7,):
        raise InputError(f"joints: expected (7,), got {q.shape}")
    return q
