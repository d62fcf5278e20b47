"""Recordings held against the contract that they are to be trained under: units, ranges, reference, sizes.

``lint`` finds what is wrong with a dataset by itself; these are the faults that only show once somebody has said what
the numbers are meant to be.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Final

import numpy as np
from numpy.typing import NDArray

from cosmos_robot.contract import FieldSpec
from cosmos_robot.data.bridge import RecordedEpisodes
from cosmos_robot.data.evidence import Evidence
from cosmos_robot.data.findings import Finding
from cosmos_robot.data.guesses import guess_reference
from cosmos_robot.errors import CosmosRobotError

USUAL_SPANS: Final = {"m": (0.005, 5.0), "mm": (5.0, 5000.0), "rad": (0.01, 13.0), "deg": (1.0, 720.0)}
"""What a position or joint moves through in a whole dataset, in each unit: below or above, it is another unit.
Commands that are changes have no usual span, since it is that of one step."""
RANGE_SLACK: Final = 0.05
SMALLEST_SHARE: Final = 0.02
SURE: Final = 0.35


def check_contract(episodes: RecordedEpisodes, most: int = 200) -> list[Finding]:
    """What in up to ``most`` evenly spread episodes contradicts the contract. Pictures of the first one are looked at.

    Raises InputError or CheckpointError for numbers that cannot be read at all.
    """
    robot, recordings = episodes.contract.robot, episodes.recordings
    chosen = np.unique(np.linspace(0, len(episodes) - 1, min(most, len(episodes))).round().astype(int)).tolist()
    parts = [episodes.numbers(index) for index in chosen]
    states, actions = (np.concatenate([p[side] for p in parts]).astype(np.float64) for side in (0, 1))
    targets = robot.action_reference == "absolute"
    found = [*_fields("state", robot.state, states, True), *_fields("action", robot.action, actions, targets)]
    found += _same_units(episodes, parts)
    mapped = tuple(
        (index, replace(recordings[index], state=state, actions=commands))
        for index, (state, commands) in zip(chosen, parts, strict=True)
    )
    found += _reference(robot.action_reference, Evidence(mapped, recordings.fps, {"state": (), "action": ()}))
    found += _lengths(episodes)
    found += _pictures(episodes)
    return found


def _fields(what: str, fields: tuple[FieldSpec, ...], rows: NDArray[np.float64], places: bool) -> Iterator[Finding]:
    """places: whether numbers are where something is, not by how much it moves."""
    start = 0
    for field in fields:
        values = rows[:, start : start + field.width]
        start += field.width
        yield from _range(f"{what} {field.name}", field, values)
        if places:
            yield from _unit(f"{what} {field.name}", field, values)


def _range(where: str, field: FieldSpec, values: NDArray[np.float64]) -> Iterator[Finding]:
    if field.low is None or field.high is None:
        return
    low, high = np.array(field.low), np.array(field.high)
    seen = f"values lie in {values.min():.4g} to {values.max():.4g} {field.unit}, the contract says {low.min():g} to "
    seen += f"{high.max():g}"
    slack = RANGE_SLACK * (high - low)
    outside = ((values < low - slack) | (values > high + slack)).mean()
    if outside > 0:
        what = f"{seen}: {outside:.1%} of them are outside"
        yield Finding("range", "error", where, what, "correct the field's unit or range, or convert the recording")
    elif (np.ptp(values, axis=0) < SMALLEST_SHARE * (high - low)).all():
        what = f"{seen}: all of them lie in {SMALLEST_SHARE:.0%} of it, as numbers of another unit would"
        yield Finding("unit", "error", where, what, "correct the field's unit or range, or convert the recording")


def _unit(where: str, field: FieldSpec, values: NDArray[np.float64]) -> Iterator[Finding]:
    if field.unit not in USUAL_SPANS or field.kind not in ("position", "joint") or field.low is not None:
        return
    least, most = USUAL_SPANS[field.unit]
    span = float(np.quantile(np.ptp(values, axis=0), 0.5))
    if 0 < span < least or span > most:
        what = f"it moves through {span:.3g} {field.unit}; a robot usually does through {least:g} to {most:g}"
        yield Finding("unit", "error", where, what, "state the unit that was recorded, or convert the recording")


def _same_units(episodes: RecordedEpisodes, parts) -> Iterator[Finding]:
    """An absolute command and the state it leads to are the same number, one or a few steps later."""
    robot = episodes.contract.robot
    if robot.action_reference != "absolute":
        return
    starts = {"state": _starts(robot.state), "action": _starts(robot.action)}
    for field in robot.action:
        twin = next((f for f in robot.state if f.name == field.name and f.unit == field.unit), None)
        if twin is None or twin.width != field.width or field.kind not in ("position", "joint"):
            continue
        a, s = starts["action"][field.name], starts["state"][field.name]
        commands = np.concatenate([p[1][:-1, a : a + field.width] for p in parts if len(p[1]) > 1])
        reached = np.concatenate([p[0][1:, s : s + field.width] for p in parts if len(p[1]) > 1])
        factor = _factor(commands.astype(np.float64), reached.astype(np.float64))
        if factor is not None and not 0.5 < factor < 2:
            what = f"commands are about {factor:.3g} times the states they lead to, though both are said to be in "
            remedy = "convert one of them, or state its unit"
            yield Finding("unit", "error", f"action {field.name}", what + field.unit, remedy)


def _starts(fields: tuple[FieldSpec, ...]) -> dict[str, int]:
    ends = np.cumsum([0, *(f.width for f in fields)])
    return {field.name: int(start) for field, start in zip(fields, ends, strict=False)}


def _factor(a: NDArray[np.float64], b: NDArray[np.float64]) -> float | None:
    """How many times larger ``a`` varies than ``b``, None where the two do not go together."""
    a, b = a - a.mean(0), b - b.mean(0)
    along, sizes = (a * b).sum(), np.sqrt((a * a).sum() * (b * b).sum())
    if sizes <= 0 or along / sizes < 0.7:
        return None
    return float(np.sqrt((a * a).sum() / (b * b).sum()))


def _reference(said: str, evidence: Evidence) -> Iterator[Finding]:
    guess = guess_reference(evidence)
    if guess.sure < SURE or guess.answer == "unknown":
        return
    absolute = guess.answer.startswith("absolute")
    if absolute != (said == "absolute"):
        what = f"the contract says commands are {said}, they look like {guess.answer} ({guess.evidence})"
        yield Finding("reference", "error", "action", what, "correct robot.action_reference, or convert the recording")


def _lengths(episodes: RecordedEpisodes) -> Iterator[Finding]:
    chunk = episodes.contract.model.chunk
    short = [index for index, rows in enumerate(episodes.recordings.lengths) if rows < chunk]
    if short:
        what = f"{len(short)} of {len(episodes)} episodes are shorter than a chunk of {chunk} commands"
        yield Finding("short-episode", "warning", f"episode {short[0]}", what, "their tails are masked; expect less")


def _pictures(episodes: RecordedEpisodes) -> Iterator[Finding]:
    for name, theirs in episodes.cameras.items():
        camera = episodes.contract.robot.camera(name)
        try:
            height, width = episodes.recordings.pictures(0, theirs, [0]).shape[1:3]
        except CosmosRobotError as error:
            yield Finding("unreadable", "error", f"camera {name}", str(error), "copy the recording again")
            continue
        if (height, width) != (camera.height, camera.width):
            what = f"pictures are {height}x{width}, the contract says {camera.height}x{camera.width}"
            yield Finding("picture-size", "error", f"camera {name}", what, "correct robot.cameras")
