"""Probes of what is reported: state fields, their units, their rotation formats, against the simulator's own poses."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
from numpy.typing import NDArray

from cosmos_robot.contract import ROTATION_WIDTHS, FieldSpec
from cosmos_robot.envs.probes.trial import Finding, NotApplicable, Trial, numbers, verdict, written

POSE_METRES, POSE_NUMBERS = 0.002, 0.01
"""How far a report may be from the simulator's pose: a report may be one physics step old."""
UNITS = {"m": 1.0, "cm": 100.0, "mm": 1000.0}


def probe_state_layout(trial: Trial) -> Iterator[Finding]:
    """The state has the fields and widths that the contract says, in that order."""
    state = trial.start().state
    have = [f"{name} {len(value)}" for name, value in state.items()]
    want = [f"{f.name} {f.width}" for f in trial.spec.state]
    yield verdict("state_layout", "robot.state", have == want, ", ".join(have), ", ".join(want))


def probe_reported_pose(trial: Trial) -> Iterator[Finding]:
    """Positions, rotations and finger joints equal forward kinematics, in the frame, unit and format named."""
    trial.run(trial.hold(), 5)
    fields = [f for f in trial.spec.state if f.kind in ("position", "rotation", "gripper")]
    if not fields:
        raise NotApplicable("the contract names no position, rotation or gripper among its state fields")
    for field in fields:
        reported = trial.env.observe().state.get(field.name)
        if reported is None:
            yield verdict("reported_pose", f"robot.state.{field.name}", False, "absent", f"{field.width} numbers")
        elif len(reported) != field.width:
            yield verdict(
                "reported_pose", f"robot.state.{field.name}.width", False, str(len(reported)), str(field.width)
            )
        elif field.kind == "rotation":
            yield _rotation(trial, field, reported)
        elif field.kind == "position":
            yield _position(trial, field, reported)
        else:
            yield _fingers(trial, field, reported)


def _position(trial: Trial, field: FieldSpec, reported: NDArray[np.float64]) -> Finding:
    if field.unit not in UNITS:
        return Finding(
            "reported_pose",
            f"robot.state.{field.name}.unit",
            "not applicable",
            why=f"{field.unit!r} is no unit of length",
        )
    scale = UNITS[field.unit]
    true = trial.pose(field.frame).position[: field.width] * scale
    right = np.abs(reported - true).max() < POSE_METRES * scale
    others = [
        name
        for name in trial.truth.frames()
        if np.abs(reported - trial.pose(name).position[: field.width] * scale).max() < POSE_METRES * scale
    ]
    where = f", which is the hand in frame {others[0]!r}" if others and not right else ""
    return verdict(
        "reported_pose",
        f"robot.state.{field.name}.frame",
        bool(right),
        f"{numbers(reported)} {field.unit}{where}",
        f"{numbers(true)} {field.unit}, the hand in frame {field.frame!r}",
    )


def _rotation(trial: Trial, field: FieldSpec, reported: NDArray[np.float64]) -> Finding:
    matrix = trial.pose(field.frame).matrix
    others = [
        name
        for name, width in ROTATION_WIDTHS.items()
        if width == field.width and _same(reported, written(matrix, field.model_copy(update={"rotation": name})), name)
    ]
    right = field.rotation in others
    return verdict(
        "reported_pose",
        f"robot.state.{field.name}.rotation",
        right,
        f"{numbers(reported)}, which is " + (" or ".join(others) if others else "no format of that width"),
        f"{field.rotation} in frame {field.frame!r}: {numbers(written(matrix, field))}",
    )


def _same(reported: NDArray[np.float64], true: NDArray[np.float64], name: str) -> bool:
    """Equal numbers; a quaternion and its negative are the same rotation."""
    signs = (1, -1) if name.startswith("quat") else (1,)
    return any(bool(np.abs(reported - sign * true).max() < POSE_NUMBERS) for sign in signs)


def _fingers(trial: Trial, field: FieldSpec, reported: NDArray[np.float64]) -> Finding:
    true = trial.truth.fingers()
    if len(true) != field.width:
        return Finding(
            "reported_pose",
            f"robot.state.{field.name}",
            "not applicable",
            why=f"the hand has {len(true)} finger joints, the field {field.width} numbers",
        )
    scale = UNITS.get(field.unit, 1.0)
    return verdict(
        "reported_pose",
        f"robot.state.{field.name}.unit",
        bool(np.abs(reported - true * scale).max() < POSE_METRES * scale),
        f"{numbers(reported, 4)}",
        f"finger joints in {field.unit}: {numbers(true * scale, 4)}",
    )
