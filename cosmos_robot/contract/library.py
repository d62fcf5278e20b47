"""Contracts and robots that come with the package, by name."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Final

from pydantic import ValidationError

from cosmos_robot.contract.document import CONTRACT_FILE, Contract, read_contract
from cosmos_robot.contract.robot import RobotSpec
from cosmos_robot.errors import ContractError, UnknownNameError

ASSETS: Final = Path(__file__).parent.parent / "assets"


def contract_names() -> list[str]:
    """Contracts that ``load_contract`` knows: those of released checkpoints, and those of the shipped ones."""
    released = [path.stem for path in (ASSETS / "contracts").glob("*.json")]
    shipped = [path.parent.name for path in ASSETS.glob(f"*/{CONTRACT_FILE}")]
    return sorted([*released, *shipped])


def load_contract(ref: str | Path) -> Contract:
    """The contract of a name, of a checkpoint's folder or of a JSON file. Raises UnknownNameError with the nearest
    names, ContractError if what is there is no contract."""
    path = Path(ref)
    for file in (ASSETS / "contracts" / f"{ref}.json", ASSETS / str(ref) / CONTRACT_FILE):
        if str(ref) in contract_names() and file.is_file():
            return read_contract(file)
    if path.is_dir():
        return Contract.load(path)
    if path.is_file():
        return read_contract(path)
    raise UnknownNameError("contract", str(ref), contract_names())


def robot_names() -> list[str]:
    """Robots that ``load_robot`` knows."""
    return sorted(path.stem for path in (ASSETS / "robots").glob("*.json"))


def load_robot(name: str) -> RobotSpec:
    """A robot by name. Raises UnknownNameError with the nearest names."""
    if name not in robot_names():
        raise UnknownNameError("robot", name, robot_names())
    path = ASSETS / "robots" / f"{name}.json"
    try:
        return RobotSpec.model_validate(json.loads(path.read_text()))
    except (ValueError, ValidationError) as error:
        raise ContractError(f"{path} describes no robot: {error}") from error
