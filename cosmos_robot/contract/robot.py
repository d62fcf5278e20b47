"""What an environment or a robot reports about itself."""

from __future__ import annotations

from typing import Final, Literal

from pydantic import Field, model_validator

from cosmos_robot.contract.base import Spec
from cosmos_robot.errors import ContractError

Orientation = Literal["upright", "flip_vertical", "mirror", "rot180"]
"""How a picture arrives, relative to the true upright view: as is, upside down (raw OpenGL rows), left and right
exchanged (what a 180-degree turn of raw OpenGL rows gives), or turned by 180 degrees."""

RotationFormat = Literal[
    "quat_xyzw", "quat_wxyz", "rotvec", "rotvec_robosuite", "euler_xyz", "rot6d", "rot9d", "matrix"
]
"""rotvec: the shortest rotation vector. rotvec_robosuite: robosuite's, angle 0 to 2 pi, no sign flip of the quaternion.
rot6d: the first two columns of the matrix, column after column. rot9d, matrix: all nine numbers, row after row."""

ROTATION_WIDTHS: Final[dict[RotationFormat, int]] = {
    "quat_xyzw": 4,
    "quat_wxyz": 4,
    "rotvec": 3,
    "rotvec_robosuite": 3,
    "euler_xyz": 3,
    "rot6d": 6,
    "rot9d": 9,
    "matrix": 9,
}

FieldKind = Literal["position", "rotation", "joint", "gripper", "velocity", "other"]

MOST_PIXELS: Final = 8192
"""Sides of a picture."""


class CameraSpec(Spec):
    """One camera as the robot delivers it (pixels). view: what it shows, in words."""

    name: str
    height: int = Field(gt=0, le=MOST_PIXELS)
    width: int = Field(gt=0, le=MOST_PIXELS)
    orientation: Orientation = "upright"
    view: str = ""


class FieldSpec(Spec):
    """One named part of a state or action vector.

    kind: what the numbers are; "other" where nobody said. rotation: the format of a rotation field. frame: the axes it
    is given in ("base", "world", "tool"). low, high: the range per dimension, where its maker publishes one.
    """

    name: str
    width: int = Field(gt=0)
    unit: str
    kind: FieldKind = "other"
    rotation: RotationFormat | None = None
    frame: str = ""
    low: tuple[float, ...] | None = None
    high: tuple[float, ...] | None = None
    meaning: str = ""

    @model_validator(mode="after")
    def _consistent(self) -> FieldSpec:
        if (self.kind == "rotation") != (self.rotation is not None):
            raise ValueError(f"field {self.name!r}: kind 'rotation' and a rotation format go together")
        if self.rotation and ROTATION_WIDTHS[self.rotation] != self.width:
            numbers = ROTATION_WIDTHS[self.rotation]
            raise ValueError(f"field {self.name!r}: {self.rotation} has {numbers} numbers, width says {self.width}")
        for name, limit in (("low", self.low), ("high", self.high)):
            if limit is not None and len(limit) != self.width:
                raise ValueError(f"field {self.name!r}: {name} has {len(limit)} numbers, width says {self.width}")
        if self.low and self.high and any(a >= b for a, b in zip(self.low, self.high, strict=True)):
            raise ValueError(f"field {self.name!r}: low {self.low} is not below high {self.high}")
        return self


class GripperSpec(Spec):
    """The gripper's numbers: which value opens, which closes, and whether values between mean anything.

    field: the first gripper field. also: fields of further hands with the same values. threshold, hysteresis: of a
    binary gripper, both in openness (0 closed, 1 open): where the decision turns, and the width of the band around it
    in which the last decision stays.
    """

    field: str
    also: tuple[str, ...] = ()
    open_value: float
    closed_value: float
    kind: Literal["continuous", "binary"]
    threshold: float = Field(default=0.5, gt=0, lt=1)
    hysteresis: float = Field(default=0.0, ge=0)

    @model_validator(mode="after")
    def _consistent(self) -> GripperSpec:
        if self.open_value == self.closed_value:
            raise ValueError(f"gripper {self.field!r}: open_value and closed_value are both {self.open_value}")
        half = self.hysteresis / 2
        if not (half <= self.threshold and self.threshold + half <= 1):
            raise ValueError(f"gripper {self.field!r}: threshold {self.threshold} +- {half} must lie within 0 and 1")
        return self

    @property
    def fields(self) -> tuple[str, ...]:
        """The names of all gripper fields."""
        return (self.field, *self.also)


class RobotSpec(Spec):
    """A robot, real or simulated: cameras, state and action layout, rate.

    action_reference: whether a row is an absolute target, a change per step, or a change from the chunk's first pose.
    action_low, action_high: the command range, one pair for all dimensions or None where the robot sets no range.
    gripper: the numbers of the command. state_gripper: the numbers of the state, where it reports an opening.
    """

    name: str
    cameras: tuple[CameraSpec, ...]
    state: tuple[FieldSpec, ...]
    action: tuple[FieldSpec, ...]
    action_reference: Literal["absolute", "per_step", "per_chunk"]
    action_low: float | None = None
    action_high: float | None = None
    gripper: GripperSpec | None = None
    state_gripper: GripperSpec | None = None
    rate_hz: float = Field(gt=0)

    @property
    def state_width(self) -> int:
        return sum(f.width for f in self.state)

    @property
    def action_width(self) -> int:
        return sum(f.width for f in self.action)

    def camera(self, name: str) -> CameraSpec:
        """The camera called ``name``; raises ContractError listing the ones there are."""
        for camera in self.cameras:
            if camera.name == name:
                return camera
        raise ContractError(f"no camera {name!r} on {self.name}; it has {[c.name for c in self.cameras]}")

    @model_validator(mode="after")
    def _consistent(self) -> RobotSpec:
        check_names("camera", [c.name for c in self.cameras])
        check_fields("state", self.state, self.state_gripper)
        check_fields("action", self.action, self.gripper)
        low, high = self.action_low, self.action_high
        if low is not None and high is not None and low >= high:
            raise ValueError(f"action_low={low} is not below action_high={high}")
        return self


def check_fields(what: str, fields: tuple[FieldSpec, ...], gripper: GripperSpec | None) -> None:
    """Raise ValueError if a name stands twice in ``fields`` or the gripper names a field that is not there."""
    names = [f.name for f in fields]
    check_names(f"{what} field", names)
    for name in gripper.fields if gripper else ():
        if name not in names:
            raise ValueError(f"gripper field {name!r} is not a field of the {what}: {names}")


def check_names(what: str, names: list[str]) -> None:
    """Raise ValueError if a name stands twice."""
    if len(set(names)) != len(names):
        raise ValueError(f"{what} named twice in {names}")
