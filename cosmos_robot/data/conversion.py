"""Any dataset as LeRobot v3, one row per recorded row, by LeRobot's own writer, and read back before it counts."""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Collection, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from rich.console import Console
from rich.progress import track

import cosmos_robot
from cosmos_robot.data.layouts import open_recordings
from cosmos_robot.data.lerobot import IMAGE_PREFIX, LeRobotRecordings
from cosmos_robot.data.lerobot_writing import ahead, correct_statistics, open_writer, partial_of, quiet, require_absent
from cosmos_robot.data.recordings import Recording, Recordings
from cosmos_robot.errors import CheckpointError, InputError, Interrupted

PROVENANCE = "meta/cosmos_robot_source.json"
FAULT = "this is a fault of cosmos-robot, please report it"
VIDEO_FILE_MB = 100


@dataclass(frozen=True, eq=False)
class _Whole:
    """An episode with its pictures, camera to (N, H, W, 3)."""

    recording: Recording
    pictures: dict[str, NDArray[np.uint8]]


def convert(
    source: str | Path,
    target: str | Path,
    *,
    fps: float | None = None,
    instruction: str | None = None,
    skip: Collection[int] = (),
    state: str | None = None,
    action: str | None = None,
    progress: bool = False,
) -> Path:
    """Write the dataset at ``source`` as a LeRobot v3 dataset to ``target`` and return it.

    fps: rows per second where the files name none. instruction: for episodes without one. skip: episodes left out, by
    index. state, action: as for ``open_recordings``. States and actions are kept as float32 bit for bit, pictures as
    video (settings in ``video.py``); ``meta/cosmos_robot_source.json`` tells where each episode came from.
    Nothing is overwritten, and ``target`` appears only once it is whole. Raises InputError naming the episode that
    LeRobot cannot hold, CheckpointError for a damaged source, Interrupted on Ctrl-C.
    """
    target = Path(target)
    require_absent(target)
    recordings = open_recordings(source, state=state, action=action)
    kept = [index for index in range(len(recordings)) if index not in skip]
    unknown = sorted(set(skip) - set(range(len(recordings))))
    if unknown or not kept:
        raise InputError(f"skip: got {sorted(skip)} of episodes 0 to {len(recordings) - 1}, at least one must stay")
    rate = _rate(recordings, fps)
    partial = partial_of(target)
    try:
        with quiet():
            _write(recordings, kept, partial, rate, instruction, progress)
        _require_equal(recordings, kept, partial)
    except KeyboardInterrupt as stop:
        shutil.rmtree(partial, ignore_errors=True)
        raise Interrupted(
            f"stopped while writing {target}; nothing is left of it, run the same command again"
        ) from stop
    except BaseException:
        shutil.rmtree(partial, ignore_errors=True)
        raise
    os.replace(partial, target)
    return target


def _write(
    recordings: Recordings, kept: list[int], folder: Path, fps: int, instruction: str | None, progress: bool
) -> None:
    writer: Any = None
    shown = {"total": len(kept), "console": Console(stderr=True), "disable": not progress, "transient": True}
    try:
        for whole in track(ahead(_read(recordings, kept)), "converting", **shown):
            recording = whole.recording
            task = recording.instruction.strip() or (instruction or "").strip()
            _require_storable(recording, task)
            columns = {
                **{IMAGE_PREFIX + name: frames for name, frames in whole.pictures.items()},
                "observation.state": recording.state.astype(np.float32),
                "action": recording.actions.astype(np.float32),
            }
            if writer is None:
                features = _features(recordings, columns)
                writer = open_writer(folder, fps, features, recordings.robot or None, VIDEO_FILE_MB)
            _require_shapes(recording, columns, features)
            for row in range(len(recording)):
                writer.add_frame({**{name: value[row] for name, value in columns.items()}, "task": task})
            writer.save_episode(parallel_encoding=False)
    finally:
        if writer is not None:
            writer.finalize()  # its destructor would write once more, after the folder is gone
    correct_statistics(folder)
    _write_provenance(recordings, kept, folder)


