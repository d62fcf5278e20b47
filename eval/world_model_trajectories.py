"""How far one path of poses is from another: relative rotation and translation errors, absolute trajectory error.

The Cosmos 3 report (section 6.2.4) holds camera and vehicle paths against each other by these: RRE and RTE measure
poses from one frame to the next, ATE the whole path. Poses are matrices (N, 4, 4) of a moving frame in a fixed one,
metres; angles are radians here and degrees in a report.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from cosmos_robot.actions.rotations import convert
from cosmos_robot.contract import RobotSpec
from cosmos_robot.errors import InputError

Poses = NDArray[np.float64]
Alignment = Literal["none", "start", "rigid", "similarity"]


@dataclass(frozen=True)
class TrajectoryError:
    """rre: mean angle between steps, radians. rte: mean distance between steps, metres. ate: root mean square distance
    between positions, metres. poses: how many were compared."""

    rre: float
    rte: float
    ate: float
    poses: int


def trajectory_error(found: Poses, truth: Poses, align: Alignment = "start") -> TrajectoryError:
    """RRE, RTE and ATE of one path. align: as ``absolute_error``. Raises InputError unless both are at least two poses,
    finite, and equally many."""
    return TrajectoryError(
        rre=float(relative_rotation_errors(found, truth).mean()),
        rte=float(relative_translation_errors(found, truth).mean()),
        ate=absolute_error(found, truth, align),
        poses=len(truth),
    )


def relative_rotation_errors(found: Poses, truth: Poses) -> NDArray[np.float64]:
    """(N - 1,) radians: the angle of the rotation by which each step of one path differs from the other's."""
    _require(found, truth)
    a, b = _steps(found)[:, :3, :3], _steps(truth)[:, :3, :3]
    apart = np.swapaxes(b, 1, 2) @ a
    # From sine and cosine: arccos alone has no accuracy near 0, where good paths are.
    axis = np.stack([apart[:, 2, 1] - apart[:, 1, 2], apart[:, 0, 2] - apart[:, 2, 0], apart[:, 1, 0] - apart[:, 0, 1]])
    return np.arctan2(np.linalg.norm(axis, axis=0), np.trace(apart, axis1=1, axis2=2) - 1)


def relative_translation_errors(found: Poses, truth: Poses) -> NDArray[np.float64]:
    """(N - 1,) metres: how far apart the steps of two paths lead, each seen from where it began."""
    _require(found, truth)
    return np.linalg.norm(_steps(found)[:, :3, 3] - _steps(truth)[:, :3, 3], axis=1)


def absolute_error(found: Poses, truth: Poses, align: Alignment = "start") -> float:
    """Root mean square distance between positions, metres, after the path has been moved: not at all (``none``), so
    that the first poses agree (``start``), as near as a rigid motion brings all positions (``rigid``), or one with a
    scale (``similarity``), for paths whose metres are not known (Umeyama, IEEE PAMI 13, 1991)."""
    _require(found, truth)
    if align == "start":
        places = (truth[0] @ np.linalg.inv(found[0]) @ found)[:, :3, 3]
    elif align == "none":
        places = found[:, :3, 3]
    elif align in ("rigid", "similarity"):
        places = _fitted(found[:, :3, 3], truth[:, :3, 3], with_scale=align == "similarity")
    else:
        raise InputError(f"align: expected none, start, rigid or similarity, got {align!r}")
    return float(np.sqrt(((places - truth[:, :3, 3]) ** 2).sum(axis=1).mean()))


def state_poses(robot: RobotSpec, states: list[Mapping[str, NDArray[np.float64]]]) -> Poses | None:
    """(N, 4, 4) of the first position and rotation that ``robot`` reports, or None for a robot that reports no pose."""
    place = next((f.name for f in robot.state if f.kind == "position" and f.width == 3), None)
    turn = next((f for f in robot.state if f.kind == "rotation" and f.rotation), None)
    if place is None or turn is None:
        return None
    out = np.tile(np.eye(4), (len(states), 1, 1))
    for pose, state in zip(out, states, strict=True):
        pose[:3, :3] = convert(state[turn.name], turn.rotation, "matrix")
        pose[:3, 3] = state[place]
    return out


def _fitted(places: NDArray[np.float64], truth: NDArray[np.float64], *, with_scale: bool) -> NDArray[np.float64]:
    centre_a, centre_b = places.mean(axis=0), truth.mean(axis=0)
    a, b = places - centre_a, truth - centre_b
    u, values, v = np.linalg.svd(b.T @ a)
    sign = np.diag([1.0, 1.0, np.sign(np.linalg.det(u @ v)) or 1.0])
    spread = (a**2).sum()
    scale = float((values * np.diag(sign)).sum() / spread) if with_scale and spread > 0 else 1.0
    return scale * a @ (u @ sign @ v).T + centre_b


def _steps(poses: Poses) -> Poses:
    return np.linalg.inv(poses[:-1]) @ poses[1:]


def _require(found: Poses, truth: Poses) -> None:
    if found.shape != truth.shape or found.ndim != 3 or found.shape[1:] != (4, 4) or len(found) < 2:
        raise InputError(
            f"trajectories: expected two of poses (N, 4, 4) with N >= 2, got {found.shape} and {truth.shape}"
        )
    if not (np.isfinite(found).all() and np.isfinite(truth).all()):
        raise InputError("trajectories: a pose is not finite; leave it out of both")
