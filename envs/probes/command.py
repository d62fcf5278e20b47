"""``cosmos-robot probe``."""

from __future__ import annotations

import json as json_text
import sys
from pathlib import Path

from rich.console import Console
from rich.table import Table

from cosmos_robot import envs
from cosmos_robot.backbone.cosmos3.folder import find_checkpoint
from cosmos_robot.contract import Contract, read_contract
from cosmos_robot.envs.probes import Report, probe

COLOURS = {"holds": "green", "violated": "red", "not applicable": "yellow"}


def main_probe(env: str, contract: str | None = None, only: tuple[str, ...] = (), json: Path | None = None) -> int:
    """Prove a contract on a simulated robot: the gripper, the axes, the cameras, the pose, the clock. Exit status 1 if
    a claim is false.

    Args:
        env: environment, for instance libero_object/0.
        contract: contract file, or checkpoint (shipped name or folder), to hold it against; its own spec if not given.
        only: names of probes; all if not given.
        json: file to write the findings to; - for the standard output.
    """
    expected = None if contract is None else find_contract(contract).robot
    with envs.make(env) as world:
        report = probe(world, expected, only)
    content = json_text.dumps({"env": env, "contract": contract} | report.as_json(), indent=2)
    if str(json) == "-":
        sys.stdout.write(content + "\n")
    else:
        Console().print(_table(env, report))
        Console().print(_summary(report), highlight=False, markup=False, soft_wrap=True)
        if json:
            json.parent.mkdir(parents=True, exist_ok=True)
            json.write_text(content + "\n")
    return 0 if report.holds else 1


def find_contract(name: str) -> Contract:
    """The contract in the file ``name``, or of the checkpoint of that name. Raises ContractError or CheckpointError."""
    path = Path(name)
    return read_contract(path) if path.is_file() else Contract.load(find_checkpoint(name).folder)


def _table(env: str, report: Report) -> Table:
    table = Table(title=f"{env}, held against {report.spec}", box=None, header_style="bold", pad_edge=False)
    for heading in ("probe", "contract field", "", "measured", "expected"):
        table.add_column(heading, overflow="fold")
    for f in report.findings:
        measured = f.measured if f.status != "not applicable" else f.why
        table.add_row(f.probe, f.field, f"[{COLOURS[f.status]}]{f.status}[/]", measured, f.expected)
    return table


def _summary(report: Report) -> str:
    if report.holds:
        return f"every claim holds ({report.seconds:.0f} s)"
    return "false: " + ", ".join(report.violated)
