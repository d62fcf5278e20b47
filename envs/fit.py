"""``cosmos-robot contract check``: whether a checkpoint fits a robot, before anything is loaded."""

from __future__ import annotations

from pathlib import Path

from rich.console import Console
from rich.markup import escape

from cosmos_robot.contract import (
    Contract,
    RobotSpec,
    compatible,
    contract_names,
    load_contract,
    robot_names,
)
from cosmos_robot.contract.commands import contract_or_robot
from cosmos_robot.envs import FAMILIES, make, speaking

COLOURS = {"refuse": "red", "convert": "yellow", "warn": "cyan"}


def contract_check(checkpoint: str, robot: str) -> int:
    """Whether a checkpoint fits a robot or an environment: each difference, and whether it is refused, converted or
    only told. Exit status 1 if it is refused.

    Args:
        checkpoint: contract name, checkpoint folder or JSON file.
        robot: name of a robot, an environment (``libero_object/0``), a contract, or the same as a folder or a file.
    """
    contract = load_contract(checkpoint)
    found = compatible(contract, robot_side(robot, contract.robot.name))
    console = Console()
    if not found:
        console.print(f"{checkpoint} fits {robot}: no difference", markup=False)
        return 0
    for difference in found:
        colour = COLOURS[difference.verdict]
        console.print(f"[{colour}]{difference.verdict:<8}[/]{escape(difference.sentence)}", soft_wrap=True)
    refused = sum(d.verdict == "refuse" for d in found)
    console.print(f"{checkpoint} does not fit {robot}: {refused} refused" if refused else f"{checkpoint} fits {robot}")
    return 1 if refused else 0


def robot_side(ref: str, asked: str = "") -> Contract | RobotSpec:
    """What an environment reports, as the robot ``asked`` if it can be that one; or a robot or contract by name, folder
    or file."""
    known = ref in robot_names() or ref in contract_names() or Path(ref).exists()
    if known or ref.split("/")[0].split("_")[0] not in FAMILIES:
        return contract_or_robot(ref)
    with make(ref, **speaking(ref, asked)) as env:
        return env.robot
