"""Which differences between two fields the code can convert, and which function does it.

Deciding is here, so that reading a contract needs no arrays; ``cosmos_robot.actions.layouts`` asks these functions and
then does what they name.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import pi
from typing import Final

from cosmos_robot.contract.robot import FieldSpec, GripperSpec, RotationFormat

ROTATIONS_BY: Final = "cosmos_robot.actions.rotations:convert"
GRIPPERS_BY: Final = "cosmos_robot.actions.grippers:convert_gripper"
UNITS_BY: Final = "cosmos_robot.actions.layouts:convert_fields"
PICTURES_BY: Final = "cosmos_robot.images.steps:turn"

UNITS: Final[dict[str, tuple[str, float]]] = {
    "rad": ("angle", 1.0),
    "deg": ("angle", pi / 180),
    "m": ("length", 1.0),
    "cm": ("length", 0.01),
    "mm": ("length", 0.001),
}
"""Unit to what it measures and its size in radians or metres."""

SIGNED: Final[tuple[RotationFormat, ...]] = ("quat_xyzw", "quat_wxyz", "rotvec_robosuite")
"""Formats in which q and -q, one rotation, are two sets of numbers."""


@dataclass(frozen=True)
class Conversion:
    """The code does it. how: in words. by: ``module:function``."""

    how: str
    by: str


@dataclass(frozen=True)
class Refusal:
    """The code does not do it. why: in words."""

    why: str


def rotation_conversion(source: RotationFormat, target: RotationFormat, *, read_by_model: bool) -> Conversion | Refusal:
    """From one rotation format to another. read_by_model: the numbers go into a network, so that their sign matters; a
    robot that is told to go somewhere does not mind."""
    if read_by_model and target in SIGNED and source not in SIGNED:
        return Refusal(f"{source} does not keep the quaternion's sign, on which the numbers of {target} depend")
    return Conversion(f"{source} to {target}", ROTATIONS_BY)


def unit_conversion(source: str, target: str) -> Conversion | Refusal:
    """From one unit to another."""
    if source not in UNITS or target not in UNITS or UNITS[source][0] != UNITS[target][0]:
        return Refusal(f"no factor is known from {source!r} to {target!r}")
    return Conversion(f"times {unit_factor(source, target):g}, {source} to {target}", UNITS_BY)


def unit_factor(source: str, target: str) -> float:
    """What a number in ``source`` is multiplied by to be one in ``target``; both in ``UNITS`` or equal."""
    return 1.0 if source == target else UNITS[source][1] / UNITS[target][1]


def gripper_conversion(source: GripperSpec, target: GripperSpec) -> Conversion:
    """From one pair of open and closed values to another. A target that takes only the two needs a decision, which a
    ``binary`` spec's threshold makes."""
    ends = (
        f"{source.open_value:g} open, {source.closed_value:g} closed to "
        f"{target.open_value:g} open, {target.closed_value:g} closed"
    )
    if target.kind == "binary" and source.kind == "continuous":
        return Conversion(f"{ends}, decided at openness {target.threshold:g}", GRIPPERS_BY)
    return Conversion(ends, GRIPPERS_BY)


def field_refusals(source: FieldSpec, target: FieldSpec, *, read_by_model: bool) -> list[str]:
    """Why the numbers of ``source`` cannot become those of ``target``; empty if they can. Grippers not considered."""
    found = []
    if source.kind != target.kind and "other" not in (source.kind, target.kind):
        found.append(f"{source.name!r} is a {source.kind}, {target.name!r} a {target.kind}")
    elif source.rotation and target.rotation and source.rotation != target.rotation:
        step = rotation_conversion(source.rotation, target.rotation, read_by_model=read_by_model)
        found += [step.why] if isinstance(step, Refusal) else []
    elif source.width != target.width:
        found.append(f"{source.name!r} has {source.width} numbers, {target.width} are expected")
    if source.unit != target.unit and not (source.rotation and target.rotation) and source.kind != "gripper":
        step = unit_conversion(source.unit, target.unit)
        found += [f"{source.name!r}: {step.why}"] if isinstance(step, Refusal) else []
    if source.frame and target.frame and source.frame != target.frame:
        found.append(f"{source.name!r} is given in the {source.frame!r} frame, {target.frame!r} is expected")
    return found
