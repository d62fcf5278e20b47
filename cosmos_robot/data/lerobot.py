"""LeRobot datasets of versions 2.0, 2.1 and 3.0 as ``Recordings``.

Version 3 keeps many episodes in one parquet file and, independently, many in one video file; where an episode lies is
asked of LeRobot's own metadata. Version 2 keeps one file of each kind per episode. Rows are found by their
``episode_index``, frames by their number within the episode.
"""

from __future__ import annotations

import functools
import io
import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from cosmos_robot.data.findings import Finding
from cosmos_robot.data.recordings import SPLIT, Recording, Recordings
from cosmos_robot.data.videos import frame_times, read_frames, require_file
from cosmos_robot.errors import CheckpointError, InputError

STATE_KEYS, ACTION_KEYS = ("observation.state", "state"), ("action", "actions")
IMAGE_PREFIX = "observation.images."
CLOCK_WORDS = ("time", "stamp", "clock")
HALF = 0.5
_VERSIONS = ("v2.0", "v2.1", "v3.0")


class Place(NamedTuple):
    """Where the frames of one episode and camera lie: a file and the second they begin at."""

    path: Path
    start: float


class LeRobotRecordings(Recordings):
    """A LeRobot folder. state, action: the columns to read; None takes the usual names.

    Raises CheckpointError if the tables are missing or damaged, or the columns are not there.
    """

    def __init__(self, path: Path, state: str | None = None, action: str | None = None):
        self.path = path
        info = read_json(path / "meta" / "info.json")
        self.version = str(info.get("codebase_version", "v2.0"))
        if self.version not in _VERSIONS:
            raise CheckpointError(f"{path}: LeRobot {self.version}, expected one of {', '.join(_VERSIONS)}")
        self.layout = f"LeRobot {self.version}"
        self.info: dict[str, Any] = info
        self.features: dict[str, Any] = _known(info, "features", path)
        self.fps = float(_known(info, "fps", path))
        self.robot = str(info.get("robot_type") or "")
        self._state = self._column(state, STATE_KEYS, "state")
        self._action = self._column(action, ACTION_KEYS, "action")
        self.state_names, self.action_names = self._names(self._state), self._names(self._action)
        self._keys = {camera_name(key): key for key, f in self.features.items() if f["dtype"] in ("video", "image")}
        self.cameras = tuple(self._keys)
        tables = _Tables3(path) if self.version == "v3.0" else _Tables2(path, info)
        self.tables: _Tables2 | _Tables3 = tables
        self.lengths = tuple(tables.lengths)
        self._rows = functools.lru_cache(2)(self._read_rows)

    def recording(self, index: int) -> Recording:
        table = self._table(index)
        columns = table.column_names
        for name in (self._state, self._action):
            if name not in columns:
                raise CheckpointError(
                    f"{self.tables.data_file(index)}: no column {name!r} among {columns}, but meta/info.json has it"
                )
        clocks = {n: numbers(table, n)[:, 0].astype(float) for n in columns if n in self._clocks()}
        tasks = self._row_tasks(table)
        return Recording(
            where=f"episode {self.tables.numbers[index]}",
            instruction=tasks[0] if len(tasks) == 1 and tasks[0] else self.tables.instruction(index),
            state=numbers(table, self._state),
            actions=numbers(table, self._action),
            times=clocks.pop("timestamp", None),
            success=self.tables.success(index),
            clocks=clocks,
            tasks=tasks,
        )

    def column(self, index: int, name: str) -> NDArray:
        """Any numeric column of an episode as (N, width). Raises CheckpointError if its file is missing or damaged."""
        table = self._table(index)
        if name not in table.column_names:
            raise CheckpointError(
                f"{self.tables.data_file(index)}: no column {name!r} among {table.column_names}; copy it again"
            )
        return numbers(table, name)

    def pictures(self, index: int, camera: str, rows: Sequence[int] | None = None) -> NDArray[np.uint8]:
        key = self._keys[self.require_camera(camera)]
        rows = list(range(self.lengths[index])) if rows is None else list(rows)
        if rows and not 0 <= min(rows) <= max(rows) < self.lengths[index]:
            raise InputError(f"pictures: got rows {rows}, episode {index} has {self.lengths[index]}")
        if self.features[key]["dtype"] == "image":
            cells = self._table(index).column(key)
            return np.stack([decode_image(cells[row].as_py()["bytes"], f"{camera} row {row}") for row in rows])
        place = self.tables.video(index, key)
        return read_frames(place.path, rows, self.fps, place.start)

    def picture_count(self, index: int, camera: str) -> int:
        key = self._keys[self.require_camera(camera)]
        if self.features[key]["dtype"] == "image":
            return len(self._table(index))
        place = self.tables.video(index, key)
        times, first = self._frame_times(place.path), place.start - HALF / self.fps
        return int(np.count_nonzero((times >= first) & (times < first + self.lengths[index] / self.fps)))

    def inspect_rows(self, index: int) -> list[Finding]:
        table, where = self._table(index), f"episode {self.tables.numbers[index]}"
        found, tasks = [], self._row_tasks(table)
        if len(tasks) > 1:
            what = f"its rows name {len(tasks)} tasks, {', '.join(map(repr, tasks))}; an episode is read with one"
            found.append(Finding("tasks", "error", where, what, SPLIT))
        if "frame_index" not in table.column_names:
            return found
        counted = numbers(table, "frame_index")[:, 0]
        wrong = np.flatnonzero(counted != np.arange(len(counted)))
        if len(wrong):
            row = int(wrong[0])
            what = f"frame_index is {counted[row]:.0f}, expected {row}: rows are missing, doubled or out of order"
            remedy = "sort the rows by frame_index, or write the episode again"
            found.append(Finding("boundary", "error", f"{where} row {row}", what, remedy))
        return found

    def inspect(self, places: Sequence[int] | None = None) -> list[Finding]:
        from cosmos_robot.data.lerobot_files import inspect

        return inspect(self, places)

    def statistics(self) -> Mapping[str, Mapping[str, NDArray[np.float64]]]:
        path = self.path / "meta" / "stats.json"
        if not path.is_file():
            return {}
        stored = read_json(path)
        found = {"state": stored.get(self._state), "action": stored.get(self._action)}
        return {
            what: {k: np.asarray(v, float).reshape(-1) for k, v in values.items()}
            for what, values in found.items()
            if values
        }

    def video_keys(self) -> list[str]:
        """Feature keys of the cameras that are stored as video."""
        return [key for key in self._keys.values() if self.features[key]["dtype"] == "video"]

    @functools.lru_cache(64)  # noqa: B019  files shared by episodes
    def _frame_times(self, path: Path) -> NDArray[np.float64]:
        return frame_times(path)

    def _table(self, index: int) -> Any:
        import pyarrow.compute as pc

        path = self.tables.data_file(index)
        table = self._rows(path)
        if "episode_index" not in table.column_names:
            raise CheckpointError(f"{path}: no column 'episode_index' among {table.column_names}")
        return table.filter(pc.equal(table.column("episode_index"), self.tables.numbers[index]))

    def _row_tasks(self, table: Any) -> tuple[str, ...]:
        """The different texts that an episode's rows name by ``task_index``; "" for a number that has none."""
        if "task_index" not in table.column_names:
            return ()
        texts = self.tables.texts
        return tuple(dict.fromkeys(texts.get(int(n), "") for n in numbers(table, "task_index")[:, 0]))

    def _read_rows(self, path: Path) -> Any:
        import pyarrow as pa
        import pyarrow.parquet as pq

        require_file(path)
        try:
            return pq.ParquetFile(path).read()
        except (pa.ArrowException, OSError) as error:
            raise CheckpointError(f"{path} is no readable parquet file ({error}); copy it again") from error

    def _clocks(self) -> set[str]:
        return {
            name
            for name, feature in self.features.items()
            if any(word in name.lower() for word in CLOCK_WORDS) and _width(feature) == 1
        }

    def _column(self, wanted: str | None, usual: tuple[str, ...], what: str) -> str:
        numeric = [k for k, f in self.features.items() if f["dtype"] not in ("video", "image", "string")]
        for name in (wanted,) if wanted else usual:
            if name in numeric:
                return name
        raise CheckpointError(
            f"{self.path}: no {what} column {wanted or ' or '.join(map(repr, usual))}; the numeric columns are "
            f"{numeric}; name the right one with --{what}"
        )

    def _names(self, key: str) -> tuple[str, ...]:
        """One name per dimension: LeRobot keeps a list, or a list under a heading, or nothing."""
        names = self.features[key].get("names")
        if isinstance(names, Mapping):
            lists = [v for v in names.values() if isinstance(v, list)]
            names = lists[0] if len(lists) == 1 else list(names)
        width = _width(self.features[key])
        return tuple(map(str, names)) if names and len(names) == width else ()


