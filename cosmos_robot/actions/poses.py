"""Poses, and what a policy says about them: the change per frame, or the change since the chunk's first pose.

A pose is a (4, 4) homogeneous matrix: rotation, and position in metres. A pose row is its position (3) followed by its
rotation in a named format. Conventions of Cosmos 3's datasets (cosmos-framework, ``utils/pose_utils.py``):
framewise: row i is pose[i]^-1 pose[i + 1]. anchored: row i is pose[0]^-1 pose[i + 1]. Both are in the tool's frame.
"""

from __future__ import annotations

from typing import Literal, get_args

import numpy as np
from numpy.typing import ArrayLike, NDArray

from cosmos_robot.actions.rotations import convert
from cosmos_robot.contract import RotationFormat
from cosmos_robot.errors import InputError, UnknownNameError

PoseReference = Literal["framewise", "anchored"]


def poses_from(
    position: ArrayLike, rotation: ArrayLike, source: RotationFormat, *, translation_scale: float = 1.0
) -> NDArray[np.float64]:
    """(..., 4, 4) poses from (..., 3) positions and rotations in format ``source``.

    translation_scale: what the positions were multiplied by when they were stored; they are divided by it.
    """
    xyz = _rows("position", position, 3) / _nonzero("translation_scale", translation_scale)
    matrix = convert(rotation, source, "matrix", project=False)
    if matrix.shape[:-2] != xyz.shape[:-1]:
        raise InputError(f"{xyz.shape[:-1]} positions and {matrix.shape[:-2]} rotations do not pair")
    poses = np.zeros((*xyz.shape[:-1], 4, 4))
    poses[..., :3, :3], poses[..., :3, 3], poses[..., 3, 3] = matrix, xyz, 1.0
    return poses


def pose_rows(poses: ArrayLike, target: RotationFormat) -> NDArray[np.float64]:
    """(..., 4, 4) poses to (..., 3 + width) rows: position, then rotation in format ``target``."""
    p = _poses(poses)
    # Flat formats only, so that a row is a vector; matrices of poses pass as they are, without projection.
    rotation = convert(p[..., :3, :3], "matrix", _flat(target), project=False)
    return np.concatenate([p[..., :3, 3], rotation], axis=-1)


def poses_of_rows(
    rows: ArrayLike, source: RotationFormat, *, project: bool = True, translation_scale: float = 1.0,
    rotation_scale: float = 1.0,
) -> NDArray[np.float64]:  # fmt: skip
    """(..., 3 + width) rows to (..., 4, 4) poses.

    translation_scale, rotation_scale: what the two parts of the rows were multiplied by; they are divided by it.
    project: make the rotations proper (a network's rot6d seldom is).
    """
    x = np.asarray(rows, dtype=np.float64)
    if x.ndim < 1 or x.shape[-1] <= 3:
        raise InputError(f"pose rows: expected (..., 3 + rotation), got {x.shape}")
    rotation = x[..., 3:] / _nonzero("rotation_scale", rotation_scale)
    matrix = convert(rotation, _flat(source), "matrix", project=project)
    return poses_from(x[..., :3], matrix, "matrix", translation_scale=translation_scale)


def relative_rows(poses: ArrayLike, target: RotationFormat, reference: PoseReference) -> NDArray[np.float64]:
    """(T, 4, 4) absolute poses to (T - 1, 3 + width) relative rows."""
    p = _poses(poses)
    if p.ndim != 3 or len(p) < 2:
        raise InputError(f"relative poses: expected (T, 4, 4) with T >= 2, got {p.shape}")
    start = p[:-1] if _known(reference) == "framewise" else p[:1]
    return pose_rows(np.linalg.inv(start) @ p[1:], target)


