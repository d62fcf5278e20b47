"""Weighted means of commands: positions as numbers, rotations as rotations, binary grippers by vote."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray
from scipy.spatial.transform import Rotation

from cosmos_robot.actions.grippers import BinaryGripper
from cosmos_robot.actions.rotations import RotationFormat, convert
from cosmos_robot.contract import RobotSpec

Array = NDArray[np.float64]


def mix(spec: RobotSpec, commands: Array, weights: Array) -> Array:
    """The mean (D,) of commands (n, D) under weights (n,) that sum to one.

    Rotation fields of absolute commands are averaged on the sphere (scipy's ``Rotation.mean``); changes of rotation are
    small and averaged as numbers. A binary gripper takes the value with more weight behind it, the newest at a tie.
    """
    out = weights @ commands
    start = 0
    for field in spec.action:
        part = slice(start, start + field.width)
        start += field.width
        if field.rotation is not None and spec.action_reference == "absolute":
            out[part] = _mean_rotation(commands[:, part], weights, field.rotation)
        elif spec.gripper is not None and field.name in spec.gripper.fields and spec.gripper.kind == "binary":
            out[part] = _vote(commands[:, part], weights, BinaryGripper.of(spec.gripper))
    return out


def _mean_rotation(numbers: Array, weights: Array, name: RotationFormat) -> Array:
    kept = weights > 0
    turns = Rotation.from_quat(convert(numbers[kept], name, "quat_xyzw"))
    return convert(np.asarray(turns.mean(weights[kept]).as_quat()), "quat_xyzw", name)


def _vote(numbers: Array, weights: Array, gripper: BinaryGripper) -> Array:
    opening = gripper.opens(numbers)
    share = weights @ opening
    return gripper.range.command(np.where(np.isclose(share, 0.5), opening[-1], share > 0.5))
