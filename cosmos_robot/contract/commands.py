"""``cosmos-robot contract ...``: contracts shown, compared and checked."""

from __future__ import annotations

from json import dumps
from typing import Literal

from pydantic import BaseModel
from rich.console import Console
from rich.table import Table

from cosmos_robot.contract.document import Contract
from cosmos_robot.contract.library import contract_names, load_contract, load_robot, robot_names
from cosmos_robot.contract.robot import RobotSpec
from cosmos_robot.contract.words import describe, diff
from cosmos_robot.errors import UnknownNameError


def contract_list() -> None:
    """The contracts and robots that come with the package."""
    console = Console()
    console.print("contracts: " + ", ".join(contract_names()), markup=False)
    console.print("robots: " + ", ".join(robot_names()), markup=False)


def contract_show(contract: str, json: bool = False) -> None:
    """Every field of a contract, in words. A robot's name shows the robot.

    Args:
        contract: name (``cosmos-robot contract list`` tells them), checkpoint folder or JSON file.
        json: print the JSON instead.
    """
    found = contract_or_robot(contract)
    if json:
        print(found.model_dump_json(indent=2))  # noqa: T201
        return
    console = Console()
    for section, lines in describe(found).items():
        console.print(f"[bold]{section}[/]")
        table = Table(box=None, show_header=False, padding=(0, 2, 0, 2))
        table.add_column(overflow="fold", max_width=40)
        table.add_column(overflow="fold")
        for label, value in lines.items():
            if value != "none":
                table.add_row(label, value)
        console.print(table, markup=False)


def contract_diff(first: str, second: str) -> None:
    """What two contracts tell differently, under headings.

    Args:
        first: name, checkpoint folder or JSON file.
        second: the same.
    """
    told = diff(load_contract(first), load_contract(second))
    console = Console()
    if not told:
        console.print(f"{first} and {second} are equal", markup=False)
        return
    for section in dict.fromkeys(t.section for t in told):
        table = Table(box=None, title=section, title_justify="left", title_style="bold", padding=(0, 2, 0, 0))
        for heading in ("", first, second):
            table.add_column(heading, overflow="fold", ratio=1 if heading else None, max_width=None if heading else 32)
        for t in told:
            if t.section == section:
                table.add_row(t.label, t.first, t.second)
        console.print(table, markup=False)


def contract_schema(part: Literal["contract", "robot"] = "contract") -> None:
    """The JSON schema of a contract file.

    Args:
        part: the whole contract, or the robot alone.
    """
    model: type[BaseModel] = Contract if part == "contract" else RobotSpec
    print(dumps(model.model_json_schema(mode="serialization"), indent=2))  # noqa: T201


def contract_or_robot(ref: str) -> Contract | RobotSpec:
    """A robot or a contract by name, a folder's or a file's contract. Raises UnknownNameError with the nearest."""
    return load_robot(ref) if ref in robot_names() else _load(ref)


def _load(ref: str) -> Contract:
    try:
        return load_contract(ref)
    except UnknownNameError:
        raise UnknownNameError("contract or robot", ref, [*contract_names(), *robot_names()]) from None