class _Tables3:
    """Version 3: LeRobot's own metadata object says which file an episode is in."""

    def __init__(self, path: Path):
        import pyarrow as pa
        from lerobot.datasets.dataset_metadata import LeRobotDatasetMetadata

        from cosmos_robot.data.lerobot_writing import quiet

        self._path = path
        # LeRobot would turn to the network for a file that is not there.
        require_file(path / "meta" / "tasks.parquet")
        if not sorted((path / "meta" / "episodes").glob("*/*.parquet")):
            raise CheckpointError(f"{path}/meta/episodes holds no table; the dataset is empty or half-written")
        try:
            with quiet():
                self._meta = LeRobotDatasetMetadata("local/dataset", root=path)
            self.texts = {int(number): str(text) for text, number in self._meta.tasks["task_index"].items()}
        except (pa.ArrowException, OSError, KeyError, ValueError, TypeError) as error:
            raise CheckpointError(f"{path}/meta is damaged ({error}); copy it again") from error
        self.entries: list[dict[str, Any]] = list(self._meta.episodes or ())
        self.lengths = [int(entry["length"]) for entry in self.entries]
        self.numbers = [int(entry["episode_index"]) for entry in self.entries]

    def data_file(self, index: int) -> Path:
        return self._path / self._meta.get_data_file_path(index)

    def video(self, index: int, key: str) -> Place:
        start = float(self.entries[index][f"videos/{key}/from_timestamp"])
        return Place(self._path / self._meta.get_video_file_path(index, key), start)

    def instruction(self, index: int) -> str:
        return first_task(self.entries[index])

    def success(self, index: int) -> bool | None:
        return labelled(self.entries[index])


