"""Faults of a LeRobot folder's files and tables, found without decoding anything."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np

from cosmos_robot.data.evidence import listed
from cosmos_robot.data.findings import Finding
from cosmos_robot.data.lerobot import LeRobotRecordings
from cosmos_robot.data.videos import frame_times
from cosmos_robot.errors import CheckpointError

RATE_TOLERANCE = 0.02
COPY = "copy the dataset again, or remove its episodes from the tables"


def inspect(recordings: LeRobotRecordings, places: Sequence[int] | None = None) -> list[Finding]:
    """Counts, missing and stray files, boundaries of episodes within shared files, rate of the videos. places: of the
    episodes that matter (all by default); what is wrong with others alone is a warning."""
    found = [
        *_counts(recordings),
        *_boundaries(recordings),
        *_files(recordings),
        *_videos(recordings),
    ]
    kept = set(range(len(recordings)) if places is None else places)
    others = set(range(len(recordings))) - kept
    alone = _wheres(recordings, others) - _wheres(recordings, kept)
    return [replace(f, severity="warning") if f.where in alone else f for f in found]


def _wheres(recordings: LeRobotRecordings, places: Iterable[int]) -> set[str]:
    """What findings at these episodes and their files are said to be at."""
    tables, found = recordings.tables, set()
    for index in places:
        files = [tables.data_file(index), *(tables.video(index, key).path for key in recordings.video_keys())]
        found |= {f"episode {tables.numbers[index]}", *(str(path.relative_to(recordings.path)) for path in files)}
    return found


def _counts(recordings: LeRobotRecordings) -> Iterator[Finding]:
    for key, found in (("total_episodes", len(recordings)), ("total_frames", sum(recordings.lengths))):
        stated = recordings.info.get(key)
        if stated is not None and int(stated) != found:
            what = f"{key} is {stated}, the table of episodes holds {found}"
            yield Finding("count", "error", "meta/info.json", what, "correct it, or copy what is missing")


def _boundaries(recordings: LeRobotRecordings) -> Iterator[Finding]:
    """Version 3: rows of the whole dataset and seconds of a video file, each episode behind the one before."""
    ends: dict[str, float] = defaultdict(float)
    for index, entry in enumerate(recordings.tables.entries):
        if "dataset_from_index" not in entry:
            return
        where = f"episode {recordings.tables.numbers[index]}"
        first, last, rows = entry["dataset_from_index"], entry["dataset_to_index"], recordings.lengths[index]
        if (first, last) != (ends["rows"], ends["rows"] + rows):
            what = f"rows {first} to {last} in the table, expected {int(ends['rows'])} to {int(ends['rows']) + rows}"
            yield Finding("boundary", "error", where, what, "write the dataset again: rows of another episode are read")
        ends["rows"] = last
        for key in recordings.video_keys():
            place = recordings.tables.video(index, key)
            if place.start < ends[str(place.path)] - 0.5 / recordings.fps:
                what = f"{key} begins at {place.start:.3f} s of {place.path.name}, the episode before ends at "
                what += f"{ends[str(place.path)]:.3f} s"
                yield Finding("boundary", "error", where, what, "write the dataset again: frames of another are read")
            ends[str(place.path)] = place.start + rows / recordings.fps


def _files(recordings: LeRobotRecordings) -> Iterator[Finding]:
    users: dict[Path, list[int]] = defaultdict(list)
    for index, number in enumerate(recordings.tables.numbers):
        users[recordings.tables.data_file(index)].append(number)
        for key in recordings.video_keys():
            users[recordings.tables.video(index, key).path].append(number)
    for path, numbers in users.items():
        if not path.is_file():
            what = f"missing; it holds episodes {listed(sorted(set(numbers)))}"
            yield Finding("missing-file", "error", str(path.relative_to(recordings.path)), what, COPY)
    root = recordings.path
    present = [*root.glob("data/**/*.parquet"), *root.glob("videos/**/*.mp4")]
    stray = sorted(str(path.relative_to(root)) for path in present if path not in users)
    if stray:
        yield Finding(
            "stray-file", "warning", listed(stray), "no episode in the tables uses it", "delete it, or list it"
        )


def _videos(recordings: LeRobotRecordings) -> Iterator[Finding]:
    places = [recordings.tables.video(i, k).path for i in range(len(recordings)) for k in recordings.video_keys()]
    for path in dict.fromkeys(places):
        if not path.is_file():
            continue
        where = str(path.relative_to(recordings.path))
        try:
            times = frame_times(path)
        except CheckpointError as error:
            yield Finding("unreadable", "error", where, str(error), COPY)
            continue
        rate = 1 / float(np.median(np.diff(times))) if len(times) > 1 else recordings.fps
        if abs(rate / recordings.fps - 1) > RATE_TOLERANCE:
            what = f"the video has {rate:.4g} frames per second, the dataset {recordings.fps:g}"
            yield Finding("rate", "error", where, what, "encode it again at the dataset's rate")
