"""What two contracts, or a contract and a robot, disagree about."""

from __future__ import annotations

from cosmos_robot.contract.base import plain
from cosmos_robot.contract.document import Contract
from cosmos_robot.contract.robot import RobotSpec
from cosmos_robot.errors import ContractError


def differences(expected: RobotSpec, actual: RobotSpec) -> list[str]:
    """Each disagreement between what a checkpoint was trained for and what a robot reports, in plain words.

    Extra cameras on the robot are allowed; everything else must match by name, order, width, unit and value.
    """
    found = []
    cameras = {c.name: c for c in actual.cameras}
    for camera in expected.cameras:
        other = cameras.get(camera.name)
        if other is None:
            found.append(f"camera {camera.name!r}: expected, but the robot has {sorted(cameras)}")
        elif other != camera:
            found.append(f"camera {camera.name!r}: expected {plain(camera)}, robot gives {plain(other)}")
    for field in RobotSpec.model_fields:
        if field in ("name", "cameras"):
            continue
        want, have = getattr(expected, field), getattr(actual, field)
        if want != have:
            found.append(f"{field}: expected {plain(want)}, robot gives {plain(have)}")
    return found


def require_fit(contract: Contract, actual: RobotSpec) -> None:
    """Raise ContractError naming each field in which ``actual`` differs from the contract's robot."""
    found = differences(contract.robot, actual)
    if found:
        raise ContractError(
            f"checkpoint {contract.model.name!r} (trained for {contract.robot.name!r}) does not fit {actual.name!r}:"
            + "".join(f"\n  - {line}" for line in found)
        )
