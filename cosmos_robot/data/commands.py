"""``cosmos-robot data lint|stats|convert|show``."""

from __future__ import annotations

import sys
from json import dumps
from pathlib import Path
from typing import Annotated, Any

import tyro

from cosmos_robot.data.findings import Report
from cosmos_robot.errors import InputError

FAULTY = 1


def lint(
    path: Path, pictures: int = 20_000, state: str | None = None, action: str | None = None, json: Path | None = None
) -> int:
    """What is wrong with a dataset, and what its conventions look like. Exit status 1 if there are errors.

    Args:
        path: LeRobot folder (v2.0, v2.1, v3.0), HDF5 file, or folder of HDF5 files.
        pictures: how many pictures to look at in all, evenly spread if there are more.
        state: column or HDF5 dataset of the state, where it is not the usual one.
        action: column or HDF5 dataset of the actions, where it is not the usual one.
        json: file to write the report to, - for the screen.
    """
    from cosmos_robot.data.lint import lint as examine

    report = examine(path, state=state, action=action, pictures=pictures, progress=True)
    if json != Path("-"):
        _print(report)
    _write(report.as_json(), json)
    return FAULTY if report.errors else 0


def stats(paths: tuple[Path, ...], state: str | None = None, action: str | None = None, json: Path = Path("-")) -> None:
    """Statistics of state and action over all rows of one or several datasets together, in one pass.

    Args:
        paths: the datasets; several are measured as one and must agree in widths, names and rate.
        state: column or HDF5 dataset of the state, where it is not the usual one.
        action: column or HDF5 dataset of the actions, where it is not the usual one.
        json: file to write them to, - for the screen.
    """
    from cosmos_robot.data.measure import measure

    _write(measure(paths, state=state, action=action, progress=True), json)


def convert(
    source: Path,
    target: Path,
    fps: float | None = None,
    instruction: str | None = None,
    skip: tuple[int, ...] = (),
    state: str | None = None,
    action: str | None = None,
) -> None:
    """Write a dataset as LeRobot v3, with the numbers bit for bit and the pictures as video.

    Args:
        source: what to read, in any layout that lint knows.
        target: folder to write; it appears once it is whole, nothing is overwritten.
        fps: rows per second, where the files name none.
        instruction: the task, for episodes that name none.
        skip: episodes to leave out, by index from 0.
        state: column or HDF5 dataset of the state, where it is not the usual one.
        action: column or HDF5 dataset of the actions, where it is not the usual one.
    """
    from rich.console import Console

    from cosmos_robot.data.conversion import convert as write

    written = write(
        source, target, fps=fps, instruction=instruction, skip=skip, state=state, action=action, progress=True
    )
    Console(highlight=False).print(f"{written}: whole, read back and equal", soft_wrap=True)


def show(
    path: Annotated[Path, tyro.conf.Positional],
    out: Path,
    episodes: int = 6,
    columns: int = 8,
    state: str | None = None,
    action: str | None = None,
) -> None:
    """A contact sheet, and state and action over time, as PNG files.

    Args:
        path: the dataset, in any layout that lint knows.
        out: folder for sheet.png and plots.png.
        episodes: how many episodes, evenly spread.
        columns: moments of each on the sheet.
        state: column or HDF5 dataset of the state, where it is not the usual one.
        action: column or HDF5 dataset of the actions, where it is not the usual one.
    """
    from rich.console import Console

    from cosmos_robot.data.show import show as draw

    for written in draw(path, out, episodes=episodes, columns=columns, state=state, action=action):
        Console(highlight=False).print(written, soft_wrap=True)


def _write(value: dict[str, Any], path: Path | None) -> None:
    if path is None:
        return
    text = dumps(value, indent=2) + "\n"
    if path == Path("-"):
        sys.stdout.write(text)
        return
    if path.exists():
        raise InputError(f"{path} is already there; choose another file or delete it yourself")
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)


def _print(report: Report) -> None:
    from rich.console import Console
    from rich.table import Column, Table

    console = Console(highlight=False)
    console.print(f"{report.path}: {report.layout}", markup=False, soft_wrap=True)
    for name, value in report.facts.items():
        console.print(f"  {name.replace('_', ' ')}: {value}", markup=False, soft_wrap=True)
    if report.findings:
        columns = [Column(h, overflow="fold") for h in ("", "code", "where", "what", "what to do")]
        table = Table(*columns, box=None, pad_edge=False)
        for f in report.findings:
            colour = "red" if f.severity == "error" else "yellow"
            table.add_row(
                f"[{colour}]{f.severity}[/]", f.code, *(t.replace("[", r"\[") for t in (f.where, f.what, f.remedy))
            )
        console.print(table)
    table = Table("guess", "answer", "sure", "evidence", box=None, pad_edge=False)
    for g in report.guesses:
        table.add_row(g.topic, g.answer, f"{g.sure:.0%}", g.evidence)
    console.print(table)
    console.print(f"{report.errors} errors, {len(report.findings) - report.errors} warnings")
