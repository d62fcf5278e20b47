"""Older contracts, brought up to date step by step. A step adds only what its version is known to have meant."""

from __future__ import annotations

from collections.abc import Callable
from copy import deepcopy
from typing import Any, Final

from cosmos_robot.errors import ContractError

Document = dict[str, Any]

FIELDS_OF_1: Final[dict[str, dict[str, str]]] = {
    "eef_position": {"kind": "position", "frame": "base"},
    "eef_rot6d": {"kind": "rotation", "rotation": "rot6d", "frame": "world"},
    "gripper_qpos": {"kind": "gripper"},
    "position": {"kind": "position", "frame": "world"},
    "rotation": {"kind": "rotation", "rotation": "rotvec", "frame": "world"},
    "gripper": {"kind": "gripper"},
}
"""Version 1 named fields without saying their kind; these are the names of its one robot, LIBERO's Panda."""

LIBERO_OF_1: Final = "libero-panda"


def migrated(document: Document, version: int) -> Document:
    """``document`` as one of ``version``. Raises ContractError for a version that is newer, unknown or absent."""
    found = document.get("version")
    if isinstance(found, bool) or not isinstance(found, int):
        raise ContractError(f"no version number: got {found!r}, expected {version} or an older one")
    if found > version:
        raise ContractError(
            f"version {found} is newer than this package, which reads up to {version}; update cosmos-robot"
        )
    while found < version:
        if found not in STEPS:
            raise ContractError(f"version {found} is unknown; this package reads {min(STEPS)} to {version}")
        document, found = STEPS[found](deepcopy(document)), found + 1
    return document


def _from_1(document: Document) -> Document:
    """Version 1 knew one robot, one mode and one formula, (x - middle) / half-range; its fields kept their names."""
    robot = document.get("robot")
    if isinstance(robot, dict) and robot.get("name") == LIBERO_OF_1:
        for side in ("state", "action"):
            for field in robot.get(side) or ():
                if isinstance(field, dict):
                    field.update(FIELDS_OF_1.get(str(field.get("name")), {}))
    return document | {"version": 2}


STEPS: Final[dict[int, Callable[[Document], Document]]] = {1: _from_1}
