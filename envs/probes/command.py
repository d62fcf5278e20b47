"""``cosmos-robot probe``."""

from __future__ import annotations

import json as json_text
import sys
from dataclasses import replace
from pathlib import Path

from rich.console import Console
from rich.table import Table

from cosmos_robot import envs
from cosmos_robot.contract import Contract, RobotSpec, contract_names, load_contract
from cosmos_robot.contract.base import plain
from cosmos_robot.contract.commands import contract_or_robot
from cosmos_robot.envs.probes import Finding, Report, probe
from cosmos_robot.envs.probes.trial import verdict

COLOURS = {"holds": "green", "violated": "red", "not applicable": "yellow"}


def main_probe(env: str, contract: str | None = None, only: tuple[str, ...] = (), json: Path | None = None) -> int:
    """Prove a contract on a simulated robot: the gripper, the axes, the cameras, the pose, the clock. Exit status 1 if
    a claim is false.

    Args:
        env: environment, for instance libero_object/0.
        contract: what to hold it against, a contract or robot by name, a checkpoint folder or a JSON file; its own spec
            if not given.
        only: names of probes; all if not given.
        json: file to write the findings to; - for the standard output.
    """
    claims = None if contract is None else contract_or_robot(contract)
    spec: RobotSpec | None = claims.robot if isinstance(claims, Contract) else claims
    with envs.make(env) as world:
        report = probe(world, spec, only)
    if isinstance(claims, Contract) and not only:
        report = replace(report, findings=(*report.findings, *published(claims)))
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


def published(contract: Contract) -> list[Finding]:
    """No physics tells which camera a model had where on its canvas: that is held against the contract that was
    published under the model's name."""
    name = contract.model.name
    if name not in contract_names():
        why = f"no contract is published under the name {name!r}"
        return [Finding("canvas", "model.canvas", "not applicable", why=why)]
    known, claimed = load_contract(name).model.canvas, contract.model.canvas
    return [
        verdict("canvas", f"model.canvas.{field}", getattr(known, field) == getattr(claimed, field),
                f"published: {plain(getattr(known, field))}", plain(getattr(claimed, field)))
        for field in ("placements", "orientation")
    ]  # fmt: skip


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
