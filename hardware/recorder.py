"""What a robot was told and what it saw, tick by tick, as a LeRobot v3 dataset of one episode.

One row a control period, so that row number times period is time: periods that the loop skipped, or that the recorder
lost, stand as holds. Columns besides LeRobot's own: ``observation.state``; ``action``, what was really sent, or in a
hold what standing still amounts to; ``hold``; ``observation.time``, when the state was read, in seconds since the first
row; ``late_s``, how late the tick was; ``age_s``, how old the observation behind the command was; with cameras, their
videos and ``picture_row``, the row at which the pictures shown were taken.

The dataset lies in ``FOLDER.partial`` until it is whole. Nothing is overwritten.
"""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from cosmos_robot.actions.layouts import state_vector
from cosmos_robot.contract import RobotSpec
from cosmos_robot.data.lerobot_writing import correct_statistics, open_writer, partial_of, quiet, require_absent
from cosmos_robot.errors import CheckpointError, InputError
from cosmos_robot.hardware.aside import Aside
from cosmos_robot.hardware.gate import columns
from cosmos_robot.hardware.loop import Tick
from cosmos_robot.hardware.robot import standing
from cosmos_robot.types import Image

Pictures = Literal["tick", "question", "none"]
IMAGE = "observation.images."
ABOUT = "meta/recording.json"
VIDEO_FILE_MB = 200


@dataclass(frozen=True)
class RecorderSettings:
    """folder: of the dataset, which must not exist. instruction: of the episode. pictures: of every tick, only of those
    whose observation went to the policy (where drawing takes long), or none. patient: see ``Aside``."""

    folder: Path
    instruction: str
    pictures: Pictures = "tick"
    patient: bool = False


@dataclass(frozen=True)
class _Seen:
    """still: (D,) what standing still would amount to at this moment."""

    pictures: dict[str, Image]
    still: NDArray[np.float64]


@dataclass
class _Row:
    """The last row written, from which gaps are filled."""

    number: int
    state: NDArray[np.float64]
    read_at: float
    still: NDArray[np.float64]
    pictures: dict[str, Image] = field(default_factory=dict)
    drawn_at: int = 0


class Recorder(Aside[_Seen]):
    """Writes a run while it goes on. Call ``close`` after it, or ``abandon``.

    place: where the robot is, laid out as a command (``Robot.position``), for holds before the first command.
    Raises CheckpointError if something is at the folder, InputError for a robot without a state or whose rate is no
    whole number, which LeRobot needs.
    """

    def __init__(self, settings: RecorderSettings, robot: RobotSpec, place: Callable[[], NDArray[np.float64]]):
        require_absent(settings.folder)
        if robot.rate_hz != int(robot.rate_hz):
            raise InputError(f"record: {robot.name!r} runs at {robot.rate_hz} Hz; LeRobot keeps whole rates only")
        if not robot.state:
            raise InputError(f"record: {robot.name!r} reports no state, without which nothing can be recorded")
        self._settings, self._robot, self._place = settings, robot, place
        self._cameras = () if settings.pictures == "none" else robot.cameras
        self._partial = partial_of(settings.folder)
        features = _features(robot, self._cameras)
        with quiet():
            self._writer = open_writer(self._partial, int(robot.rate_hz), features, robot.name, VIDEO_FILE_MB)
        self._start = 0.0
        self._last: _Row | None = None
        self._sent: NDArray[np.float64] | None = None
        self.rows = 0
        super().__init__(settings.patient)

    def _look(self, tick: Tick) -> _Seen:
        if tick.sent is not None:
            self._sent = tick.sent.values
        still = standing(self._robot, self._sent, self._place)
        return _Seen(self._pictures(tick), still)

    def _wanted(self, asked: bool) -> tuple[str, ...]:
        if self._settings.pictures == "question" and not asked:
            return ()
        return tuple(camera.name for camera in self._cameras)

    def close(self, notes: Mapping[str, Any] | None = None) -> Path | None:
        """Finish the dataset and return its folder; None, and no dataset, if there was no tick. notes: whatever JSON
        holds. Raises CheckpointError if writing failed; what there is stays in ``FOLDER.partial``."""
        self.join()
        if self.fault is not None:
            raise CheckpointError(f"recording failed: {self.fault}; what was written lies in {self._partial}")
        if not self.rows:
            self.abandon()
            return None
        with quiet():
            self._writer.save_episode(parallel_encoding=False)
            self._writer.finalize()
        correct_statistics(self._partial)
        about = {"robot": self._robot.model_dump(mode="json"), "lost_ticks": self.lost, **(notes or {})}
        (self._partial / ABOUT).write_text(json.dumps(about) + "\n")
        os.replace(self._partial, self._settings.folder)
        return self._settings.folder

    def abandon(self) -> None:
        """Delete what was written of a run that nobody wants."""
        self.join()
        try:
            self._writer.finalize()  # else its destructor would write once more
        finally:
            shutil.rmtree(self._partial, ignore_errors=True)

    def _take(self, tick: Tick, seen: _Seen) -> None:
        if self._last is None:
            if tick.observation is None or (self._cameras and not seen.pictures):
                return  # nothing was seen yet: the recording begins with the first observation
            self._start = tick.time
            self._last = _Row(tick.number - 1, np.zeros(0), 0.0, seen.still)
        last = self._last
        for _ in range(tick.number - last.number - 1):
            self._add(last, None)
        last.number, last.still = tick.number, seen.still
        if tick.observation is not None:
            last.state = state_vector(self._robot, tick.observation.state)
            last.read_at = tick.observation.time - self._start
        if seen.pictures:
            last.pictures, last.drawn_at = seen.pictures, self.rows
        self._add(last, tick)

    def _add(self, row: _Row, tick: Tick | None) -> None:
        sent = None if tick is None or tick.sent is None else tick.sent.values
        age = tick.due.age_s if tick is not None and tick.due is not None and sent is not None else 0.0
        frame = {
            "observation.state": row.state.astype(np.float32),
            "action": (row.still if sent is None else sent).astype(np.float32),
            "hold": np.array([sent is None]),
            "observation.time": np.array([row.read_at], np.float64),
            "late_s": np.array([0.0 if tick is None else tick.late_s], np.float32),
            "age_s": np.array([age], np.float32),
            **{IMAGE + name: picture for name, picture in row.pictures.items()},
        }
        if self._cameras:
            frame["picture_row"] = np.array([row.drawn_at], np.int64)
        self._writer.add_frame({**frame, "task": self._settings.instruction})
        self.rows += 1


def _features(robot: RobotSpec, cameras: tuple[Any, ...]) -> dict[str, dict[str, Any]]:
    def column(dtype: str, names: list[str]) -> dict[str, Any]:
        return {"dtype": dtype, "shape": (len(names),), "names": names}

    state = [f.name if f.width == 1 else f"{f.name}[{i}]" for f in robot.state for i in range(f.width)]
    features = {"observation.state": column("float32", state), "action": column("float32", list(columns(robot)))}
    kinds = {"hold": "bool", "observation.time": "float64", "late_s": "float32", "age_s": "float32"}
    features |= {name: column(dtype, [name]) for name, dtype in kinds.items()}
    for camera in cameras:
        shape = (camera.height, camera.width, 3)
        features[IMAGE + camera.name] = {"dtype": "video", "shape": shape, "names": ["height", "width", "channels"]}
    if cameras:
        features["picture_row"] = column("int64", ["picture_row"])
    return features