def _read(recordings: Recordings, kept: list[int]) -> Iterator[_Whole]:
    for index in kept:
        yield _Whole(recordings[index], {name: recordings.pictures(index, name) for name in recordings.cameras})


def _features(recordings: Recordings, columns: dict[str, NDArray]) -> dict[str, dict[str, Any]]:
    names = {"observation.state": recordings.state_names, "action": recordings.action_names}
    found: dict[str, dict[str, Any]] = {}
    for name, value in columns.items():
        if name in names:
            found[name] = {"dtype": "float32", "shape": value.shape[1:], "names": list(names[name]) or None}
        else:
            found[name] = {"dtype": "video", "shape": value.shape[1:], "names": ["height", "width", "channels"]}
    return found


def _require_storable(recording: Recording, task: str) -> None:
    where = recording.where
    if len(recording) < 2:
        raise InputError(f"{where}: {len(recording)} rows, LeRobot's statistics need 2; leave it out with --skip")
    if len(recording.state) != len(recording):
        raise InputError(
            f"{where}: {len(recording.state)} states for {len(recording)} actions; leave the episode out with --skip"
        )
    if not task:
        raise InputError(f"{where}: no instruction is stored; give one with --instruction")
    for what, value in (("state", recording.state), ("actions", recording.actions)):
        if not np.isfinite(value).all():
            row = int(np.argwhere(~np.isfinite(value))[0][0])
            raise InputError(f"{where} row {row}: the {what} is not finite; leave the episode out with --skip")


def _require_shapes(recording: Recording, columns: dict[str, NDArray], features: dict[str, Any]) -> None:
    for name, value in columns.items():
        if value.shape[1:] != tuple(features[name]["shape"]) or len(value) != len(recording):
            raise InputError(
                f"{recording.where}: {name} is {value.shape}, the episodes before have (rows, "
                f"{features[name]['shape']}); leave the episode out with --skip"
            )


def _rate(recordings: Recordings, fps: float | None) -> int:
    known = recordings.fps
    if fps is not None and known is not None and abs(fps - known) > 1e-6:
        raise InputError(f"fps: got {fps:g}, but the files say {known:g}; leave --fps out")
    rate = known if fps is None else fps
    if rate is None:
        raise InputError(f"{recordings.path}: the files name no frame rate; give it with --fps")
    if not rate > 0 or rate != int(rate):
        raise InputError(f"fps: got {rate:g}; LeRobot needs a whole number of at least 1")
    return int(rate)


def _write_provenance(recordings: Recordings, kept: list[int], folder: Path) -> None:
    episodes = [
        {"source": r.where, "success": r.success, "rows": len(r)} for r in (recordings[index] for index in kept)
    ]
    about = {
        "source": recordings.path.name,
        "layout": recordings.layout,
        "cosmos_robot": cosmos_robot.__version__,
        "episodes": episodes,
    }
    (folder / PROVENANCE).write_text(json.dumps(about, indent=1) + "\n")


def _require_equal(recordings: Recordings, kept: list[int], folder: Path) -> None:
    """Read the new dataset: every number equal, every picture there."""
    written = LeRobotRecordings(folder)
    if written.lengths != tuple(recordings.lengths[index] for index in kept):
        raise CheckpointError(f"{folder}: wrote {written.lengths} rows; {FAULT}")
    for number, index in enumerate(kept):
        one, other = written[number], recordings[index]
        same = np.array_equal(one.state, other.state.astype(np.float32)) and np.array_equal(
            one.actions, other.actions.astype(np.float32)
        )
        counts = [written.picture_count(number, name) for name in written.cameras]
        if not same or any(count != len(one) for count in counts):
            raise CheckpointError(f"{folder}: episode {number} does not read back as {other.where}; {FAULT}")
