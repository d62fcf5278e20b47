"""Episodes as a LeRobot v3 dataset on disk, written and read offline with LeRobot's own library.

Columns: ``observation.images.<camera>`` (video), ``observation.state``, ``action`` (the first command of a row),
``action_chunk`` (T, Da), ``action_chunk_valid`` (T,), ``privileged.<name>`` for extras; the task is the instruction.
``meta/cosmos_robot.json`` holds what LeRobot has no place for: the robot, the episodes' infos and the size of every
file. It is written last, and a folder is opened only if everything it lists is there.

Pictures are stored as video (settings in ``video.py``), not as PNG inside parquet. Measured on 293 demonstrations in
LIBERO (24 rows on average, two cameras of 256x256): 0.27 s of processor time to write an episode, 0.08 s to read it,
0.82 MB, 44.7 dB for the worst picture. PNG took 1.5 s to write and 3.1 MB for an episode of 20 rows, only to be
lossless. Most of the writing time left is LeRobot's handling of its parquet rows.
"""

from __future__ import annotations

import hashlib
import json
import operator
import os
import shutil
from collections.abc import Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from rich.console import Console
from rich.progress import track

from cosmos_robot.contract import RobotSpec
from cosmos_robot.data.episodes import Episode, EpisodeInfo, require_storable
from cosmos_robot.data.lerobot_writing import (
    REPOSITORY,
    VIDEO_FILE_MB,
    ahead,
    correct_statistics,
    open_writer,
    partial_of,
    quiet,
    remedy,
    require_absent,
)
from cosmos_robot.errors import CheckpointError, InputError

SIDECAR = "meta/cosmos_robot.json"
VERSION = 1
IMAGE, PRIVILEGED = "observation.images.", "privileged."


def write_dataset(
    episodes: Iterable[Episode],
    folder: str | Path,
    robot: RobotSpec,
    *,
    stride: int,
    fps: int | None = None,
    notes: Mapping[str, Any] | None = None,
    total: int | None = None,
    progress: bool = False,
) -> Path:
    """Write ``episodes`` of ``robot`` to ``folder`` and return it.

    stride: control steps between rows. fps: the dataset's rate; ``robot.rate_hz / stride`` where not given, which then
    must be a whole number, for LeRobot.
    notes: anything JSON can hold, kept in the sidecar. total: number of episodes, for the progress bar.
    All episodes share chunk length and extras. Raises InputError otherwise, and CheckpointError if ``folder`` or a
    half-written one is there: nothing is overwritten.
    """
    folder = Path(folder)
    require_absent(folder)
    fps = _frames_per_second(robot, stride) if fps is None else fps
    about = {"stride": stride, "notes": _json(notes or {})}
    partial = partial_of(folder)
    writer = _Writer(partial, robot, fps)
    shown = {"total": total, "console": Console(stderr=True), "disable": not progress, "transient": True}
    try:
        with quiet():
            for episode in track(ahead(episodes), "writing", **shown):
                writer.add(episode)
            writer.finish(about)
    except BaseException:  # Ctrl-C included: half a dataset is of no use to anyone
        writer.abandon()
        raise
    os.replace(partial, folder)
    return folder


