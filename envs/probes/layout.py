"""Probes of what is reported: state fields, their units, their rotation formats, against the simulator's own poses."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
from numpy.typing import NDArray

from cosmos_robot.contract import ROTATION_WIDTHS, FieldSpec, GripperSpec
from cosmos_robot.envs.probes.trial import UNITS, Finding, NotApplicable, Trial, numbers, verdict, written

POSE_METRES, POSE_NUMBERS = 0.002, 0.01
"""How far a report may be from the simulator's pose: a report may be one physics step old."""
OPENNESS = 0.1
"""How far a reported opening, as a share, may be from what the fingers show."""


def probe_state_layout(trial: Trial) -> Iterator[Finding]:
    """The state has the fields and widths that the contract says, in that order."""
    state = trial.start().state
    have = [f"{name} {len(value)}" for name, value in state.items()]
    want = [f"{f.name} {f.width}" for f in trial.spec.state]
    yield verdict("state_layout", "robot.state", have == want, ", ".join(have), ", ".join(want))


def probe_reported_pose(trial: Trial) -> Iterator[Finding]:
    """Positions, rotations, joints and fingers equal the simulator's own, in the frame, unit and format named."""
    trial.run(trial.hold(), 5)
    fields = [f for f in trial.spec.state if f.kind in ("position", "rotation", "joint", "gripper")]
    if not fields:
        raise NotApplicable("the contract names no position, rotation, joint or gripper among its state fields")
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
        elif field.kind == "joint":
            yield _joints(trial, field, reported)
        elif trial.spec.state_gripper and field.name in trial.spec.state_gripper.fields:
            yield from _opening(trial, field, trial.spec.state_gripper)
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


def _joints(trial: Trial, field: FieldSpec, reported: NDArray[np.float64]) -> Finding:
    true = trial.truth.joints()
    before = [f.width for f in trial.spec.state[: trial.spec.state.index(field)] if f.kind == "joint"]
    if len(true) < sum(before) + field.width:
        return Finding(
            "reported_pose",
            f"robot.state.{field.name}",
            "not applicable",
            why=f"the simulator knows {len(true)} joints",
        )
    scale = {"rad": 1.0, "deg": 180 / np.pi}.get(field.unit, 1.0)
    true = scale * true[sum(before) : sum(before) + field.width]
    return verdict(
        "reported_pose",
        f"robot.state.{field.name}.unit",
        bool(np.abs(reported - true).max() < POSE_NUMBERS * scale),
        numbers(reported),
        f"joints in {field.unit}: {numbers(true)}",
    )


def _opening(trial: Trial, field: FieldSpec, gripper: GripperSpec) -> Iterator[Finding]:
    """An opening that is reported as a share, with the hand opened and closed by command."""
    full, command = trial.truth.fully_open(), trial.gripper
    for name in ("open_value", "closed_value"):
        trial.run(trial.hold(**{f: [getattr(command, name)] for f in command.fields}), trial.steps(1.0))
        value = float(trial.env.observe().state[field.name][0])
        seen = (value - gripper.closed_value) / (gripper.open_value - gripper.closed_value)
        true = trial.truth.opening() / full
        yield verdict(
            "reported_pose",
            f"robot.state_gripper.{name}",
            abs(seen - true) < OPENNESS,
            f"{field.name} says {value:.2f}, which is {seen:.0%} open",
            f"the fingers are {true:.0%} open",
        )


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
