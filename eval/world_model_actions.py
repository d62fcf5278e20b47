"""Commands that are not the ones that were run: what a world model that follows commands must answer differently.

Only the motion is falsified in ``zero``: the gripper holds what it was told first. Everything stays within the robot's
command range.
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
from numpy.typing import NDArray

from cosmos_robot.actions.rotations import Rotations
from cosmos_robot.contract import RobotSpec, RotationFormat
from cosmos_robot.envs.base import action_range
from cosmos_robot.envs.world_model import gripper_columns, motion_columns, rotation_columns, standing
from cosmos_robot.errors import InputError

Rows = NDArray[np.float64]

KINDS = ("zero", "shuffled", "mirrored", "shifted")
"""zero: no motion, the gripper as first commanded; where commands are targets, the first target is kept. shuffled: the
rows of the whole episode in random order, as many as the window has; the rows of one window in another order would add
up to the same motion. mirrored: each motion turned round, the gripper opened where it was closed; targets are mirrored
at the first. shifted: what was commanded one window later, or earlier at the episode's end."""

GRIPPER = "gripper"
"""Beside the four: the true motions, the gripper opened where it was closed. A model may follow the arm and not it."""

SCALES = (1 / 16, 0.25, 0.5, 2.0, 4.0, 16.0)
"""Factors by which motions are scaled, to find a model that is told them at the wrong scale."""

SAME_TURN = 1e-7
"""Radians below which two rotations are one: it has many numbers, as q and -q."""


def falsified(robot: RobotSpec, commands: Rows, start: int, length: int, seed: int) -> Mapping[str, Rows | None]:
    """Each kind, and ``gripper``, to its rows (length, D) for the window at ``start`` of an episode's ``commands``
    (N, D); None where the episode is too short for it, or where it is what was really commanded.

    seed: of the shuffle, another for each window. Raises InputError for a window outside the episode.
    """
    if not 0 <= start <= start + length <= len(commands) or length < 1:
        raise InputError(f"window of {length} rows at {start}: the episode has {len(commands)}")
    true = commands[start : start + length]
    order = np.random.default_rng(seed).permutation(len(commands))[:length]
    found = {
        "zero": _still(robot, true),
        "shuffled": commands[order],
        "mirrored": _mirrored(robot, true),
        "shifted": _shifted(commands, start, length),
        GRIPPER: _reversed(robot, true),
    }
    return {kind: None if rows is None or np.allclose(rows, true, atol=1e-9) else rows for kind, rows in found.items()}


def scaled(robot: RobotSpec, true: Rows, factor: float) -> Rows:
    """``true`` (T, D) with its motions times ``factor``, unclipped: this goes to a model, never to a robot. Targets are
    scaled about the first, rotations as rotation vectors about it, or about no turn."""
    motion, absolute = motion_columns(robot), robot.action_reference == "absolute"
    out = true.copy()
    origin = true[:1] if absolute else np.zeros_like(true[:1])
    out[:, motion] = (origin + factor * (true - origin))[:, motion]
    for columns, kind in rotation_columns(robot):
        if absolute or kind not in ("rotvec", "rotvec_robosuite"):  # a step's rotation vector is scaled already
            out[:, columns] = _turned(true[:, columns], kind, factor, absolute)
    return out


def _turned(true: Rows, kind: RotationFormat, factor: float, absolute: bool) -> Rows:
    """Rotations (T, W) of format ``kind``, their angles times ``factor``: from the first where they are ``absolute``.
    One that stays what it was keeps its numbers."""
    turns = Rotations.of(true, kind)
    origin = Rotations.of(true[:1], kind) if absolute else Rotations.of(np.zeros((1, 3)), "rotvec")
    wanted = origin @ Rotations.of(factor * (origin.inverse() @ turns).to("rotvec"), "rotvec")
    same = np.linalg.norm((turns.inverse() @ wanted).to("rotvec"), axis=1) < SAME_TURN
    return np.where(same[:, None], true, wanted.to(kind))


def _still(robot: RobotSpec, true: Rows) -> Rows:
    return standing(robot, true[0], len(true))


def _mirrored(robot: RobotSpec, true: Rows) -> Rows:
    return np.clip(_reversed(robot, scaled(robot, true, -1.0)), *action_range(robot))


def _reversed(robot: RobotSpec, true: Rows) -> Rows:
    out = true.copy()
    if robot.gripper:
        columns = gripper_columns(robot)
        out[:, columns] = robot.gripper.open_value + robot.gripper.closed_value - true[:, columns]
    return out


def _shifted(commands: Rows, start: int, length: int) -> Rows | None:
    for at in (start + length, start - length):
        if at >= 0 and at + length <= len(commands):
            return commands[at : at + length]
    return None
