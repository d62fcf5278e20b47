"""How many rows of an action chunk stand still: what Cosmos 3's prompts call idle frames.

The rules are those of cosmos-framework (``utils/pose_utils.py``, and AgiBot's own in its data set class). Rows are raw:
not normalised, in metres and radians, poses framewise relative.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final, Self

import numpy as np
from numpy.typing import ArrayLike, NDArray

from cosmos_robot.contract import FieldSpec
from cosmos_robot.errors import InputError

AGIBOT_STILL: Final = 1e-3


@dataclass(frozen=True)
class IdleRule:
    """Limits per row below which a row is still, and how many still rows in a run count.

    position: metres, the norm over all position numbers of a row together. rotation: radians, for each rotation.
    gripper, joint: change from the row before. The defaults are the reference's for chunks of unknown rate.
    """

    position: float = 1e-3
    rotation: float = float(np.radians(5.0))
    gripper: float = 1e-2
    joint: float = 5e-4
    min_run: int = 3

    @classmethod
    def at_rate(cls, fps: float, min_run: int = 3) -> Self:
        """The rule of Cosmos 3's data sets: 5 mm/s, 1.5 degrees/s, joints 0.005 rad/s, gripper 0.01 a row."""
        if not np.isfinite(fps) or fps <= 0:
            raise InputError(f"idle rows: fps={fps}, expected a positive number")
        return cls(position=5e-3 / fps, rotation=float(np.radians(1.5)) / fps, joint=5e-3 / fps, min_run=min_run)


def idle_rows(actions: ArrayLike, fields: Sequence[FieldSpec], rule: IdleRule) -> int:
    """Number of (T, D) rows that stand still, in runs of at least ``rule.min_run``.

    fields: what the columns are, by kind; velocities and kind "other" are not looked at.
    """
    x = np.asarray(actions, dtype=np.float32)  # as the reference: angles near its limit depend on it
    width = sum(f.width for f in fields)
    if x.ndim != 2 or x.shape[1] != width:
        raise InputError(f"idle rows: expected (T, {width}) for fields {[f.name for f in fields]}, got {x.shape}")
    still = np.ones(len(x), dtype=bool)
    moved = np.zeros(len(x), dtype=np.float32)
    first = 0
    for field in fields:
        part = x[:, first : first + field.width]
        first += field.width
        if field.kind == "position":
            moved += (part**2).sum(axis=1)
        elif field.rotation:
            still &= _angles(part, field.rotation) < rule.rotation
        elif field.kind in ("gripper", "joint"):
            change = np.abs(np.diff(part, axis=0, prepend=part[:1])).max(axis=1)
            still &= change < (rule.gripper if field.kind == "gripper" else rule.joint)
    if any(f.kind == "position" for f in fields):
        still &= np.sqrt(moved) < rule.position
    return sum(length for length in _runs(still) if length >= rule.min_run)


def agibot_idle_rows(actions: ArrayLike) -> int:
    """AgiBotWorld's own count for its (T, 29) rows: the still rows at the start of the chunk, with no regard to rate.

    A row is still where the positions of head, right and left, and the changes of column 18 and of the left gripper
    (28), are below 0.001. Column 18 is read once as a position; the left position starts at 19, so its third number is
    not looked at. That is the reference's rule, kept because models were trained with it.
    """
    x = np.abs(np.asarray(actions, dtype=np.float32))
    if x.ndim != 2 or x.shape[1] != 29:
        raise InputError(f"idle rows: AgiBot rows are (T, 29), got {x.shape}")
    if not len(x):
        return 0
    positions = x[:, [0, 1, 2, 9, 10, 11, 18, 19, 20]]
    changes = np.diff(x[:, [18, 28]], axis=0, prepend=x[:1, [18, 28]])
    still = np.concatenate([positions, changes], axis=1).max(axis=1) < AGIBOT_STILL
    return len(x) if still.all() else int(np.argmin(still))


def _angles(values: NDArray[np.float32], rotation: str) -> NDArray[np.float32]:
    """(T,) angles of (T, width) rotations to no rotation. Euler angles: their norm, an upper bound for small angles."""
    if rotation in ("quat_xyzw", "quat_wxyz"):
        w = values[:, 3 if rotation == "quat_xyzw" else 0]
        return np.asarray(2 * np.arccos(np.clip(np.abs(w), 0, 1)))
    if rotation in ("rot6d", "rot9d", "matrix"):
        if rotation == "rot6d":
            a, b = values[:, :3], values[:, 3:]
            trace = a[:, 0] + b[:, 1] + a[:, 0] * b[:, 1] - a[:, 1] * b[:, 0]
        else:
            trace = values[:, 0] + values[:, 4] + values[:, 8]
        return np.asarray(np.arccos(np.clip((trace - 1) / 2, -1, 1)))
    return np.asarray(np.linalg.norm(values, axis=1))


def _runs(still: NDArray[np.bool_]) -> list[int]:
    """Lengths of the runs of True."""
    edges = np.flatnonzero(np.diff(np.concatenate([[False], still, [False]]).astype(np.int8)))
    return [int(stop - start) for start, stop in zip(edges[::2], edges[1::2], strict=True)]
