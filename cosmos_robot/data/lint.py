"""``lint``: what is wrong with a dataset, and what its conventions look like."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from rich.console import Console
from rich.progress import track

from cosmos_robot.data import lint_numbers as numbers
from cosmos_robot.data import lint_pictures as looking
from cosmos_robot.data.evidence import Evidence
from cosmos_robot.data.findings import Finding, Report
from cosmos_robot.data.guesses import check_gripper, guess_conventions
from cosmos_robot.data.layouts import open_recordings
from cosmos_robot.data.lint_pictures import CameraLook
from cosmos_robot.data.recordings import Chosen, Recordings
from cosmos_robot.data.sheet import spread as evenly
from cosmos_robot.errors import CheckpointError, InputError

BLOCK = 64
REREAD = "copy it again, or drop the episode"


def lint(
    path: str | Path,
    *,
    state: str | None = None,
    action: str | None = None,
    pictures: int = 20_000,
    places: Sequence[int] | None = None,
    progress: bool = False,
) -> Report:
    """Read a dataset once and report faults and guesses.

    state, action: as for ``open_recordings``. pictures: how many to look at in all; where there are more, each episode
    and camera is sampled evenly. places: the episodes to look at, by their index in the dataset; all by default. The
    numbers of all rows are held in memory (1 million rows of 20: 80 MB).
    Raises CheckpointError if there is no dataset at ``path`` or its tables cannot be read; what is wrong with single
    files and episodes becomes findings.
    """
    if pictures < 0:
        raise InputError(f"pictures: got {pictures}, expected 0 or more")
    recordings = open_recordings(path, state=state, action=action, strict=False)
    if places is not None and len(places) < len(recordings):
        recordings = Chosen(recordings, places)
    findings = recordings.inspect()
    episodes, unreadable = _episodes(recordings, findings)
    names = {"state": recordings.state_names, "action": recordings.action_names}
    evidence = Evidence(tuple(episodes), recordings.fps, names)
    looks, unseen = _look(recordings, evidence, findings + unreadable, pictures, progress)
    findings += [*unreadable, *unseen, *_number_findings(recordings, evidence), *_picture_findings(evidence, looks)]
    findings.sort(key=lambda finding: finding.severity)
    facts = _facts(recordings, evidence, looks)
    return Report(str(path), recordings.layout, facts, tuple(findings), tuple(guess_conventions(evidence, looks)))


def _episodes(recordings: Recordings, known: list[Finding]) -> tuple[list, list[Finding]]:
    episodes, findings = [], []
    for index in range(len(recordings)):
        try:
            episodes.append((index, recordings[index]))
            findings += recordings.inspect_rows(index)
        except CheckpointError as error:
            if not any(finding.where in str(error) for finding in known):
                place = recordings.places[index] if isinstance(recordings, Chosen) else index
                findings.append(Finding("unreadable", "error", f"episode {place}", str(error), REREAD))
    return episodes, findings


def _look(
    recordings: Recordings, evidence: Evidence, known: list[Finding], most: int, progress: bool
) -> tuple[list[CameraLook], list[Finding]]:
    total = sum(recordings.lengths) * len(recordings.cameras)
    share = min(1.0, most / total) if total else 0.0
    looks, findings = [], []
    shown = {"console": Console(stderr=True), "disable": not progress, "transient": True}
    for index, recording in track(evidence.episodes, "looking", **shown):
        rows = evenly(len(recording), max(2, round(share * len(recording)))) if share and len(recording) else []
        for camera in recordings.cameras:
            look = CameraLook(recording.where, camera)
            try:
                count = recordings.picture_count(index, camera)
                if count != recordings.lengths[index]:
                    what = f"{count} pictures for {recordings.lengths[index]} rows"
                    remedy = "encode or copy the pictures again, or drop the episode"
                    findings.append(Finding("picture-count", "error", f"{recording.where} {camera}", what, remedy))
                _see(recordings, index, camera, [row for row in rows if row < count], look)
            except CheckpointError as error:
                if not any(finding.where in str(error) for finding in known):
                    findings.append(Finding("unreadable", "error", f"{recording.where} {camera}", str(error), REREAD))
            looks.append(look)
    return looks, findings


def _see(recordings: Recordings, index: int, camera: str, rows: list[int], look: CameraLook) -> None:
    for first in range(0, len(rows), BLOCK):
        block = rows[first : first + BLOCK]
        for row, picture in zip(block, recordings.pictures(index, camera, block), strict=True):
            look.add(row, picture)


def _number_findings(recordings: Recordings, evidence: Evidence) -> Iterator[Finding]:
    yield from numbers.check_episodes(evidence, dict(enumerate(recordings.lengths)))
    yield from numbers.check_finite(evidence)
    yield from numbers.check_times(evidence)
    yield from numbers.check_dimensions(evidence)
    yield from numbers.check_idle(evidence)
    yield from numbers.check_duplicates(evidence)
    yield from numbers.check_scale(evidence)
    yield from numbers.check_statistics(evidence, recordings.statistics())
    yield from check_gripper(evidence)


def _picture_findings(evidence: Evidence, looks: list[CameraLook]) -> Iterator[Finding]:
    width = evidence.motion()
    states = {recording.where: recording.state for _, recording in evidence.whole()}
    for look in looks:
        yield from looking.check_blank(look)
        if look.where in states:
            yield from looking.check_frozen(look, states[look.where], width)
    yield from looking.check_sizes(looks)
    yield from looking.check_views(looks)


def _facts(recordings: Recordings, evidence: Evidence, looks: list[CameraLook]) -> dict[str, Any]:
    lengths = [len(recording) for _, recording in evidence.episodes]
    idle = numbers.idle_shares(evidence)
    tasks = {recording.instruction for _, recording in evidence.episodes}
    labels = [recording.success for _, recording in evidence.episodes if recording.success is not None]
    return {
        "episodes": len(recordings),
        "rows": sum(lengths),
        "shortest": min(lengths, default=0),
        "longest": max(lengths, default=0),
        "fps": recordings.fps,
        "robot": recordings.robot,
        "cameras": {
            c: sorted({f"{k.size[0]}x{k.size[1]}" for k in looks if k.camera == c and k.rows})
            for c in recordings.cameras
        },
        "state_width": evidence.widths["state"],
        "action_width": evidence.widths["action"],
        "tasks": len(tasks),
        "success": f"{sum(labels)} of {len(labels)}" if labels else None,
        "idle_share": float(np.mean(list(idle.values()))) if idle else 0.0,
        "pictures_seen": sum(len(look.rows) for look in looks),
        "pictures": sum(recordings.lengths) * len(recordings.cameras),
    }
