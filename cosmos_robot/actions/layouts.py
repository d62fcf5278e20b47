"""Vectors of named fields: where each field stands, and the same numbers in another layout."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike, NDArray

from cosmos_robot.actions.grippers import GripperRange
from cosmos_robot.actions.rotations import convert
from cosmos_robot.contract.conversions import UNITS, field_refusals, unit_factor
from cosmos_robot.contract.robot import FieldSpec, GripperSpec, RobotSpec, RotationFormat
from cosmos_robot.errors import ContractError, InputError

Array = NDArray[np.float64]


@dataclass(frozen=True)
class Layout:
    """The fields of one vector in their order.

    what: its name in messages. gripper: the values of its gripper fields.
    """

    what: str
    fields: tuple[FieldSpec, ...]
    gripper: GripperSpec | None = None

    @property
    def width(self) -> int:
        """Numbers of one vector."""
        return sum(f.width for f in self.fields)

    def field(self, name: str) -> FieldSpec:
        """The field called ``name``. Raises ContractError listing the ones there are."""
        for field in self.fields:
            if field.name == name:
                return field
        raise ContractError(f"{self.what}: no field {name!r}, only {[f.name for f in self.fields]}")

    def columns(self, name: str) -> slice:
        """The columns of field ``name``. Raises ContractError as ``field`` does."""
        start = 0
        for field in self.fields:
            if field.name == name:
                return slice(start, start + field.width)
            start += field.width
        raise ContractError(f"{self.what}: no field {name!r}, only {[f.name for f in self.fields]}")

    def check(self, values: ArrayLike) -> Array:
        """``values`` (..., width) as float64. Raises InputError naming the expected and the actual width."""
        try:
            x = np.asarray(values, dtype=np.float64)
        except (TypeError, ValueError) as error:
            raise InputError(f"{self.what}: not an array of numbers: {error}") from error
        if x.shape[-1:] != (self.width,):
            fields = ", ".join(f"{f.name} {f.width}" for f in self.fields) or "no fields"
            raise InputError(f"{self.what}: expected {self.width} numbers ({fields}), got shape {x.shape}")
        return x

    @property
    def grippers(self) -> tuple[str, ...]:
        """Names of the gripper fields whose values are known."""
        return self.gripper.fields if self.gripper else ()


def state_layout(robot: RobotSpec) -> Layout:
    """The state vector of a robot."""
    return Layout(f"state of {robot.name}", robot.state, robot.state_gripper)


def action_layout(robot: RobotSpec) -> Layout:
    """The command vector of a robot."""
    return Layout(f"action of {robot.name}", robot.action, robot.gripper)


def state_vector(robot: RobotSpec, state: Mapping[str, ArrayLike]) -> Array:
    """The named state fields of ``robot``, joined in the spec's order: (state_width,). Extra fields are ignored."""
    parts = []
    for field in robot.state:
        if field.name not in state:
            raise InputError(f"state {field.name!r} is missing; got {sorted(state)}")
        value = np.asarray(state[field.name], dtype=np.float64)
        if value.shape != (field.width,):
            raise InputError(f"state {field.name!r}: expected shape ({field.width},), got {value.shape}")
        parts.append(value)
    return np.concatenate(parts) if parts else np.zeros(0)


def action_column(robot: RobotSpec, name: str) -> int:
    """The first column of action field ``name``. Raises ContractError if there is none of that name."""
    return int(action_layout(robot).columns(name).start)


def require_convertible(source: Layout, target: Layout, *, read_by_model: bool) -> None:
    """Raise ContractError naming every reason why ``convert_fields`` could not do it."""
    found = []
    for field in target.fields:
        names = [f.name for f in source.fields]
        if field.name not in names:
            found.append(f"{source.what} has no {field.name!r}, only {names}")
            continue
        found += field_refusals(source.field(field.name), field, read_by_model=read_by_model)
        if (field.name in source.grippers) != (field.name in target.grippers):
            silent = source.what if field.name in target.grippers else target.what
            found.append(f"{field.name!r}: {silent} does not say which value is open")
    if found:
        raise ContractError(
            f"{source.what} does not become {target.what}:" + "".join(f"\n  - {line}" for line in found)
        )


def convert_fields(values: ArrayLike, source: Layout, target: Layout) -> Array:
    """(..., source.width) numbers as (..., target.width): each target field from the source field of its name, with
    rotation format, unit and gripper values exchanged. Gripper values beyond the range stay beyond it.

    ``require_convertible`` is asked once beforehand.
    """
    x = source.check(values)
    parts = []
    for field in target.fields:
        given, part = source.field(field.name), x[..., source.columns(field.name)]
        if field.rotation and given.rotation:
            if field.rotation != given.rotation:
                part = part * _to_radians(given)
                part = convert(part, flat(given.rotation), flat(field.rotation)) / _to_radians(field)
            else:
                part = part * (_to_radians(given) / _to_radians(field))
        elif field.name in target.grippers and source.gripper and target.gripper:
            part = _ends(target.gripper).command(_ends(source.gripper).openness_unclipped(part))
        elif field.unit != given.unit:
            part = part * unit_factor(given.unit, field.unit)
        parts.append(part)
    return np.concatenate(parts, axis=-1) if parts else np.zeros((*x.shape[:-1], 0))


def _to_radians(field: FieldSpec) -> float:
    """Factor from an angle's unit; 1 where the unit is no angle (a unit quaternion, a command)."""
    return unit_factor(field.unit, "rad") if UNITS.get(field.unit, ("",))[0] == "angle" else 1.0


def flat(name: RotationFormat) -> RotationFormat:
    """The format of a rotation inside a vector, where a matrix is nine numbers."""
    return "rot9d" if name == "matrix" else name


def _ends(gripper: GripperSpec) -> GripperRange:
    return GripperRange(gripper.open_value, gripper.closed_value)
