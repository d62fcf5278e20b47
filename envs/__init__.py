"""Simulators behind one gymnasium interface, created by name."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from cosmos_robot.errors import UnknownNameError
from cosmos_robot.registry import Registry

if TYPE_CHECKING:
    from cosmos_robot.envs.base import RobotEnv

FAMILIES = Registry("environment family")
"""Family name (the part of an env's name before the first ``_`` or ``/``) to a module-level ``Family``."""

FAMILIES.add("libero", "cosmos_robot.envs.libero:FAMILY")
FAMILIES.add("droid", "cosmos_robot.envs.droid:FAMILY")
FAMILIES.add("aloha", "cosmos_robot.envs.aloha:FAMILY")
FAMILIES.add("pusht", "cosmos_robot.envs.pusht:FAMILY")
FAMILIES.add("robocasa", "cosmos_robot.envs.robocasa:FAMILY")
FAMILIES.add("fake", "cosmos_robot.envs.fakes:FAMILY")


def make(name: str, **options: Any) -> RobotEnv:
    """The environment called ``name``, for instance ``"libero_object/3"``; ``options`` go to its constructor.

    Raises UnknownNameError with the nearest names, DependencyError if the simulator is not installed.
    """
    return _family(name).make(name, **options)


def speaking(name: str, robot: str) -> dict[str, str]:
    """Options of ``make`` under which the environment ``name`` reports and obeys as ``robot``: none where its family
    knows one robot only."""
    key = _key(name)
    known = getattr(FAMILIES.get(key), "robots", ()) if key in FAMILIES else ()
    return {"robot": robot} if robot in known else {}


def list_envs(family: str) -> list[str]:
    """All environment names of one family."""
    return FAMILIES.get(family).names()


def known(name: str) -> list[str]:
    """All environment names of the family that ``name`` would belong to. Raises UnknownNameError if there is none."""
    return _family(name).names()


def _key(name: str) -> str:
    return name.split("/")[0].split("_")[0]


def _family(name: str):
    key = _key(name)
    if key not in FAMILIES:
        raise UnknownNameError(f"environment {name!r}: no family", key, FAMILIES)
    return FAMILIES.get(key)
