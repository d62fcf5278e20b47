"""HDF5 episodes as ``Recordings``: LIBERO, robomimic, Cosmos Policy (demonstrations and rollouts) and ALOHA.

Four layouts, told apart by what a file holds (cosmos-policy: libero_dataset.py, robocasa_dataset.py, aloha_dataset.py):

- demonstrations: ``data/demo_N`` with ``actions``, ``obs/<camera>_rgb`` (raw, or ``_jpeg``), ``robot_states`` or
  ``obs/robot0_*``; the rate stands in the attribute ``env_args`` of ``data``.
- rollouts: one episode per file, ``actions``, ``proprio``, ``<camera>_images`` or ``<camera>_images_jpeg``.
- ALOHA: one episode per file, ``action``, ``observations/qpos``, ``observations/images/<camera>`` or
  ``observations/video_paths/<camera>`` naming MP4 files beside it, or ``<camera>_images_jpeg`` at the top.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import h5py
import numpy as np
from numpy.typing import NDArray

from cosmos_robot.data.evidence import listed
from cosmos_robot.data.findings import Finding
from cosmos_robot.data.lerobot import CLOCK_WORDS, decode_image
from cosmos_robot.data.recordings import Recording, Recordings
from cosmos_robot.data.videos import frame_times, read_frames
from cosmos_robot.errors import CheckpointError, InputError

POSE_STATE = (
    "gripper.0",
    "gripper.1",
    "eef_position.x",
    "eef_position.y",
    "eef_position.z",
    *(f"eef_quat.{a}" for a in "xyzw"),
)
OSC_ACTION = ("position.x", "position.y", "position.z", "rotation.x", "rotation.y", "rotation.z", "gripper")
ARM = (*(f"joint.{i}" for i in range(6)), "gripper")
ALOHA_NAMES = tuple(f"{side}_{name}" for side in ("left", "right") for name in ARM)
ROBOMIMIC_STATE = ("obs/robot0_gripper_qpos", "obs/robot0_eef_pos", "obs/robot0_eef_quat")
_PICTURE = re.compile(r"(.+?)_(?:rgb|image|images)(_jpeg)?$")
_LIBERO_FILE = re.compile(r"^(?:[A-Z0-9_]*SCENE\d+_)?(.+?)_demo$")


@dataclass(frozen=True)
class Layout:
    """One HDF5 layout. state: the datasets tried in turn; each entry may be several that are joined."""

    name: str
    action: str
    state: tuple[tuple[str, ...], ...]


LAYOUTS = {
    "demos": Layout(
        "HDF5 demonstrations (LIBERO, robomimic, Cosmos Policy)", "actions", (("robot_states",), ROBOMIMIC_STATE)
    ),
    "rollouts": Layout("Cosmos Policy rollouts (HDF5)", "actions", (("proprio",),)),
    "aloha": Layout("ALOHA episodes (HDF5)", "action", (("observations/qpos",),)),
}


@dataclass(frozen=True)
class Source:
    """One episode: a file and the group it lies in ("/" where it is the whole file)."""

    file: Path
    group: str
    rows: int
    where: str


class Hdf5Recordings(Recordings):
    """HDF5 files of one layout. state, action: datasets inside an episode to read instead of the usual ones.

    Raises CheckpointError if a file is damaged, of no known layout, or of another layout than the rest. With ``strict``
    off, damaged files are left out and told by ``inspect``, as long as one is whole.
    """

    def __init__(
        self,
        path: Path,
        files: Sequence[Path],
        state: str | None = None,
        action: str | None = None,
        strict: bool = True,
    ):
        self.path = path
        self.kind, self._sources, self._damaged = _scan(path, files, action, strict)
        self._layout = LAYOUTS[self.kind]
        self.layout = self._layout.name
        self._action = action or self._layout.action
        self.lengths = tuple(source.rows for source in self._sources)
        first = next((s for s in self._sources if s.rows), self._sources[0])
        with _opened(first) as group:
            self._state = (state,) if state else self._usual_state(group, first)
            self._pictures = dict(_cameras(group))
            self.fps = _rate(group)
            self.robot = str(_env_args(group).get("env_name", ""))
            self.state_names, self.action_names = self._all_names(group)
        self.cameras = tuple(self._pictures)

    def recording(self, index: int) -> Recording:
        source = self._sources[index]
        with _opened(source) as group:
            clocks = {n: np.asarray(d, float) for n, d in group.items() if _is_clock(n, d)}
            return Recording(
                where=source.where,
                instruction=_instruction(group, source.file),
                state=np.concatenate([_matrix(group, name, source) for name in self._state], axis=1),
                actions=_matrix(group, self._action, source),
                times=clocks.pop("timestamp", None),
                success=_success(group),
                clocks=clocks,
            )

    def pictures(self, index: int, camera: str, rows: Sequence[int] | None = None) -> NDArray[np.uint8]:
        source = self._sources[index]
        name = self._pictures[self.require_camera(camera)]
        rows = range(source.rows) if rows is None else rows
        if len(rows) and not 0 <= min(rows) <= max(rows) < source.rows:
            raise InputError(f"pictures: got rows {list(rows)}, {source.where} has {source.rows}")
        with _opened(source) as group:
            if name not in group:
                raise CheckpointError(f"{source.where}: no pictures {name!r}; there are {sorted(group)}")
            if "video_paths" in name:
                path = _video_path(group, name, source)
                return read_frames(path, list(rows), _video_rate(path))
            stored = group[name]
            if len(rows) and max(rows) >= len(stored):
                raise CheckpointError(f"{source.where}: {len(stored)} pictures in {name!r} for {source.rows} rows")
            return _frames(stored, rows, f"{source.where} {camera}")

    def picture_count(self, index: int, camera: str) -> int:
        source, name = self._sources[index], self._pictures[self.require_camera(camera)]
        with _opened(source) as group:
            if name not in group:
                return 0
            return len(frame_times(_video_path(group, name, source))) if "video_paths" in name else len(group[name])

    def inspect(self, places: Sequence[int] | None = None) -> list[Finding]:
        return list(self._damaged)

    def _usual_state(self, group: h5py.Group, source: Source) -> tuple[str, ...]:
        for names in self._layout.state:
            if all(name in group for name in names):
                return names
        raise CheckpointError(
            f"{source.where}: no state in {' or '.join('+'.join(n) for n in self._layout.state)}; there are "
            f"{_datasets(group)}; name the right one with --state"
        )

    def _all_names(self, group: h5py.Group) -> tuple[tuple[str, ...], tuple[str, ...]]:
        widths = sum(_width(group[name]) for name in self._state), _width(group[self._action])
        if self.kind == "aloha":
            return tuple(ALOHA_NAMES if width == len(ALOHA_NAMES) else () for width in widths)
        posed = self._state in (("robot_states",), ("proprio",), ROBOMIMIC_STATE) and widths[0] == len(POSE_STATE)
        base = tuple(f"base.{i}" for i in range(widths[1] - len(OSC_ACTION)))
        return POSE_STATE if posed else (), OSC_ACTION + base if widths[1] in (7, 12) else ()


def _scan(
    path: Path, files: Sequence[Path], action: str | None, strict: bool
) -> tuple[str, list[Source], list[Finding]]:
    """The one layout of ``files``, their episodes, and what is wrong with those left out."""
    found: dict[str, list[Source]] = {}
    damaged = []
    for file in files:
        try:
            kind = _kind(file)
            found.setdefault(kind, []).extend(_sources(file, path, kind, action or LAYOUTS[kind].action))
        except CheckpointError as error:
            if strict or len(files) == 1:
                raise
            damaged.append(
                Finding("unreadable", "error", _relative(file, path), str(error), "copy it again or delete it")
            )
    if len(found) > 1:
        counted = ", ".join(f"{len(sources)} of {LAYOUTS[kind].name}" for kind, sources in found.items())
        raise CheckpointError(f"{path} mixes layouts: {counted}; give the folder of one of them")
    kind, sources = next(iter(found.items()), ("demos", []))
    if not sources:
        reasons = f": {damaged[0].what}" if damaged else ""
        raise CheckpointError(f"{path}: {len(files)} HDF5 files but no episode in them{reasons}; the dataset is empty")
    return kind, sources, damaged


def _relative(file: Path, path: Path) -> str:
    return file.name if file == path else str(file.relative_to(path))


def _kind(path: Path) -> str:
    with open_hdf5(path) as file:
        if isinstance(file.get("data"), h5py.Group):
            return "demos"
        if "action" in file and "observations" in file:
            return "aloha"
        if "actions" in file and "proprio" in file:
            return "rollouts"
        raise CheckpointError(
            f"{path} is of no known HDF5 layout: it holds {sorted(file)}; expected data/demo_N, or actions and "
            "proprio, or action and observations"
        )


@contextmanager
def open_hdf5(path: Path) -> Iterator[h5py.File]:
    """An HDF5 file for reading. Raises CheckpointError if it is damaged or cut short."""
    try:
        file = h5py.File(path, "r")
    except OSError as error:
        raise CheckpointError(f"{path} is no readable HDF5 file ({error}); copy it again or delete it") from error
    with file:
        try:
            yield file
        except OSError as error:  # a chunk that is cut off or whose checksum fails
            raise CheckpointError(f"{path} is damaged inside ({error}); copy it again or delete it") from error


@contextmanager
def _opened(source: Source) -> Iterator[h5py.Group]:
    with open_hdf5(source.file) as file:
        yield file[source.group]


def _sources(file: Path, path: Path, kind: str, action: str) -> Iterator[Source]:
    name = _relative(file, path)
    with open_hdf5(file) as opened:
        groups = sorted(opened["data"], key=_number) if kind == "demos" else ["/"]
        for group in groups:
            full = f"data/{group}" if kind == "demos" else "/"
            where = f"{name} {group}" if kind == "demos" else name
            stored = opened[full].get(action)
            if not isinstance(stored, h5py.Dataset) or not stored.shape:
                raise CheckpointError(f"{where}: no dataset {action!r}; there are {_datasets(opened[full])}")
            yield Source(file, full, len(stored), where)


def _number(name: str) -> tuple[str, int]:
    """demo_2 comes before demo_10."""
    word, _, number = name.rpartition("_")
    return (word, int(number)) if number.isdigit() else (name, -1)


def _cameras(group: h5py.Group) -> Iterator[tuple[str, str]]:
    """Camera name and the dataset of its pictures."""
    for folder in ("obs", "", "observations/images", "observations/video_paths"):
        inside = group.get(folder) if folder else group
        for name in sorted(inside) if isinstance(inside, h5py.Group) else ():
            named = _PICTURE.match(name)
            if folder.startswith("observations/"):
                yield name, f"{folder}/{name}"
            elif named and isinstance(inside[name], h5py.Dataset):
                yield named[1], f"{folder}/{name}" if folder else name


def _frames(stored: h5py.Dataset, rows: Sequence[int], where: str) -> NDArray[np.uint8]:
    if stored.ndim == 4:
        unique, back = np.unique(np.asarray(rows, dtype=np.int64), return_inverse=True)
        frames = stored[unique.tolist()][back] if len(unique) else stored[:0]
        if frames.dtype != np.uint8 or frames.shape[3] != 3:
            raise CheckpointError(f"{where}: pictures are {frames.shape[1:]} {frames.dtype}, expected (H, W, 3) uint8")
        return frames
    return np.stack([decode_image(np.asarray(stored[row]).tobytes(), f"{where} row {row}") for row in rows])


def _matrix(group: h5py.Group, name: str, source: Source) -> NDArray:
    if name not in group:
        raise CheckpointError(f"{source.where}: no dataset {name!r}; there are {_datasets(group)}")
    value = np.asarray(group[name])
    if value.dtype.kind not in "fiub":
        raise CheckpointError(f"{source.where}: {name!r} holds {value.dtype}, expected numbers")
    return value.reshape(len(value), int(np.prod(value.shape[1:]))).astype(np.float32)


def _instruction(group: h5py.Group, file: Path) -> str:
    """The task in words, from the attributes; last from a LIBERO file name, as Cosmos Policy does."""
    own, parent = group.attrs, group.parent.attrs
    for attributes, key, inner in (
        (own, "task_description", None),
        (own, "ep_meta", "lang"),
        (parent, "problem_info", "language_instruction"),
    ):
        if key in attributes:
            text = _text(attributes[key])
            text = _json(text).get(inner, "") if inner else text
            if text:
                return str(text).strip().strip('"')
    named = _LIBERO_FILE.match(file.stem)
    return named[1].replace("_", " ") if named else ""


def _success(group: h5py.Group) -> bool | None:
    return bool(group.attrs["success"]) if "success" in group.attrs else None


def _rate(group: h5py.Group) -> float | None:
    """Rows per second: attribute ``fps`` or ``control_freq``, of the episode or within the simulator's settings."""
    settings = _env_args(group).get("env_kwargs", {})
    for found in (group.attrs.get("fps"), group.attrs.get("control_freq"), settings.get("control_freq")):
        if found:
            return float(found)
    return None