def absolute_poses(
    rows: ArrayLike, source: RotationFormat, reference: PoseReference, initial_pose: ArrayLike, *,
    project: bool = True, translation_scale: float = 1.0, rotation_scale: float = 1.0,
) -> NDArray[np.float64]:  # fmt: skip
    """(T - 1, 3 + width) relative rows to the (T, 4, 4) poses they describe, ``initial_pose`` (4, 4) first.

    For anchored rows ``initial_pose`` is the pose at which the chunk was asked for. The options are those of
    ``poses_of_rows``.
    """
    changes = poses_of_rows(
        rows, source, project=project, translation_scale=translation_scale, rotation_scale=rotation_scale
    )
    first = _poses(initial_pose)
    if changes.ndim != 3 or first.shape != (4, 4):
        raise InputError(
            f"absolute poses: expected rows (T, D) and one (4, 4) pose, got {changes.shape}, {first.shape}"
        )
    if _known(reference) == "anchored":
        return np.concatenate([first[None], first @ changes])
    out = [first]
    for change in changes:
        out.append(out[-1] @ change)
    return np.stack(out)


def pose9(poses: ArrayLike) -> NDArray[np.float64]:
    """(..., 4, 4) poses to (..., 9) rows: position, rot6d."""
    return pose_rows(poses, "rot6d")


def reanchored(rows: ArrayLike, source: RotationFormat, taken_at: ArrayLike, now: ArrayLike) -> NDArray[np.float64]:
    """Anchored rows (T, 3 + width) of a chunk asked for at pose ``taken_at``, as anchored at pose ``now`` (both
    (4, 4), absolute): the targets stay where they are."""
    targets = _poses(taken_at) @ poses_of_rows(rows, source)
    return pose_rows(np.linalg.inv(_poses(now)) @ targets, source)


def command_to_reach(target: ArrayLike, current: ArrayLike) -> NDArray[np.float64]:
    """(..., 6) change that takes pose ``current`` to pose ``target`` (both (..., 4, 4)), in the frame both are given
    in: position difference, and the rotation vector of target current^-1. Equal poses give zero: hold still.

    The command of robosuite's OSC controllers, before their own output scale (LIBERO client of cosmos-framework).
    """
    goal, here = _poses(target), _poses(current)
    turn = goal[..., :3, :3] @ here[..., :3, :3].swapaxes(-1, -2)
    rotvec = convert(turn, "matrix", "rotvec", project=False)
    return np.concatenate([goal[..., :3, 3] - here[..., :3, 3], rotvec], axis=-1)


def reached_by(command: ArrayLike, current: ArrayLike) -> NDArray[np.float64]:
    """(..., 4, 4) pose that a (..., 6) command of ``command_to_reach`` asks for from pose ``current``."""
    x, here = _rows("command", command, 6), _poses(current)
    turn = convert(x[..., 3:], "rotvec", "matrix")
    return poses_from(here[..., :3, 3] + x[..., :3], turn @ here[..., :3, :3], "matrix")


def _flat(name: RotationFormat) -> RotationFormat:
    return "rot9d" if name == "matrix" else name


def _known(reference: str) -> str:
    if reference not in get_args(PoseReference):
        raise UnknownNameError("pose reference", reference, get_args(PoseReference))
    return reference


def _nonzero(name: str, scale: float) -> float:
    if not np.isfinite(scale) or scale == 0:
        raise InputError(f"{name}={scale}: expected a finite number other than 0")
    return scale


def _rows(what: str, values: ArrayLike, width: int) -> NDArray[np.float64]:
    x = np.asarray(values, dtype=np.float64)
    if x.shape[-1:] != (width,):
        raise InputError(f"{what}: expected (..., {width}), got {x.shape}")
    if not np.isfinite(x).all():
        raise InputError(f"{what}: numbers at {np.argwhere(~np.isfinite(x))[0].tolist()} are not finite")
    return x


def _poses(values: ArrayLike) -> NDArray[np.float64]:
    x = np.asarray(values, dtype=np.float64)
    if x.shape[-2:] != (4, 4):
        raise InputError(f"poses: expected (..., 4, 4), got {x.shape}")
    if not np.isfinite(x).all():
        raise InputError(f"poses: numbers at {np.argwhere(~np.isfinite(x))[0].tolist()} are not finite")
    return x