class EpisodeStore(Sequence[Episode]):
    """The episodes of a dataset folder, read when asked for.

    robot, stride, chunk, notes: as it was written. fingerprint: changes with the content.
    infos, instructions, lengths: one per episode, known without reading it.
    Raises CheckpointError if the folder is absent, half-written or damaged.
    """

    def __init__(self, folder: str | Path):
        self.folder = Path(folder)
        about = _read_sidecar(self.folder)
        self.fingerprint: str = about["fingerprint"]
        self.robot = RobotSpec.model_validate(about["robot"])
        self.stride: int = about["stride"]
        self.chunk: int = about["chunk"]
        self.notes: dict[str, Any] = about["notes"]
        self.infos = tuple(EpisodeInfo(**entry["info"]) for entry in about["episodes"])
        self.instructions = tuple(entry["instruction"] for entry in about["episodes"])
        self.lengths = tuple(entry["rows"] for entry in about["episodes"])
        self._extras: dict[str, list[int]] = about["extras"]
        self._dataset, self._columns = _open(self.folder, len(self.lengths), sum(self.lengths))

    def __len__(self) -> int:
        return len(self.lengths)

    def __getitem__(self, index: int) -> Episode:  # type: ignore[override]
        return self.episode(index)

    def episode(self, index: int, cameras: Sequence[str] | None = None) -> Episode:
        """Episode ``index`` with the pictures of ``cameras`` (all by default; none costs no decoding)."""
        index = range(len(self))[operator.index(index)]
        names = [camera.name for camera in self.robot.cameras] if cameras is None else list(cameras)
        for name in names:
            self.robot.camera(name)
        where = self._dataset.meta.episodes[index]
        rows = slice(where["dataset_from_index"], where["dataset_to_index"])
        with ThreadPoolExecutor(max(1, len(names))) as pool:
            frames = list(pool.map(lambda name: self._decode(index, where, IMAGE + name), names))
        part = self._columns[rows]
        return Episode(
            self.instructions[index],
            dict(zip(names, frames, strict=True)),
            part["observation.state"],
            part["action_chunk"],
            part["action_chunk_valid"],
            self.infos[index],
            {name: part[PRIVILEGED + name].reshape(-1, *shape) for name, shape in self._extras.items()},
        )

    def _decode(self, index: int, where: Mapping[str, Any], key: str) -> NDArray[np.uint8]:
        from lerobot.datasets.video_utils import decode_video_frames

        start = where[f"videos/{key}/from_timestamp"]
        times = [start + row / self._dataset.fps for row in range(self.lengths[index])]
        path = self._dataset.root / self._dataset.meta.get_video_file_path(index, key)
        # PyAV brings its FFmpeg along; torchcodec needs one that is installed on the system.
        frames = decode_video_frames(path, times, 1e-4, backend="pyav", return_uint8=True)
        return np.ascontiguousarray(frames.permute(0, 2, 3, 1).numpy())


def read_dataset(folder: str | Path) -> Iterator[Episode]:
    """Iterate over the episodes of ``folder``. Raises CheckpointError as ``EpisodeStore`` does."""
    return iter(EpisodeStore(folder))


class _Writer:
    """LeRobot's writer, opened with the first episode, when widths and extras are known."""

    def __init__(self, folder: Path, robot: RobotSpec, fps: int):
        self._folder, self._robot, self._fps = folder, robot, fps
        self._lerobot: Any = None
        self._shapes: dict[str, tuple[int, ...]] = {}
        self._entries: list[dict[str, Any]] = []

    def add(self, episode: Episode) -> None:
        require_storable(episode, self._robot)
        shapes = {"action_chunk": episode.actions.shape[1:], **{n: v.shape[1:] for n, v in episode.extras.items()}}
        if self._lerobot is None:
            self._shapes = shapes
            features = _features(self._robot, episode)
            self._lerobot = open_writer(self._folder, self._fps, features, self._robot.name, VIDEO_FILE_MB)
        if shapes != self._shapes:
            raise InputError(f"episode {len(self._entries)}: shapes are {shapes}, those before it have {self._shapes}")
        columns = _columns(episode)
        for row in range(len(episode)):
            frame = {name: value[row] for name, value in columns.items()}
            self._lerobot.add_frame({**frame, "task": episode.instruction})
        self._lerobot.save_episode(parallel_encoding=False)
        entry = {"rows": len(episode), "instruction": episode.instruction, "info": asdict(episode.info)}
        self._entries.append(entry)

    def finish(self, about: Mapping[str, Any]) -> None:
        if self._lerobot is None:
            raise InputError("there are no episodes to write")
        self._lerobot.finalize()
        correct_statistics(self._folder)
        files = [path for path in sorted(self._folder.rglob("*")) if path.is_file()]
        chunk, *_ = self._shapes.pop("action_chunk")
        digest = hashlib.blake2b(digest_size=16)
        for path in files:
            digest.update(path.read_bytes())
        sidecar = {
            "version": VERSION,
            "fingerprint": digest.hexdigest(),
            "robot": self._robot.model_dump(mode="json"),
            "chunk": chunk,
            "extras": self._shapes,
            **about,
            "episodes": self._entries,
            "files": {str(path.relative_to(self._folder)): path.stat().st_size for path in files},
        }
        (self._folder / SIDECAR).write_text(json.dumps(sidecar) + "\n")

    def abandon(self) -> None:
        try:
            if self._lerobot is not None:
                self._lerobot.finalize()  # else its destructor would write once more, after the folder is gone
        finally:
            shutil.rmtree(self._folder, ignore_errors=True)