def _env_args(group: h5py.Group) -> Mapping[str, Any]:
    return _json(_text(group.parent.attrs.get("env_args", "{}")))


def _json(text: str) -> Mapping[str, Any]:
    try:
        value = json.loads(text)
    except json.JSONDecodeError:
        return {}
    return value if isinstance(value, Mapping) else {}


def _text(value: Any) -> str:
    return value.decode() if isinstance(value, bytes) else str(value)


def _is_clock(name: str, stored: Any) -> bool:
    named = any(word in name.lower() for word in CLOCK_WORDS)
    return named and isinstance(stored, h5py.Dataset) and stored.ndim == 1 and stored.dtype.kind == "f"


def _video_path(group: h5py.Group, name: str, source: Source) -> Path:
    return source.file.parent / _text(group[name][()])


def _video_rate(path: Path) -> float:
    times = frame_times(path)
    return float((len(times) - 1) / (times[-1] - times[0])) if len(times) > 1 else 1.0


def _width(stored: h5py.Dataset) -> int:
    return int(np.prod(stored.shape[1:]))


def _datasets(group: h5py.Group) -> str:
    found: list[str] = []
    group.visititems(lambda name, value: found.append(name) if isinstance(value, h5py.Dataset) else None)
    return listed(found, 12) or "nothing"