class _Tables2:
    """Versions 2.0 and 2.1: one parquet file and one video file per episode, named by a pattern."""

    def __init__(self, path: Path, info: Mapping[str, Any]):
        self._path, self._info = path, info
        require_file(path / "meta" / "episodes.jsonl")
        self.entries = sorted(read_lines(path / "meta" / "episodes.jsonl"), key=lambda entry: entry["episode_index"])
        if not self.entries:
            raise CheckpointError(f"{path}/meta/episodes.jsonl lists no episode; the dataset is empty or half-written")
        self.lengths = [int(entry["length"]) for entry in self.entries]
        self.numbers = [int(entry["episode_index"]) for entry in self.entries]
        tasks = path / "meta" / "tasks.jsonl"
        listed = read_lines(tasks) if tasks.is_file() else []
        self.texts = {int(e["task_index"]): str(e["task"]) for e in listed if {"task_index", "task"} <= e.keys()}

    def data_file(self, index: int) -> Path:
        return self._path / self._filled(_known(self._info, "data_path", self._path), index)

    def video(self, index: int, key: str) -> Place:
        pattern = _known(self._info, "video_path", self._path)
        return Place(self._path / self._filled(pattern, index, video_key=key), 0.0)

    def instruction(self, index: int) -> str:
        return first_task(self.entries[index])

    def success(self, index: int) -> bool | None:
        return labelled(self.entries[index])

    def _filled(self, pattern: str, index: int, **more: str) -> str:
        number = self.numbers[index]
        chunk = number // int(self._info.get("chunks_size", 1000))
        return pattern.format(episode_chunk=chunk, episode_index=number, **more)


def first_task(entry: Mapping[str, Any]) -> str:
    """The first task text of an episode's entry, "" if it has none."""
    tasks = entry.get("tasks")
    tasks = [tasks] if isinstance(tasks, str) else list(tasks if tasks is not None else ())
    return str(tasks[0]) if tasks else ""


def labelled(entry: Mapping[str, Any]) -> bool | None:
    """The success label of an episode's entry, if somebody added one."""
    value = entry.get("success")
    return None if value is None else bool(value)


def camera_name(key: str) -> str:
    """``observation.images.front`` is the camera ``front``."""
    return key.removeprefix(IMAGE_PREFIX).removeprefix("observation.")


def numbers(table: Any, name: str) -> NDArray:
    """Column ``name`` as (N, width). Raises CheckpointError if its rows are not all of one width."""
    cells = table.column(name).to_pylist()
    try:
        return np.asarray(cells).reshape(len(cells), -1).astype(np.float64 if name == "timestamp" else np.float32)
    except (ValueError, TypeError) as error:
        raise CheckpointError(f"column {name!r}: rows of different widths ({error})") from error


def decode_image(data: bytes, where: str) -> NDArray[np.uint8]:
    """A compressed picture as (H, W, 3). Raises CheckpointError naming ``where`` if it is damaged."""
    from PIL import Image, UnidentifiedImageError

    try:
        return np.asarray(Image.open(io.BytesIO(data)).convert("RGB"))
    except (UnidentifiedImageError, OSError) as error:
        raise CheckpointError(f"{where}: a picture cannot be decoded ({error})") from error


def read_json(path: Path) -> dict[str, Any]:
    """A JSON object. Raises CheckpointError if the file is missing or no JSON object."""
    require_file(path)
    try:
        value = json.loads(path.read_text())
    except (UnicodeDecodeError, json.JSONDecodeError) as error:
        raise CheckpointError(f"{path} is not readable: {error}") from error
    if not isinstance(value, dict):
        raise CheckpointError(f"{path}: expected a JSON object, got {type(value).__name__}")
    return value


def read_lines(path: Path) -> list[dict[str, Any]]:
    """One JSON object per line. Raises CheckpointError naming the line that is none."""
    found = []
    for number, line in enumerate(path.read_text().splitlines(), 1):
        if line.strip():
            try:
                found.append(json.loads(line))
            except json.JSONDecodeError as error:
                raise CheckpointError(f"{path} line {number} is not readable: {error}") from error
    return found


def _known(info: Mapping[str, Any], key: str, path: Path) -> Any:
    if info.get(key) is None:
        raise CheckpointError(f"{path}/meta/info.json: no {key!r} among {sorted(info)}")
    return info[key]


def _width(feature: Mapping[str, Any]) -> int:
    return int(np.prod(feature.get("shape") or (1,)))