def _features(robot: RobotSpec, episode: Episode) -> dict[str, dict[str, Any]]:
    def names(fields) -> list[str]:
        return [f.name if f.width == 1 else f"{f.name}.{i}" for f in fields for i in range(f.width)]

    features: dict[str, dict[str, Any]] = {}
    for camera in robot.cameras:
        shape = (camera.height, camera.width, 3)
        features[IMAGE + camera.name] = {"dtype": "video", "shape": shape, "names": ["height", "width", "channels"]}
    known = {"observation.state": names(robot.state), "action": names(robot.action)}
    for name, value in _columns(episode).items():
        if not name.startswith(IMAGE):
            features[name] = {"dtype": value.dtype.name, "shape": value.shape[1:], "names": known.get(name)}
    return features


def _columns(episode: Episode) -> dict[str, NDArray]:
    """Column name to values, one row per decision moment. LeRobot has no scalars: (N,) goes as (N, 1)."""
    images = {IMAGE + name: frames for name, frames in episode.images.items()}
    extras = {PRIVILEGED + name: v if v.ndim > 1 else v[:, None] for name, v in episode.extras.items()}
    return {
        **images,
        "observation.state": episode.state,
        "action": episode.actions[:, 0],
        "action_chunk": episode.actions,
        "action_chunk_valid": episode.valid,
        **extras,
    }


def _open(folder: Path, episodes: int, rows: int) -> tuple[Any, Any]:
    from lerobot.datasets.lerobot_dataset import LeRobotDataset

    with quiet():
        dataset = LeRobotDataset(REPOSITORY, root=folder)
    if (dataset.meta.total_episodes, dataset.meta.total_frames) != (episodes, rows):
        raise CheckpointError(
            f"{folder} holds {dataset.meta.total_episodes} episodes with {dataset.meta.total_frames} rows, but its "
            f"{SIDECAR} lists {episodes} with {rows}; it was changed after it was written"
        )
    return dataset, dataset.hf_dataset.with_format("numpy")


def _read_sidecar(folder: Path) -> dict[str, Any]:
    path = folder / SIDECAR
    if not folder.is_dir() and partial_of(folder).is_dir():
        raise CheckpointError(f"{folder} was never finished; {remedy(folder)}")
    if not path.is_file():
        raise CheckpointError(f"no {SIDECAR} in {folder}: it is not a dataset written by cosmos-robot, or half of one")
    try:
        about = json.loads(path.read_text())
    except json.JSONDecodeError as error:
        raise CheckpointError(f"{path} is not readable: {error}") from error
    if about.get("version") != VERSION:
        raise CheckpointError(f"{path}: got version {about.get('version')!r}, expected {VERSION}")
    for name, size in about["files"].items():
        file = folder / name
        found = file.stat().st_size if file.is_file() else None
        if found != size:
            state = "missing" if found is None else f"{found} bytes long instead of {size}"
            raise CheckpointError(f"{file} is {state}; the dataset is incomplete, copy or write it again")
    return about


def _frames_per_second(robot: RobotSpec, stride: int) -> int:
    rate = robot.rate_hz / stride
    if stride < 1 or rate != int(rate):
        raise InputError(
            f"stride {stride} at {robot.rate_hz:g} Hz gives {rate:g} rows per second; LeRobot needs a whole number"
        )
    return int(rate)


def _json(notes: Mapping[str, Any]) -> dict[str, Any]:
    try:
        return json.loads(json.dumps(dict(notes)))
    except TypeError as error:
        raise InputError(f"notes: {error}; they are kept as JSON") from error
